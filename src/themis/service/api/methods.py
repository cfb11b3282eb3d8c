"""The API: each call of ``schema/routes.py`` asks the arbiter's thread, or reads files of its data directory.

Who calls is known by the token: users act on their own apps, administrators on all. Errors become status codes with one
sentence (``http_app``); a bug of ours is 500 and its traceback goes to the arbiter's log, not to the caller.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import orjson

from themis.core.tables import Status
from themis.errors import InputError, UnknownName, counted
from themis.schema import messages as schema
from themis.service.api import (
    accounts,
    fairness,
    jobfiles,
    keeping,
    overview,
    own_share,
    reasons,
    setting_calls,
    trials,
    views,
    what_if,
)
from themis.service.api import app_course as course
from themis.service.api.access import Access, Caller, Forbidden
from themis.service.api.app_course import Course
from themis.service.api.audit import MOST_ENTRIES, Audit
from themis.service.api.audited import audited
from themis.service.api.call_limits import CallLimit
from themis.service.api.calls_meter import CallsMeter
from themis.service.api.costs import Costs
from themis.service.api.overview import Day, Overview
from themis.service.api.story import story
from themis.service.api.submission import submit
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.journal import read_records
from themis.service.engine.pending_calls import ENDING, Closed
from themis.sim import dump
from themis.version import __version__

if TYPE_CHECKING:
    from themis.service.api.certificate_calls import Certificates
    from themis.service.api.oidc import Oidc

STREAMS, READS, WHYS, WHAT_IFS = 48, 24, 8, 2
"""Most concurrent calls: that follow events or logs; that read records, logs or the state to their end; that ask why; what if."""
STREAMS_OF_USER, READS_OF_USER, WHYS_OF_USER, WHAT_IFS_OF_USER = 12, 6, 2, 1
"""Maximum number of these calls for one user who is not an administrator."""
STREAMS_KEPT, READS_KEPT, WHYS_KEPT, WHAT_IFS_KEPT = 8, 6, 2, 1
"""Number of these calls that are reserved for administrators."""
POLL_S = 0.25
CHUNK = 64 << 10
ESTIMATE_S = 5.0
"""Time limit of simulations of an app's start."""
MOST_ROWS = 1000
"""Records read from the journal in one query."""

Row = tuple[int, float, str, str]
"""A record: number, time, kind, line."""
FAILED_RANK = re.compile(r"rank (\d{1,9}): ")
MOST_LAST, LAST_LINES, LAST_BYTES = 3, 10, 8 << 10
"""Failed jobs of which ``Show`` gives the end of the output: at most these lines and bytes of each."""
NEVER = threading.Event()
"""Cancel event of callers within the process; never set."""

log = logging.getLogger("themis.service")


