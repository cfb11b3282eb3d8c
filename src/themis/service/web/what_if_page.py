"""The page What if: when apps would finish if policy, machines or apps were others, next to today's forecast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape
from starlette.responses import Response

from themis.errors import InputError
from themis.policies.api import policy_names
from themis.schema import messages as schema
from themis.service.web.console import Route, Visit
from themis.sim.forward.answer import short, signed
from themis.sim.forward.question import CURRENT

HORIZONS = {"6h": 6 * 3600.0, "24h": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
ROW, TOP = 13, 8
"""Height of a case's line in the figure, and height of the middle of the first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An app in the table. ``cells`` : (text, seconds to sort by, css class) of today and of each case."""

    app: int
    name: str
    user: str
    state: str
    cells: list[tuple[str, str, str]]
    figure: Markup


def page(visit: Visit) -> Response:
    """The form, before any simulation."""
    return _page(visit)


def ask(visit: Visit) -> Response:
    """Simulate what the form says; for a script only the result."""
    found = visit.api.WhatIf(request_of(visit.form))
    if "x-themis" in visit.request.headers:
        return visit.fragment("what_if_result.html.j2", **_result(visit, found))
    return _page(visit, **_result(visit, found))


def _page(visit: Visit, **result: Any) -> Response:
    info, nodes = visit.api.Info(schema.Nothing()), visit.api.Nodes(schema.UsersRequest()).nodes
    mine = schema.AppsRequest(user="" if visit.caller.admin else visit.caller.user, limit=300)
    form = {"policies": CURRENT, "horizon": "7d", "arrivals": "on"} if visit.request.method == "GET" else visit.form
    return visit.page(
        "what_if.html.j2",
        "What if",
        policy=info.policy,
        names=[CURRENT, *policy_names()],
        types=sorted({node.gpu_type for node in nodes}),
        machines=[node.name for node in nodes],
        apps=[row.name for row in visit.api.Apps(mine).apps],
        horizons=list(HORIZONS),
        form=form,
        **{"found": None, **result},
    )


def request_of(form: Any) -> schema.WhatIfRequest:
    """The form's question.

    Raises
    ------
    InputError : an unknown time ahead.
    """
    horizon = form.get("horizon", "7d")
    if horizon not in HORIZONS:
        raise InputError(f"the time ahead is {horizon[:40]!r}, expected one of {', '.join(HORIZONS)}.")
    from themis.sim.plan import split_policies

    policies = form.get("policies", "").strip()
    return schema.WhatIfRequest(
        policies=split_policies([policies]) if policies else [],
        add_gpus=_listed(form.get("add", "")),
        remove=_listed(form.get("remove", "")),
        without=_listed(form.get("without", "")),
        horizon_s=HORIZONS[horizon],
        no_arrivals="arrivals" not in form,
    )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _result(visit: Visit, found: schema.WhatIfReply) -> dict[str, Any]:
    ends = [t.high_s if t.high_s is not None else t.median_s for app in found.apps for t in app.forecasts]
    most = max([end for end in ends if end is not None and math.isfinite(end)], default=0.0) or 1.0
    lines = [_line(app, list(found.columns), most) for app in found.apps]
    simulated = any(t.later or t.median_s is not None for app in found.apps for t in app.forecasts)
    return {
        "found": found,
        "lines": lines,
        "most": short(most),
        "simulated": simulated,
        "colour_of": visit.colours(),
    }


def _line(app: schema.WhatIfApp, columns: list[str], most: float) -> Line:
    held = app.state == "held"
    cells = [_cell(times, first=i == 0, held=held) for i, times in enumerate(app.forecasts)]
    drawn = [] if held else list(zip(columns, app.forecasts))
    return Line(app=app.app, name=app.name, user=app.user, state=app.state, cells=cells, figure=figure(drawn, most))


def _cell(times: schema.WhatIfTimes, *, first: bool, held: bool) -> tuple[str, str, str]:
    if held or not (times.later or times.median_s is not None):
        return "–", "", ""
    end = "later" if times.later else _bound(times, "median_s")
    order = "1e12" if times.later else f"{times.median_s:.3f}"
    if first:
        return f"{end} ({_bound(times, 'low_s')} – {_bound(times, 'high_s')})", order, ""
    if times.difference_s is None or abs(times.difference_s) < 0.5:
        return end, order, ""
    return f"{end} ({signed(times.difference_s)})", order, "good" if times.difference_s < 0 else "bad"


def _bound(times: schema.WhatIfTimes, name: str) -> str:
    found = getattr(times, name)
    return short(found) if found is not None else "later"


def figure(drawn: list[tuple[str, schema.WhatIfTimes]], most: float) -> Markup:
    """A line from the low to the high end and a dot at the median for each case; as wide as ``most`` seconds."""
    marks, words = Markup(""), list[str]()
    for i, (name, times) in enumerate(drawn):
        if not (times.later or times.median_s is not None):
            continue
        y = TOP + i * ROW
        low = _at(times.low_s if times.low_s is not None else most, most)
        high = _at(times.high_s if times.high_s is not None else most, most)
        marks += Markup('<g class="a{}"><rect x="{:.2f}%" width="{:.2f}%" y="{}" height="3" rx="1.5"/>').format(
            i * 3 % 16, low, max(high - low, 0.3), y - 1.5
        )
        if times.median_s is not None:
            marks += Markup('<circle cx="{:.2f}%" cy="{}" r="4.5"/>').format(_at(times.median_s, most), y)
        marks += Markup("</g>")
        words.append(f"{name}: {'later' if times.later else _bound(times, 'median_s')}")
    return Markup('<svg class="ends" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        2 * TOP + max(len(drawn) - 1, 0) * ROW, escape("; ".join(words)), marks
    )


def _at(seconds: float, most: float) -> float:
    """Its position in per cent, away from the edges."""
    return 2.0 + 96.0 * min(max(seconds / most, 0.0), 1.0)


ROUTES = (
    Route(path="/what-if", answer=page, title="What if"),
    Route(path="/what-if", answer=ask, method="POST"),
)
