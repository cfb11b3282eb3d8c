"""Calls of the API from Python, each written once: ``Client`` makes them, ``AsyncClient`` awaits them.

A method gives an ``Answer``, a generator that yields each ``Step`` the client must take and returns the answer; or a ``Stream``.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from themis.client.command import RunOptions, name_of, run_request, words_of
from themis.client.connection import Answer, Awaited, Connection, LogCopy, Stream, Unavailable, Wait, Waiting
from themis.client.notebook import Listing
from themis.client.sending import sent
from themis.errors import InputError, UnknownName
from themis.schema import messages as schema
from themis.schema.messages import Message
from themis.schema.routes import CALLS
from themis.schema.wire import changed, kind, read

P = ParamSpec("P")
T = TypeVar("T")
_M = TypeVar("_M", bound=Message)
GpuCount = int | tuple[int, int]
"""A number of GPUs, or a range (fewest, most)."""


class _Method(Generic[P, T]):
    """A method of both clients; ``how`` : the client's own method that carries it out."""

    how = ""

    def __init__(self, function: Callable[Concatenate[Any, P], T]) -> None:
        @wraps(function)
        def call(at: Any, *args: P.args, **named: P.kwargs) -> Any:
            return getattr(at, self.how)(function(at, *args, **named))

        self.call: Any = call

    def bound(self, at: object, owner: type) -> Any:
        return self.call.__get__(at, owner)


class answered(_Method[P, Answer[T]]):
    """A method with one answer, of ``AsyncClient`` a coroutine."""

    how = "_answer"

    @overload
    def __get__(self, at: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, at: Waiting, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, at: Awaited, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, at: object, owner: type) -> Any:
        return self.bound(at, owner)


class streamed(_Method[P, Stream[T]]):
    """A method whose reply is read as it comes, of ``AsyncClient`` an asynchronous iterator."""

    how = "_pieces"

    @overload
    def __get__(self, at: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, at: Waiting, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, at: Awaited, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, at: object, owner: type) -> Any:
        return self.bound(at, owner)


class JobKeys(TypedDict, total=False):
    """Further options of ``sweep``: keys of a job file (docs/jobs.md), with the same values."""

    gpu_types: str | Sequence[str]
    cpus: float
    memory: str
    env: Mapping[str, str]
    walltime: str | float
    retries: int
    after: str | Sequence[str] | Mapping[str, str]
    launch: str
    grace: str | float
    stop_signal: str
    checkpoint_dir: str
    steps_per_epoch: float
    model: str
    batch: int
    speed: float | Mapping[str, Any]
    slowdown: Sequence[float]
    checkpoint_time: str | float
    deadline: str | float


def made(message: type[_M], **fields: Any) -> _M:
    """Build a message; InputError names a field that it cannot carry: a number that is too large, text that is not UTF-8."""
    try:
        return read(message, fields)
    except InputError as error:
        raise InputError(f"the call cannot be sent: {error}") from None


