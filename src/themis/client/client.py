"""``themis.Client``: the arbiter's API as Python. Answers are the messages of ``themis.schema.messages``, whose fields are typed.

with Client() as client:
    app = client.run(["python", "train.py"], gpus=2)
    client.wait(app.app)
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, Unpack

import httpx

from themis.client import calls
from themis.client.calls import Call, GpuCount, JobKeys, RunOptions
from themis.client.connection import (
    OVER,
    RETRY_S,
    Busy,
    Connection,
    EventReader,
    LogCopy,
    PlainRefused,
    Retries,
    StillActive,
    Unavailable,
    Wait,
)
from themis.client.home import user_name
from themis.client.notebook import Listing
from themis.client.sending import sent
from themis.errors import ThemisError
from themis.schema import messages as schema
from themis.schema.messages import Message
from themis.schema.routes import CALLS, EVENTS

T = TypeVar("T")


class Client(Connection):
    """A connection to an arbiter.

    Parameters
    ----------
    home : its data directory, which has its address and the token; by default ``$THEMIS_DATA_DIR`` or ``~/.themis``.
    address, token : instead of those in the data directory; an address that is not of this machine's loopback is called over TLS,
        unless it begins with ``http://``.
    cacert : file of the certificate that the arbiter is verified against, or ``system`` for the system's authorities; by default
        ``$THEMIS_CACERT``, or the one that ``themis login`` stored. ``trust`` : instead, for an ``address`` as ``HOST:PORT``.
    timeout_s : timeout of a call that returns one answer, in seconds.
    patience_s : seconds to retry while the arbiter is unavailable, as during a restart; by default ``timeout_s``.
    on_wait : called once, with a sentence, when the first retry begins.

    Raises
    ------
    InputError : no arbiter was started, its token is missing or readable by others, or a call was wrong.
    Unavailable : the arbiter does not answer. Untrusted : its certificate is not accepted.
    """

    def _begin(self) -> None:
        self._http = httpx.Client(**self._options())
        self._streams: set[httpx.Response] = set()
        self._left: list[httpx.Client] = []
        """Connections to the address before, of streams that are open."""

    def _dial_again(self) -> None:
        """Reconnect: a restarted arbiter may have another address."""
        if self._moved():
            self._left.append(self._http)
            self._http = httpx.Client(**self._options())
            if not self._streams:
                self._close_left()

    def close(self) -> None:
        """Close the connection; streams that other threads read end with Unavailable."""
        self._closed = True
        for reply in list(self._streams):
            link = reply.extensions["network_stream"].get_extra_info("socket")
            with suppress(OSError):  # it has ended already
                socket.socket.shutdown(link, socket.SHUT_RDWR)
        self._left.append(self._http)
        self._close_left()

    def _close_left(self) -> None:
        while self._left:
            self._left.pop().close()

    def __del__(self) -> None:
        """Close the connection of a client that nobody holds any more, as Python does for files."""
        with suppress(Exception):  # its constructor may have failed
            self.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- apps ------------------------------------------------------------------------------------------------------

    def submit(self, request: schema.SubmitRequest) -> schema.SubmitReply:
        """Submit an app. A call is safe to repeat: a submission without a ``key`` gets one here."""
        return self._answer(calls.submit(request))

    def submit_all(self, requests: Iterable[schema.SubmitRequest]) -> list[schema.SubmitReply]:
        """Submit apps in order; dependencies by name refer to the apps of this call first."""
        made: dict[str, schema.SubmitReply] = {}
        for request in requests:
            made[request.name] = self.submit(calls.after_made(request, made))
        return list(made.values())

    def submit_file(self, file: Path | str, user: str = "", *, folder: Path | None = None) -> list[schema.SubmitReply]:
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

        info = self.info()
        found = read_requests(
            Path(file),
            user,
            folder=folder,
            unknown_work_s=info.unknown_work_s,
            send=lambda path: self._sender(info).send(path),
        )
        return self.submit_all(found)

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
    ) -> schema.SubmitReply:
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
            found = sent(self._sender(self.info()), send, cwd)
            more["bundle"], cwd = found["bundle"], Path(found["cwd"])
        return self._answer(
            calls.run(command, gpus=gpus, name=name, hours=hours, model=model, env=env, cwd=cwd, more=more)
        )

    def fetch(self, app: int | str, to: Path | str, jobs: Sequence[int] = ()) -> list[Path]:
        """Write what the service keeps of an app's checkpoints and outputs into a folder; returns the folder of each job.

        Parameters
        ----------
        jobs : positions in the app; none: all of which there is a copy.

        Raises
        ------
        InputError : no such app, or another user's.
        """
        from themis.client.fetching import fetch

        return fetch(self._files_home(), str(app), Path(to), jobs)

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
    ) -> schema.SubmitReply:
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
        return self._answer(
            calls.sweep(
                command,
                parameters,
                budget=budget,
                trials=trials,
                tuner=tuner,
                sampler=sampler,
                seed=seed,
                gpus=gpus,
                name=name,
                user=user,
                cwd=cwd,
                keys=keys,
                unknown_work_s=self.info().unknown_work_s,
            )
        )

    def cancel(self, app: int | str) -> schema.App:
        """Withdraw an app."""
        return self._answer(calls.cancel(app))

    def hold(self, app: int | str) -> schema.App:
        """Let an app wait without GPUs."""
        return self._answer(calls.hold(app))

    def resume(self, app: int | str) -> schema.App:
        """Let it take part again."""
        return self._answer(calls.resume(app))

    def queue(self, user: str = "") -> Listing[schema.App]:
        """Apps that are not over."""
        return self._answer(calls.queue(user))

    def history(
        self,
        user: str = "",
        limit: int = 0,
        *,
        since: float | None = None,
        until: float | None = None,
        state: Sequence[str] = (),
        reason: str = "",
    ) -> Listing[schema.PastApp]:
        """Finished apps with their attempts, GPU hours and cost, the newest last; your own, or for administrators all users'.

        Parameters
        ----------
        since, until : only apps that ended then, seconds since 1970. ``state`` : completed, cancelled, failed; none: all.
        reason : part of an app's reason, or how an attempt ended (``failed``, ``node_lost``), its cause or message.
        limit : maximum number, newest first; 0: 1000.
        """
        return self._answer(calls.history(user, limit, since=since, until=until, state=state, reason=reason))

    def show(self, app: int | str) -> schema.ShowReply:
        """An app with its jobs and their attempts."""
        return self._answer(calls.show(app))

    def trials(self, app: int | str) -> Listing[schema.Trial]:
        """The jobs of a sweep: parameters, reported losses, and which ended early, when and why."""
        return self._answer(calls.trials(app))

    def wait(
        self,
        app: int | str,
        timeout_s: float = float("inf"),
        *,
        poll_s: float = 0.5,
        tell: Callable[[schema.App], None] | None = None,
    ) -> schema.App:
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
                found = self.show(app).app
            except Unavailable as error:
                wait.absence.goes_on(error)
                time.sleep(poll_s)
                self._dial_again()
                continue
            if wait.ended(found):
                return found
            if tell is not None:
                tell(found)
            time.sleep(poll_s)

    def logs(
        self, app: int | str, job: int = 0, rank: int = 0, *, follow: bool = False, attempt: int = 0
    ) -> Iterator[bytes]:
        """The output of a rank, in pieces; with ``follow``, tolerates an unavailable arbiter for ``FOLLOW_S`` seconds."""
        request = calls.logs(app, job, rank, follow=follow, attempt=attempt)
        copy = LogCopy(self, follow=follow)
        while True:
            copy.begin()
            try:
                for piece in self._stream("Logs", request):
                    if data := copy.new(piece):
                        yield data
                return
            except Unavailable as error:
                copy.interrupted(error)
            time.sleep(RETRY_S)
            self._dial_again()

    def why(self, app: int | str, *, quick: bool = False) -> schema.WhyReply:
        """Why the app waits, when it is expected to start and to end, and its history as JSON; ``quick`` : without simulations
        and history, which take seconds.
        """
        return self._answer(calls.why(app, quick=quick))

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
    ) -> schema.WhatIfReply:
        """Finish times of the apps in the system under other policies, with other machines or without an app.

        Parameters
        ----------
        policies : names with parameters; ``current``, the default, is the one in force.
        add_gpus : GPUs that join, as ``"8@A100"``. ``remove`` : GPUs that leave, likewise, or names of machines.
        without : numbers or names of apps. ``horizon_s`` : time ahead, 0 for seven days. ``simulations`` : of each case, 0 for 20.
        arrivals : further apps are drawn from the service's history.
        """
        return self._answer(
            calls.what_if(
                policies,
                arrivals=arrivals,
                add_gpus=add_gpus,
                remove=remove,
                without=without,
                horizon_s=horizon_s,
                simulations=simulations,
            )
        )

    def dump(self) -> bytes:
        """The scheduler's state, in the format that ``themis replay`` reads."""
        return b"".join(self._stream("Dump", schema.Nothing()))

    # ---- the cluster -------------------------------------------------------------------------------------------------

    def info(self) -> schema.InfoReply:
        """Version, policy and size of the service."""
        return self._answer(calls.info())

    def nodes(self, user: str = "") -> Listing[schema.Node]:
        """All machines, or those that run this user's apps."""
        return self._answer(calls.nodes(user))

    def drain(self, node: str, deadline_s: float = 0.0) -> schema.Node:
        """Take a machine out of service: immediately, or when its jobs have ended, after ``deadline_s`` seconds at the latest."""
        return self._answer(calls.drain(node, deadline_s))

    def undrain(self, node: str) -> schema.Node:
        """Return a machine to service."""
        return self._answer(calls.undrain(node))

    def remove_node(self, node: str) -> schema.Node:
        """Remove a machine that joined over the network: its jobs continue elsewhere, then its certificate is revoked."""
        return self._answer(calls.remove_node(node))

    def share(self, user: str = "") -> Listing[schema.UserShare]:
        """Each user's GPUs now, fair share, rho, and GPU hours so far compared with those on a private 1/N of the cluster."""
        return self._answer(calls.share(user))

    def fairness(self, user: str = "") -> schema.FairnessReply:
        """GPU-hours over time that users were entitled to and received, and loans between users. Users see themselves
        and the sum of all others; administrators see all users.
        """
        return self._answer(calls.fairness(user))

    def budgets(self, user: str = "") -> Listing[schema.BudgetUse]:
        """Used part of budgets: the caller's own, or all for administrators."""
        return self._answer(calls.budgets(user))

    def usage(
        self,
        user: str = "",
        *,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        utc: bool = False,
    ) -> Listing[schema.UserUsage]:
        """GPU hours, their cost and apps; your own, or for administrators all users'.

        Parameters
        ----------
        since, until : times of the first and last day, seconds since 1970; all days without them.
        by : what each row stands for, of user, group, day and gpu_type.
        utc : days of UTC instead of the service's time zone.
        """
        return self._answer(calls.usage(user, since=since, until=until, by=by, utc=utc))

    def events(
        self, after: int = 0, *, follow: bool = False, limit: int = 0, user: str = ""
    ) -> Iterator[schema.Record]:
        """The journal's records after a number; with ``user``, those about the user's apps."""
        yield from self._stream("Events", calls.events(after, follow=follow, limit=limit, user=user))

    # ---- users -------------------------------------------------------------------------------------------------------

    def add_user(self, user: str, *, admin: bool = False) -> str:
        """Create a token for a user; replaces an existing one. For administrators."""
        return self._answer(calls.add_user(user, admin=admin))

    def remove_user(self, user: str) -> schema.User:
        """Revoke a user's token; the user's apps continue."""
        return self._answer(calls.remove_user(user))

    def users(self, user: str = "") -> Listing[schema.User]:
        """Users with a token, without the owner of the data directory."""
        return self._answer(calls.users(user))

    # ---- settings ----------------------------------------------------------------------------------------------------

    def settings(self) -> Listing[schema.Setting]:
        """All settings of the service, with the time and author of their last change."""
        return self._answer(calls.settings())

    def settings_history(self, limit: int = 0) -> Listing[schema.SettingsChange]:
        """Changes of settings, the newest first; 0: 1000 of them. For administrators."""
        return self._answer(calls.settings_history(limit))

    def sign_in(self, handle: str = "", *, token: str = "") -> schema.SignInReply:
        """A step of a sign-in with the OIDC provider: begin, ask with its handle whether the user agreed, or renew a token."""
        return self._answer(calls.sign_in(handle, token))

    def audit(self, user: str = "", limit: int = 0) -> Listing[schema.AuditEntry]:
        """Audit log of sign-ins and changes: user, action and address, newest first. Users see their own entries,
        administrators all. ``limit`` : maximum number of entries (0: 1000)."""
        return self._answer(calls.audit(user, limit))

    def journal(self) -> schema.JournalReply:
        """Size of the journal, and backups in the data directory. For administrators."""
        return self._answer(calls.journal())

    def back_up(self) -> schema.Backup:
        """Copy the data directory into its folder of backups. For administrators."""
        return self._answer(calls.back_up())

    def set(self, values: Mapping[str, object] | None = None, *, reload: bool = False, **more: object) -> list[str]:
        """Change settings while the service runs, all or none: ``client.set(policy="drf", lease="5m")``. For administrators.

        Returns a sentence for each change and what follows from it. ``values`` : those whose names have dots, as
        ``{"users.ann.weight": 2}``. ``reload`` : take on what changed in the service's settings file instead.
        """
        return self._answer(calls.change({**(values or {}), **more}, reload=reload))

    # ---- calls -------------------------------------------------------------------------------------------------------

    def call(self, method: str, request: Message) -> Any:
        """Call a route of ``themis.schema.routes`` that returns one answer, by its name."""
        return self._call(method, request)

    def stream(self, method: str, request: Message) -> Iterator[Any]:
        """Call a route that returns a stream, by its name: its messages, or pieces of bytes."""
        return self._stream(method, request)

    def _answer(self, call: Call[T]) -> T:
        return call.read(self._call(call.method, call.request))

    def _call(self, name: str, request: Message) -> Any:
        """One call, retried while the arbiter is unavailable or busy."""
        route, retries = CALLS[name], Retries(self, name)
        while True:
            try:
                return self._reply(route, self._http.request(**self._asked(route, request, retries.left_s)))
            except (httpx.TransportError, ThemisError) as error:
                wait_s = retries.failed(error, self._tls_cause(error))
            time.sleep(wait_s)
            self._dial_again()

    def _stream(self, name: str, request: Message) -> Iterator[Any]:
        """Messages of a stream of events, or pieces of another stream."""
        route = CALLS[name]
        try:
            with self._http.stream(**self._asked(route, request, self.timeout_s)) as reply:
                if reply.status_code != 200:
                    reply.read()
                    raise self._refusal(reply)
                self._streams.add(reply)
                try:
                    if route.media != EVENTS:
                        yield from reply.iter_raw()
                    else:
                        events = EventReader(self, route)
                        for line in reply.iter_lines():
                            yield from events.take(line)
                finally:
                    self._streams.discard(reply)
        except (httpx.TransportError, Busy, PlainRefused) as error:
            raise self._in_words(error, self._tls_cause(error)) from None


__all__ = ["OVER", "Client", "StillActive", "Unavailable", "user_name"]
