"""``themis.Client``: the arbiter's API as Python. Answers are the messages of ``themis.proto``, whose fields are typed.

with Client() as client:
    app = client.run(["python", "train.py"], gpus=2)
    client.wait(app.app)
"""

from __future__ import annotations

import getpass
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc

from themis.client import themis_pb2 as pb
from themis.client.channel import METHODS, to_bytes
from themis.client.command import run_request
from themis.client.home import default_home, read_endpoint, read_token
from themis.errors import InputError, ThemisError

OVER = ("completed", "cancelled", "failed")
STUCK = "cannot be written"
"""Part of the message of an arbiter whose disk is full."""
RETRY_S = 0.2
FOLLOW_S = 600.0
"""Seconds that a call which follows or waits tolerates an unavailable arbiter, for a restart or an upgrade."""

_M = TypeVar("_M")


class Unavailable(ThemisError):
    """The arbiter does not answer."""


class Client:
    """A connection to an arbiter.

    Parameters
    ----------
    home : its data directory, which has its address and the token; by default ``$THEMIS_DATA_DIR`` or ``~/.themis``.
    address, token : instead of those in the data directory.
    timeout_s : timeout of a call that returns one answer, in seconds.
    patience_s : seconds to retry while the arbiter is unavailable, as during a restart; by default ``timeout_s``.
    on_wait : called once, with a sentence, when the first retry begins.

    Raises
    ------
    InputError : no arbiter was started, its token is missing or readable by others, or a call was wrong.
    Unavailable : the arbiter does not answer.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        address: str = "",
        token: str = "",
        timeout_s: float = 30.0,
        patience_s: float | None = None,
        on_wait: Callable[[str], object] = lambda sentence: None,
    ) -> None:
        self.home = home or default_home()
        self._given = bool(address)
        self._closed = self._said_away = False
        """The client is closed; the user has been told that the arbiter is unavailable."""
        self.address = address or read_endpoint(self.home).grpc
        self.timeout_s, self.patience_s, self.on_wait = timeout_s, patience_s, on_wait
        self._metadata = (("authorization", f"Bearer {token or read_token(self.home)}"),)
        self._channel = self._dial()

    def _dial(self) -> grpc.Channel:
        return grpc.insecure_channel(
            self.address,
            options=[
                ("grpc.max_receive_message_length", 256 << 20),
                ("grpc.enable_http_proxy", 0),
                # By default gRPC waits up to two minutes between attempts to reconnect.
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )

    def _dial_again(self) -> None:
        """Reconnect: a restarted arbiter may have another address."""
        with suppress(InputError):
            address = self.address if self._given else read_endpoint(self.home).grpc
            if address != self.address:
                self.address, before = address, self._channel
                self._channel = self._dial()
                before.close()

    def _away_since(self, away: float, error: Unavailable) -> float:
        """The time since when the arbiter is unavailable; notifies the user the first time."""
        if not self._said_away:
            self._said_away = True
            self.on_wait(f"{error} Retrying for up to {FOLLOW_S:g} s.")
        return min(away, time.monotonic())

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- apps ------------------------------------------------------------------------------------------------------

    def submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Submit an app. A call is safe to repeat: a submission without a ``key`` gets one here."""
        whole = pb.SubmitRequest()
        whole.CopyFrom(request)
        whole.key = whole.key or uuid.uuid4().hex
        return cast(pb.SubmitReply, self._call("Submit", whole))

    def submit_all(self, requests: Iterable[pb.SubmitRequest]) -> list[pb.SubmitReply]:
        """Submit apps in order; dependencies by name refer to the apps of this call first."""
        made: dict[str, pb.SubmitReply] = {}
        for request in requests:
            whole = pb.SubmitRequest()
            whole.CopyFrom(request)
            for other in whole.after:
                # The service may have added a number to the name.
                other.app = str(made[other.app].app) if other.app in made else other.app
            made[request.name] = self.submit(whole)
        return list(made.values())

    def submit_file(self, file: Path | str, user: str = "", *, folder: Path | None = None) -> list[pb.SubmitReply]:
        """Submit the apps of a job file (docs/jobs.md), each after its dependencies.

        Parameters
        ----------
        user : owner of the apps; empty for the caller.
        folder : the folder that ``workdir`` is relative to; by default the current one.

        Raises
        ------
        InputError : the file is wrong; names the line.
        """
        from themis.client.spec import read_requests

        assumed_s = self.info().unknown_work_s
        return self.submit_all(read_requests(Path(file), user, folder=folder, unknown_work_s=assumed_s))

    def run(
        self,
        command: Sequence[str] | str,
        *,
        gpus: int | tuple[int, int] = 1,
        name: str = "",
        hours: float = 1.0,
        model: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **more: Any,
    ) -> pb.SubmitReply:
        """Submit an app with one job: a command.

        Parameters
        ----------
        command : program and arguments, as a list of words or as one line, which is split as a shell would; no shell runs it.
        gpus : number of GPUs, or a range (fewest, most).
        hours : estimated run time on one GPU. The scheduler plans with it; the job may take longer.
        model : name of a profile, which has the job's speed; ``hours`` still says the work.
        more : fields of ``SubmitRequest`` (user, weight, retries, deadline_s) and of ``Program`` (launch, grace_s,
            stop_signal, checkpoint_dir).
        """
        low_high = (gpus, gpus) if isinstance(gpus, int) else gpus
        request = run_request(
            command, gpus=low_high, name=name, hours=hours, model=model, env=env or {}, cwd=cwd, **more
        )
        (job,) = request.pop("jobs")
        program = _made(pb.Program, **job.pop("program"))
        return self.submit(_made(pb.SubmitRequest, jobs=[_made(pb.Job, program=program, **job)], **request))

    def cancel(self, app: int | str) -> pb.App:
        """Withdraw an app."""
        return cast(pb.AppReply, self._call("Cancel", _ref(app))).app

    def hold(self, app: int | str) -> pb.App:
        """Let an app wait without GPUs."""
        return cast(pb.AppReply, self._call("Hold", _ref(app))).app

    def resume(self, app: int | str) -> pb.App:
        """Let it take part again."""
        return cast(pb.AppReply, self._call("Resume", _ref(app))).app

    def queue(self, user: str = "") -> list[pb.App]:
        """Apps that are not over."""
        return list(cast(pb.AppsReply, self._call("Apps", _made(pb.AppsRequest, user=user))).apps)

    def history(
        self,
        user: str = "",
        limit: int = 0,
        *,
        since: float | None = None,
        until: float | None = None,
        state: Sequence[str] = (),
        reason: str = "",
    ) -> list[pb.PastApp]:
        """Finished apps with their attempts, GPU hours and cost, the newest last; your own, or for administrators all users'.

        Parameters
        ----------
        since, until : only apps that ended then, seconds since 1970. ``state`` : completed, cancelled, failed; none: all.
        reason : part of an app's reason, or how an attempt ended (``failed``, ``node_lost``), its cause or message.
        limit : maximum number, newest first; 0: 1000.
        """
        request = _made(pb.HistoryRequest, user=user, since=since, until=until, state=state, reason=reason, limit=limit)
        return list(cast(pb.HistoryReply, self._call("History", request)).apps)

    def show(self, app: int | str) -> pb.ShowReply:
        """An app with its jobs and their attempts."""
        return cast(pb.ShowReply, self._call("Show", _ref(app)))

    def wait(
        self,
        app: int | str,
        *,
        timeout_s: float = float("inf"),
        poll_s: float = 0.5,
        tell: Callable[[pb.App], None] | None = None,
    ) -> pb.App:
        """Until the app is over, however often the arbiter starts anew meanwhile; Unavailable after ``timeout_s``.

        ``tell`` : called with the app each time that it is found not to be over.
        """
        end = time.monotonic() + timeout_s
        away = math.inf
        while True:
            try:
                found = self.show(app).app
            except Unavailable as error:
                away = self._away_since(away, error)
                if time.monotonic() > min(away + FOLLOW_S, end):
                    raise
                time.sleep(poll_s)
                self._dial_again()
                continue
            away, self._said_away = math.inf, False
            if found.state in OVER:
                return found
            if time.monotonic() > end:
                raise Unavailable(f"app {app} is still {found.state} after {timeout_s:g} s.")
            if tell is not None:
                tell(found)
            time.sleep(poll_s)

    def logs(
        self, app: int | str, job: int = 0, rank: int = 0, *, follow: bool = False, attempt: int = 0
    ) -> Iterator[bytes]:
        """The output of a rank, in pieces; with ``follow``, tolerates an unavailable arbiter for ``FOLLOW_S`` seconds."""
        request = _made(pb.LogsRequest, app=str(app), job=job, rank=rank, follow=follow, attempt=attempt)
        at: dict[int, int] = {}
        """Bytes read so far, by attempt."""
        away = math.inf
        while True:
            skip = dict(at)
            try:
                for chunk in self._stream("Logs", request):
                    away, self._said_away = math.inf, False
                    known = min(skip.get(chunk.attempt, 0), len(chunk.data))
                    skip[chunk.attempt] = skip.get(chunk.attempt, 0) - known
                    if data := chunk.data[known:]:
                        at[chunk.attempt] = at.get(chunk.attempt, 0) + len(data)
                        yield data
                return
            except Unavailable as error:
                if not follow or self._closed:
                    raise
                away = self._away_since(away, error)
                if time.monotonic() > away + FOLLOW_S:
                    raise
            time.sleep(RETRY_S)
            self._dial_again()

    def why(self, app: int | str) -> pb.WhyReply:
        """Why the app waits, when it is expected to start, and its history as JSON."""
        return cast(pb.WhyReply, self._call("Why", _ref(app)))

    def dump(self) -> bytes:
        """The scheduler's state, in the format that ``themis replay`` reads."""
        return b"".join(chunk.data for chunk in self._stream("Dump", pb.DumpRequest()))

    # ---- the cluster -------------------------------------------------------------------------------------------------

    def info(self) -> pb.InfoReply:
        """Version, policy and size of the service."""
        return cast(pb.InfoReply, self._call("Info", pb.InfoRequest()))

    def nodes(self, user: str = "") -> list[pb.Node]:
        """All machines, or those that run this user's apps."""
        return list(cast(pb.NodesReply, self._call("Nodes", _made(pb.NodesRequest, user=user))).nodes)

    def drain(self, node: str, deadline_s: float = 0.0) -> pb.Node:
        """Take a machine out of service: immediately, or when its jobs have ended, after ``deadline_s`` seconds at the latest."""
        return cast(pb.NodeReply, self._call("Drain", _made(pb.NodeRef, node=node, deadline_s=deadline_s))).node

    def undrain(self, node: str) -> pb.Node:
        """Return a machine to service."""
        return cast(pb.NodeReply, self._call("Undrain", _made(pb.NodeRef, node=node))).node

    def share(self, user: str = "") -> list[pb.UserShare]:
        """Each user's GPUs now, fair share, rho, and GPU hours so far compared with those on a private 1/N of the cluster."""
        return list(cast(pb.ShareReply, self._call("Share", _made(pb.UsersRequest, user=user))).users)

    def usage(
        self,
        user: str = "",
        *,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        utc: bool = False,
    ) -> list[pb.UserUsage]:
        """GPU hours, their cost and apps; your own, or for administrators all users'.

        Parameters
        ----------
        since, until : times of the first and last day, seconds since 1970; all days without them.
        by : what each row stands for, of user, group, day and gpu_type.
        utc : days of UTC instead of the service's time zone.
        """
        request = _made(pb.UsageRequest, user=user, since=since, until=until, by=by, utc=utc)
        return list(cast(pb.UsageReply, self._call("Usage", request)).users)

    def events(self, after: int = 0, *, follow: bool = False, limit: int = 0, user: str = "") -> Iterator[pb.Record]:
        """The journal's records after a number; with ``user``, those about the user's apps."""
        yield from self._stream("Events", _made(pb.EventsRequest, after=after, follow=follow, limit=limit, user=user))

    # ---- users -------------------------------------------------------------------------------------------------------

    def add_user(self, user: str, *, admin: bool = False) -> str:
        """Create a token for a user; replaces an existing one. For administrators."""
        return cast(pb.UserToken, self._call("AddUser", _made(pb.UserRef, user=user, admin=admin))).token

    def remove_user(self, user: str) -> pb.User:
        """Revoke a user's token; the user's apps go on."""
        return cast(pb.UserReply, self._call("RemoveUser", _made(pb.UserRef, user=user))).user

    def users(self, user: str = "") -> list[pb.User]:
        """Users with a token, without the owner of the data directory."""
        return list(cast(pb.UsersReply, self._call("Users", _made(pb.UsersRequest, user=user))).users)

    # ---- settings ----------------------------------------------------------------------------------------------------

    def settings(self) -> list[pb.Setting]:
        """Every setting of the service, since when it is in force and who changed it."""
        return list(cast(pb.SettingsReply, self._call("Settings", pb.SettingsRequest())).settings)

    def set(self, values: Mapping[str, object] | None = None, *, reload: bool = False, **more: object) -> list[str]:
        """Change settings while the service runs, all or none: ``client.set(policy="drf", lease="5m")``. For administrators.

        Returns a sentence for each change and what follows from it. ``values`` : those whose names have dots, as
        ``{"users.ann.weight": 2}``. ``reload`` : take on what changed in the service's settings file instead.
        """
        texts = {name: str(value) for name, value in {**(values or {}), **more}.items()}
        return list(cast(pb.SetReply, self._call("Set", _made(pb.SetRequest, values=texts, reload=reload))).changes)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def call(self, method: str, request: Any) -> Any:
        """Call a method of ``themis.proto`` that returns one answer, by its name."""
        return self._call(method, request)

    def stream(self, method: str, request: Any) -> Iterator[Any]:
        """Call a method that returns a stream, by its name."""
        return self._stream(method, request)

    def _call(self, name: str, request: Any) -> Any:
        """One call, retried while the arbiter is unavailable; every method is idempotent."""
        method, began = METHODS[name], time.monotonic()
        end = began + self.timeout_s
        patient = self.timeout_s if self.patience_s is None else min(self.patience_s, self.timeout_s)
        waiting = False
        while True:
            call: Callable[..., Any] = self._channel.unary_unary(method.path, to_bytes, method.read_reply)
            try:
                left = max(end - time.monotonic(), 0.1)
                return call(request, metadata=self._metadata, timeout=left, wait_for_ready=False)
            except grpc.RpcError as error:
                away = error.code() is grpc.StatusCode.UNAVAILABLE
                if not away or time.monotonic() + RETRY_S > began + patient:
                    raise self._in_words(error) from None
                reason = _stuck(error)
            if not waiting:
                problem = (
                    f"Message of the arbiter: {reason}" if reason else f"The arbiter at {self.address} does not answer."
                )
                if not self._said_away:
                    self.on_wait(f"{problem} Retrying for up to {patient:g} s.")
                waiting = True
            time.sleep(RETRY_S)
            self._dial_again()

    def _stream(self, name: str, request: Any) -> Iterator[Any]:
        method = METHODS[name]
        call: Callable[..., Any] = self._channel.unary_stream(method.path, to_bytes, method.read_reply)
        try:
            yield from call(request, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._in_words(error) from None

    def _in_words(self, error: grpc.RpcError) -> ThemisError:
        code = grpc.StatusCode
        match error.code():
            case code.UNAVAILABLE if reason := _stuck(error):
                return Unavailable(f"message of the arbiter at {self.address}: {reason}")
            # A stream is cancelled when the arbiter ends, and by close().
            case code.UNAVAILABLE | code.DEADLINE_EXCEEDED | code.CANCELLED:
                own = (self.home / "journal.db").exists()
                what = (
                    f"start it with `themis up --data-dir {self.home}`" if own else "check that `themis up` runs there"
                )
                return Unavailable(f"the arbiter at {self.address} does not answer; {what}.")
            case code.INTERNAL | code.UNKNOWN:
                return ThemisError(f"the arbiter at {self.address} failed: {error.details()}")
            case code.RESOURCE_EXHAUSTED if "larger than max" in str(error.details()):
                return InputError(
                    f"the message is too large for the arbiter ({error.details()}); move data to files, or "
                    "increase max_message."
                )
            case _:
                return InputError(str(error.details()))


def _stuck(error: grpc.RpcError) -> str:
    """The message of an arbiter whose disk is full; empty otherwise."""
    details = str(error.details())
    return details if STUCK in details else ""


def _made(message: Callable[..., _M], **fields: Any) -> _M:
    """Build a message; InputError names a field that it cannot carry: a number that is too large, text that is not UTF-8."""
    try:
        return message(**fields)
    except ValueError:
        for name, value in fields.items():
            try:
                message(**{name: value})
            except ValueError as error:
                raise InputError(f"{name} is {value!r}, which cannot be sent: {error}.") from None
        raise


def _ref(app: int | str) -> pb.AppRef:
    return _made(pb.AppRef, app=str(app))


def user_name() -> str:
    """The system's name of the current user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"
