"""``themis.client.aio.AsyncClient``: the same methods as ``themis.Client``, for asyncio.

async with AsyncClient() as client:
    app = await client.run(["python", "train.py"], gpus=2)
    await client.wait(app.app)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import httpx

from themis.client import calls
from themis.client.calls import Call, GpuCount, JobKeys, RunOptions
from themis.client.connection import (
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
from themis.client.notebook import Listing
from themis.client.sending import sent
from themis.errors import ThemisError
from themis.schema import messages as schema
from themis.schema.messages import Message
from themis.schema.routes import CALLS, EVENTS

T = TypeVar("T")


class AsyncClient(Connection):
    """A connection to an arbiter for one event loop; parameters and methods are those of ``themis.Client``, which describes them.

    Methods are coroutines; ``logs``, ``events`` and ``stream`` are asynchronous iterators.

    Raises
    ------
    InputError : no arbiter was started, its token is missing or readable by others, or a call was wrong.
    Unavailable : the arbiter does not answer.
    """

    _http: httpx.AsyncClient | None = None
    """Created by the first call, in whose event loop it then runs."""
    _streams = 0

    def _begin(self) -> None:
        self._left: list[httpx.AsyncClient] = []
        """Connections to the address before, of streams that are open."""

    def _dial(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = httpx.AsyncClient(**self._options())
        return self._http

    async def _dial_again(self) -> None:
        """Reconnect: a restarted arbiter may have another address."""
        if self._moved() and self._http is not None:
            self._left.append(self._http)
            self._http = None
            if not self._streams:
                await self._close_left()

    async def _close_left(self) -> None:
        while self._left:
            await self._left.pop().aclose()

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        if self._http is not None:
            self._left.append(self._http)
            self._http = None
        await self._close_left()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- apps ------------------------------------------------------------------------------------------------------

    async def submit(self, request: schema.SubmitRequest) -> schema.SubmitReply:
        """Submit an app. A call is safe to repeat: a submission without a ``key`` gets one here."""
        return await self._answer(calls.submit(request))

    async def submit_all(self, requests: Iterable[schema.SubmitRequest]) -> list[schema.SubmitReply]:
        """Submit apps in order; dependencies by name refer to the apps of this call first."""
        made: dict[str, schema.SubmitReply] = {}
        for request in requests:
            made[request.name] = await self.submit(calls.after_made(request, made))
        return list(made.values())

    async def submit_file(
        self, file: Path | str, user: str = "", *, folder: Path | None = None
    ) -> list[schema.SubmitReply]:
        """Submit the apps of a job file (docs/jobs.md), each after its dependencies."""
        from themis.client.submit_requests import read_requests

        info = await self.info()
        found = await asyncio.to_thread(
            read_requests,
            Path(file),
            user,
            folder=folder,
            unknown_work_s=info.unknown_work_s,
            send=lambda path: self._sender(info).send(path),
        )
        return await self.submit_all(found)

    async def run(
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
        """Submit an app with one job: a command."""
        if send is not None:
            found = await asyncio.to_thread(sent, self._sender(await self.info()), send, cwd)
            more["bundle"], cwd = found["bundle"], Path(found["cwd"])
        return await self._answer(
            calls.run(command, gpus=gpus, name=name, hours=hours, model=model, env=env, cwd=cwd, more=more)
        )

    async def fetch(self, app: int | str, to: Path | str, jobs: Sequence[int] = ()) -> list[Path]:
        """Same as ``Client.fetch``."""
        from themis.client.fetching import fetch

        return await asyncio.to_thread(fetch, self._files_home(), str(app), Path(to), jobs)

    async def sweep(
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
        """Submit a hyper-parameter search as one app."""
        return await self._answer(
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
                unknown_work_s=(await self.info()).unknown_work_s,
            )
        )

    async def cancel(self, app: int | str) -> schema.App:
        """Withdraw an app."""
        return await self._answer(calls.cancel(app))

    async def hold(self, app: int | str) -> schema.App:
        """Let an app wait without GPUs."""
        return await self._answer(calls.hold(app))

    async def resume(self, app: int | str) -> schema.App:
        """Let it take part again."""
        return await self._answer(calls.resume(app))

    async def queue(self, user: str = "") -> Listing[schema.App]:
        """Apps that wait or run."""
        return await self._answer(calls.queue(user))

    async def history(
        self,
        user: str = "",
        limit: int = 0,
        *,
        since: float | None = None,
        until: float | None = None,
        state: Sequence[str] = (),
        reason: str = "",
    ) -> Listing[schema.PastApp]:
        """Finished apps with their attempts, GPU hours and cost, the newest last; your own, or for administrators all users'."""
        return await self._answer(calls.history(user, limit, since=since, until=until, state=state, reason=reason))

    async def show(self, app: int | str) -> schema.ShowReply:
        """An app with its jobs and their attempts."""
        return await self._answer(calls.show(app))

    async def trials(self, app: int | str) -> Listing[schema.Trial]:
        """The jobs of a sweep: parameters, reported losses, and which ended early, when and why."""
        return await self._answer(calls.trials(app))

    async def wait(
        self,
        app: int | str,
        timeout_s: float = float("inf"),
        *,
        poll_s: float = 0.5,
        tell: Callable[[schema.App], None] | None = None,
    ) -> schema.App:
        """Wait until the app has ended, also through restarts of the arbiter; raises StillActive after ``timeout_s``."""
        wait = Wait(self, app, timeout_s)
        while True:
            try:
                found = (await self.show(app)).app
            except Unavailable as error:
                wait.absence.goes_on(error)
                await asyncio.sleep(poll_s)
                await self._dial_again()
                continue
            if wait.ended(found):
                return found
            if tell is not None:
                tell(found)
            await asyncio.sleep(poll_s)

    async def logs(
        self, app: int | str, job: int = 0, rank: int = 0, *, follow: bool = False, attempt: int = 0
    ) -> AsyncIterator[bytes]:
        """The output of a rank, in pieces; with ``follow``, through restarts of the arbiter."""
        request = calls.logs(app, job, rank, follow=follow, attempt=attempt)
        copy = LogCopy(self, follow=follow)
        while True:
            copy.begin()
            try:
                async for piece in self._stream("Logs", request):
                    if data := copy.new(piece):
                        yield data
                return
            except Unavailable as error:
                copy.interrupted(error)
            await asyncio.sleep(RETRY_S)
            await self._dial_again()

    async def why(self, app: int | str, *, quick: bool = False) -> schema.WhyReply:
        """Why the app waits, when it is expected to start and to end, and its history as JSON; ``quick`` : without simulations
        and history, which take seconds.
        """
        return await self._answer(calls.why(app, quick=quick))

    async def what_if(
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
        return await self._answer(
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

    async def dump(self) -> bytes:
        """The scheduler's state, in the format that ``themis replay`` reads."""
        return b"".join([piece async for piece in self._stream("Dump", schema.Nothing())])

    # ---- the cluster -------------------------------------------------------------------------------------------------

    async def info(self) -> schema.InfoReply:
        """Version, policy and size of the service."""
        return await self._answer(calls.info())

    async def nodes(self, user: str = "") -> Listing[schema.Node]:
        """All machines, or those that run this user's apps."""
        return await self._answer(calls.nodes(user))

    async def drain(self, node: str, deadline_s: float = 0.0) -> schema.Node:
        """Take a machine out of service: immediately, or when its jobs have ended, after ``deadline_s`` seconds at the latest."""
        return await self._answer(calls.drain(node, deadline_s))

    async def undrain(self, node: str) -> schema.Node:
        """Return a machine to service."""
        return await self._answer(calls.undrain(node))

    async def remove_node(self, node: str) -> schema.Node:
        """Remove a machine that joined over the network: its jobs continue elsewhere, then its certificate is revoked."""
        return await self._answer(calls.remove_node(node))

    async def share(self, user: str = "") -> Listing[schema.UserShare]:
        """Each user's GPUs now, fair share, rho, and GPU hours so far compared with those on a private 1/N of the cluster."""
        return await self._answer(calls.share(user))

    async def fairness(self, user: str = "") -> schema.FairnessReply:
        """GPU-hours over time that users were entitled to and received, and loans between users. Users see themselves
        and the sum of all others; administrators see all users.
        """
        return await self._answer(calls.fairness(user))

    async def budgets(self, user: str = "") -> Listing[schema.BudgetUse]:
        """Used part of budgets: the caller's own, or all for administrators."""
        return await self._answer(calls.budgets(user))

    async def usage(
        self,
        user: str = "",
        *,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        utc: bool = False,
    ) -> Listing[schema.UserUsage]:
        """GPU hours, their cost and apps; your own, or for administrators all users'."""
        return await self._answer(calls.usage(user, since=since, until=until, by=by, utc=utc))

    async def events(
        self, after: int = 0, *, follow: bool = False, limit: int = 0, user: str = ""
    ) -> AsyncIterator[schema.Record]:
        """The journal's records after a number; with ``user``, those about the user's apps."""
        async for record in self._stream("Events", calls.events(after, follow=follow, limit=limit, user=user)):
            yield record

    # ---- users -------------------------------------------------------------------------------------------------------

    async def add_user(self, user: str, *, admin: bool = False) -> str:
        """Create a token for a user; replaces an existing one. For administrators."""
        return await self._answer(calls.add_user(user, admin=admin))

    async def remove_user(self, user: str) -> schema.User:
        """Revoke a user's token; the user's apps continue."""
        return await self._answer(calls.remove_user(user))

    async def users(self, user: str = "") -> Listing[schema.User]:
        """Users with a token, without the owner of the data directory."""
        return await self._answer(calls.users(user))

    # ---- settings ----------------------------------------------------------------------------------------------------

    async def settings(self) -> Listing[schema.Setting]:
        """All settings of the service, with the time and author of their last change."""
        return await self._answer(calls.settings())

    async def settings_history(self, limit: int = 0) -> Listing[schema.SettingsChange]:
        """Changes of settings, the newest first; 0: 1000 of them. For administrators."""
        return await self._answer(calls.settings_history(limit))

    async def sign_in(self, handle: str = "", *, token: str = "") -> schema.SignInReply:
        """A step of a sign-in with the OIDC provider: begin, ask with its handle whether the user agreed, or renew a token."""
        return await self._answer(calls.sign_in(handle, token))

    async def audit(self, user: str = "", limit: int = 0) -> Listing[schema.AuditEntry]:
        """Audit log of sign-ins and changes: user, action and address, newest first. Users see their own entries,
        administrators all. ``limit`` : maximum number of entries (0: 1000)."""
        return await self._answer(calls.audit(user, limit))

    async def journal(self) -> schema.JournalReply:
        """Size of the journal, and backups in the data directory. For administrators."""
        return await self._answer(calls.journal())

    async def back_up(self) -> schema.Backup:
        """Copy the data directory into its folder of backups. For administrators."""
        return await self._answer(calls.back_up())

    async def set(
        self, values: Mapping[str, object] | None = None, *, reload: bool = False, **more: object
    ) -> list[str]:
        """Change settings while the service runs, all or none: ``client.set(policy="drf", lease="5m")``. For administrators."""
        return await self._answer(calls.change({**(values or {}), **more}, reload=reload))

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def call(self, method: str, request: Message) -> Any:
        """Call a route of ``themis.schema.routes`` that returns one answer, by its name."""
        return await self._call(method, request)

    def stream(self, method: str, request: Message) -> AsyncIterator[Any]:
        """Call a route that returns a stream, by its name: its messages, or pieces of bytes."""
        return self._stream(method, request)

    async def _answer(self, call: Call[T]) -> T:
        return call.read(await self._call(call.method, call.request))

    async def _call(self, name: str, request: Message) -> Any:
        """One call, retried while the arbiter is unavailable or busy."""
        route, retries = CALLS[name], Retries(self, name)
        while True:
            try:
                return self._reply(route, await self._dial().request(**self._asked(route, request, retries.left_s)))
            except (httpx.TransportError, ThemisError) as error:
                wait_s = retries.failed(error, await asyncio.to_thread(self._tls_cause, error))
            await asyncio.sleep(wait_s)
            await self._dial_again()

    async def _stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        """Messages of a stream of events, or pieces of another stream."""
        route = CALLS[name]
        self._streams += 1
        try:
            async with self._dial().stream(**self._asked(route, request, self.timeout_s)) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    raise self._refusal(reply)
                if route.media != EVENTS:
                    async for piece in reply.aiter_raw():
                        yield piece
                else:
                    events = EventReader(self, route)
                    async for line in reply.aiter_lines():
                        for message in events.take(line):
                            yield message
        except (httpx.TransportError, Busy, PlainRefused) as error:
            raise self._in_words(error, await asyncio.to_thread(self._tls_cause, error)) from None
        finally:
            self._streams -= 1


__all__ = ["AsyncClient", "StillActive", "Unavailable"]
