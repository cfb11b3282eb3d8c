"""Notifications reach a real receiver over HTTP; a receiver that never answers holds nothing up; an hour has its limit."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import PATIENCE_S, wait_until
from themis.client.client import Client, user_name
from themis.core.state import State
from themis.errors import InputError
from themis.model.cluster import Machine
from themis.model.events import AppFinished, GpusIntruded, Grant, MachineFailed, QuotaSet, Revoke
from themis.model.settings import Settings
from themis.service.engine.config import Config, Notify
from themis.service.operations.notify import ADMINS, HOUR, Mailbox, Notification, Watcher, sender
from themis.service.operations.up import running
from themis.testing.builders import app, job
from themis.traces.profiles.models import DEFAULT_BOOK

pytest.importorskip("apprise", reason="apprise is not installed")


@contextmanager
def receiver() -> Iterator[tuple[str, list[Any]]]:
    """An HTTP server on loopback: its address for apprise, and what it got."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"json://127.0.0.1:{server.server_address[1]}/hook", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
def test_a_user_is_notified_of_apps_that_ended_while_another_receiver_never_answers(tmp_path: Path) -> None:
    with receiver() as (url, got), socket.create_server(("127.0.0.1", 0)) as mute:
        silent = f"json://127.0.0.1:{mute.getsockname()[1]}/hook?cto=0.5&rto=0.5"
        notify = Notify(users={user_name(): (url,)}, admins=(silent,), disk_free=1 << 62)
        config = Config(
            gpus=1,
            port=0,
            gather_s=0.0,
            retries=0,
            policy="fifo",
            allow_root=True,
            single_trust=True,
            notify=notify,
        )
        with running(tmp_path, config) as service, Client(tmp_path) as client:
            client.wait(client.run(["true"], name="good").app, timeout_s=PATIENCE_S)
            client.wait(client.run(["sh", "-c", "exit 3"], name="bad").app, timeout_s=PATIENCE_S)
            wait_until(lambda: len(got) == 2, "both notifications")
            assert [row["title"] for row in got] == [
                "Themis: app 0, good, has completed",
                "Themis: app 1, bad, has failed",
            ]
            assert "its job failed once" in got[1]["message"]
            assert service.arbiter.broken is None
            last = service.arbiter.journal.last()[0]
        with running(tmp_path, config) as service, Client(tmp_path) as client:
            client.wait(client.run(["true"], name="later").app, timeout_s=PATIENCE_S)
            wait_until(lambda: len(got) == 3, "the third notification")
            assert got[2]["title"] == "Themis: app 2, later, has completed", "nothing is repeated after a restart"
            assert service.arbiter.journal.last()[0] > last


def watcher(**more: Any) -> Watcher:
    state = State(book=DEFAULT_BOOK, settings=Settings())
    state.add_machine(Machine(name="m0", gpus=2))
    state.app_specs += [app("one", [job(1.0)]), app("two", [job(1.0)])]
    return Watcher(Notify(**more), lambda: state, lambda number: f"because {number}")


def grant(app: int, job: int) -> Grant:
    return Grant(app=app, job=job, attempt=1, gpus=(0,), seat=0, until=9.0, locality=0, target=1.0, score=1.0)


def revoke(app: int, job: int, cause: str) -> Revoke:
    return Revoke(app=app, job=job, attempt=1, cause=cause)


def test_an_app_that_waits_for_long_after_it_lost_its_gpus_is_told_once() -> None:
    w = watcher(preempted_after_s=60.0)
    for now, record in (
        (0.0, grant(0, 0)),
        (0.0, grant(0, 1)),
        (0.0, grant(1, 2)),
        (10.0, revoke(0, 0, "expired")),
        (20.0, revoke(0, 1, "moved")),
        (20.0, revoke(1, 2, "held")),
    ):
        assert w.see(now, record) == []
    assert w.overdue(79.0) == []
    assert [m.title for m in w.overdue(81.0)] == ["app 0, one, is preempted"]
    assert w.overdue(200.0) == []
    w.see(200.0, grant(0, 0))
    w.see(210.0, revoke(0, 0, "expired"))
    w.see(220.0, grant(0, 0))
    assert w.overdue(900.0) == []


def test_a_gang_on_gpus_that_it_does_not_hold_is_reported_to_its_user_and_to_administrators() -> None:
    w, found = watcher(), GpusIntruded(job=0, attempt=1, machine=0, gpus=(1,), pids=(4711, 4712))
    w.state().jobs.app = np.zeros(1, dtype=np.int64)
    sent = w.see(0.0, found)
    assert [(m.user, m.title) for m in sent] == [
        ("u", "app 0, one, uses GPUs that it does not hold"),
        (ADMINS, "app 0, one, uses GPUs that it does not hold"),
    ]
    assert {m.text for m in sent} == {
        "GPU 1 of m0 is used by processes 4711, 4712 of app 0 (one), which does not hold it."
    }
    assert w.see(9.0, replace(found, gpus=(), pids=())) == watcher(events=("failed",)).see(0.0, found) == []


def test_what_concerns_no_user_goes_to_administrators_and_only_what_is_asked_for() -> None:
    lost, drained = MachineFailed(machine=0), MachineFailed(machine=0, drained=True)
    assert [(m.user, m.title) for m in watcher().see(0.0, lost)] == [(ADMINS, "machine m0 is lost")]
    assert watcher().see(0.0, drained) == watcher(events=("failed",)).see(0.0, lost) == []
    spent = QuotaSet(name="budget group g", users=("u", "v"), gpus=0)
    assert [m.user for m in watcher().see(0.0, spent)] == ["u", "v", ADMINS]
    assert watcher().see(0.0, QuotaSet(name="group g", users=("u",), gpus=0)) == []
    end = AppFinished(
        app=1,
        outcome="failed",
        jct=5.0,
        rho_paper=1.0,
        rho_exact=1.0,
        t_id_paper=1.0,
        t_id_exact=1.0,
        contention=1.0,
        capacity=1.0,
        gpu_seconds=3600.0,
    )
    (message,) = watcher().see(0.0, end)
    assert message.text == "After 5 s and 1.00 GPU hours. because 1"


def test_an_hour_has_a_limit_and_the_next_message_says_what_was_left_out() -> None:
    sent: list[tuple[str, str]] = []

    def send(title: str, text: str) -> bool:
        sent.append((title, text))
        return True

    box = Mailbox(send, per_hour=2)
    for n in range(5):
        box.put(Notification("u", f"t{n}", "text"), 10.0 * n)
    assert [title for title, _ in sent] == ["t0", "t1"]
    box.put(Notification("u", "t5", "text"), HOUR + 5.0)
    assert sent[-1] == ("t5", "text (3 messages left out in the last hour)")


def test_an_address_that_apprise_does_not_understand_is_an_error_without_its_password() -> None:
    with pytest.raises(InputError, match="an address of the kind 'nosuch' that apprise does not understand") as caught:
        sender(("nosuch://user:secret@host",))
    assert "secret" not in str(caught.value)
