"""`themis why` where machines are drained: a drain is no failure, and a rho that is none is not printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake import World, request, world

from themis.cli.table_columns import STEPS, why_now
from themis.model import log
from themis.model.events import MachineFailed, MachineReturned
from themis.report.explain import explain
from themis.service.api import views
from themis.service.api.submission import submit
from themis.service.engine.journal import export


def enter(w: World, name: str, **more: object) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def causes(w: World, tmp_path: Path, name: str) -> list[str]:
    """What the story's table says of revocations."""
    export(w.arbiter.journal.path, tmp_path / "log.jsonl")
    story = json.loads(explain(tmp_path / "log.jsonl", name).to_json())
    rows = [{column: str(cell(step)) for column, cell in STEPS.items()} for step in story["steps"]]
    assert not any("nan" in cell for row in rows for cell in row.values())
    return [row["revoked"] for row in rows if row["revoked"]]


def test_a_drain_and_a_lost_machine_are_told_from_a_job_that_failed(tmp_path: Path) -> None:
    with world(tmp_path, 2, 2) as w:
        enter(w, "a", gpus=(2, 2), steps=1e5)
        (gpus,) = w.held().values()
        machine = gpus[0] // 2
        w.ask(lambda a: a.drain(machine, True))
        w.turn(0.5)
        assert causes(w, tmp_path, "a")[-1] == "2 drained"
        w.ask(lambda a: a.drain(machine, False))
        w.turn(0.5)
        (gpus,) = w.held().values()
        w.say(MachineFailed(machine=gpus[0] // 2))
        assert causes(w, tmp_path, "a")[-1] == "2 machine lost"


def test_where_no_machine_is_in_service_no_rho_is_printed(tmp_path: Path) -> None:
    with world(tmp_path, 2) as w:
        apps = [enter(w, name, gpus=(2, 2), steps=1e5) for name in ("a", "b", "c")]
        w.turn(1.1)
        w.ask(lambda a: a.drain(0, True))
        w.turn(1.1)
        for app in apps:
            _, _, reply, _ = w.ask(lambda a, app=app: views.why(a, str(app)))
            lines = why_now(reply)
            assert reply.code == "machines_away"
            assert lines
            assert not any("nan" in line for line in lines), lines
        assert any(line.startswith("  ahead: app") for line in lines)


@pytest.mark.parametrize(
    "event", [MachineFailed(machine=1), MachineFailed(machine=1, drained=True), MachineReturned(machine=1)]
)
def test_a_log_holds_drains_and_reads_records_of_before(event: MachineFailed | MachineReturned) -> None:
    assert log.decode(log.encode(2.0, event)) == (2.0, event)
    assert log.encode(0.0, MachineFailed(machine=1)) == b'{"t":0.0,"kind":"MachineFailed","machine":1}'
