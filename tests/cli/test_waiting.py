"""Messages to a user who waits for an app."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from themis.cli import waiting
from themis.cli.table_columns import clock, why_now
from themis.cli.waiting import EVERY_S, FIRST_S, Notifier, copy_logs, notified, state_of
from themis.client.client import Client
from themis.schema import messages as schema
from themis.schema.wire import changed


def row(state: str = "waiting", **more: Any) -> schema.App:
    return schema.App(id=3, name="a", state=state, **more)


class Service:
    """A client whose answers the test gives."""

    def __init__(self, shown: schema.ShowReply, logs: list[bytes]) -> None:
        self.shown, self.written = shown, logs

    def show(self, app: object) -> schema.ShowReply:
        return self.shown

    def logs(self, app: object, **which: object) -> Iterator[bytes]:
        yield from self.written


def test_the_state_of_an_app_is_one_sentence() -> None:
    assert state_of(row("running", gpus=1, progress=0.25)) == "App 3, a, runs on 1 GPU, 25% done."
    assert (
        state_of(row(reason="alice holds 2 of at most 2 GPUs")) == "App 3, a, waits: alice holds 2 of at most 2 GPUs."
    )
    assert state_of(row()) == "App 3, a, waits for GPUs; see `themis why 3`."
    assert "waits for more GPUs" in state_of(row(gpu_hours=0.1))


def test_messages_come_after_a_moment_then_on_changes_and_every_minute() -> None:
    now, said = [0.0], list[str]()
    notifier = Notifier(said.append, lambda: now[0])

    def look(at: float, app: schema.App) -> int:
        now[0] = at
        notifier.update(app)
        return len(said)

    assert look(FIRST_S - 0.1, row()) == 0, "a short wait is not reported"
    assert look(FIRST_S, row()) == 1
    assert look(FIRST_S + 1, row()) == 1
    assert look(FIRST_S + 2, row("running", gpus=2)) == 2
    assert look(FIRST_S + 3, row("running", gpus=2, progress=0.5)) == 2, "progress alone is not reported"
    assert look(FIRST_S + 2 + EVERY_S, row("running", gpus=2, progress=0.5)) == 3
    notifier.output_arrived()
    assert look(now[0] + EVERY_S - 1, row("running", gpus=2)) == 3, "its output shows that it runs"


@pytest.mark.parametrize(
    ("state", "job", "expected"),
    [
        (
            "waiting",
            schema.JobInfo(state="waiting"),
            "Job 0 has not started. App 3, a, waits for GPUs; see `themis why 3`.",
        ),
        ("cancelled", schema.JobInfo(state="ended"), "Job 0 of app 3, a, ended before it started."),
        ("running", schema.JobInfo(state="running", attempt=1), ""),
    ],
)
def test_logs_of_a_job_that_has_not_started_say_so_on_stderr(
    capfd: pytest.CaptureFixture[str], state: str, job: schema.JobInfo, expected: str
) -> None:
    service = cast(Client, Service(schema.ShowReply(app=row(state), jobs=[job]), [b"from the job\n"]))
    copy_logs(service, 3)
    said = capfd.readouterr()
    assert (said.out, said.err.replace("\n", "")) == ("from the job\n", expected)
    copy_logs(service, 3, submitted=True)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_gets_messages(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    from threading import Event

    said, spoken = list[str](), Event()
    monkeypatch.setattr(waiting, "LOOK_S", 0.01)
    monkeypatch.setattr(waiting, "FIRST_S", 0.0)
    monkeypatch.setattr(waiting, "_on_terminal", lambda: terminal)
    monkeypatch.setattr(Notifier.__init__, "__defaults__", (lambda s: (said.append(s), spoken.set()), lambda: 0.0))
    with notified(cast(Client, Service(schema.ShowReply(app=row()), [])), 3):
        spoken.wait(5.0 if terminal else 0.1)
    assert said == ["App 3, a, waits for GPUs; see `themis why 3`."] * terminal


@pytest.mark.parametrize(
    ("latest", "between"), [(1000.4, ""), (1002.0, f", between {clock(1000.0)[11:]} and {clock(1002.0)[11:]}")]
)
def test_why_tells_a_range_only_where_there_is_one(latest: float, between: str) -> None:
    found = schema.WhyReply(
        code="all_leased", sentence="", simulations=9, start_earliest=1000.0, start_median=1000.2, start_latest=latest
    )
    endless = changed(found, start_median=9e11)
    assert why_now(endless)[1] == "Next GPUs expected in more than a year: what runs now has no end in sight."
    assert why_now(found)[1] == f"Next GPUs expected at {clock(1000.0)}{between} (9 simulations without new arrivals)."
