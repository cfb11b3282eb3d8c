"""What somebody who waits for an app is told meanwhile: on stderr, so that what the job writes stays as it is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from themis.console import err
from themis.errors import ThemisError

if TYPE_CHECKING:
    from themis.client import themis_pb2 as pb
    from themis.client.client import Client

FIRST_S = 3.0
"""Whoever waits for no longer is told nothing."""
EVERY_S = 60.0
"""Between two sentences that say the same."""
LOOK_S = 5.0


def state_of(app: pb.App) -> str:
    """Where an app is that has not ended, in one sentence."""
    who = f"App {app.id}, {app.name},"
    if app.state == "running":
        return f"{who} runs on {app.gpus} GPU{'s' * (app.gpus != 1)}, {app.progress:.0%} done."
    if app.reason:
        return f"{who} waits: {app.reason}."
    again = "more " if app.gpu_hours else ""
    return f"{who} waits for {again}GPUs; `themis why {app.id}` says more."


def unstarted(client: Client, app: int | str, job: int = 0) -> str:
    """Why nothing of an app's job can be printed; empty if it was started, or if there is no such job."""
    found = client.show(app)
    if job >= len(found.jobs) or found.jobs[job].attempt:
        return ""
    row = found.app
    if found.jobs[job].state == "ended":
        return f"Job {job} of app {row.id}, {row.name}, ended before it was started."
    return f"Job {job} has not started. {state_of(row)}"


def say(sentence: str) -> None:
    """A line on stderr."""
    err.print(sentence, markup=False, highlight=False, soft_wrap=True)


class Teller:
    """Says from time to time what is waited for: when that changes, and every minute."""

    def __init__(self, tell: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic) -> None:
        self.tell, self.clock = tell, clock
        self.told = ""
        self.at = clock() + FIRST_S

    def written(self) -> None:
        """The job wrote something: whoever reads it knows that it runs."""
        self.at = self.clock() + EVERY_S

    def look(self, app: pb.App) -> None:
        """An app that is waited for, as it is now."""
        now = self.clock()
        # That a job gets on is no news in itself.
        kind = app.state + app.reason
        if now < self.at and (kind == self.told or not self.told):
            return
        self.told, self.at = kind, now + EVERY_S
        self.tell(state_of(app))


@contextmanager
def told(client: Client, app: int | str) -> Iterator[Teller]:
    """While the caller is busy with an app's output, somebody at a terminal is told what is waited for."""
    teller, over = Teller(), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            try:
                found = client.show(app).app
            except ThemisError:
                continue  # whoever reads the output is told that no arbiter answers
            if found.HasField("ended"):
                return
            teller.look(found)

    thread = threading.Thread(target=look, name="themis-told", daemon=True)
    if err.is_terminal:
        thread.start()
    try:
        yield teller
    finally:
        over.set()
        if thread.is_alive():
            thread.join(1.0)


def copy_logs(
    client: Client, app: str | int, *, job: int = 0, follow: bool = False, submitted: bool = False, **which: Any
) -> None:
    """Print what a rank wrote, as it is; on stderr why there is nothing yet, and what is waited for.

    ``submitted`` : it was submitted just now, so that it waits a moment is nothing to be told.
    """
    why = "" if submitted else unstarted(client, app, job)
    if why:
        say(why)
    with told(client, app) as teller:
        for data in client.logs(app, job=job, follow=follow, **which):
            teller.written()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
