"""Forecast for apps on their own share of the cluster, for ``share`` and ``why``: ``rho_reference`` and lending.

The reference (``report.reference_finish``) is an incremental fold over the journal (``fairness.Courses``), which
runs in callers' threads. An unfinished app ends as forecast now; its time on its own share is that of a report on the
journal up to here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from themis.core import take_snapshot as snapshots
from themis.core.state import State
from themis.fairness.finish_time import FinishTime, Form
from themis.model.units import GpuSeconds, Seconds
from themis.report.reference_finish import Reference
from themis.schema import messages as schema

FARTHEST_S = 366 * 86400.0
"""An end that is farther away is not forecast: nothing is known of the app's work, or it makes no progress."""
HALVINGS = 20
"""Steps of the search for when a loan is back: a millionth of the time to the app's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Values of the arbiter at the present time.

    Attributes
    ----------
    record : number of the journal's last record. ``now`` : seconds since the journal began. ``gpus`` : GPUs in
        service.
    start_s : seconds that a start takes. ``lives`` : seconds of active apps from arrival to their forecast end, without
        holds by their user. ``users`` : their users. ``had`` : GPU-seconds that they were leased.
    """

    record: int
    now: Seconds
    gpus: float
    start_s: Seconds
    lives: Mapping[int, Seconds]
    users: Mapping[int, str]
    had: Mapping[int, GpuSeconds]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnShare:
    """Both forms of ``rho_reference`` of an active app, and its end on its own share, in seconds of the journal."""

    rho_reference: float
    rho_attainable: float
    ends: Seconds


def present(state: State, record: int) -> Present:
    """Present values of a state that is up to date."""
    view = snapshots.take(state)
    with np.errstate(all="ignore"):
        lives = view.app_elapsed + FinishTime(view, Form.PAPER).left if view.apps else np.zeros(0)
    apps = view.app_id.tolist()
    return Present(
        record=record,
        now=state.now,
        gpus=state.capacity,
        start_s=state.settings.container_s,
        lives=dict(zip(apps, lives.tolist())),
        users={a: state.app_specs[a].user for a in apps},
        had=dict(zip(apps, view.app_attained.tolist())),
    )


def shares(reference: Reference, at: Present) -> dict[int, OwnShare]:
    """Own share of every active app with a known end on it."""
    lasted, out = reference.lasted(), dict[int, OwnShare]()
    for a, life in at.lives.items():
        if a < len(lasted) and 0 < lasted[a] < FARTHEST_S and math.isfinite(life):
            alone = reference.alone(a, at.gpus, at.start_s)
            entry = reference.apps[a]
            out[a] = OwnShare(
                rho_reference=life / float(lasted[a]),
                rho_attainable=life / max(float(lasted[a]), alone),
                ends=entry.arrival + entry.held + float(lasted[a]),
            )
    return out


def add_to_shares(reply: schema.ShareReply, own: Mapping[int, OwnShare], at: Present) -> None:
    """The worst and the median of each user's active apps."""
    for row in reply.users:
        mine = [share for a, share in own.items() if at.users[a] == row.user]
        if mine:
            row.rho_reference_worst = max(share.rho_reference for share in mine)
            row.rho_reference_median = float(np.median([share.rho_reference for share in mine]))
            row.rho_attainable_worst = max(share.rho_attainable for share in mine)


def add_to_why(
    reply: schema.WhyReply, app: int, reference: Reference, at: Present, starts: Seconds, ends: Seconds, epoch: Seconds
) -> None:
    """The app's own share, its loans, and the time of their return.

    Parameters
    ----------
    reply : with the median start of simulations, if they were made: for an app that waits, it is nearer than ``starts``.
    starts, ends : when it is expected to get GPUs and to end, seconds since the journal began; NaN where that is not known.
    epoch : begin of the journal, seconds since 1970.
    """
    share = shares(reference, at).get(app)
    if share is None:
        return
    if not math.isfinite(ends):
        entry = reference.apps[app]
        ends = entry.arrival + entry.held + at.lives[app]
    reply.rho_reference, reply.rho_attainable = share.rho_reference, share.rho_attainable
    reply.reference_end = epoch + share.ends
    if ends < at.now + FARTHEST_S:
        reply.expected_end = epoch + max(ends, at.now)
    lent = float(reference.received(at.now)[app]) - at.had[app]
    reply.lent_gpu_hours = lent / 3600
    if math.isfinite(starts) and reply.start_median is not None:
        starts = reply.start_median - epoch
    if lent > 0:
        back = _back(reference, app, at, starts if math.isfinite(starts) else at.now, ends)
        if math.isfinite(back):
            reply.lent_back = epoch + back


def _back(reference: Reference, app: int, at: Present, starts: Seconds, ends: Seconds) -> Seconds:
    """Time of parity with its own share, given the rest evenly from ``starts`` to ``ends``; NaN: not before it ends."""
    whole, had = sum(work for work, _ in reference.apps[app].needed), at.had[app]
    starts = max(starts, at.now)

    def behind(time: Seconds) -> bool:
        mine = had + (whole - had) * max(time - starts, 0.0) / (ends - starts)
        return mine < float(reference.received(time)[app])

    if not starts < ends < at.now + FARTHEST_S or whole <= had or behind(ends):
        return math.nan
    low, high = at.now, ends
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if behind(middle) else (low, middle)
    return high
