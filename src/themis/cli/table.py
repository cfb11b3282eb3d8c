"""The table of all verbs: a verb's module is imported when the verb is run or asked for its help, no other."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SERVICE, JOBS, CLUSTER, LOGS = "Service", "Jobs and sweeps", "Cluster and users", "Simulations and logs"
"""Headings of ``themis --help``."""

VERBS: Mapping[str, tuple[str, str, str]] = {
    "demo": ("demo_verb", "demo", SERVICE),
    "run": ("act", "run", JOBS),
    "up": ("service_verbs", "up", SERVICE),
    "doctor": ("check_verbs", "doctor", SERVICE),
    "check": ("check_verbs", "check", SERVICE),
    "certificates": ("certificate_verbs", "certificates", SERVICE),
    "backup": ("backup", "backup", SERVICE),
    "restore": ("backup", "restore", SERVICE),
    "submit": ("act", "submit", JOBS),
    "queue": ("ask", "queue", JOBS),
    "top": ("top", "top", JOBS),
    "show": ("ask", "show", JOBS),
    "best": ("ask", "best", JOBS),
    "why": ("ask", "why", JOBS),
    "logs": ("ask", "logs", JOBS),
    "wait": ("act", "wait", JOBS),
    "fetch": ("act", "fetch", JOBS),
    "cancel": ("act", "cancel", JOBS),
    "hold": ("act", "hold", JOBS),
    "resume": ("act", "resume", JOBS),
    "history": ("account_verbs", "history", JOBS),
    "share": ("ask", "share", CLUSTER),
    "usage": ("account_verbs", "usage", CLUSTER),
    "nodes": ("ask", "nodes", CLUSTER),
    "drain": ("act", "drain", CLUSTER),
    "undrain": ("act", "undrain", CLUSTER),
    "events": ("ask", "events", CLUSTER),
    "set": ("setting_verbs", "set_", SERVICE),
    "dump": ("ask", "save_state", SERVICE),
    "login": ("user", "login", SERVICE),
    "whoami": ("ask", "whoami", SERVICE),
    "audit": ("user", "audit", SERVICE),
    "simulate": ("simulate", "simulate", LOGS),
    "compare": ("report", "compare", LOGS),
    "report": ("live_report", "report", LOGS),
    "profile": ("profile_verb", "profile", CLUSTER),
    "replay": ("replay_verb", "replay", LOGS),
    "explain": ("replay_verb", "explain", LOGS),
    "policies": ("lists", "policies", LOGS),
    "workloads": ("lists", "workloads", LOGS),
    "clusters": ("lists", "clusters", LOGS),
    "user add": ("user", "add", SERVICE),
    "user list": ("user", "list_", SERVICE),
    "user remove": ("user", "remove", SERVICE),
    "agent token": ("agent_verbs", "token", CLUSTER),
    "agent join": ("agent_verbs", "join", CLUSTER),
    "agent run": ("agent_verbs", "run", CLUSTER),
    "agent install": ("agent_verbs", "install", CLUSTER),
    "agent remove": ("agent_verbs", "remove", CLUSTER),
    "agent list": ("agent_verbs", "list_", CLUSTER),
    "fleet add": ("fleet_verbs", "add", CLUSTER),
    "fleet check": ("fleet_verbs", "check", CLUSTER),
    "fleet remove": ("fleet_verbs", "remove", CLUSTER),
    "fleet list": ("fleet_verbs", "list_", CLUSTER),
    "trace describe": ("trace", "describe", LOGS),
    "trace validate": ("trace", "validate", LOGS),
    "trace convert": ("trace", "convert", LOGS),
    "trace scale": ("trace", "scale_", LOGS),
    "forecast evaluate": ("forecast_verb", "evaluate", LOGS),
    "profiles list": ("profiles", "list_", LOGS),
    "profiles show": ("profiles", "show", LOGS),
    "profiles add": ("profiles", "add", LOGS),
    "profiles from-run": ("profiles", "from_run", LOGS),
}
"""(module, function, heading) of each verb, by its words."""

GROUPS: Mapping[str, str] = {
    "user": "Manage the users of the service (administrators only).",
    "agent": "Let machines join the service over the network, and remove them.",
    "fleet": "Make hosts machines of the service by ssh, and keep their agents running.",
    "trace": "Describe, validate, convert and scale workloads and trace files.",
    "forecast": "Forecasts of dynamic jobs.",
    "profiles": "Manage measured speeds of models.",
}
"""The help of each group of verbs."""


def name_of(words: Sequence[str]) -> str:
    """The verb at the beginning of a command line, or an empty text."""
    return next((name for count in (2, 1) if (name := " ".join(words[:count])) in VERBS), "")


def verb_of(name: str) -> Callable[..., None]:
    """The verb's function."""
    module, function, _ = VERBS[name]
    found: Callable[..., None] = getattr(import_module(f"themis.cli.{module}"), function)
    return found


def help_of(verb: Callable[..., None]) -> str:
    """The verb's help: its docstring, unless ``options.helped`` gave it another."""
    return str(verb.__dict__.get("help") or verb.__doc__ or "")
