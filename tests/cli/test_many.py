"""Many runs at once: the same results as one after the other, and failures that stay alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from processes import PATIENCE_S
from themis.errors import NotSolved
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.api import ON_FREE_GPUS, Cadence, Granularity, Workbench
from themis.sim.many import Done, Progress, SimulationRun, run_many
from themis.sim.plan import Plan
from themis.sim.runner import Record

WORKLOAD = "demo:hours=1"


class Kinds:
    """Counts records by kind."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, time: Seconds, record: Record) -> None:
        kind = type(record).__name__
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def result(self) -> dict[str, int]:
        return self.counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A policy that goes wrong as told."""

    how: str = "raise"

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        if self.how == "die":
            os._exit(3)
        raise NotSolved("no answer within the gap.") if self.how == "raise" else ZeroDivisionError("oh")


def _with_wrong(*hows: str) -> list[SimulationRun]:
    good, *_ = Plan(workload=WORKLOAD, policies=("fifo",)).runs()
    wrong = [SimulationRun(simulation=replace(good.simulation, policy_name=how, policy=Wrong(how=how))) for how in hows]
    return [*wrong, good]


@pytest.mark.slow
def test_results_are_the_same_in_one_process_and_in_many() -> None:
    runs = Plan(workload=WORKLOAD, policies=("drf", "fifo", "round_robin"), seeds=(0, 1)).runs()
    alone, together = (run_many(runs, Kinds, processes=n) for n in (1, 3))
    assert [d.result for d in alone] == [d.result for d in together]
    assert all(d.failure is None for d in together)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_fails_is_one_sentence_and_the_others_finish(processes: int) -> None:
    mine, bug, good = run_many(_with_wrong("raise", "bug"), Kinds, processes=processes)
    assert mine.failure is not None
    assert mine.failure.message.startswith("no answer within the gap.")
    assert not mine.failure.bug
    assert bug.failure is not None
    assert bug.failure.message == "ZeroDivisionError: oh"
    assert bug.failure.bug
    assert good.result is not None


@pytest.mark.slow
def test_a_process_that_dies_takes_no_other_with_it() -> None:
    dead, good = run_many(_with_wrong("die"), Kinds, processes=2)
    assert dead.failure is not None
    assert "exit code 3" in dead.failure.message
    assert good.result is not None


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_progress_begins_grows_and_ends(processes: int) -> None:
    seen: list[Progress] = []
    runs = Plan(workload=WORKLOAD, policies=("drf", "fifo")).runs()
    run_many(runs, Kinds, processes=processes, watch=seen.append)
    for index, run in enumerate(runs):
        mine = [p for p in seen if p.index == index]
        assert (mine[0].finished, mine[-1].ended) == (0, True)
        assert [p.finished for p in mine[1:-1]] == list(range(1, len(run.simulation.workload.apps) + 1))
        assert [p.now for p in mine[:-1]] == sorted(p.now for p in mine[:-1])


@pytest.mark.slow
def test_an_interrupt_ends_all_processes() -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    runs = Plan(workload="demo", policies=("drf", "fifo")).runs()
    watch: Callable[[Progress], None] = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_many(runs, Kinds, processes=2, watch=watch)


def test_an_outcome_names_its_run() -> None:
    runs = _with_wrong()
    done: list[Done[dict[str, int]]] = run_many(runs, Kinds, processes=1)
    assert [d.run for d in done] == runs


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_runs_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from themis.cli import main; main()",
        "simulate",
        "-w",
        "themis1:apps=200",
        "-c",
        "testbed-64",
        "-p",
        "drf,fifo",
        "-q",
    ]
    parent = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], env={**os.environ, "THEMIS_MARK": str(tmp_path)}
    )
    marked = _marked(str(tmp_path))
    try:
        assert _until(lambda: len(list((tmp_path / "out").glob("**/*.gz"))) == 2 and len(marked()) >= 3)
    finally:
        parent.kill()
        parent.wait()
    assert _until(lambda: not marked())


def _marked(mark: str) -> Callable[[], list[int]]:
    """Living processes that inherited the mark."""

    def look() -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    return look


def _until(true: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.2)
    return False
