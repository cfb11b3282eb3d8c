"""Messages to a user who waits for an app: on stderr, so that stdout carries the job's output alone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from themis.cli.output import say
from themis.errors import ThemisError

if TYPE_CHECKING:
    from themis.client.client import Client
    from themis.client.light import Service
    from themis.schema import messages as schema

FIRST_S = 3.0
"""Seconds before the first message."""
EVERY_S = 60.0
"""Seconds between two equal messages."""
LOOK_S = 5.0
"""Seconds between two looks at the app."""


def state_of(app: schema.App) -> str:
    """The state of an active app, as one sentence."""
    who = f"App {app.id}, {app.name},"
    if app.state == "running":
        return f"{who} runs on {app.gpus} GPU{'s' * (app.gpus != 1)}, {app.progress:.0%} done."
    if app.reason:
        return f"{who} waits: {app.reason}."
    again = "more " if app.gpu_hours else ""
    return f"{who} waits for {again}GPUs; see `themis why {app.id}`."


def unstarted(client: Client, app: int | str, job: int = 0) -> str:
    """Why a job has no output yet; empty if it was started, or if there is no such job."""
    return why_empty(client.show(app), job)


def why_empty(found: Any, job: int) -> str:
    """``unstarted`` of the answer of ``Show``."""
    if job >= len(found.jobs) or found.jobs[job].attempt:
        return ""
    row = found.app
    if found.jobs[job].state == "ended":
        return f"Job {job} of app {row.id}, {row.name}, ended before it started."
    return f"Job {job} has not started. {state_of(row)}"


class Notifier:
    """Prints what an app waits for: when that changes, and every minute."""

    def __init__(self, write: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic) -> None:
        self.write, self.clock = write, clock
        self.reported = ""
        self.next_s = clock() + FIRST_S

    def output_arrived(self) -> None:
        """The job wrote something, which shows that it runs."""
        self.next_s = self.clock() + EVERY_S

    def update(self, app: schema.App) -> None:
        """Print the app's state if it changed, or if the last message was a minute ago."""
        now = self.clock()
        kind = app.state + app.reason  # without the progress, which always changes
        if now < self.next_s and (kind == self.reported or not self.reported):
            return
        self.reported, self.next_s = kind, now + EVERY_S
        self.write(state_of(app))


@contextmanager
def notified(client: Client, app: int | str) -> Iterator[Notifier]:
    """Print what the app waits for on a terminal, in a thread, while the caller copies its output."""
    notifier, finished = Notifier(), threading.Event()

    def look() -> None:
        while not finished.wait(LOOK_S):
            try:
                found = client.show(app).app
            except ThemisError:
                continue  # the thread that copies the output reports it
            if found.ended is not None:
                return
            notifier.update(found)

    thread = threading.Thread(target=look, name="themis-notifier", daemon=True)
    if _on_terminal():
        thread.start()
    try:
        yield notifier
    finally:
        finished.set()
        if thread.is_alive():
            thread.join(1.0)


def copy_logs(
    client: Client, app: str | int, *, job: int = 0, follow: bool = False, submitted: bool = False, **which: Any
) -> None:
    """Copy the output of a rank to stdout; prints on stderr why it is still empty.

    ``submitted`` : the app was submitted just now, so a short wait is not reported.
    """
    why = "" if submitted else unstarted(client, app, job)
    if why:
        say(why)
    with notified(client, app) as notifier:
        for data in client.logs(app, job=job, follow=follow, **which):
            notifier.output_arrived()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def print_logs(service: Service, app: str, *, job: int, **which: Any) -> None:
    """Print the existing output; prints on stderr why it is still empty."""
    from themis.cli.table_columns import Reply
    from themis.client.light import Unanswered

    if why := why_empty(Reply.of(service.call("Show", app=app)), job):
        say(why)
    printed = False
    try:
        for data in service.pieces("Logs", app=app, job=job, **which):
            printed = bool(sys.stdout.buffer.write(data))
            sys.stdout.buffer.flush()
    except (Unanswered, OSError) as error:
        if printed or isinstance(error, BrokenPipeError):
            raise
        copy_logs(service.client, app, job=job, submitted=True, **which)


def _on_terminal() -> bool:
    return sys.stderr.isatty()
