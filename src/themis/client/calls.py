"""Calls of the API: requests built from Python values, and answers read from replies. Both clients use this module."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from themis.client.command import name_of, run_request, words_of
from themis.client.notebook import Listing
from themis.errors import InputError, UnknownName
from themis.schema import messages as schema
from themis.schema.messages import Message
from themis.schema.wire import changed, read

T = TypeVar("T")
_M = TypeVar("_M", bound=Message)
GpuCount = int | tuple[int, int]
"""A number of GPUs, or a range (fewest, most)."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call with one answer. ``read`` : what callers get of the reply."""

    method: str
    request: Any
    read: Callable[[Any], T]


class RunOptions(TypedDict, total=False):
    """Further options of ``run``: fields of ``SubmitRequest`` and of ``Program``."""

    user: str
    weight: float
    retries: int
    deadline_s: float
    walltime_s: float
    key: str
    launch: str
    grace_s: float
    stop_signal: str
    checkpoint_dir: str
    checkpoint_url: str
    outputs: Sequence[str]
    packages: str
    modules: Sequence[str]
    launcher: str
    bundle: str
    exports: Mapping[str, str]
    secrets: Sequence[str]


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


def ref(app: int | str) -> schema.AppRef:
    """An app by its number or name."""
    return made(schema.AppRef, app=str(app))


# ---- apps --------------------------------------------------------------------------------------------------------------


def submit(request: schema.SubmitRequest) -> Call[schema.SubmitReply]:
    """A submission; one without a ``key`` gets one, so that it is safe to repeat."""
    return Call("Submit", changed(request, key=request.key or uuid.uuid4().hex), _whole)


def after_made(request: schema.SubmitRequest, known: Mapping[str, schema.SubmitReply]) -> schema.SubmitRequest:
    """The request with dependencies on apps of the same call by their numbers: the service may have changed a name."""
    after = [changed(other, app=str(known[other.app].app)) if other.app in known else other for other in request.after]
    return changed(request, after=after)


def run(
    command: Sequence[str] | str,
    *,
    gpus: GpuCount,
    name: str,
    hours: float | None,
    model: str,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    more: Mapping[str, Any],
) -> Call[schema.SubmitReply]:
    """An app with one job."""
    for unknown in more.keys() - RunOptions.__annotations__.keys():
        raise UnknownName("option of run", unknown, RunOptions.__annotations__)
    low_high = (gpus, gpus) if isinstance(gpus, int) else gpus
    fields = run_request(command, gpus=low_high, name=name, hours=hours, model=model, env=env or {}, cwd=cwd, **more)
    (job,) = fields.pop("jobs")
    program = made(schema.Program, **job.pop("program"))
    return submit(made(schema.SubmitRequest, jobs=[made(schema.Job, program=program, **job)], **fields))


def sweep(
    command: Sequence[str] | str,
    parameters: Mapping[str, Any],
    *,
    budget: str | float,
    trials: int | None,
    tuner: str | Mapping[str, Any],
    sampler: str,
    seed: int,
    gpus: GpuCount | str,
    name: str,
    user: str,
    cwd: Path | None,
    keys: Mapping[str, Any],
    unknown_work_s: float,
) -> Call[schema.SubmitReply]:
    """A sweep, read as a job file with these keys would be."""
    from themis.client.submit_requests import to_submission

    words = words_of(command)
    search = {"parameters": dict(parameters), "budget": budget, "tuner": tuner, "sampler": sampler, "seed": seed}
    written = {
        **keys,
        "name": name or name_of(words),
        "command": words,
        "gpus": "{}..{}".format(*gpus) if isinstance(gpus, tuple) else gpus,
        "sweep": search if trials is None else {**search, "trials": trials},
    }
    return submit(to_submission(written, user, source="sweep", folder=cwd, unknown_work_s=unknown_work_s))


def cancel(app: int | str) -> Call[schema.App]:
    return Call("Cancel", ref(app), _app)


def hold(app: int | str) -> Call[schema.App]:
    return Call("Hold", ref(app), _app)


def resume(app: int | str) -> Call[schema.App]:
    return Call("Resume", ref(app), _app)


def queue(user: str) -> Call[Listing[schema.App]]:
    return Call("Apps", made(schema.AppsRequest, user=user), lambda reply: Listing(reply.apps, "apps that wait or run"))


def history(
    user: str, limit: int, *, since: float | None, until: float | None, state: Sequence[str], reason: str
) -> Call[Listing[schema.PastApp]]:
    request = made(schema.HistoryRequest, user=user, since=since, until=until, state=state, reason=reason, limit=limit)
    return Call("History", request, lambda reply: Listing(reply.apps, "finished apps"))


