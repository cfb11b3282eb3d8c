"""The API: one table of calls, from which the server's routes, OpenAPI, both clients and the quick verbs follow.

It loads neither pydantic nor anything of the network, for quick verbs. ``wire.kind`` finds the messages by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from themis.errors import InputError

JSON, TEXT, EVENTS, GZIP = "application/json", "text/plain", "text/event-stream", "application/gzip"
BYTES = "application/octet-stream"
ANYONE, USERS, ADMINS = "anyone", "users", "admins"
"""Callers of a route: also those without a token; users, for some apps their owner alone; administrators."""


class Route(NamedTuple):  # a dataclass would load ``inspect``, which a quick verb would wait for
    """One call.

    Attributes
    ----------
    path : with ``{name}`` where a field of the request stands. Other fields are in the query of GET, else in the body, as JSON.
    text : a sentence for the description.
    request, reply : names of messages; a stream of ``EVENTS`` has many. ``part`` : the only field of the reply that is sent.
    media : type of the reply; not JSON and without ``reply``: text or bytes. ``stream`` : it is sent as it comes.
    upload : the body is bytes of any length. ``status`` : of success. ``rights`` : callers.
    missing : the request names something that may not exist. ``refusals`` : further statuses of refusals.
    """

    name: str
    method: str
    path: str
    text: str
    request: str = "Nothing"
    reply: str = ""
    part: str = ""
    media: str = JSON
    stream: bool = False
    upload: bool = False
    status: int = 200
    rights: str = USERS
    missing: bool = False
    refusals: tuple[int, ...] = ()

    @property
    def inside(self) -> list[str]:
        """Fields of the request that are in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """The fields in a path, or None where the path is another route's."""
        own = self.path.strip("/").split("/")
        if len(own) != len(parts) or any(mine != part and mine[0] != "{" for mine, part in zip(own, parts)):
            return None
        return {mine[1:-1]: part for mine, part in zip(own, parts) if mine[0] == "{"}

    def filled(self, fields: Mapping[str, object]) -> str:
        """The path with the values of fields; InputError where one is empty."""
        values = {name: str(fields.get(name, "")) for name in self.inside}
        for name, value in values.items():
            if not value:
                raise InputError(f"no {name} was named.")
        # Clients would take a part of dots for the folder above.
        return self.path.format(
            **{k: quote(v, safe="") if v.strip(".") else v.replace(".", "%2E") for k, v in values.items()}
        )


def _get(name: str, path: str, text: str, request: str = "Nothing", **more: object) -> Route:
    return Route(name=name, method="GET", path=path, text=text, request=request, **more)  # type: ignore[arg-type]


def _post(name: str, path: str, text: str, request: str = "Nothing", **more: object) -> Route:
    return Route(name=name, method="POST", path=path, text=text, request=request, **more)  # type: ignore[arg-type]


def _of_app(name: str, verb: str, text: str, request: str = "AppRef", reply: str = "AppReply", **more: object) -> Route:
    return _post(name, f"/v1/apps/{{app}}/{verb}", text, request, reply=reply, missing=True, **more)


def _of_node(name: str, verb: str, text: str) -> Route:
    return _post(name, f"/v1/nodes/{{node}}/{verb}", text, "NodeRef", reply="NodeReply", rights=ADMINS, missing=True)


