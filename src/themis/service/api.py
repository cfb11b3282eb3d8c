"""The gRPC server: each method of ``client/themis.proto`` asks the arbiter's thread, or reads files of its home.

Every call must carry the token. Errors become status codes with one sentence; a bug of ours is INTERNAL and its
traceback goes to the arbiter's log, not to the caller.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty
from typing import Any

import grpc

from themis import __version__
from themis.client import themis_pb2 as pb
from themis.client.channel import METHODS, SERVICE, to_bytes
from themis.errors import InputError, ThemisError, UnknownName
from themis.report.explain import explain
from themis.service import views
from themis.service.agents import TooLate
from themis.service.arbiter import Arbiter, Closed
from themis.service.journal import export, read_records
from themis.service.submission import Limit, submit

WORKERS, STREAMS = 32, 24
"""Threads that answer; of them, so many may be busy with calls that follow something."""
POLL_S = 0.25
CHUNK = 64 << 10
MOST_ROWS = 1000
"""Read from the journal at once."""

Row = tuple[int, float, str, str]
"""A record: number, time, kind, line."""
NEVER = threading.Event()
"""For callers within the process, who hang up by not asking for more."""

log = logging.getLogger("themis.service")


class Api:
    """The methods, by name. ``root`` is the executor's folder, where ranks' logs lie."""

    def __init__(self, arbiter: Arbiter, root: Path) -> None:
        self.arbiter, self.root = arbiter, root
        self.ending = threading.Event()
        self._streams = threading.Semaphore(STREAMS)
        self._agents = threading.Semaphore(arbiter.config.max_agents)

    def _do(self, work: Callable[[Arbiter], Any]) -> Any:
        return self.arbiter.ask(lambda: work(self.arbiter))

    def Info(self, request: pb.InfoRequest) -> pb.InfoReply:
        """Who answers."""

        def info(a: Arbiter) -> pb.InfoReply:
            s = a.state
            return pb.InfoReply(
                version=__version__, api=1, policy=a.config.policy, gpus=int(s.machine_size.sum()), machines=len(s.machines),
                started=a.started, lease_s=a.settings.lease_s, active_apps=int(s.apps.active[: s.apps.size].sum()),
                records=a.journal.last()[0], problem=a.engine.problem, pid=os.getpid(),
            )  # fmt: skip

        return self._do(info)  # type: ignore[no-any-return]

    def Submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Enter an app."""
        return self._do(lambda a: submit(a, request))  # type: ignore[no-any-return]

    def Cancel(self, request: pb.AppRef) -> pb.AppReply:
        """Withdraw an app."""
        return self._change(request, Arbiter.cancel)

    def Hold(self, request: pb.AppRef) -> pb.AppReply:
        """Let an app wait."""
        return self._change(request, Arbiter.hold)

    def Resume(self, request: pb.AppRef) -> pb.AppReply:
        """Let it go on."""
        return self._change(request, Arbiter.resume)

    def _change(self, request: pb.AppRef, how: Callable[[Arbiter, int], None]) -> pb.AppReply:
        def change(a: Arbiter) -> pb.AppReply:
            app = views.find_app(a, request.app)
            how(a, app)
            return pb.AppReply(app=views.app_row(a, views.picture(a), a.journal.apps("app = ?", app)[0], {}))

        return self._do(change)  # type: ignore[no-any-return]

    def Apps(self, request: pb.AppsRequest) -> pb.AppsReply:
        """The queue, or what is over."""
        return self._do(lambda a: views.apps(a, request))  # type: ignore[no-any-return]

    def Show(self, request: pb.AppRef) -> pb.ShowReply:
        """One app."""
        return self._do(lambda a: views.show(a, request.app))  # type: ignore[no-any-return]

    def Nodes(self, request: pb.NodesRequest) -> pb.NodesReply:
        """All machines."""
        return self._do(lambda a: views.nodes(a, request.user))  # type: ignore[no-any-return]

    def Drain(self, request: pb.NodeRef) -> pb.NodeReply:
        """Out of service."""
        return self._drain(request, drained=True)

    def Undrain(self, request: pb.NodeRef) -> pb.NodeReply:
        """Back."""
        return self._drain(request, drained=False)

    def _drain(self, request: pb.NodeRef, *, drained: bool) -> pb.NodeReply:
        def change(a: Arbiter) -> pb.NodeReply:
            machine = views.machine_of(a, request.node)
            a.drain(machine, drained)
            return pb.NodeReply(node=views.node_row(a, machine))

        return self._do(change)  # type: ignore[no-any-return]

    def Share(self, request: pb.UsersRequest) -> pb.ShareReply:
        """Who holds what."""
        return self._do(lambda a: views.share(a, request.user))  # type: ignore[no-any-return]

    def Usage(self, request: pb.UsersRequest) -> pb.UsageReply:
        """Who had what."""
        return self._do(lambda a: views.usage(a, request.user))  # type: ignore[no-any-return]

    def Why(self, request: pb.AppRef) -> pb.WhyReply:
        """An app's story, read from the journal; outside the arbiter's thread, for it may be long."""
        name = self._do(lambda a: a.state.app_specs[views.find_app(a, request.app)].name)
        with tempfile.TemporaryDirectory(prefix="themis-") as folder:
            path = Path(folder) / "journal.jsonl"
            export(self.arbiter.journal.path, path)
            return pb.WhyReply(json=explain(path, name).to_json())

    # ---- what goes on ------------------------------------------------------------------------------------------------

    def Events(self, request: pb.EventsRequest, gone: threading.Event = NEVER) -> Iterator[pb.Record]:
        """The journal's records."""
        after, left = request.after, request.limit or -1
        with _Turn(self._streams):
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

    def _of_user(self, rows: list[Row], user: str) -> list[Row]:
        if not user or not rows:
            return rows
        users, app_of = self._do(views.owners)
        return [row for row in rows if _concerns(json.loads(row[3]), user, users, app_of)]

    def Logs(self, request: pb.LogsRequest, gone: threading.Event = NEVER) -> Iterator[pb.LogChunk]:
        """What a rank wrote: every attempt's file in turn, the last one as it grows."""
        job = self._do(lambda a: self._job(a, request))
        at: dict[int, int] = {}
        with _Turn(self._streams):
            while not self.ending.is_set() and not gone.is_set():
                # Asked before reading: what was written before the end is then read after it was seen.
                over = not request.follow or self._do(lambda a: not a.state.apps.active[a.state.jobs.app[job]])
                sent = False
                for attempt, path in self._files(job, request):
                    for data in _rest(path, at, attempt):
                        sent = True
                        yield pb.LogChunk(data=data, attempt=attempt)
                if over and not sent:
                    return
                if not sent:
                    self.ending.wait(POLL_S)

    # ---- agents of apps ---------------------------------------------------------------------------------------------

    def Attend(self, request: pb.AppRef, gone: threading.Event = NEVER) -> Iterator[pb.AgentEvent]:
        """An app's own agent, until the app is over or it hangs up."""
        app, name = self._do(lambda a: self._active(a, request.app))
        with _Turn(self._agents, f"{self.arbiter.config.max_agents} agents attend already; raise max_agents."):
            seat = self.arbiter.desk.attend(app, name)
            try:
                while not self.ending.is_set() and not gone.is_set():
                    try:
                        event = seat.outbox.get(timeout=POLL_S)
                    except Empty:
                        continue
                    if event is None:
                        return
                    yield event
            finally:
                self.arbiter.desk.leave(seat)

    def Estimate(self, request: pb.EstimateRequest) -> pb.EstimateReply:
        """An agent's rho."""
        self.arbiter.desk.estimate(self._find(request.app), request.round, request.rho)
        return pb.EstimateReply()

    def Bid(self, request: pb.BidRequest) -> pb.BidReply:
        """An agent's bid; what is wrong with it is said at once, in the caller's thread."""
        self.arbiter.desk.bid(self._find(request.app), request)
        return pb.BidReply()

    def _find(self, ref: str) -> int:
        # By number without the arbiter's thread: a bid must not wait for whatever that does.
        app: int = int(ref) if ref.isdecimal() else self._do(lambda a: views.find_app(a, ref))
        return app

    def _active(self, a: Arbiter, ref: str) -> tuple[int, str]:
        app = views.find_app(a, ref)
        if not a.state.apps.active[app]:
            raise InputError(f"app {ref[:100]!r} is over, no agent can bid for it.")
        return app, a.state.app_specs[app].name

    def _job(self, a: Arbiter, request: pb.LogsRequest) -> int:
        jobs = a.state.app_jobs(views.find_app(a, request.app))
        if not 0 <= request.job < len(jobs):
            raise InputError(f"app {request.app!r} has {len(jobs)} jobs, got job {request.job}, counted from 0.")
        return int(jobs[request.job])

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