class Calls(Connection):
    """The methods of both clients. ``Answer[T]`` : T from ``Client``, an awaitable of T from ``AsyncClient``; ``Stream[T]`` :
    an iterator of T, from ``AsyncClient`` an asynchronous one.
    """

    # ---- apps ------------------------------------------------------------------------------------------------------

    @answered
    def submit(self, request: schema.SubmitRequest) -> Answer[schema.SubmitReply]:
        """Submit an app. A call is safe to repeat: a submission without a ``key`` gets one here."""
        return self._submitted(request)

    @answered
    def submit_all(self, requests: Iterable[schema.SubmitRequest]) -> Answer[list[schema.SubmitReply]]:
        """Submit apps in order; dependencies by name refer to the apps of this call first."""
        return self._submitted_all(requests)

    @answered
    def submit_file(
        self, file: Path | str, user: str = "", *, folder: Path | None = None
    ) -> Answer[list[schema.SubmitReply]]:
        """Submit the apps of a job file (docs/jobs.md), each after its dependencies.

        Parameters
        ----------
        user : owner of the apps; empty for the caller.
        folder : the folder that ``workdir`` is relative to; by default the current one.

        Raises
        ------
        InputError : the file is wrong; names the line.
        """
        from themis.client.submit_requests import read_requests

        info = yield from self._ask("Info")
        found = yield lambda: read_requests(
            Path(file),
            user,
            folder=folder,
            unknown_work_s=info.unknown_work_s,
            send=lambda path: self._sender(info).send(path),
        )
        return (yield from self._submitted_all(found))

    @answered
    def run(
        self,
        command: Sequence[str] | str,
        *,
        gpus: GpuCount = 1,
        name: str = "",
        hours: float | None = None,
        model: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        send: Path | str | None = None,
        **more: Unpack[RunOptions],
    ) -> Answer[schema.SubmitReply]:
        """Submit an app with one job: a command.

        Parameters
        ----------
        command : program and arguments, as a list of words or as one line, which is split as a shell would; no shell runs it.
        gpus : number of GPUs, or a range (fewest, most).
        hours : estimated run time on one GPU. The scheduler plans with it; the job may take longer. None: not known.
        model : name of a profile, which has the job's speed; ``hours`` still says the work.
        send : folder whose files are sent; the job runs in a copy of it, in ``cwd`` if that is below it.
        more : fields of ``SubmitRequest`` (user, weight, retries, deadline_s) and of ``Program`` (launch, grace_s,
            stop_signal, checkpoint_dir, checkpoint_url, outputs, packages, modules, launcher).
        """
        if send is not None:
            info = yield from self._ask("Info")
            found = yield partial(sent, self._sender(info), send, cwd)
            more["bundle"], cwd = found["bundle"], Path(found["cwd"])
        for unknown in more.keys() - RunOptions.__annotations__.keys():
            raise UnknownName("option of run", unknown, RunOptions.__annotations__)
        low_high = (gpus, gpus) if isinstance(gpus, int) else gpus
        fields = run_request(
            command, gpus=low_high, name=name, hours=hours, model=model, env=env or {}, cwd=cwd, **more
        )
        return (yield from self._submitted(made(schema.SubmitRequest, **fields)))

    @answered
    def fetch(self, app: int | str, to: Path | str, jobs: Sequence[int] = ()) -> Answer[list[Path]]:
        """Write what the service keeps of an app's checkpoints and outputs into a folder; returns the folder of each job.

        Parameters
        ----------
        jobs : positions in the app; none: all of which there is a copy.

        Raises
        ------
        InputError : no such app, or another user's.
        """
        from themis.client.fetching import fetch

        found: list[Path] = yield partial(fetch, self._files_home(), str(app), Path(to), jobs)
        return found

    @answered
    def sweep(
        self,
        command: Sequence[str] | str,
        parameters: Mapping[str, Any],
        *,
        budget: str | float,
        trials: int | None = None,
        tuner: str | Mapping[str, Any] = "batch",
        sampler: str = "random",
        seed: int = 0,
        gpus: GpuCount | str = 1,
        name: str = "",
        user: str = "",
        cwd: Path | None = None,
        **keys: Unpack[JobKeys],
    ) -> Answer[schema.SubmitReply]:
        """Submit a hyper-parameter search as one app. Values are those of a job file (docs/jobs.md, "Sweeps").

        Parameters
        ----------
        command : as for ``run``, with placeholders: ``["python", "train.py", "--lr", "{lr}"]``.
        parameters : search space, by parameter name: ``{"lr": {"loguniform": [1e-5, 1e-1]}, "optimizer": ["adam", "sgd"]}``.
        budget : work of a trial that is never stopped: ``900`` steps, ``"81 epochs"`` (with ``steps_per_epoch``).
        trials : number of trials; by default all combinations of a grid, or what Hyperband's brackets need.
        tuner : ``"batch"``, ``{"kind": "halving", "eta": 3}``, ``hyperband`` or ``curve``.
        sampler : ``random`` or ``grid``. ``seed`` : random seed of the sampler.
        keys : further keys of a job file, such as ``walltime="20h"`` or ``steps_per_epoch=1000``.

        Raises
        ------
        InputError : a value is not as expected; names the key.
        """
        from themis.client.submit_requests import to_submission

        search = {"parameters": dict(parameters), "budget": budget, "tuner": tuner, "sampler": sampler, "seed": seed}
        written = {
            **keys,
            "name": name or name_of(words_of(command)),
            "command": words_of(command),
            "gpus": "{}..{}".format(*gpus) if isinstance(gpus, tuple) else gpus,
            "sweep": search if trials is None else {**search, "trials": trials},
        }
        info = yield from self._ask("Info")
        prior_s = info.unknown_work_s
        request = to_submission(written, user, source="sweep", folder=cwd, unknown_work_s=prior_s)
        return (yield from self._submitted(request))

    @answered
    def cancel(self, app: int | str) -> Answer[schema.App]:
        """Withdraw an app."""
        return self._ask("Cancel", "app", app=str(app))

    @answered
    def hold(self, app: int | str) -> Answer[schema.App]:
        """Let an app wait without GPUs."""
        return self._ask("Hold", "app", app=str(app))

    @answered
    def resume(self, app: int | str) -> Answer[schema.App]:
        """Let it take part again."""
        return self._ask("Resume", "app", app=str(app))

    @answered
    def queue(self, user: str = "") -> Answer[Listing[schema.App]]:
        """Apps that are not over."""
        return self._list("Apps", "apps that wait or run", user=user)

    @answered
    def history(
        self,
        user: str = "",
        limit: int = 0,
        *,
        since: float | None = None,
        until: float | None = None,
        state: Sequence[str] = (),
        reason: str = "",
    ) -> Answer[Listing[schema.PastApp]]:
        """Finished apps with their attempts, GPU hours and cost, the newest last; your own, or for administrators all users'.

        Parameters
        ----------
        since, until : only apps that ended then, seconds since 1970. ``state`` : completed, cancelled, failed; none: all.
        reason : part of an app's reason, or how an attempt ended (``failed``, ``node_lost``), its cause or message.
        limit : maximum number, newest first; 0: 1000.
        """
        return self._list(
            "History", "finished apps", user=user, since=since, until=until, state=state, reason=reason, limit=limit
        )

    @answered
    def show(self, app: int | str) -> Answer[schema.ShowReply]:
        """An app with its jobs and their attempts."""
        return self._ask("Show", "", app=str(app))

    @answered
    def trials(self, app: int | str) -> Answer[Listing[schema.Trial]]:
        """The jobs of a sweep: parameters, reported losses, and which ended early, when and why."""
        return Listing((yield from self._ask("Trials", "trials", app=str(app))), "trials")

    @answered
    def wait(
        self,
        app: int | str,
        timeout_s: float = float("inf"),
        *,
        poll_s: float = 0.5,
        tell: Callable[[schema.App], None] | None = None,
    ) -> Answer[schema.App]:
        """Wait until the app has ended, also through restarts of the arbiter; returns its last state.

        Parameters
        ----------
        timeout_s : in seconds; by default no limit. ``poll_s`` : seconds between two looks.
        tell : called with the app after each look at which it had not ended.

        Raises
        ------
        StillActive : it has not ended after ``timeout_s``; a ``TimeoutError``.
        Unavailable : the arbiter has not answered for ten minutes, or for the rest of ``timeout_s``.
        """
        wait = Wait(self, app, timeout_s)
        while True:
            try:
                found: schema.App = yield from self._ask("Show", "app", app=str(app))
            except Unavailable as error:
                wait.absence.goes_on(error)
            else:
                if wait.ended(found):
                    return found
                if tell is not None:
                    tell(found)
            yield poll_s

    @streamed
    def logs(
        self, app: int | str, job: int = 0, rank: int = 0, *, follow: bool = False, attempt: int = 0
    ) -> Stream[bytes]:
        """The output of a rank, in pieces; with ``follow``, tolerates an unavailable arbiter for ``FOLLOW_S`` seconds."""
        asked = made(schema.LogsRequest, app=str(app), job=job, rank=rank, follow=follow, attempt=attempt)
        return LogCopy(self, asked, follow=follow)

    @answered
    def why(self, app: int | str, *, quick: bool = False) -> Answer[schema.WhyReply]:
        """Why the app waits, when it is expected to start and to end, and its history as JSON; ``quick`` : without simulations
        and history, which take seconds.
        """
        return self._ask("Why", "", app=str(app), quick=quick)

    @answered
    def what_if(
        self,
        policies: Sequence[str] = (),
        *,
        add_gpus: Sequence[str] = (),
        remove: Sequence[str] = (),
        without: Sequence[str] = (),
        horizon_s: float = 0.0,
        simulations: int = 0,
        arrivals: bool = True,
    ) -> Answer[schema.WhatIfReply]:
        """Finish times of the apps in the system under other policies, with other machines or without an app.

        Parameters
        ----------
        policies : names with parameters; ``current``, the default, is the one in force.
        add_gpus : GPUs that join, as ``"8@A100"``. ``remove`` : GPUs that leave, likewise, or names of machines.
        without : numbers or names of apps. ``horizon_s`` : time ahead, 0 for seven days. ``simulations`` : of each case, 0 for 20.
        arrivals : further apps are drawn from the service's history.
        """
        return self._ask(
            "WhatIf",
            policies=policies,
            no_arrivals=not arrivals,
            add_gpus=add_gpus,
            remove=remove,
            without=without,
            horizon_s=horizon_s,
            simulations=simulations,
        )

    @answered
    def dump(self) -> Answer[bytes]:
        """The scheduler's state, in the format that ``themis replay`` reads."""
        return self._ask("Dump")

    # ---- the cluster -------------------------------------------------------------------------------------------------

    @answered
    def info(self) -> Answer[schema.InfoReply]:
        """Version, policy and size of the service."""
        return self._ask("Info")

    @answered
    def nodes(self, user: str = "") -> Answer[Listing[schema.Node]]:
        """All machines, or those that run this user's apps."""
        return self._list("Nodes", "machines", user=user)

    @answered
    def drain(self, node: str, deadline_s: float = 0.0) -> Answer[schema.Node]:
        """Take a machine out of service: immediately, or when its jobs have ended, after ``deadline_s`` seconds at the latest."""
        return self._ask("Drain", "node", node=node, deadline_s=deadline_s)

    @answered
    def undrain(self, node: str) -> Answer[schema.Node]:
        """Return a machine to service."""
        return self._ask("Undrain", "node", node=node)

    @answered
    def remove_node(self, node: str) -> Answer[schema.Node]:
        """Remove a machine that joined over the network: its jobs continue elsewhere, then its certificate is revoked."""
        return self._ask("RemoveNode", "node", node=node)

    @answered
    def share(self, user: str = "") -> Answer[Listing[schema.UserShare]]:
        """Each user's GPUs now, fair share, rho, and GPU hours so far compared with those on a private 1/N of the cluster."""
        return self._list("Share", "users with apps", user=user)

    @answered
    def fairness(self, user: str = "") -> Answer[schema.FairnessReply]:
        """GPU-hours over time that users were entitled to and received, and loans between users. Users see themselves
        and the sum of all others; administrators see all users.
        """
        return self._ask("Fairness", "", user=user)

    @answered
    def budgets(self, user: str = "") -> Answer[Listing[schema.BudgetUse]]:
        """Used part of budgets: the caller's own, or all for administrators."""
        return self._list("Budgets", "budgets", user=user)

    @answered
    def usage(
        self,
        user: str = "",
        *,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        utc: bool = False,
    ) -> Answer[Listing[schema.UserUsage]]:
        """GPU hours, their cost and apps; your own, or for administrators all users'.

        Parameters
        ----------
        since, until : times of the first and last day, seconds since 1970; all days without them.
        by : what each row stands for, of user, group, day and gpu_type.
        utc : days of UTC instead of the service's time zone.
        """
        return self._list("Usage", "users with GPU time", user=user, since=since, until=until, by=by, utc=utc)

    @streamed
    def events(self, after: int = 0, *, follow: bool = False, limit: int = 0, user: str = "") -> Stream[schema.Record]:
        """The journal's records after a number; with ``user``, those about the user's apps."""
        asked = made(schema.EventsRequest, after=after, follow=follow, limit=limit, user=user)
        return Stream(self, "Events", asked)

    # ---- users -------------------------------------------------------------------------------------------------------

    @answered
    def add_user(self, user: str, *, admin: bool = False, no_jobs: bool = False) -> Answer[str]:
        """Create a token for a user; replaces an existing one. For administrators.

        ``no_jobs`` : the user submits none, and may be no system user.
        """
        return self._ask("AddUser", "token", user=user, admin=admin, no_jobs=no_jobs)

    @answered
    def remove_user(self, user: str) -> Answer[schema.User]:
        """Revoke a user's token; the user's apps continue."""
        return self._ask("RemoveUser", "user", user=user)

    @answered
    def users(self, user: str = "") -> Answer[Listing[schema.User]]:
        """Users with a token, without the owner of the data directory."""
        return self._list("Users", "users with a token", user=user)

    # ---- settings ----------------------------------------------------------------------------------------------------

    @answered
    def settings(self) -> Answer[Listing[schema.Setting]]:
        """All settings of the service, with the time and author of their last change."""
        return self._list("Settings", "settings")

    @answered
    def settings_history(self, limit: int = 0) -> Answer[Listing[schema.SettingsChange]]:
        """Changes of settings, the newest first; 0: 1000 of them. For administrators."""
        return self._list("SettingsHistory", "changes of settings", limit=limit)

    @answered
    def sign_in(self, handle: str = "", *, token: str = "") -> Answer[schema.SignInReply]:
        """A step of a sign-in with the OIDC provider: begin, ask with its handle whether the user agreed, or renew a token."""
        return self._ask("SignIn", "", handle=handle, token=token)

    @answered
    def audit(self, user: str = "", limit: int = 0) -> Answer[Listing[schema.AuditEntry]]:
        """Audit log of sign-ins and changes: user, action and address, newest first. Users see their own entries,
        administrators all. ``limit`` : maximum number of entries (0: 1000)."""
        return self._list("Audit", "entries", user=user, limit=limit)

    @answered
    def journal(self) -> Answer[schema.JournalReply]:
        """Size of the journal, and backups in the data directory. For administrators."""
        return self._ask("Journal")

    @answered
    def back_up(self) -> Answer[schema.Backup]:
        """Copy the data directory into its folder of backups. For administrators."""
        return self._ask("BackUp")

    @answered
    def set(
        self, /, values: Mapping[str, object] | None = None, *, reload: bool = False, **more: object
    ) -> Answer[list[str]]:
        """Change settings while the service runs, all or none: ``client.set(policy="drf", lease="5m")``. For administrators.

        Returns a sentence for each change and what follows from it. ``values`` : those whose names have dots, as
        ``{"users.ann.weight": 2}``. ``reload`` : take on what changed in the service's settings file instead.
        """
        texts = {name: str(value) for name, value in {**(values or {}), **more}.items()}
        return self._ask("Set", "changes", values=texts, reload=reload)

    # ---- any call ----------------------------------------------------------------------------------------------------

    @answered
    def call(self, method: str, request: Message) -> Answer[Any]:
        """Call a route of ``themis.schema.routes`` that returns one answer, by its name."""
        return self._call(method, request)

    @streamed
    def stream(self, method: str, request: Message) -> Stream[Any]:
        """Call a route that returns a stream, by its name: its messages, or pieces of bytes."""
        return Stream(self, method, request)

    def _ask(self, method: str, part: str = "", /, **fields: Any) -> Answer[Any]:
        """The reply to a call with these fields, or a part of it."""
        reply = yield from self._call(method, made(kind(CALLS[method].request), **fields))
        return getattr(reply, part) if part else reply

    def _list(self, method: str, of: str, /, **fields: Any) -> Answer[Listing[Any]]:
        """The list in the reply to a call; ``of`` : its name in a notebook."""
        return Listing((yield from self._ask(method, CALLS[method].part, **fields)), of)

    def _submitted(self, request: schema.SubmitRequest) -> Answer[schema.SubmitReply]:
        return self._call("Submit", changed(request, key=request.key or uuid.uuid4().hex))

    def _submitted_all(self, requests: Iterable[schema.SubmitRequest]) -> Answer[list[schema.SubmitReply]]:
        known: dict[str, schema.SubmitReply] = {}
        for request in requests:
            # By number: the service may have changed a name.
            after = [changed(one, app=str(known[one.app].app)) if one.app in known else one for one in request.after]
            known[request.name] = yield from self._submitted(changed(request, after=after))
        return list(known.values())