ROUTES: tuple[Route, ...] = (
    _get(
        "Health",
        "/healthz",
        "Whether the service works: its arbiter takes turns, and the journal can be written. 503 and why where it does not.",
        reply="Status",
        rights=ANYONE,
    ),
    _get(
        "Ready",
        "/readyz",
        "Whether the service accepts submissions and decides. 503 and why where it does not, as on a full disk.",
        reply="Status",
        rights=ANYONE,
    ),
    _get("OpenApi", "/openapi.json", "This description.", rights=ANYONE),
    _get("Info", "/v1/info", "Version, policy and size of the service, and who the caller is.", reply="InfoReply"),
    _post(
        "SignIn",
        "/v1/sign-in",
        "A step of a sign-in with the OIDC provider, for command lines. An empty request begins (device flow, RFC 8628), one with "
        "the reply's handle asks whether the user agreed, one with a token renews it.",
        "SignInRequest",
        reply="SignInReply",
        rights=ANYONE,
        refusals=(429,),
    ),
    _get(
        "Apps",
        "/v1/apps",
        "Apps that are queued or running, or those in a state, the oldest first.",
        "AppsRequest",
        reply="AppsReply",
        part="apps",
    ),
    _post(
        "Submit",
        "/v1/apps",
        "Submit an app. It is in the journal before the reply; a request with the same key changes nothing.",
        "SubmitRequest",
        reply="SubmitReply",
        status=201,
        refusals=(403,),
    ),
    _post(
        "SubmitFile",
        "/v1/jobfiles",
        "Submit the apps of a job file, each after its dependencies; a request with the same key changes nothing.",
        "JobFile",
        reply="JobFileReply",
        status=201,
        refusals=(403,),
    ),
    _get(
        "Bundle",
        "/v1/bundles/{sha256}",
        "Whether the service has these files, by the SHA-256 of their archive; they count as used.",
        "BundleRef",
        reply="BundleReply",
        refusals=(404,),
    ),
    Route(
        name="Upload",
        method="PUT",
        path="/v1/bundles/{sha256}",
        text="Store the files that jobs are sent with: a tar archive, named by its SHA-256; the same again changes nothing.",
        request="BundleRef",
        reply="BundleReply",
        upload=True,
        status=201,
        refusals=(411, 507),
    ),
    _get(
        "Trials",
        "/v1/apps/{app}/trials",
        "The jobs of a sweep: parameters, reported losses, and which ended early, when and why.",
        "AppRef",
        reply="TrialsReply",
        refusals=(404,),
    ),
    _get(
        "Show",
        "/v1/apps/{app}",
        "An app with its jobs and their attempts.",
        "AppRef",
        reply="ShowReply",
        refusals=(404,),
    ),
    _of_app("Cancel", "cancel", "Cancel an app: its jobs get the stop signal, and SIGKILL after the grace period."),
    _of_app("Hold", "hold", "Pause an app and release its GPUs."),
    _of_app("Resume", "resume", "Let a held app compete for GPUs again."),
    _get(
        "Why",
        "/v1/apps/{app}/why",
        "Why an app waits, and its history: auctions, bids, payments and leases.",
        "WhyRequest",
        reply="WhyReply",
        missing=True,
    ),
    _get(
        "Copies",
        "/v1/apps/{app}/copies",
        "What the service keeps of an app's checkpoints and outputs: the newest copy of each job, by machine.",
        "AppRef",
        reply="CopiesReply",
        missing=True,
    ),
    _get(
        "Copy",
        "/v1/apps/{app}/copies/{job}",
        "The newest copy of a job's checkpoints and outputs, as one machine of its gang wrote them: a tar archive.",
        "JobRef",
        media=BYTES,
        stream=True,
        missing=True,
    ),
    _get(
        "Logs",
        "/v1/apps/{app}/logs",
        "The output of a rank, attempt after attempt; with `follow` until the app ends.",
        "LogsRequest",
        media=TEXT,
        stream=True,
        missing=True,
    ),
    _get(
        "Attend",
        "/v1/apps/{app}/agent",
        "Connect an app's own agent, which bids instead of the service's (docs/agents.md), as server-sent events: it is asked for "
        "rho and is offered GPUs (it answers with POST /v1/answers), and receives its jobs' leases. Ends with the app. If "
        "the agent disconnects, the service bids again. A second agent of an app replaces the first.",
        "AppRef",
        reply="AgentEvent",
        media=EVENTS,
        stream=True,
        missing=True,
    ),
    _post(
        "Answer",
        "/v1/answers",
        "Answers of agents, of one app or of several: rho to a `probe`, a bid to an `offer`. Each is taken or refused by itself; "
        "after a refused one, another may follow in time.",
        "AnswersRequest",
        reply="AnswersReply",
    ),
    _get(
        "History",
        "/v1/history",
        "Finished apps with their attempts, the oldest first; of the caller alone, unless an administrator.",
        "HistoryRequest",
        reply="HistoryReply",
        part="apps",
        refusals=(403,),
    ),
    _get(
        "Nodes",
        "/v1/nodes",
        "Machines: state, leased GPUs and apps; of a user, those that run the user's apps.",
        "UsersRequest",
        reply="NodesReply",
        part="nodes",
    ),
    _of_node(
        "Drain",
        "drain",
        "Take a machine out of service: its jobs continue on other machines. With `deadline_s` they may continue until then.",
    ),
    _of_node("Undrain", "undrain", "Return a drained or draining machine to service."),
    _of_node(
        "RemoveNode",
        "remove",
        "Remove a machine that joined over the network: its jobs continue elsewhere, then its certificate is revoked.",
    ),
    _get(
        "Share",
        "/v1/share",
        "GPUs that each user holds now, the fair share and finish-time fairness.",
        "UsersRequest",
        reply="ShareReply",
        part="users",
    ),
    _get(
        "Fairness",
        "/v1/fairness",
        "What users were entitled to and had over time, and who lent to whom; a user sees themselves and the sum of all others.",
        "UsersRequest",
        reply="FairnessReply",
        refusals=(403,),
    ),
    _get(
        "Budgets",
        "/v1/budgets",
        "How much of budgets is used; those of the caller alone, unless an administrator.",
        "UsersRequest",
        reply="BudgetsReply",
        part="budgets",
        refusals=(403,),
    ),
    _get(
        "Usage",
        "/v1/usage",
        "GPU hours, cost and apps by user, group, day or GPU type; of the caller alone, unless an administrator.",
        "UsageRequest",
        reply="UsageReply",
        part="users",
        refusals=(403,),
    ),
    _get(
        "Settings",
        "/v1/settings",
        "Every setting, since when it is in force and who changed it.",
        reply="SettingsReply",
        part="settings",
    ),
    Route(
        name="Set",
        method="PUT",
        path="/v1/settings",
        text="Change settings while the service runs, all or none; for administrators.",
        request="SetRequest",
        reply="SetReply",
        rights=ADMINS,
    ),
    _get(
        "SettingsHistory",
        "/v1/settings/history",
        "Changes of settings, the newest first; for administrators.",
        "SettingsHistoryRequest",
        reply="SettingsHistoryReply",
        part="changes",
        rights=ADMINS,
    ),
    _get(
        "Audit",
        "/v1/audit",
        "Who signed in and who changed what, from where, the newest first; of the caller alone, unless an administrator.",
        "AuditRequest",
        reply="AuditReply",
        part="entries",
        refusals=(403,),
    ),
    _get(
        "Journal",
        "/v1/journal",
        "Size of the journal, and backups; for administrators.",
        reply="JournalReply",
        rights=ADMINS,
    ),
    _post(
        "BackUp",
        "/v1/backups",
        "Copy the data directory into its folder of backups; for administrators.",
        reply="Backup",
        status=201,
        rights=ADMINS,
    ),
    _get(
        "Users",
        "/v1/users",
        "Users with a token, and those who are signed in; for administrators.",
        "UsersRequest",
        reply="UsersReply",
        part="users",
        rights=ADMINS,
    ),
    Route(
        name="AddUser",
        method="PUT",
        path="/v1/users/{user}",
        text="Create a user's token, which replaces an existing one; for administrators. The reply alone has the token.",
        request="UserRef",
        reply="UserToken",
        rights=ADMINS,
        missing=True,
    ),
    Route(
        name="RemoveUser",
        method="DELETE",
        path="/v1/users/{user}",
        text="Revoke a user's token; for administrators.",
        request="UsersRequest",
        reply="UserReply",
        rights=ADMINS,
        missing=True,
    ),
    _get(
        "Records",
        "/v1/events",
        "Records of the journal; of a user, those of the user's apps.",
        "RecordsRequest",
        reply="RecordsReply",
        part="records",
    ),
    _get(
        "Events",
        "/v1/stream",
        "Records of the journal as server-sent events: `id` is the number of the record, `data` the object of /v1/events. They "
        "come as they are written, unless `follow` is false. The header Last-Event-ID continues after a record.",
        "EventsRequest",
        reply="Record",
        media=EVENTS,
        stream=True,
    ),
    _get("Metrics", "/metrics", "Figures for monitoring, in Prometheus' text format.", media=TEXT),
    _post(
        "WhatIf",
        "/v1/what-if",
        "When the apps in the system would finish under other policies, with other machines or without an app: simulations from "
        "the present state. Changes nothing.",
        "WhatIfRequest",
        reply="WhatIfReply",
        missing=True,
    ),
    _get(
        "Dump",
        "/v1/dump",
        "The state of the scheduler, for `themis replay`: a gzipped JSON object; for administrators.",
        media=GZIP,
        stream=True,
        rights=ADMINS,
    ),
)
"""All calls. Fields and calls are only ever added."""

CALLS: Mapping[str, Route] = {route.name: route for route in ROUTES}
"""The calls by name."""