class _Turn:
    """A place among the streams, or RESOURCE_EXHAUSTED."""

    def __init__(self, places: threading.Semaphore, full: str = "") -> None:
        self.places = places
        self.full = full or (
            f"{STREAMS} callers follow events or logs already; end one of them, or ask without follow."
        )

    def __enter__(self) -> None:
        if not self.places.acquire(blocking=False):
            raise Limit(self.full)

    def __exit__(self, *_: object) -> None:
        self.places.release()


def _rest(path: Path, at: dict[int, int], attempt: int) -> Iterator[bytes]:
    """What the file has beyond the place reached; a file that was cut short begins anew."""
    try:
        with path.open("rb") as file:
            start = at.get(attempt, 0)
            file.seek(start if start <= os.fstat(file.fileno()).st_size else 0)
            while data := file.read(CHUNK):
                at[attempt] = file.tell()
                yield data
    except OSError:
        return


# ---- the server ------------------------------------------------------------------------------------------------------


def serve(api: Api, address: str, token: str, most_bytes: int) -> tuple[grpc.Server, int]:
    """Listen; returns the server, already started, and its port.

    Raises
    ------
    InputError : the address is taken.
    """
    options = [("grpc.max_receive_message_length", most_bytes), ("grpc.so_reuseport", 0)]
    server = grpc.server(
        ThreadPoolExecutor(WORKERS + api.arbiter.config.max_agents, thread_name_prefix="themis-api"),
        options=options,
        interceptors=[_Token(token)],
    )
    handlers = {name: _handler(getattr(api, name), name) for name in METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise InputError(f"cannot listen on {address}; something else does already. Choose another port.")
    server.start()
    return server, port


class _Token(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic for the type checker only
    """Turns away calls without the token, before anything of them is read."""

    def __init__(self, token: str) -> None:
        self.expected = f"Bearer {token}".encode()

        def refuse(request: object, context: grpc.ServicerContext) -> None:
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "this call lacks the arbiter's token; see the file token in its home."
            )

        self.refusal = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Continue if the token is right, else refuse."""
        given = dict(details.invocation_metadata).get("authorization", "")
        right = hmac.compare_digest(given.encode() if isinstance(given, str) else given, self.expected)
        return continuation(details) if right else self.refusal


def _handler(do: Callable[..., Any], name: str) -> Any:
    method = METHODS[name]

    def one(request: Any, context: grpc.ServicerContext) -> Any:
        with _Status(context, name):
            return do(request)

    def many(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        gone = threading.Event()
        context.add_callback(gone.set)  # a stream that has nothing to say would not notice otherwise
        with _Status(context, name):
            yield from do(request, gone)

    if method.stream:
        return grpc.unary_stream_rpc_method_handler(many, method.read, to_bytes)
    return grpc.unary_unary_rpc_method_handler(one, method.read, to_bytes)


class _Status:
    """Errors as status codes."""

    def __init__(self, context: grpc.ServicerContext, name: str) -> None:
        self.context, self.name = context, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ThemisError):
            self.context.abort(code_of(error), str(error))
        elif isinstance(error, Exception) and self.context.is_active():
            log.error("%s failed", self.name, exc_info=error)
            self.context.abort(
                grpc.StatusCode.INTERNAL, f"a bug in Themis: {type(error).__name__}; see the arbiter's log."
            )


def code_of(error: ThemisError) -> grpc.StatusCode:
    """The status code of an error."""
    code = grpc.StatusCode
    match error:
        case Closed():
            return code.UNAVAILABLE
        case Limit():
            return code.RESOURCE_EXHAUSTED
        case TooLate():
            return code.FAILED_PRECONDITION
        case UnknownName():
            return code.NOT_FOUND
        case InputError():
            return code.INVALID_ARGUMENT
        case _:
            return code.INTERNAL