class Api:
    """The methods, by name. ``root`` is the executor's folder, where ranks' logs lie. ``tls`` : the certificate, if any.

    ``audit`` : where changes are recorded. ``oidc`` : sign-in with a provider, if there is one.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        root: Path,
        access: Access,
        door: setting_calls.Door | None = None,
        tls: Certificates | None = None,
        oidc: Oidc | None = None,
    ) -> None:
        self.arbiter, self.root, self.access, self.door, self.tls = arbiter, root, access, door, tls
        self.oidc, self.audit = (
            oidc,
            oidc.audit if oidc is not None else Audit(arbiter.journal.path.parent, lambda: arbiter.config.audit_keep_s),
        )
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
        self._what_ifs = CallLimit(
            WHAT_IFS, WHAT_IFS_OF_USER, WHAT_IFS_KEPT, "ask what if", "try again when one of them has ended"
        )
        # One user's agents leave a quarter of the places to the others.
        self._agents = CallLimit(
            most, max(most * 3 // 4, 1), 0, "serve agents of apps", "disconnect one, or raise max_agents"
        )
        self.costs = Costs()
        self._simulations = threading.Semaphore(2)
        self._courses = fairness.Courses(arbiter.journal.path)
        self._backing_up = threading.Lock()
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

    def Info(self, request: schema.Nothing) -> schema.InfoReply:
        """Version, policy and size of the service."""

        def info(a: Arbiter) -> schema.InfoReply:
            s = a.state
            return schema.InfoReply(
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
                unready=a.unready(),
                pid=os.getpid(),
                unknown_work_s=a.config.unknown_work_s,
                user=self.caller.user,
                admin=self.caller.admin,
                engine=a.config.engine,
                max_bundle=a.config.max_bundle_bytes,
            )

        return self._look(info)  # type: ignore[no-any-return]

    @audited
    def Submit(self, request: schema.SubmitRequest) -> schema.SubmitReply:
        """Enter an app."""

        def entered(a: Arbiter) -> schema.SubmitReply:
            with self.costs.charged(self.caller):
                return submit(a, request, self.caller)

        return self._do(entered)  # type: ignore[no-any-return]

    def SubmitFile(self, request: schema.JobFile) -> schema.JobFileReply:
        """Enter the apps of a job file; it is read in the caller's thread."""
        with self.costs.reading(self.caller):
            requests, notes = jobfiles.read(self.arbiter, request)
        return schema.JobFileReply(apps=jobfiles.submit_all(requests, self.Submit), notes=notes)

    @audited
    def Cancel(self, request: schema.AppRef) -> schema.AppReply:
        """Withdraw an app."""
        return self._change(request, Arbiter.cancel, "cancel it")

    @audited
    def Hold(self, request: schema.AppRef) -> schema.AppReply:
        """Pause an app and release its GPUs."""
        return self._change(request, Arbiter.hold, "hold it")

    @audited
    def Resume(self, request: schema.AppRef) -> schema.AppReply:
        """Let a held app take part again."""

        def resume(a: Arbiter, app: int) -> None:
            if app in a.state.quarantined_apps:
                self._check_admin("resume an app that is quarantined")
            a.resume(app)

        return self._change(request, resume, "resume it")

    def _change(self, request: schema.AppRef, how: Callable[[Arbiter, int], None], what: str) -> schema.AppReply:
        def change(a: Arbiter) -> schema.AppReply:
            app = self._mine(a, request.app, what)
            how(a, app)
            return schema.AppReply(app=views.app_row(a, views.state_now(a), a.journal.apps("app = ?", app)[0]))

        return self._do(change)  # type: ignore[no-any-return]

    def Apps(self, request: schema.AppsRequest) -> schema.AppsReply:
        """The queue, or finished apps."""
        found, at = self._look(lambda a: (views.apps(a, request), self._present(a)))
        self._compare(found.apps, at)
        for row in found.apps:
            self._hide(row)
        return schema.AppsReply(apps=[row for row in found.apps if request.state in ("", row.state)])

    def _hide(self, row: schema.App) -> None:
        """Hide failure messages of other users' apps; program output may contain paths."""
        if not self.caller.admin and row.user != self.caller.user and (row.jobs_ended or row.ended is not None):
            row.reason = ""

    def Show(self, request: schema.AppRef) -> schema.ShowReply:
        """One app; of another user's app, without commands and messages."""
        found, at = self._look(lambda a: (views.show(a, request.app), self._present(a)))
        self._compare([found.app], at)
        self._hide(found.app)
        first = self._first_job(found.app.id)
        with self._reads.take(self.caller):
            trials.add_own_counts(found, first, self.arbiter.journal.path, self.arbiter.epoch)
        if not self.caller.admin and found.app.user != self.caller.user:
            for job in found.jobs:
                job.command = []
                for attempt in job.attempts:
                    attempt.message = ""
            return found  # type: ignore[no-any-return]
        for job in [job for job in found.jobs if job.outcome == "failed"][:MOST_LAST]:
            # The rank that failed first has the cause.
            failed = FAILED_RANK.match(job.attempts[-1].message) if job.attempts else None
            rank = int(failed[1]) if failed else 0
            job.last_lines.extend(last_lines(self._files(first + job.id, schema.LogsRequest(rank=rank))))
        return found  # type: ignore[no-any-return]

    def Trials(self, request: schema.AppRef) -> schema.TrialsReply:
        """The jobs of a sweep; of another user's app, without parameters."""
        found: schema.TrialsReply = self._look(lambda a: trials.of_app(a, request.app))
        self._hide(found.app)
        first = self._first_job(found.app.id)
        with self._reads.take(self.caller):
            trials.add_reports(found, first, self.arbiter.journal.path, self.arbiter.epoch)
        if not self.caller.admin and found.app.user != self.caller.user:
            for trial in found.trials:
                trial.parameters = trial.checkpoint = ""
            return found
        for trial in found.trials:
            own = self.root / "checkpoints" / f"app{found.app.id}" / f"job{first + trial.job}"
            trial.checkpoint = trial.checkpoint or (str(own) if own.is_dir() else "")
        return found

    def Nodes(self, request: schema.UsersRequest) -> schema.NodesReply:
        """All machines."""
        return self._look(lambda a: views.nodes(a, request.user))  # type: ignore[no-any-return]

    @audited
    def Drain(self, request: schema.NodeRef) -> schema.NodeReply:
        """Take a machine out of service."""
        return self._drain(request, drained=True)

    @audited
    def Undrain(self, request: schema.NodeRef) -> schema.NodeReply:
        """Put a machine back into service."""
        return self._drain(request, drained=False)

    @audited
    def RemoveNode(self, request: schema.NodeRef) -> schema.NodeReply:
        """Remove a machine of a fleet for good."""
        self._check_admin("remove machines")
        if not request.node:
            raise InputError("no node was named; `themis nodes` lists them.")
        # In the caller's thread: the machines' file is not the arbiter's.
        self.arbiter.executor.leave(request.node)

        def look(a: Arbiter) -> schema.NodeReply:
            try:
                row = views.node_row(a, views.machine_of(a, request.node))
            except UnknownName:  # it has joined, and was never connected
                row = schema.Node(name=request.node)
            row.state = "leaving"
            return schema.NodeReply(node=row)

        return self._look(look)  # type: ignore[no-any-return]

    def _drain(self, request: schema.NodeRef, *, drained: bool) -> schema.NodeReply:
        self._check_admin("drain machines, or put them back")
        within_s = request.deadline_s
        if not 0.0 <= within_s < math.inf:
            raise InputError(f"the deadline is {within_s:g} s, expected 0 (immediately) or more.")

        def change(a: Arbiter) -> schema.NodeReply:
            machine = views.machine_of(a, request.node)
            a.drain(machine, drained, within_s)
            return schema.NodeReply(node=views.node_row(a, machine))

        return self._do(change)  # type: ignore[no-any-return]

    def Share(self, request: schema.UsersRequest) -> schema.ShareReply:
        """GPUs that each user holds."""
        reply, at = self._look(lambda a: (views.share(a, request.user), self._present(a)))
        own = self._own(at)
        own_share.add_to_shares(reply.users, own, at)
        return reply  # type: ignore[no-any-return]

    def _own(self, at: own_share.Present) -> Mapping[int, own_share.OwnShare]:
        return self._courses.ask(lambda r, o: own_share.shares(r, o, at), at.record) or {}

    def _compare(self, rows: Sequence[schema.App], at: own_share.Present) -> None:
        """Add what apps would have had on their own share."""
        self._courses.ask(lambda r, o: own_share.add_to_apps(rows, r, o, at, self.arbiter.epoch), at.record)

    def _present(self, a: Arbiter) -> own_share.Present:
        return own_share.present(views.state_now(a), a.journal.last()[0])

    # ---- for the console --------------------------------------------------------------------------------------------

    def overview(self) -> tuple[Overview, float]:
        """The whole service in one look, the same for all users, and the CPU seconds of the arbiter's thread that it took."""

        def look(a: Arbiter) -> tuple[Overview, own_share.Present, float]:
            began = time.thread_time()
            return overview.overview(a), self._present(a), time.thread_time() - began

        seen, at, seconds = self._look(look)
        self._compare([*seen.run_rows, *seen.wait_rows], at)
        own_share.add_to_shares(seen.users, self._own(at), at)
        return seen, seconds

    def users_in_order(self) -> list[str]:
        """Names of all users who ever submitted something, in the order of their first submission."""
        return self._look(lambda a: sorted(a.state.users, key=a.state.users.__getitem__))  # type: ignore[no-any-return]

    def last_record(self) -> int:
        """The number of the journal's last record."""
        return self._look(overview.last_record)  # type: ignore[no-any-return]

    def last_day(self) -> Day:
        """GPUs leased and decisions of the last day."""
        now = self.arbiter.epoch + self.arbiter.now()
        return overview.last_day(self.arbiter.journal.path, self.arbiter.epoch, now)

    def course(self, app: int) -> Course:
        """An app's leases, and its jobs' reports over time."""
        with self._reads.take(self.caller):
            return course.course(self.arbiter, app)

    # ---- accounts ----------------------------------------------------------------------------------------------------

    def Usage(self, request: schema.UsageRequest) -> schema.UsageReply:
        """GPU hours, cost and apps: of the caller, or for administrators of all users."""
        user = self.caller.may_see(request.user, "usage")
        return self._look(lambda a: accounts.usage(a, request, user))  # type: ignore[no-any-return]

    def Fairness(self, request: schema.UsersRequest) -> schema.FairnessReply:
        """GPU-hours over time that users were entitled to and received; read outside the arbiter's thread."""
        user = self.caller.may_see(request.user, "course") if request.user else ""
        with self._reads.take(self.caller):
            last, now, between = self._look(lambda a: (a.journal.last()[0], a.now(), a.state.between))
            course, whole = self._courses.course(now, last)
            return fairness.reply(course, whole, self.arbiter.epoch, self.caller, user, between)

    def Budgets(self, request: schema.UsersRequest) -> schema.BudgetsReply:
        """Use of budgets: those of the caller, or all for administrators."""
        user = self.caller.may_see(request.user, "budgets")
        return self._look(lambda a: fairness.budgets(a, user))  # type: ignore[no-any-return]

    def History(self, request: schema.HistoryRequest) -> schema.HistoryReply:
        """Finished apps with their attempts: of the caller, or for administrators of all users."""
        user = self.caller.may_see(request.user, "history")
        return self._look(lambda a: accounts.history(a, request, user))  # type: ignore[no-any-return]

    def Why(self, request: schema.WhyRequest) -> schema.WhyReply:
        """Why an app waits and when it ends; unless it is to be quick, also simulations of its start, and its story."""
        if request.quick:
            (app, _, reply, _), at = self._look(lambda a: (views.why(a, request.app, whole=False), self._present(a)))
            self._expect(reply, app, at)
            return reply  # type: ignore[no-any-return]
        # Each takes seconds and a copy of the journal, so few run at the same time, and few wait. Who is refused costs nothing.
        with self._whys.take(self.caller), self._simulations:
            (app, name, reply, state), at = self._look(lambda a: (views.why(a, request.app), self._present(a)))
            if state:
                now = self.arbiter.epoch + self.arbiter.now()
                views.add_estimate(reply, reasons.estimate(state, app, ESTIMATE_S), now)
            reply.story = story(self.arbiter.journal.path, name, at.now)
            self._expect(reply, app, at)
            return reply  # type: ignore[no-any-return]

    def _expect(self, reply: schema.WhyReply, app: int, at: own_share.Present) -> None:
        """Add when the app ends, and what it would have had on its own share."""
        epoch = self.arbiter.epoch
        self._courses.ask(lambda r, o: own_share.add_to_why(reply, app, r, o, at, epoch), at.record)

    def WhatIf(self, request: schema.WhatIfRequest) -> schema.WhatIfReply:
        """Finish times of apps under changed conditions; outside the arbiter's thread, because that takes long."""
        asked = what_if.question_of(request)
        with self._what_ifs.take(self.caller):
            for ref in asked.without:
                self._check_mine(self._look(partial(views.find_app, ref=ref)), "ask what if it were gone")
            self._look(lambda a: what_if.check(a.state, asked))
            state, now = self._look(lambda a: (dump.write(a.engine.core, a.config.policy), a.now()))
            found = what_if.ask(self.arbiter.journal.path.parent, state, now, asked)
        return what_if.reply(found, self.arbiter.epoch, None if self.caller.admin else self.caller.user)

    def Dump(self, request: schema.Nothing, gone: threading.Event = NEVER) -> Iterator[bytes]:
        """The state as it is now."""
        self._check_admin("dump the scheduler's state")
        with self._reads.take(self.caller):
            data = self._look(lambda a: dump.write(a.engine.core, a.config.policy))
            for start in range(0, len(data), CHUNK):
                yield data[start : start + CHUNK]

    # ---- who may call ------------------------------------------------------------------------------------------------

    @audited
    def AddUser(self, request: schema.UserRef) -> schema.UserToken:
        """A token for a user."""
        self._check_admin("add users")
        if not (request.no_jobs or self.arbiter.config.single_trust):
            try:
                self.arbiter.executor.check_user(request.user)
            except InputError as error:
                raise InputError(f"{error} For a token of a program that submits no jobs, add --no-jobs.") from None
        return schema.UserToken(user=request.user, token=self.access.add(request.user, admin=request.admin))

    @audited
    def RemoveUser(self, request: schema.UsersRequest) -> schema.UserReply:
        """Remove a user's token and end the user's sign-ins."""
        self._check_admin("remove users")
        signed = self.oidc.sign_ins.remove(request.user) if self.oidc is not None else None
        if signed is not None and request.user not in self.access.accounts():
            return schema.UserReply(
                user=schema.User(user=request.user, admin=signed.admin, added=signed.began, method="oidc")
            )
        gone = self.access.remove(request.user)
        return schema.UserReply(user=schema.User(user=request.user, admin=gone.admin, added=gone.added, method="token"))

    def Users(self, request: schema.UsersRequest) -> schema.UsersReply:
        """All users with a token, and those who are signed in."""
        self._check_admin("list users")
        rows = [
            schema.User(user=n, admin=a.admin, added=a.added, method="token") for n, a in self.access.accounts().items()
        ]
        if self.oidc is not None:
            for name, s in sorted(self.oidc.sign_ins.newest().items()):
                rows.append(schema.User(user=name, admin=s.admin, added=s.began, method="oidc", ends=s.ends))
        return schema.UsersReply(users=[row for row in rows if request.user in ("", row.user)])

    def SignIn(self, request: schema.SignInRequest) -> schema.SignInReply:
        """A step of a sign-in with the OIDC provider; for callers without a token."""
        if self.oidc is None:
            raise InputError("this service has no OIDC provider; an administrator sets oidc in its settings file.")
        return self.oidc.call(request, self.caller.address)

    def Audit(self, request: schema.AuditRequest) -> schema.AuditReply:
        """Sign-ins and changes: of the caller, or for administrators of all users."""
        user = self.caller.may_see(request.user, "audit log")
        if request.limit < 0:
            raise InputError(f"the limit is {request.limit}, expected 0 ({MOST_ENTRIES}) or more.")
        with self._reads.take(self.caller):
            entries = self.audit.read(user, request.limit)
        return schema.AuditReply(entries=[schema.AuditEntry(**asdict(entry)) for entry in entries])

    # ---- settings ----------------------------------------------------------------------------------------------------

    def Settings(self, request: schema.Nothing) -> schema.SettingsReply:
        """All settings, with the time and author of their last change."""
        return self._look(setting_calls.settings)  # type: ignore[no-any-return]

    @audited
    def Set(self, request: schema.SetRequest) -> schema.SetReply:
        """Change settings while the service runs, all or none."""
        self._check_admin("change settings")
        return self._do(lambda a: setting_calls.change(a, request, self.door, self.caller.user))  # type: ignore[no-any-return]

    def SettingsHistory(self, request: schema.SettingsHistoryRequest) -> schema.SettingsHistoryReply:
        """Changes of settings."""
        self._check_admin("see who changed settings")
        with self._reads.take(self.caller):
            return keeping.changes(self.arbiter.journal.path, self.arbiter.epoch, request.limit)

    # ---- the data directory ------------------------------------------------------------------------------------------

    def Journal(self, request: schema.Nothing) -> schema.JournalReply:
        """The journal's size, and backups."""
        self._check_admin("see the journal's state")
        with self._reads.take(self.caller):
            return keeping.journal(self.arbiter.journal.path, self.arbiter.epoch)

    @audited
    def BackUp(self, request: schema.Nothing) -> schema.Backup:
        """Copy the data directory into its folder of backups; one copy at a time."""
        self._check_admin("make backups")
        if not self._backing_up.acquire(blocking=False):
            raise InputError("a backup is being made; try again when it is done.")
        try:
            return keeping.back_up(self.arbiter.journal.path.parent, self.door)
        finally:
            self._backing_up.release()

    # ---- ongoing calls -----------------------------------------------------------------------------------------------

    def Events(self, request: schema.EventsRequest, gone: threading.Event = NEVER) -> Iterator[schema.Record]:
        """The journal's records."""
        after, left = request.after, request.limit or -1
        with self._follows(request.follow):
            while not self.ending.is_set() and not gone.is_set():
                rows = read_records(self.arbiter.journal.path, after, MOST_ROWS)
                after = rows[-1][0] if rows else after
                for number, time, kind, line in self._of_user(rows, request.user):
                    record = orjson.loads(line)
                    yield schema.Record(
                        number=number,
                        time=self.arbiter.epoch + time,
                        kind=kind,
                        record=record,
                        jobs=[
                            self._job_of_app(job) for job in record.get("jobs", [record.get("job")]) if job is not None
                        ],
                    )
                    left -= 1
                    if left == 0:
                        return
                if not rows:
                    if not request.follow:
                        return
                    self.ending.wait(POLL_S)

    def _first_job(self, app: int) -> int:
        """The journal's number of an app's first job."""
        return int(self.arbiter.state.apps.first_job[app])

    def _job_of_app(self, job: int) -> schema.JobOfApp:
        """The app of a job of the journal, and its position there."""
        app = int(self.arbiter.state.jobs.app[job])
        return schema.JobOfApp(app=app, job=job - self._first_job(app))

    def _follows(self, follow: bool) -> AbstractContextManager[None]:
        """A place for a call that follows something, or that reads it to its end."""
        return (self.streams if follow else self._reads).take(self.caller)

    def _of_user(self, rows: list[Row], user: str) -> list[Row]:
        if not user or not rows:
            return rows
        users, app_of = self._look(views.owners)
        return [row for row in rows if _concerns(json.loads(row[3]), user, users, app_of)]

    def Logs(self, request: schema.LogsRequest, gone: threading.Event = NEVER) -> Iterator[bytes]:
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
                        yield data
                if over and not sent:
                    return
                if not sent:
                    self.ending.wait(POLL_S)
        if request.follow and self.ending.is_set():
            # The app has not ended: a following client continues with the next arbiter.
            raise Closed(ENDING)

    def end_of_log(self, request: schema.LogsRequest, most: int) -> str:
        """The last bytes, at most ``most``, of a rank's output in its last attempt."""
        job = self._look(lambda a: self._job(a, request))
        self._check_written(job, request)
        return end_of(self._files(job, request), most)

    # ---- agents of apps ---------------------------------------------------------------------------------------------

    def Attend(self, request: schema.AppRef, gone: threading.Event = NEVER) -> Iterator[schema.AgentEvent]:
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

    def Answer(self, request: schema.AnswersRequest) -> schema.AnswersReply:
        """Answers of agents; they are checked immediately, in the caller's thread."""
        return schema.AnswersReply(refused=[self._refused(answer) for answer in request.answers])

    def _refused(self, answer: schema.AgentAnswer) -> str:
        try:
            self.arbiter.agents.answer(self._find(answer.app), answer)
        except InputError as error:
            return str(error)
        return ""

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

    def jobs_of(self, ref: str, what: str) -> tuple[int, list[int], set[int]]:
        """Numbers of an app, its jobs and those that ended, if the caller has the right to do this to the app."""

        def look(a: Arbiter) -> tuple[int, list[int], set[int]]:
            app = self._mine(a, ref, what)
            jobs = a.state.app_jobs(app)
            return app, jobs.tolist(), set(jobs[a.state.jobs.status[jobs] == Status.ENDED].tolist())

        found: tuple[int, list[int], set[int]] = self._look(look)
        return found

    def _job(self, a: Arbiter, request: schema.LogsRequest) -> int:
        jobs = a.state.app_jobs(self._mine(a, request.app, "read its logs"))
        if not 0 <= request.job < len(jobs):
            raise InputError(
                f"app {request.app!r} has {len(jobs)} job{'s' * (len(jobs) != 1)}, got job {request.job}, counted from 0."
            )
        return int(jobs[request.job])

    def _check_written(self, job: int, request: schema.LogsRequest) -> None:
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

    def _files(self, job: int, request: schema.LogsRequest) -> list[tuple[int, Path]]:
        number = request.attempt or "*"
        found = self.root.glob(f"nodes/*/logs/job{job}-attempt{number}/rank-{int(request.rank)}.log")
        return sorted((int(path.parent.name.rpartition("attempt")[2]), path) for path in found)


def _concerns(line: dict[str, Any], user: str, users: list[str], app_of: list[int]) -> bool:
    """True if a record is about an app of the user: its submission, or one that names the app or jobs of it."""
    if isinstance(line.get("app"), dict):
        return bool(line["app"]["user"] == user)
    jobs = line.get("jobs", [line["job"]] if "job" in line else [])
    apps = [line["app"]] if isinstance(line.get("app"), int) else [app_of[job] for job in jobs]
    return any(users[app] == user for app in apps)


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
    return end_of(files, LAST_BYTES).splitlines()[-LAST_LINES:]


def end_of(files: list[tuple[int, Path]], most: int) -> str:
    """The last bytes of the last attempt's output."""
    if not files:
        return ""
    try:
        with files[-1][1].open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