def show(app: int | str) -> Call[schema.ShowReply]:
    return Call("Show", ref(app), _whole)


def trials(app: int | str) -> Call[Listing[schema.Trial]]:
    return Call("Trials", ref(app), lambda reply: Listing(reply.trials, "trials"))


def why(app: int | str, *, quick: bool = False) -> Call[schema.WhyReply]:
    return Call("Why", made(schema.WhyRequest, app=str(app), quick=quick), _whole)


def what_if(policies: Sequence[str], *, arrivals: bool, **more: Any) -> Call[schema.WhatIfReply]:
    return Call("WhatIf", made(schema.WhatIfRequest, policies=policies, no_arrivals=not arrivals, **more), _whole)


def logs(app: int | str, job: int, rank: int, *, follow: bool, attempt: int) -> schema.LogsRequest:
    return made(schema.LogsRequest, app=str(app), job=job, rank=rank, follow=follow, attempt=attempt)


# ---- the cluster and its users -----------------------------------------------------------------------------------------


def info() -> Call[schema.InfoReply]:
    return Call("Info", schema.Nothing(), _whole)


def nodes(user: str) -> Call[Listing[schema.Node]]:
    return Call("Nodes", made(schema.UsersRequest, user=user), lambda reply: Listing(reply.nodes, "machines"))


def drain(node: str, deadline_s: float) -> Call[schema.Node]:
    return Call("Drain", made(schema.NodeRef, node=node, deadline_s=deadline_s), lambda reply: reply.node)


def undrain(node: str) -> Call[schema.Node]:
    return Call("Undrain", made(schema.NodeRef, node=node), lambda reply: reply.node)


def remove_node(node: str) -> Call[schema.Node]:
    return Call("RemoveNode", made(schema.NodeRef, node=node), lambda reply: reply.node)


def share(user: str) -> Call[Listing[schema.UserShare]]:
    return Call("Share", made(schema.UsersRequest, user=user), lambda reply: Listing(reply.users, "users with apps"))


def fairness(user: str) -> Call[schema.FairnessReply]:
    return Call("Fairness", made(schema.UsersRequest, user=user), _whole)


def budgets(user: str) -> Call[Listing[schema.BudgetUse]]:
    return Call("Budgets", made(schema.UsersRequest, user=user), lambda reply: Listing(reply.budgets, "budgets"))


def settings_history(limit: int) -> Call[Listing[schema.SettingsChange]]:
    request = made(schema.SettingsHistoryRequest, limit=limit)
    return Call("SettingsHistory", request, lambda reply: Listing(reply.changes, "changes of settings"))


def sign_in(handle: str, token: str) -> Call[schema.SignInReply]:
    return Call("SignIn", made(schema.SignInRequest, handle=handle, token=token), _whole)


def audit(user: str, limit: int) -> Call[Listing[schema.AuditEntry]]:
    return Call(
        "Audit", made(schema.AuditRequest, user=user, limit=limit), lambda reply: Listing(reply.entries, "entries")
    )


def journal() -> Call[schema.JournalReply]:
    return Call("Journal", schema.Nothing(), _whole)


def back_up() -> Call[schema.Backup]:
    return Call("BackUp", schema.Nothing(), _whole)


def usage(
    user: str, *, since: float | None, until: float | None, by: Sequence[str], utc: bool
) -> Call[Listing[schema.UserUsage]]:
    request = made(schema.UsageRequest, user=user, since=since, until=until, by=by, utc=utc)
    return Call("Usage", request, lambda reply: Listing(reply.users, "users with GPU time"))


def events(after: int, *, follow: bool, limit: int, user: str) -> schema.EventsRequest:
    return made(schema.EventsRequest, after=after, follow=follow, limit=limit, user=user)


def add_user(user: str, *, admin: bool) -> Call[str]:
    return Call("AddUser", made(schema.UserRef, user=user, admin=admin), lambda reply: reply.token)


def remove_user(user: str) -> Call[schema.User]:
    return Call("RemoveUser", made(schema.UsersRequest, user=user), lambda reply: reply.user)


def users(user: str) -> Call[Listing[schema.User]]:
    return Call("Users", made(schema.UsersRequest, user=user), lambda reply: Listing(reply.users, "users with a token"))


def settings() -> Call[Listing[schema.Setting]]:
    return Call("Settings", schema.Nothing(), lambda reply: Listing(reply.settings, "settings"))


def change(values: Mapping[str, object], *, reload: bool) -> Call[list[str]]:
    texts = {name: str(value) for name, value in values.items()}
    return Call("Set", made(schema.SetRequest, values=texts, reload=reload), lambda reply: list(reply.changes))


def _whole(reply: Any) -> Any:
    return reply


def _app(reply: schema.AppReply) -> schema.App:
    return reply.app
