"""Notifications by apprise: apps that ended, wait for long or misuse GPUs, lost machines, budgets, a disk that is nearly full.

A thread of its own follows the journal's records and sends what they say, so the arbiter never waits for a receiver. It remembers
the last record that it read (``notified`` in the data directory), so a restart repeats nothing.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from themis.core.state import State
from themis.errors import InputError, counted
from themis.model.events import (
    AppFinished,
    AppHeld,
    GpusIdle,
    GpusIntruded,
    Grant,
    MachineFailed,
    Quarantined,
    QuotaSet,
    Revoke,
)
from themis.model.log import decode
from themis.model.units import Seconds
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.budgets import PREFIX
from themis.service.engine.config import Notify
from themis.service.engine.housekeeping import intrusion_words
from themis.service.engine.journal import read_reason, read_records, read_why_held

POLL_S: Seconds = 1.0
DISK_S: Seconds = 60.0
"""Seconds between two looks at the disk."""
MOST_ROWS = 1000
ADMINS = ""
"""The recipient of messages that concern no user."""
HOUR: Seconds = 3600.0

log = logging.getLogger("themis.service")
Send = Callable[[str, str], bool]
"""Send a title and a text to all addresses of a recipient; False where one did not take it."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Notification to a user, or to ``ADMINS``."""

    user: str
    title: str
    text: str


@dataclass(slots=True)
class Mailbox:
    """One recipient: at most ``per_hour`` messages an hour; the next one says how many were left out."""

    send: Send
    per_hour: int
    sent: deque[Seconds] = field(default_factory=deque)
    left_out: int = 0

    def put(self, message: Notification, now: Seconds) -> None:
        """Send a message, or leave it out."""
        while self.sent and self.sent[0] <= now - HOUR:
            self.sent.popleft()
        if len(self.sent) >= self.per_hour:
            self.left_out += 1
            return
        more = f" ({counted(self.left_out, 'message')} left out in the last hour)" if self.left_out else ""
        self.sent.append(now)
        self.left_out = 0
        if not self.send(message.title, message.text + more):
            who = message.user or "administrators"
            log.warning("a notification of %s was not delivered: %s", who, message.title)


@dataclass(slots=True)
class Watcher:
    """Converts records to messages.

    Attributes
    ----------
    state : gives the arbiter's; names of apps and machines are read, which never change. ``reason`` : why an app ended;
        ``held_for`` : why the service holds it.
    waiting : apps that lost their last lease, with when, seconds since the journal began.
    """

    settings: Notify
    state: Callable[[], State]
    reason: Callable[[int], str]
    held_for: Callable[[int], str] = lambda app: ""
    held: dict[int, set[int]] = field(default_factory=dict)
    waiting: dict[int, Seconds] = field(default_factory=dict)

    def see(self, now: Seconds, record: object) -> list[Notification]:
        """The notifications that a record causes."""
        match record:
            case AppFinished():
                self.held.pop(record.app, None)
                self.waiting.pop(record.app, None)
                return self._finished(record)
            case Grant():
                self.held.setdefault(record.app, set()).add(record.job)
                self.waiting.pop(record.app, None)
            case Revoke():
                held = self.held.get(record.app, set())
                held.discard(record.job)
                if not held and record.cause in ("expired", "moved", "failed"):
                    self.waiting[record.app] = now
            case MachineFailed(drained=False) if "machine_lost" in self.settings.events:
                name = self.state().machines[record.machine].name
                why = f"The service cannot reach machine {name}; its jobs restart."
                if record.reason:
                    why = (
                        f"The service accepts nothing that machine {name} sends, and its jobs restart: {record.reason}"
                    )
                return [Notification(ADMINS, f"machine {name} is lost", why)]
            case AppHeld() if "disk" in self.settings.events and (why := self.held_for(record.app)):
                message = self._of(record.app, "is held", f"{why[:1].upper()}{why[1:]}.")
                return [message, replace(message, user=ADMINS)]
            case GpusIdle() if record.action and "idle" in self.settings.events:
                app = int(self.state().jobs.app[record.job])
                done = "is cancelled: its" if record.action == "cancelled" else "holds"
                return [self._of(app, f"{done} idle GPUs", "Its GPUs do nothing; `themis show` says for how long.")]
            case GpusIntruded(gpus=[_, *_]) if "intrusion" in self.settings.events:
                app = int(self.state().jobs.app[record.job])
                own = self._of(app, "uses GPUs that it does not hold", "")
                text = ". ".join(intrusion_words(self.state(), record)) + "."
                return [replace(own, user=user, text=text) for user in (own.user, ADMINS)]
            case QuotaSet(gpus=0) if record.name.startswith(PREFIX) and "budget" in self.settings.events:
                name = record.name.removeprefix(PREFIX)
                text = f"The budget of {name} is used up; jobs wait until it is renewed."
                return [
                    Notification(user, f"the budget of {name} is used up", text) for user in (*record.users, ADMINS)
                ]
            case Quarantined(app=app):
                return self._quarantined(record, app)
            case _:
                pass
        return []

    def _quarantined(self, record: Quarantined, app: int | None) -> list[Notification]:
        """Always sent: an administrator has to lift the quarantine."""
        if app is None:
            what, how = f"machine {self.state().machines[record.machine or 0].name}", "themis undrain"
            return [Notification(ADMINS, f"{what} is quarantined", f"{record.reason}. `{how}` lifts it.")]
        spec = self.state().app_specs[app]
        title = f"app {app}, {spec.name}, is quarantined"
        return [
            Notification(to, title, f"{record.reason}. `themis resume {app}` lifts it.") for to in (ADMINS, spec.user)
        ]

    def overdue(self, now: Seconds) -> list[Notification]:
        """Apps that wait for longer than the settings allow, each once."""
        if "preempted" not in self.settings.events:
            return []
        after = self.settings.preempted_after_s
        late = sorted(app for app, since in self.waiting.items() if now - since >= after)
        return [
            self._of(app, "is preempted", f"It has waited {now - self.waiting.pop(app):.0f} s for GPUs.")
            for app in late
        ]

    def _finished(self, end: AppFinished) -> list[Notification]:
        event = "failed" if end.outcome == "failed" else "finished"
        if event not in self.settings.events:
            return []
        reason = self.reason(end.app)
        took = f"After {end.jct:.0f} s and {end.gpu_seconds / 3600:.2f} GPU hours."
        return [
            self._of(end.app, f"has {end.outcome}".replace("has cancelled", "is cancelled"), f"{took} {reason}".strip())
        ]

    def _of(self, app: int, what: str, text: str) -> Notification:
        spec = self.state().app_specs[app]
        return Notification(spec.user, f"app {app}, {spec.name}, {what}", text)


