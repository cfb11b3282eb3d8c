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

import grpc
import grpc.aio

from themis.client import calls
from themis.client import themis_pb2 as pb
from themis.client.calls import Call, GpuCount, JobKeys, RunOptions
from themis.client.connection import (
    RETRY_S,
    Connection,
    LogCopy,
    Retries,
    StillActive,
    Unavailable,
    Wait,
)
from themis.client.grpc_channel import METHODS, to_bytes
from themis.client.notebook import Listing
from themis.client.sending import sent

T = TypeVar("T")


class AsyncClient(Connection):
    """A connection to an arbiter for one event loop; parameters and methods are those of ``themis.Client``, which describes them.

    Methods are coroutines; ``logs``, ``events`` and ``stream`` are asynchronous iterators.

    Raises
    ------
    InputError : no arbiter was started, its token is missing or readable by others, or a call was wrong.
    Unavailable : the arbiter does not answer.
    """

    _channel: grpc.aio.Channel | None = None
    """Created by the first call, in whose event loop the channel then runs."""

    def _dial(self) -> grpc.aio.Channel:
        if self._channel is None:
            options = self._channel_options()
            if credentials := self._credentials():
                self._channel = grpc.aio.secure_channel(self.address, credentials, options=options)
            else:
                self._channel = grpc.aio.insecure_channel(self.address, options=options)
        return self._channel

    async def _dial_again(self) -> None:
        """Reconnect: a restarted arbiter may have another address."""
        if self._moved():
            await self._hang_up()

    async def _hang_up(self) -> None:
        before, self._channel = self._channel, None
        if before is not None:
            await before.close(None)

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        await self._hang_up()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- apps ------------------------------------------------------------------------------------------------------

    async def submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Submit an app. A call is safe to repeat: a submission without a ``key`` gets one here."""
        return await self._answer(calls.submit(request))

    async def submit_all(self, requests: Iterable[pb.SubmitRequest]) -> list[pb.SubmitReply]:
        """Submit apps in order; dependencies by name refer to the apps of this call first."""
        made: dict[str, pb.SubmitReply] = {}
        for request in requests:
            made[request.name] = await self.submit(calls.after_made(request, made))
        return list(made.values())

    async def submit_file(
        self, file: Path | str, user: str = "", *, folder: Path | None = None
    ) -> list[pb.SubmitReply]:
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
        hours: float = 1.0,
        model: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        send: Path | str | None = None,
        **more: Unpack[RunOptions],
    ) -> pb.SubmitReply:
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

        port = (await self.info()).http_port
        return await asyncio.to_thread(fetch, self._files_home(), port, str(app), Path(to), jobs)

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
    ) -> pb.SubmitReply:
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

    async def cancel(self, app: int | str) -> pb.App:
        """Withdraw an app."""
        return await self._answer(calls.cancel(app))

    async def hold(self, app: int | str) -> pb.App:
        """Let an app wait without GPUs."""
        return await self._answer(calls.hold(app))

    async def resume(self, app: int | str) -> pb.App:
        """Let it take part again."""
        return await self._answer(calls.resume(app))

    async def queue(self, user: str = "") -> Listing[pb.App]:
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
    ) -> Listing[pb.PastApp]:
        """Finished apps with their attempts, GPU hours and cost, the newest last; your own, or for administrators all users'."""
        return await self._answer(calls.history(user, limit, since=since, until=until, state=state, reason=reason))

    async def show(self, app: int | str) -> pb.ShowReply:
        """An app with its jobs and their attempts."""
        return await self._answer(calls.show(app))

    async def trials(self, app: int | str) -> Listing[pb.Trial]:
        """The jobs of a sweep: parameters, reported losses, and which ended early, when and why."""
        return await self._answer(calls.trials(app))

    async def wait(
        self,
        app: int | str,
        timeout_s: float = float("inf"),
        *,
        poll_s: float = 0.5,
        tell: Callable[[pb.App], None] | None = None,
    ) -> pb.App:
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
                async for chunk in self._stream("Logs", request):
                    if data := copy.new(chunk):
                        yield data
                return
            except Unavailable as error:
                copy.interrupted(error)
            await asyncio.sleep(RETRY_S)
            await self._dial_again()

    async def why(self, app: int | str) -> pb.WhyReply:
        """Why the app waits, when it is expected to start, and its history as JSON."""
        return await self._answer(calls.why(app))

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
    ) -> pb.WhatIfReply:
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
        return b"".join([chunk.data async for chunk in self._stream("Dump", pb.DumpRequest())])

    # ---- the cluster -------------------------------------------------------------------------------------------------

    async def info(self) -> pb.InfoReply:
        """Version, policy and size of the service."""
        return await self._answer(calls.info())

    async def nodes(self, user: str = "") -> Listing[pb.Node]:
        """All machines, or those that run this user's apps."""
        return await self._answer(calls.nodes(user))

    async def drain(self, node: str, deadline_s: float = 0.0) -> pb.Node:
        """Take a machine out of service: immediately, or when its jobs have ended, after ``deadline_s`` seconds at the latest."""
        return await self._answer(calls.drain(node, deadline_s))

    async def undrain(self, node: str) -> pb.Node:
        """Return a machine to service."""
        return await self._answer(calls.undrain(node))

    async def remove_node(self, node: str) -> pb.Node:
        """Remove a machine that joined over the network: its jobs continue elsewhere, then its certificate is revoked."""
        return await self._answer(calls.remove_node(node))

    async def share(self, user: str = "") -> Listing[pb.UserShare]:
        """Each user's GPUs now, fair share, rho, and GPU hours so far compared with those on a private 1/N of the cluster."""
        return await self._answer(calls.share(user))

    async def fairness(self, user: str = "") -> pb.FairnessReply:
        """GPU-hours over time that users were entitled to and received, and loans between users. Users see themselves
        and the sum of all others; administrators see all users.
        """
        return await self._answer(calls.fairness(user))

    async def budgets(self, user: str = "") -> Listing[pb.BudgetUse]:
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
    ) -> Listing[pb.UserUsage]:
        """GPU hours, their cost and apps; your own, or for administrators all users'."""
        return await self._answer(calls.usage(user, since=since, until=until, by=by, utc=utc))

    async def events(
        self, after: int = 0, *, follow: bool = False, limit: int = 0, user: str = ""
    ) -> AsyncIterator[pb.Record]:
        """The journal's records after a number; with ``user``, those about the user's apps."""
        async for record in self._stream("Events", calls.events(after, follow=follow, limit=limit, user=user)):
            yield record

    # ---- users -------------------------------------------------------------------------------------------------------

    async def add_user(self, user: str, *, admin: bool = False) -> str:
        """Create a token for a user; replaces an existing one. For administrators."""
        return await self._answer(calls.add_user(user, admin=admin))

    async def remove_user(self, user: str) -> pb.User:
        """Revoke a user's token; the user's apps continue."""
        return await self._answer(calls.remove_user(user))

    async def users(self, user: str = "") -> Listing[pb.User]:
        """Users with a token, without the owner of the data directory."""
        return await self._answer(calls.users(user))

    # ---- settings ----------------------------------------------------------------------------------------------------

    async def settings(self) -> Listing[pb.Setting]:
        """All settings of the service, with the time and author of their last change."""
        return await self._answer(calls.settings())

    async def settings_history(self, limit: int = 0) -> Listing[pb.SettingsChange]:
        """Changes of settings, the newest first; 0: 1000 of them. For administrators."""
        return await self._answer(calls.settings_history(limit))

    async def sign_in(self, handle: str = "", *, token: str = "") -> pb.SignInReply:
        """A step of a sign-in with the OIDC provider: begin, ask with its handle whether the user agreed, or renew a token."""
        return await self._answer(calls.sign_in(handle, token))

    async def audit(self, user: str = "", limit: int = 0) -> Listing[pb.AuditEntry]:
        """Audit log of sign-ins and changes: user, action and address, newest first. Users see their own entries,
        administrators all. ``limit`` : maximum number of entries (0: 1000)."""
        return await self._answer(calls.audit(user, limit))

    async def journal(self) -> pb.JournalReply:
        """Size of the journal, and backups in the data directory. For administrators."""
        return await self._answer(calls.journal())

    async def back_up(self) -> pb.Backup:
        """Copy the data directory into its folder of backups. For administrators."""
        return await self._answer(calls.back_up())

    async def set(
        self, values: Mapping[str, object] | None = None, *, reload: bool = False, **more: object
    ) -> list[str]:
        """Change settings while the service runs, all or none: ``client.set(policy="drf", lease="5m")``. For administrators."""
        return await self._answer(calls.change({**(values or {}), **more}, reload=reload))

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def call(self, method: str, request: Any) -> Any:
        """Call a method of ``themis.proto`` that returns one answer, by its name."""
        return await self._call(method, request)

    def stream(self, method: str, request: Any) -> AsyncIterator[Any]:
        """Call a method that returns a stream, by its name."""
        return self._stream(method, request)

    async def _answer(self, call: Call[T]) -> T:
        return call.read(await self._call(call.method, call.request))

    async def _call(self, name: str, request: Any) -> Any:
        """One call, retried while the arbiter is unavailable."""
        method, retries = METHODS[name], Retries(self, name)
        while True:
            call: Callable[..., Any] = self._dial().unary_unary(method.path, to_bytes, method.read_reply)
            try:
                return await call(request, metadata=self._metadata, timeout=retries.left_s, wait_for_ready=False)
            except grpc.RpcError as error:
                retries.failed(error, await asyncio.to_thread(self._tls_cause, error))
            await asyncio.sleep(RETRY_S)
            await self._dial_again()

    async def _stream(self, name: str, request: Any) -> AsyncIterator[Any]:
        method = METHODS[name]
        call: Callable[..., Any] = self._dial().unary_stream(method.path, to_bytes, method.read_reply)
        try:
            async for message in call(request, metadata=self._metadata):
                yield message
        except grpc.RpcError as error:
            raise self._in_words(error, await asyncio.to_thread(self._tls_cause, error)) from None
        except asyncio.CancelledError:
            # By close() in another task; a task that is cancelled itself ends with its own error.
            if not self._closed:
                raise
            raise Unavailable(f"the connection to {self.address} was closed.") from None


__all__ = ["AsyncClient", "StillActive", "Unavailable"]
