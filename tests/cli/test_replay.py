"""A log replays to the same commands and the same state, for every kind of answer; an edited one does not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from themis.model.events import Grant
from themis.model.units import Seconds
from themis.policies.api import policy_names
from themis.sim.plan import Plan
from themis.sim.replay import replay_records
from themis.sim.runner import Record

Log = list[tuple[Seconds, Record]]


def _log(policy: str) -> tuple[Log, object]:
    log: Log = []
    [run] = Plan(workload="demo:hours=2", policies=(policy,), mtbf=40_000.0, repair=900.0).runs()
    core = run.simulation.run(lambda time, record: log.append((time, record)))
    return log, core


@pytest.mark.slow
@pytest.mark.parametrize("policy", policy_names())
def test_a_log_replays_to_the_same_commands_and_state(policy: str) -> None:
    log, core = _log(policy)
    done = replay_records(log)
    assert done.difference is None
    assert done.records == len(log)
    live, again = core.state, done.core.state  # type: ignore[attr-defined]
    assert live.now == again.now
    for a, b in ((live.jobs.f, again.jobs.f), (live.jobs.i, again.jobs.i), (live.apps.f, again.apps.f)):
        np.testing.assert_array_equal(a, b)
    assert live.job_gpus == again.job_gpus


def test_a_changed_command_is_the_first_difference() -> None:
    log, _ = _log("fifo")
    at = next(i for i, (_, record) in enumerate(log) if isinstance(record, Grant))
    time, grant = log[at]
    log[at] = (time, replace(grant, until=1.0))  # type: ignore[arg-type, type-var]
    done = replay_records(log)
    assert done.difference is not None
    assert done.difference.record == at + 1
    assert done.difference.logged == log[at][1]


def test_a_missing_command_is_a_difference() -> None:
    log, _ = _log("fifo")
    at = next(i for i, (_, record) in enumerate(log) if isinstance(record, Grant))
    assert replay_records(log[:at] + log[at + 1 :]).difference is not None
    assert replay_records(log[:at]).difference is None or replay_records(log[:at]).difference.logged is None  # type: ignore[union-attr]


def test_records_are_json_for_whoever_reads_the_log() -> None:
    from themis.model.log import encode

    log, _ = _log("fifo")
    assert {json.loads(encode(time, record))["kind"] for time, record in log} >= {"Header", "Grant", "AppFinished"}
