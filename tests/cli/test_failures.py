"""What a person reads when a run fails, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from command import Command

from themis.errors import InvariantBroken
from themis.sim.many import Done, Failure, SimulationRun

CASES = {
    "the user's mistake": (Failure(message="the app is wrong.", input=True), 2),
    "an expected failure": (Failure(message="no answer within the gap."), 1),
    "our mistake": (Failure(message="ZeroDivisionError: oh", bug=True, story="Traceback: where it happened"), 70),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("debug", ["", "1"])
def test_a_failed_run_is_one_sentence_and_sets_the_exit_code(
    case: str, debug: str, themis: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure, code = CASES[case]

    def run_many(runs: Sequence[SimulationRun], *args: object, **options: object) -> list[Done[Any]]:
        return [Done(run=run, failure=failure) for run in runs]

    monkeypatch.setattr("themis.sim.many.run_many", run_many)
    monkeypatch.setenv("THEMIS_DEBUG", debug)
    ended = themis("simulate", "-p", "fifo")
    assert ended.code == code
    assert f"Error: fifo, seed 0: {failure.message}" in ended.err
    assert ("please report it" in ended.err) == failure.bug
    assert ("where it happened" in ended.err) == (failure.bug and bool(debug))


@pytest.mark.parametrize("error", [InvariantBroken("job 3 was lost."), ZeroDivisionError("oh")])
def test_our_own_mistake_asks_to_be_reported(
    error: Exception, themis: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("themis.sim.many.run_many", broken)
    ended = themis("simulate", "-p", "fifo")
    assert ended.code == 70
    assert "please report it" in ended.err
    assert str(error) in ended.err
    assert "Traceback" not in ended.err
