"""The API: each method of ``client/themis.proto`` asks the arbiter's thread, or reads files of its home.

Who calls is known by the token: users act on their own apps, administrators on all. Errors become status codes with one
sentence (``grpc_server``); a bug of ours is INTERNAL and its traceback goes to the arbiter's log, not to the caller.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from queue import Empty
from typing import Any

from themis import __version__
from themis.client import themis_pb2 as pb
from themis.errors import InputError, UnknownName, counted
from themis.service.api import accounts, jobfiles, reasons, settings, trials, views
from themis.service.api.access import Access, Caller, Forbidden
from themis.service.api.call_limits import CallLimit
from themis.service.api.calls_meter import CallsMeter
from themis.service.api.story import story
from themis.service.api.submission import submit
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.calls import ENDING, Closed
from themis.service.engine.journal import read_records
from themis.sim import dump

STREAMS, READS, WHYS = 48, 24, 8
"""Most concurrent calls: that follow events or logs; that read records, logs or the state to their end; that ask why."""
STREAMS_OF_USER, READS_OF_USER, WHYS_OF_USER = 12, 6, 2
"""Of these, of one user who is not an administrator."""
STREAMS_KEPT, READS_KEPT, WHYS_KEPT = 8, 6, 2
"""Of these, reserved for administrators."""
WORKERS = STREAMS + READS + WHYS + 32
"""Threads that answer: one for each of these calls, and some for calls that are answered right away."""
POLL_S = 0.25
CHUNK = 64 << 10
ESTIMATE_S = 5.0
"""For simulations of when an app may begin."""
MOST_ROWS = 1000
"""Records read from the journal in one query."""

Row = tuple[int, float, str, str]
"""A record: number, time, kind, line."""
MOST_LAST, LAST_LINES, LAST_BYTES = 3, 10, 8 << 10
"""Failed jobs of which ``Show`` gives the end of the output: at most these lines and bytes of each."""
NEVER = threading.Event()
"""For callers within the process."""

log = logging.getLogger("themis.service")


class Api:
    """The methods, by name. ``root`` is the executor's folder, where ranks' logs lie."""

    def __init__(self, arbiter: Arbiter, root: Path, access: Access, door: settings.Door | None = None) -> None:
        self.arbiter, self.root, self.access, self.door = arbiter, root, access, door
        self.caller = access.owner
        self.ending = threading.Event()
        most = arbiter.config.max_agents
        self.streams = CallLimit(
            STREAMS, STREAMS_OF_USER, STREAMS_KEPT, "follow events or logs", "end one of them, or call without follow"
        )
        self._reads = CallLimit(
            READS, READS_OF_USER, READS_KEPT, "read events or logs", "try again when one of them has ended"
        )
        self._whys = CallLimit(WHYS, WHYS_OF_USER, WHYS_KEPT, "ask why", "try again in a moment")
        # One user's agents leave a quarter of the places to the others.
        self._agents = CallLimit(
            most, max(most * 3 // 4, 1), 0, "serve agents of apps", "disconnect one, or raise max_agents"
        )
        self._simulations = threading.Semaphore(2)
        self.meter = CallsMeter()

    def by(self, caller: Caller) -> Api:
        """The same methods for another caller than the owner of the data directory."""
        out = copy.copy(self)
        out.caller = caller
        return out

    def _do(self, work: Callable[[Arbiter], Any]) -> Any:
        return self.arbiter.ask(lambda: work(self.arbiter))

    def _look(self, work: Callable[[Arbiter], Any]) -> Any:
        return self.arbiter.ask(lambda: work(self.arbiter), changes=False)

    def _mine(self, a: Arbiter, ref: str, what: str) -> int:
        """The app's number, if the caller may do that to it."""
        app = views.find_app(a, ref)
        self._check_mine(app, what)
        return app

    def _check_mine(self, app: int, what: str) -> None:
        # By number this is asked outside the arbiter's thread too: rows of the list are never taken away.
        specs = self.arbiter.state.app_specs
        if not 0 <= app < len(specs):
            raise UnknownName("app", str(app), [spec.name for spec in specs[-20:]])
        spec = specs[app]
        if not self.caller.admin and spec.user != self.caller.user:
            raise Forbidden(
                f"Permission denied: app {app} {spec.name!r} belongs to user {spec.user}; only {spec.user} and administrators may "
                f"{what}, and you are {self.caller.user}."
            )

    def _check_admin(self, what: str) -> None:
        if not self.caller.admin:
            raise Forbidden(
                f"Permission denied: only administrators may {what}; user {self.caller.user} is not an administrator."
            )

    def Info(self, request: pb.InfoRequest) -> pb.InfoReply:
        """Version, policy and size of the service."""

        def info(a: Arbiter) -> pb.InfoReply:
            s = a.state
            return pb.InfoReply(
                version=__version__,
                api=1,
                policy=a.config.policy,
                gpus=int(s.machine_size.sum()),
                machines=len(s.machines) - len(s.removed),
                started=a.started,
                lease_s=a.settings.lease_s,
                active_apps=int(s.apps.active[: s.apps.size].sum()),
                records=a.journal.last()[0],
                problem=a.engine.problem,
                pid=os.getpid(),
                unknown_work_s=a.config.unknown_work_s,
                user=self.caller.user,
                admin=self.caller.admin,
                engine=a.config.engine,
            )

        return self._look(info)  # type: ignore[no-any-return]

    def Submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Enter an app."""
        return self._do(lambda a: submit(a, request, self.caller))  # type: ignore[no-any-return]

    def SubmitFile(self, request: pb.JobFile) -> pb.JobFileReply:
        """Enter the apps of a job file; it is read in the caller's thread."""
        requests, notes = jobfiles.read(self.arbiter, request)
        return pb.JobFileReply(apps=jobfiles.submit_all(requests, self.Submit), notes=notes)

    def Cancel(self, request: pb.AppRef) -> pb.AppReply:
        """Withdraw an app."""
        return self._change(request, Arbiter.cancel, "cancel it")

    def Hold(self, request: pb.AppRef) -> pb.AppReply:
        """Pause an app and release its GPUs."""
        return self._change(request, Arbiter.hold, "hold it")

    def Resume(self, request: pb.AppRef) -> pb.AppReply:
        """Let a held app take part again."""
        return self._change(request, Arbiter.resume, "resume it")

    def _change(self, request: pb.AppRef, how: Callable[[Arbiter, int], None], what: str) -> pb.AppReply:
        def change(a: Arbiter) -> pb.AppReply:
            app = self._mine(a, request.app, what)
            how(a, app)
            return pb.AppReply(app=views.app_row(a, views.state_now(a), a.journal.apps("app = ?", app)[0], {}))

        return self._do(change)  # type: ignore[no-any-return]

    def Apps(self, request: pb.AppsRequest) -> pb.AppsReply:
        """The queue, or finished apps."""
        found: pb.AppsReply = self._look(lambda a: views.apps(a, request))
        for row in found.apps:
            self._hide(row)
        return found

    def _hide(self, row: pb.App) -> None:
        """Hide failure messages of other users' apps; program output may contain paths."""
        if not self.caller.admin and row.user != self.caller.user and (row.jobs_ended or row.HasField("ended")):
            row.ClearField("reason")

    def Show(self, request: pb.AppRef) -> pb.ShowReply:
        """One app; of another user's app, without commands and messages."""
        found: pb.ShowReply = self._look(lambda a: views.show(a, request.app))
        self._hide(found.app)
        if not self.caller.admin and found.app.user != self.caller.user:
            for job in found.jobs:
                job.ClearField("command")
                for attempt in job.attempts:
                    attempt.ClearField("message")
            return found
        for job in [job for job in found.jobs if job.outcome == "failed"][:MOST_LAST]:
            job.last_lines.extend(last_lines(self._files(job.id, pb.LogsRequest())))
        return found

    def Trials(self, request: pb.AppRef) -> pb.TrialsReply:
        """The jobs of a sweep; of another user's app, without parameters."""
        found: pb.TrialsReply = self._look(lambda a: trials.of_app(a, request.app))
        self._hide(found.app)
        with self._reads.take(self.caller):
            trials.add_reports(found, self.arbiter.journal.path, self.arbiter.epoch)
        if not self.caller.admin and found.app.user != self.caller.user:
            for trial in found.trials:
                trial.ClearField("parameters")
        return found

    def Nodes(self, request: pb.NodesRequest) -> pb.NodesReply:
        """All machines."""
        return self._look(lambda a: views.nodes(a, request.user))  # type: ignore[no-any-return]

    def Drain(self, request: pb.NodeRef) -> pb.NodeReply:
        """Take a machine out of service."""
        return self._drain(request, drained=True)

    def Undrain(self, request: pb.NodeRef) -> pb.NodeReply:
        """Put a machine back into service."""
        return self._drain(request, drained=False)

    def _drain(self, request: pb.NodeRef, *, drained: bool) -> pb.NodeReply:
        self._check_admin("drain machines, or put them back")
        within_s = request.deadline_s
        if not 0.0 <= within_s < math.inf:
            raise InputError(f"the deadline is {within_s:g} s, expected 0 (immediately) or more.")

        def change(a: Arbiter) -> pb.NodeReply:
            machine = views.machine_of(a, request.node)
            a.drain(machine, drained, within_s)
            return pb.NodeReply(node=views.node_row(a, machine))

        return self._do(change)  # type: ignore[no-any-return]

    def Share(self, request: pb.UsersRequest) -> pb.ShareReply:
        """GPUs that each user holds."""
        return self._look(lambda a: views.share(a, request.user))  # type: ignore[no-any-return]

    def Usage(self, request: pb.UsageRequest) -> pb.UsageReply:
        """GPU hours, cost and apps: of the caller, or for administrators of all users."""
        user = self.caller.may_see(request.user, "usage")
        return self._look(lambda a: accounts.usage(a, request, user))  # type: ignore[no-any-return]

    def History(self, request: pb.HistoryRequest) -> pb.HistoryReply:
        """Finished apps with their attempts: of the caller, or for administrators of all users."""
        user = self.caller.may_see(request.user, "history")
        return self._look(lambda a: accounts.history(a, request, user))  # type: ignore[no-any-return]

    def Why(self, request: pb.AppRef) -> pb.WhyReply:
        """Why an app waits, when it may begin, and its story; outside the arbiter's thread, for that may be long."""
        # Each takes seconds and a copy of the journal, so few run at the same time, and few wait. Who is refused costs nothing.
        with self._whys.take(self.caller), self._simulations:
            app, name, reply, state = self._look(lambda a: views.why(a, request.app))
            if state:
                now = self.arbiter.epoch + self.arbiter.now()
                views.add_estimate(reply, reasons.estimate(state, app, ESTIMATE_S), now)
            reply.json = story(self.arbiter.journal.path, name)
            return reply  # type: ignore[no-any-return]

    def Dump(self, request: pb.DumpRequest, gone: threading.Event = NEVER) -> Iterator[pb.DumpChunk]:
        """The state as it is now."""
        self._check_admin("dump the scheduler's state")
        with self._reads.take(self.caller):
            data = self._look(lambda a: dump.write(a.engine.core, a.config.policy))
            for start in range(0, len(data), CHUNK):
                yield pb.DumpChunk(data=data[start : start + CHUNK])

    # ---- who may call ------------------------------------------------------------------------------------------------

    def AddUser(self, request: pb.UserRef) -> pb.UserToken:
        """A token for a user."""
        self._check_admin("add users")
        return pb.UserToken(user=request.user, token=self.access.add(request.user, admin=request.admin))

    def RemoveUser(self, request: pb.UserRef) -> pb.UserReply:
        """Remove a user's token."""
        self._check_admin("remove users")
        gone = self.access.remove(request.user)
        return pb.UserReply(user=pb.User(user=request.user, admin=gone.admin, added=gone.added))

    def Users(self, request: pb.UsersRequest) -> pb.UsersReply:
        """All users with a token."""
        self._check_admin("list users")
        rows = [pb.User(user=n, admin=a.admin, added=a.added) for n, a in self.access.accounts().items()]
        return pb.UsersReply(users=[row for row in rows if request.user in ("", row.user)])

    # ---- settings ----------------------------------------------------------------------------------------------------

    def Settings(self, request: pb.SettingsRequest) -> pb.SettingsReply:
        """Every setting, since when it is in force and who changed it."""
        return self._look(settings.settings)  # type: ignore[no-any-return]

    def Set(self, request: pb.SetRequest) -> pb.SetReply:
        """Change settings while the service runs, all or none."""
        self._check_admin("change settings")
        return self._do(lambda a: settings.change(a, request, self.door, self.caller.user))  # type: ignore[no-any-return]

    # ---- what goes on ------------------------------------------------------------------------------------------------

    def Events(self, request: pb.EventsRequest, gone: threading.Event = NEVER) -> Iterator[pb.Record]:
        """The journal's records."""
        after, left = request.after, request.limit or -1
        with self._follows(request.follow):
            while not self.ending.is_set() and not gone.is_set():
                rows = read_records(self.arbiter.journal.path, after, MOST_ROWS)
                after = rows[-1][0] if rows else after
                for number, time, kind, line in self._of_user(rows, request.user):
                    yield pb.Record(number=number, time=self.arbiter.epoch + time, kind=kind, json=line)
                    left -= 1
                    if left == 0:
                        return
                if not rows:
                    if not request.follow:
                        return
                    self.ending.wait(POLL_S)

    def _follows(self, follow: bool) -> AbstractContextManager[None]:
        """A place for a call that follows something, or that reads it to its end."""
        return (self.streams if follow else self._reads).take(self.caller)

    def _of_user(self, rows: list[Row], user: str) -> list[Row]:
        if not user or not rows:
            return rows
        users, app_of = self._look(views.owners)
        return [row for row in rows if _concerns(json.loads(row[3]), user, users, app_of)]

    def Logs(self, request: pb.LogsRequest, gone: threading.Event = NEVER) -> Iterator[pb.LogChunk]:
        """Output of a rank: every attempt's file in order, the last one as it grows."""
        job = self._look(lambda a: self._job(a, request))
        self._check_written(job, request)
        at: dict[int, int] = {}
        with self._follows(request.follow):
            while not self.ending.is_set() and not gone.is_set():
                # Asked before reading: what was written before the end is then read after it was seen.
                over = not request.follow or self._look(lambda a: not a.state.apps.active[a.state.jobs.app[job]])
                sent = False
                for attempt, path in self._files(job, request):
                    for data in _rest(path, at, attempt):
                        sent = True
                        yield pb.LogChunk(data=data, attempt=attempt)
                if over and not sent:
                    return
                if not sent:
                    self.ending.wait(POLL_S)
        if request.follow and self.ending.is_set():
            # Not its end: who follows goes on with the next arbiter.
            raise Closed(ENDING)

    # ---- agents of apps ---------------------------------------------------------------------------------------------

    def Attend(self, request: pb.AppRef, gone: threading.Event = NEVER) -> Iterator[pb.AgentEvent]:
        """Connect an app's own agent, until the app is finished or the agent disconnects."""
        app, name = self._look(lambda a: self._active(a, request.app))
        with self._agents.take(self.caller):
            session = self.arbiter.agents.register(app, name)
            try:
                while not self.ending.is_set() and not gone.is_set():
                    try:
                        event = session.outbox.get(timeout=POLL_S)
                    except Empty:
                        continue
                    if event is None:
                        return
                    yield event
            finally:
                self.arbiter.agents.disconnect(session)

    def Estimate(self, request: pb.EstimateRequest) -> pb.EstimateReply:
        """An agent's rho."""
        self.arbiter.agents.estimate(self._find(request.app), request.round, request.rho)
        return pb.EstimateReply()

    def Bid(self, request: pb.BidRequest) -> pb.BidReply:
        """An agent's bid; it is checked immediately, in the caller's thread."""
        self.arbiter.agents.bid(self._find(request.app), request)
        return pb.BidReply()

    def _find(self, ref: str) -> int:
        # By number without the arbiter's thread: a bid must not wait for whatever that does.
        app: int = int(ref) if views.is_number(ref) else self._look(lambda a: views.find_app(a, ref))
        self._check_mine(app, "bid for it")
        return app

    def _active(self, a: Arbiter, ref: str) -> tuple[int, str]:
        app = self._mine(a, ref, "bid for it")
        if not a.state.apps.active[app]:
            raise InputError(f"app {ref[:100]!r} is finished, so no agent can bid for it.")
        return app, a.state.app_specs[app].name

    def _job(self, a: Arbiter, request: pb.LogsRequest) -> int:
        jobs = a.state.app_jobs(self._mine(a, request.app, "read its logs"))
        if not 0 <= request.job < len(jobs):
            raise InputError(
                f"app {request.app!r} has {len(jobs)} job{'s' * (len(jobs) != 1)}, got job {request.job}, counted from 0."
            )
        return int(jobs[request.job])

    def _check_written(self, job: int, request: pb.LogsRequest) -> None:
        """Refuse a rank, or an attempt, that no attempt so far had, unless there was none and one may yet come."""
        if self._files(job, request):
            return
        there = list(self.root.glob(f"nodes/*/logs/job{job}-attempt*/rank-*.log"))
        if not there or (request.attempt and request.follow):
            return
        attempts = sorted({int(path.parent.name.rpartition("attempt")[2]) for path in there})
        if request.attempt and request.attempt not in attempts:
            raise InputError(
                f"job {request.job} of app {request.app!r} had {counted(len(attempts), 'attempt')} so far, the last is "
                f"{attempts[-1]}, got attempt {request.attempt}; attempts are counted from 1."
            )
        most = max(int(path.stem.removeprefix("rank-")) for path in there)
        ranks = f"ranks 0 to {most}" if most else "rank 0 alone"
        raise InputError(f"job {request.job} of app {request.app!r} had {ranks}, got rank {request.rank}.")

    def _files(self, job: int, request: pb.LogsRequest) -> list[tuple[int, Path]]:
        number = request.attempt or "*"
        found = self.root.glob(f"nodes/*/logs/job{job}-attempt{number}/rank-{int(request.rank)}.log")
        return sorted((int(path.parent.name.rpartition("attempt")[2]), path) for path in found)


def _concerns(line: dict[str, Any], user: str, users: list[str], app_of: list[int]) -> bool:
    """Whether a record is about an app of the user: its submission, or one that names the app or one of its jobs."""
    if isinstance(line.get("app"), dict):
        return bool(line["app"]["user"] == user)
    app = line.get("app", app_of[line["job"]] if "job" in line else None)
    return app is not None and isinstance(app, int) and users[app] == user


def _rest(path: Path, at: dict[int, int], attempt: int) -> Iterator[bytes]:
    """The rest of the file after the place reached; a truncated file is read from its beginning."""
    try:
        with path.open("rb") as file:
            start = at.get(attempt, 0)
            file.seek(start if start <= os.fstat(file.fileno()).st_size else 0)
            while data := file.read(CHUNK):
                at[attempt] = file.tell()
                yield data
    except OSError:
        return


def last_lines(files: list[tuple[int, Path]]) -> list[str]:
    """The last lines of the last attempt's output."""
    if not files:
        return []
    try:
        with files[-1][1].open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LAST_BYTES, 0))
            return file.read(LAST_BYTES).decode(errors="replace").splitlines()[-LAST_LINES:]
    except OSError:
        return []
