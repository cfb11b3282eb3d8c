"""The page of an app: description, pending reason, leases, jobs, trials, curves and output; cancel, hold, resume."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from themis.schema import messages as schema
from themis.schema.wire import read
from themis.service.api.access import Forbidden
from themis.service.web.console import Route, Visit

MOST_JOBS = 200
"""Rows of jobs or trials: those that run or wait first."""
LOG_BYTES = 64 << 10
"""The end of the output that is shown."""
NO_OUTPUT = "It has printed nothing."
CHANGES = {"cancel": "Cancel", "hold": "Hold", "resume": "Resume"}
DONE = {"cancel": "Cancelled.", "hold": "Held: its GPUs are released.", "resume": "Resumed."}
_ORDER = {"running": 0, "stopping": 1, "waiting": 2, "held": 3, "paused": 4, "ended": 5}


def apps(visit: Visit) -> Response:
    """The queue, or finished apps; of a user where one is chosen."""
    ended, user = visit.query.get("show") == "finished", visit.query.get("user", "")[:64]
    found = visit.api.Apps(schema.AppsRequest(user=user, ended=ended, limit=200))
    rows = list(found.apps)
    rows.reverse() if ended else rows.sort(key=lambda row: (row.state != "running", row.id))
    template = "apps_table.html.j2" if "x-themis" in visit.request.headers else ""
    values = {"rows": rows, "ended": ended, "user": user, "colour_of": visit.colours()}
    return visit.fragment(template, **values) if template else visit.page("apps.html.j2", "Apps", **values)


def page(visit: Visit) -> Response:
    """The page of one app."""
    return visit.page(
        "app.html.j2", visit.values["app"], **_shown(visit), done=DONE.get(visit.query.get("done", ""), "")
    )


def summary(visit: Visit) -> Response:
    """The part of the page that changes: state, jobs, trials; a script replaces it."""
    return visit.fragment("app_state.html.j2", **_shown(visit))


def _shown(visit: Visit) -> dict[str, Any]:
    found = visit.api.Show(schema.AppRef(app=visit.values["app"]))
    app = found.app
    trials = visit.api.Trials(schema.AppRef(app=str(app.id))).trials if found.sweep else []
    measured = [(t.best_loss, t.job) for t in trials if t.best_loss is not None and math.isfinite(t.best_loss)]
    best = min(measured)[1] if measured else None
    parameters = {t.job: _parameters(t.parameters) for t in trials}
    jobs = sorted(found.jobs, key=lambda job: (_ORDER.get(job.state, 9), job.id))
    trials = sorted(trials, key=lambda t: (t.best_loss is None, t.best_loss if t.best_loss is not None else 0.0))
    may = visit.caller.admin or visit.caller.user == app.user
    return {
        "app": app,
        "jobs": jobs[:MOST_JOBS],
        "hidden": max(len(jobs) - MOST_JOBS, 0),
        "trials": trials[:MOST_JOBS],
        "parameters": parameters,
        "names": sorted({name for values in parameters.values() for name in values})[:12],
        "best": best,
        "sentence": found.sentence,
        "runs": found.runs,
        "may": may,
        "over": app.ended is not None,
        "colour": visit.colours()(app.user),
    }


def _parameters(text: str) -> dict[str, str]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(k): _short(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:80]


def course(visit: Visit) -> Response:
    """Leases and learning curves, as JSON for the charts."""
    app = visit.api.Show(schema.AppRef(app=visit.values["app"])).app
    found = visit.api.course(app.id)
    data = {**asdict(found), "now": visit.api.arbiter.epoch + visit.api.arbiter.now(), "submitted": app.submitted}
    return Response(json.dumps(data), media_type="application/json")


def why(visit: Visit) -> Response:
    """The app's pending reason, the apps ahead of it, its expected end; with ``full`` its start by simulations."""
    request = schema.WhyRequest(app=visit.values["app"], quick="full" not in visit.query)
    return visit.fragment("app_why.html.j2", why=visit.api.Why(request))


def log(visit: Visit) -> Response:
    """The end of a rank's output."""
    job, rank = (_whole(visit.query.get(name, "0")) for name in ("job", "rank"))
    request = read(schema.LogsRequest, {"app": visit.values["app"], "job": job, "rank": rank})
    return Response(visit.api.end_of_log(request, LOG_BYTES) or NO_OUTPUT, media_type="text/plain")


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else -1


def change(visit: Visit) -> Response:
    """Cancel, hold or resume, then back to the page. The methods decide who may."""
    name = visit.values["change"]
    if name not in CHANGES:
        raise Forbidden(f"{name[:40]!r} cannot be done to an app; expected cancel, hold or resume.")
    done = getattr(visit.api, CHANGES[name])(schema.AppRef(app=visit.values["app"]))
    return visit.go(f"/apps/{done.app.id}", done=name)


ROUTES = (
    Route(path="/apps", answer=apps, title="Apps"),
    Route(path="/apps/{app}", answer=page),
    Route(path="/apps/{app}/state", answer=summary),
    Route(path="/apps/{app}/course", answer=course),
    Route(path="/apps/{app}/why", answer=why),
    Route(path="/apps/{app}/log", answer=log),
    Route(path="/apps/{app}/{change}", answer=change, method="POST"),
)
