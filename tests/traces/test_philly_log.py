"""Philly's own JSON: what a job with attempts becomes; the example is that of the trace's documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logs import assert_fault, only, seconds, write

from themis.errors import InputError
from themis.traces.formats import load_workload, recognise

EIGHT = {"ip": "m47", "gpus": [f"gpu{i}" for i in range(8)]}


def attempt(start: str | None, end: str | None, *machines: dict[str, Any]) -> dict[str, Any]:
    return {"start_time": start, "end_time": end, "detail": list(machines or (EIGHT,))}


def job(name: str, submitted: str, *attempts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    base = {"status": "Pass", "vc": "ee9e8c", "jobid": name, "attempts": list(attempts)}
    return {**base, "submitted_time": submitted, "user": "ce2f4c", **changes}


DOCUMENTED = job(
    "application_1506638472019_14199",
    "2017-10-07 01:11:39",
    attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23"),
    attempt("2017-10-07 01:13:30", "2017-10-09 06:53:12"),
)
HOUR = attempt("2017-10-07 02:00:00", "2017-10-07 03:00:00", {"ip": "m1", "gpus": ["gpu0", "gpu3"]})


def log(tmp_path: Path, *jobs: Any) -> str:
    return write(tmp_path, "cluster_job_log", json.dumps(list(jobs), indent=1))


def test_the_documented_job_takes_the_sum_of_its_attempts_on_eight_gpus(tmp_path: Path) -> None:
    workload = load_workload(log(tmp_path, DOCUMENTED))
    found = only(workload.apps)
    assert (found.gpus_min, found.gpus_max) == (8, 8)
    assert seconds(found) == pytest.approx(74 + 193_182)
    assert (workload.apps[0].user, workload.apps[0].arrival) == ("ee9e8c", 0.0)
    assert workload.apps[0].name == "application_1506638472019_14199"


def test_the_log_is_recognised_by_its_first_characters(tmp_path: Path) -> None:
    assert recognise(Path(log(tmp_path, DOCUMENTED))) == "philly_log"


def test_gpus_on_several_machines_add_up_and_the_last_attempt_that_names_any_counts(tmp_path: Path) -> None:
    two = attempt("2017-10-07 02:00:00", "2017-10-07 02:00:10", EIGHT, {"ip": "m2", "gpus": ["gpu1"]})
    empty = {**attempt("2017-10-07 02:00:10", "2017-10-07 02:00:15"), "detail": []}
    found = only(load_workload(log(tmp_path, job("a", "2017-10-07 01:00:00", two, empty))).apps)
    assert found.gpus_max == 9
    assert seconds(found) == pytest.approx(15)


def test_jobs_that_cannot_be_timed_are_left_out_and_counted(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        job("no-attempts", "2017-10-07 01:00:00"),
        job("running", "2017-10-07 01:00:00", HOUR, attempt("2017-10-07 05:00:00", None)),
        job("unlogged", "2017-10-07 01:00:00", attempt(None, "2017-10-07 05:00:00")),
        job("good", "2017-10-07 01:00:00", attempt(None, None), HOUR),
    )
    workload = load_workload(path)
    assert [a.name for a in workload.apps] == ["good"]
    for reason in ("without GPUs", "still running at the log's end", "without a timed attempt"):
        assert f"1 jobs left out: {reason}" in workload.source


def test_a_user_or_a_virtual_cluster_can_be_the_tenant_and_the_owner_of_groups(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        job("a", "2017-10-07 01:00:00", HOUR),
        job("b", "2017-10-07 01:00:20", HOUR, user="other"),
        job("c", "2017-10-07 01:00:25", HOUR),
    )
    assert [len(a.jobs) for a in load_workload(path, gap_s=30).apps] == [2, 1]
    assert [len(a.jobs) for a in load_workload(path, gap_s=30, group_by="vc").apps] == [3]
    assert [len(a.jobs) for a in load_workload(path, gap_s=30, single_jobs=True).apps] == [1, 1, 1]
    assert {a.user for a in load_workload(path, tenant="user").apps} == {"ce2f4c", "other"}
    assert [a.arrival for a in load_workload(path, start=10, limit=1).apps] == [10.0]


def test_a_status_can_be_asked_for(tmp_path: Path) -> None:
    path = log(tmp_path, job("a", "2017-10-07 01:00:00", HOUR, status="Killed"), job("b", "2017-10-07 01:00:00", HOUR))
    assert [a.name for a in load_workload(path, status="Killed|Failed").apps] == ["a"]


FAULTS = {
    "submitted_time": (job("a", "yesterday", HOUR), "yesterday"),
    "vc": (job("a", "2017-10-07 01:00:00", HOUR, vc=None), ""),
    "attempts[0].end_time": (
        job("a", "2017-10-07 01:00:00", attempt("2017-10-07 02:00:00", "2017-10-07 01:59:59")),
        "2017-10-07 01:59:59",
    ),
    "jobid": (job("application_1506638472019_14199", "2017-10-07 01:00:00", HOUR), "application_1506638472019_14199"),
}


@pytest.mark.parametrize("column", FAULTS)
def test_a_faulty_job_is_located_by_its_first_line(tmp_path: Path, column: str) -> None:
    faulty, value = FAULTS[column]
    path = log(tmp_path, DOCUMENTED, faulty)
    line = next(i for i, text in enumerate(Path(path).read_text().splitlines(), 1) if i > 2 and text == " {")
    assert_fault(path, line=line, column=column, value=value)


def test_what_is_no_job_and_what_is_no_json_are_refused(tmp_path: Path) -> None:
    assert_fault(log(tmp_path, DOCUMENTED, {"attempts": 3}), line=49, column="job", value="{'attempts': 3}")
    with pytest.raises(InputError, match="line 2: not valid JSON"):
        load_workload(write(tmp_path, "bad", '[{"attempts": []},\n {"attempts": ]'))
    with pytest.raises(InputError, match="beginning with"):
        load_workload(write(tmp_path, "worse", '{"attempts": []}'), format="philly_log")
