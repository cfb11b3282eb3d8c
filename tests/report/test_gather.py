"""Logs are compared only when they are alike in all but policy and seed, and what differs is said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_cases import HEADER, MINI, Log, app, write

from themis.errors import InputError
from themis.model import events as e
from themis.model.cluster import Machine
from themis.report.compare import compare
from themis.report.export import to_json
from themis.report.gather import find_logs, gather


def log(path: Path, policy: str = "themis", *, records: Log = MINI, **header: object) -> Path:
    """The mini log with another header."""
    return write(path, [(0.0, replace(HEADER, policy=policy, **header)), *records[1:]])  # type: ignore[arg-type]


def test_a_folder_is_all_its_logs_and_each_log_counts_once(tmp_path: Path) -> None:
    log(tmp_path / "b.jsonl.gz", "drf")
    log(tmp_path / "a.jsonl")
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")
    assert [p.name for p in find_logs([tmp_path, tmp_path / "a.jsonl"])] == ["a.jsonl", "b.jsonl.gz"]
    found = gather([tmp_path])
    assert ([run.policy for run in found.runs], found.doubts) == (["themis", "drf"], ())


@pytest.mark.slow
def test_logs_read_by_several_processes_come_in_order_and_their_faults_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("themis.report.gather.SMALL", 0)
    for policy in "abc":
        log(tmp_path / f"{policy}.jsonl", policy)
    heard: list[tuple[str, int, int]] = []
    found = gather([tmp_path], processes=2, watch=lambda path, i, n: heard.append((path.name, i, n)))
    assert [run.policy for run in found.runs] == ["a", "b", "c"]
    assert heard == [("a.jsonl", 1, 3), ("b.jsonl", 2, 3), ("c.jsonl", 3, 3)]
    assert to_json(found.runs) == to_json(gather([tmp_path]).runs)
    (tmp_path / "b.jsonl").write_text("notes", encoding="utf-8")
    with pytest.raises(InputError, match=r"b\.jsonl, line 1: this is no event log"):
        gather([tmp_path], processes=2)


SETTINGS = dict(HEADER.settings)
DIFFERENCES = {
    "a setting": ({"settings": {**SETTINGS, "lease_s": 300.0}}, "differ in setting lease_s: 600 and 300"),
    "a new setting": ({"settings": {**SETTINGS, "mode": 1.0}}, "differ in setting mode: unset and 1"),
    "the workload": ({"workload": "maxi"}, "differ in workload: mini and maxi"),
    "the cluster": ({"cluster": "8x8"}, "differ in cluster: 4+2 and 8x8"),
    "the model profiles": ({"profiles": "abc"}, "differ in model profiles: none and abc"),
    "its kind": ({"simulated": False}, "differ in kind: simulated and measured"),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_unlike_runs_are_refused_and_the_difference_is_named(case: str, tmp_path: Path) -> None:
    header, said = DIFFERENCES[case]
    log(tmp_path / "a.jsonl")
    log(tmp_path / "b.jsonl", "drf", **header)
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        gather([tmp_path])
    assert "a.jsonl" in str(refused.value)
    assert "--anyway" in str(refused.value)
    found = gather([tmp_path], anyway=True)
    assert len(found.doubts) == 1
    assert len(compare(found.runs)) == 2


def test_generators_with_other_options_are_other_workloads(tmp_path: Path) -> None:
    log(tmp_path / "a.jsonl", source="generated: demo(hours=1), seed 0", seed=0)
    log(tmp_path / "b.jsonl", source="generated: demo(hours=1), seed 1", seed=1)
    assert gather([tmp_path]).doubts == ()
    log(tmp_path / "b.jsonl", source="generated: demo(hours=2), seed 1", seed=1)
    with pytest.raises(InputError, match=r"differ in workload: demo\(hours=1\) and demo\(hours=2\)"):
        gather([tmp_path])


def test_apps_machines_and_failures_count_whatever_they_are_called(tmp_path: Path) -> None:
    log(tmp_path / "a.jsonl")
    other = [(t, app("B", t, 2, "eve") if isinstance(r, e.AppSubmitted) and t > 50 else r) for t, r in MINI]
    log(tmp_path / "b.jsonl", "drf", records=other)
    with pytest.raises(InputError, match="differ in their apps"):
        gather([tmp_path])
    log(tmp_path / "b.jsonl", "drf", seed=1, records=other)  # another seed draws other apps
    assert gather([tmp_path]).doubts == ()
    larger = [(t, replace(r, machine=Machine(name="m1", gpus=3)) if r == MINI[2][1] else r) for t, r in MINI]  # type: ignore[type-var]
    log(tmp_path / "b.jsonl", "drf", records=larger)
    with pytest.raises(InputError, match="differ in machines: 6 GPUs on 2 and 7 GPUs on 2"):
        gather([tmp_path])
    whole = [(t, r) for t, r in MINI if not isinstance(r, e.MachineFailed | e.MachineReturned)]
    log(tmp_path / "b.jsonl", "drf", records=whole)
    with pytest.raises(InputError, match="differ in machine failures: 1 failures and 0 failures"):
        gather([tmp_path])


def test_a_run_counts_once_and_anyway_gets_its_folder_as_a_label(tmp_path: Path) -> None:
    log(tmp_path / "old" / "a.jsonl")
    log(tmp_path / "new" / "a.jsonl", version="2.0")
    with pytest.raises(InputError, match="are both themis, seed 0; a run counts once"):
        gather([tmp_path / "old", tmp_path / "new"])
    found = gather([tmp_path / "old", tmp_path / "new"], anyway=True)
    assert [row.label for row in compare(found.runs)] == ["themis (old)", "themis (new)"]


def test_a_run_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    log(tmp_path / "a.jsonl", records=MINI[:-4])
    with pytest.raises(
        InputError, match="ends while 1 of its 2 apps are still active; the run was cut off, so run it again"
    ):
        gather([tmp_path])
    log(tmp_path / "a.jsonl", records=MINI[:3])
    with pytest.raises(InputError, match="ends before its first app arrives"):
        gather([tmp_path])
    assert len(gather([tmp_path], anyway=True).runs) == 1


def test_paths_that_lead_nowhere_are_refused_with_a_hint(tmp_path: Path) -> None:
    log(tmp_path / "runs" / "deep" / "a.jsonl")
    with pytest.raises(InputError, match=r"runz is not there \(did you mean .*runs\?\)"):
        gather([tmp_path / "runz"])
    with pytest.raises(
        InputError, match=r"holds no logs, expected files that end in .jsonl or .jsonl.gz; there are some"
    ):
        gather([tmp_path / "runs"])
    with pytest.raises(InputError, match="nothing to compare"):
        gather([])