class Notifier:
    """The thread that follows the journal and sends messages.

    Parameters
    ----------
    boxes : recipients by user, ``ADMINS`` among them; others get nothing. ``free`` : bytes that are free on the disk.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        settings: Notify,
        boxes: Mapping[str, Mailbox],
        free: Callable[[], int] | None = None,
    ) -> None:
        self.path, self.settings, self.boxes = arbiter.journal.path, settings, dict(boxes)
        self.now = arbiter.now
        self.off: Callable[[], str] = lambda: arbiter.quarantine.off
        self._off = ""
        self.free = free or (lambda: shutil.disk_usage(self.path.parent).free)
        path = self.path
        self.watcher = Watcher(
            settings, lambda: arbiter.state, lambda app: read_reason(path, app), lambda app: read_why_held(path, app)
        )
        self.most: Callable[[], str] = lambda: arbiter.disk.found.most() if arbiter.disk.found is not None else ""
        self.mark = self.path.with_name("notified")
        self.after = self._read_mark(arbiter.journal.last()[0])
        self._ending, self._disk_at, self._full = threading.Event(), 0.0, False
        self.thread = threading.Thread(target=self._run, name="themis-notify", daemon=True)

    def start(self) -> Notifier:
        """Start the thread."""
        self.thread.start()
        return self

    def close(self) -> None:
        """End; a message under way is not waited for."""
        self._ending.set()
        self.thread.join(POLL_S)

    def look(self) -> None:
        """Send what the records since the last look say."""
        while rows := read_records(self.path, self.after, MOST_ROWS):
            for number, when, kind, line in rows:
                record = decode(line)[1] if kind in SEEN else None
                self._put(self.watcher.see(when, record))
                self.after = number
            self.mark.write_text(f"{self.after}\n", encoding="utf-8")
        self._put(self.watcher.overdue(self.now()))
        self._put(self._disk())
        if (off := self.off()) != self._off:
            self._off = off
            text = f"{off}. Jobs run on; apps can be cancelled and held. The log has the error; a restart turns decisions on."
            self._put([Notification(ADMINS, "decisions are off", text)] if off else [])

    def _put(self, messages: list[Notification]) -> None:
        for message in messages:
            if (box := self.boxes.get(message.user)) is not None and not self._ending.is_set():
                box.put(message, time.monotonic())

    def _disk(self) -> list[Notification]:
        if "disk" not in self.settings.events or time.monotonic() < self._disk_at:
            return []
        self._disk_at = time.monotonic() + DISK_S
        free, least = self.free(), self.settings.disk_free
        was, self._full = self._full, free < least
        if was or not self._full:
            return []
        text = f"{free / 2**30:.1f} GiB are free for the journal, logs and checkpoints in {self.path.parent}."
        if self.most():
            text += f" Of it, {self.most()}."
        return [Notification(ADMINS, "the disk is nearly full", text)]

    def _read_mark(self, last: int) -> int:
        with suppress(OSError, ValueError):
            return min(int(self.mark.read_text(encoding="utf-8")), last)
        return last

    def _run(self) -> None:
        while not self._ending.wait(POLL_S):
            try:
                self.look()
            except Exception:  # notifications must not end with one that went wrong
                log.exception("notifications: the journal could not be followed")
                self._ending.wait(DISK_S)


SEEN = frozenset(
    kind.__name__
    for kind in (AppFinished, AppHeld, Grant, Revoke, MachineFailed, GpusIdle, GpusIntruded, QuotaSet, Quarantined)
)


def notifier(arbiter: Arbiter, settings: Notify) -> Notifier | None:
    """The notifier of a service that was not started yet; None where the settings name no address.

    Raises
    ------
    InputError : apprise is not installed, or does not understand an address.
    """
    addresses = {ADMINS: settings.admins, **settings.users}
    boxes = {user: Mailbox(sender(urls), settings.per_hour) for user, urls in addresses.items() if urls}
    return Notifier(arbiter, settings, boxes) if boxes else None


def sender(urls: tuple[str, ...]) -> Send:
    """Send to these addresses by apprise; raises InputError as ``notifier``."""
    try:
        import apprise
    except ImportError:
        raise InputError(
            "the setting notify needs the package apprise; pip install 'themis-scheduler[notify]'."
        ) from None
    library: Any = apprise.Apprise()
    for url in urls:
        if not library.add(url):
            # The address may hold a password.
            kind = url.partition(":")[0][:20]
            raise InputError(
                f"notify has an address of the kind {kind!r} that apprise does not understand; see its documentation."
            )

    def send(title: str, text: str) -> bool:
        return bool(library.notify(title=f"Themis: {title}", body=text))

    return send
