"""Forecast for apps on their own share of the cluster, for ``share`` and ``why``: ``rho_reference`` and lending.

The reference (``report.reference_finish``) is an incremental fold over the journal (``fairness.Courses``), which
runs in callers' threads. An unfinished app ends as ``report.outlook`` forecasts now, for all who ask; its time on its own share is
that of a report on the journal up to here. Of work that nobody knows neither is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from themis.core.state import State
from themis.model.units import GpuSeconds, Seconds
from themis.report.outlook import ExpectedTimes, Outlook
from themis.report.promise import holds
from themis.report.reference_finish import Reference
from themis.schema import messages as schema

FARTHEST_S = 366 * 86400.0
"""An end that is farther away is not forecast: nothing is known of the app's work, or it makes no progress."""
EARLY = 0.8
"""Part of the time alone that an end is not before, after a start by simulations: speeds are wrong by up to a fifth there."""
HALVINGS = 20
"""Steps of the search for when a loan is back: a millionth of the time to the app's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Values of the arbiter at the present time.

    Attributes
    ----------
    record : number of the journal's last record. ``now`` : seconds since the journal began. ``gpus`` : GPUs in
        service.
    start_s : seconds that a start takes. ``users`` : of active apps, by their number. ``had`` : GPU-seconds that they were leased.
    """

    record: int
    now: Seconds
    gpus: float
    start_s: Seconds
    users: Mapping[int, str]
    had: Mapping[int, GpuSeconds]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnShare:
    """Both forms of ``rho_reference`` of an active app, and its end on its own share and as forecast, in seconds of the journal."""

    rho_reference: float
    rho_attainable: float
    ends: Seconds
    expected: Seconds
    in_time: bool
    """Whether it keeps ``report.promise.PROMISE``."""

    @property
    def sooner(self) -> Seconds:
        """How much sooner it ends than on its own share; below 0: later."""
        return self.ends - self.expected


def present(state: State, record: int) -> Present:
    """Present values of a state that is up to date."""
    attained = state.apps_attained()
    apps = sorted({*state.jobs.app[state.present()].tolist()})
    return Present(
        record=record,
        now=state.now,
        gpus=state.capacity,
        start_s=state.settings.container_s,
        users={a: state.app_specs[a].user for a in apps},
        had={a: float(attained[a]) for a in apps},
    )


def shares(reference: Reference, outlook: Outlook, at: Present, of: Iterable[int] | None = None) -> dict[int, OwnShare]:
    """Own share of every active app, or of those named, whose end is forecast, and which has one on its own share."""
    lasted, out = reference.lasted(), dict[int, OwnShare]()
    if not outlook.apps or not outlook.capacity:
        return out
    queue = outlook.queue_at(at.now)
    for a in at.users if of is None else at.users.keys() & set(of):
        if a >= len(lasted) or not 0 < lasted[a] < FARTHEST_S or a not in outlook.apps:
            continue
        expected, entry = outlook.end_of(a, at.now, queue)[1], reference.apps[a]
        life = expected - entry.arrival - entry.held
        if math.isfinite(life):
            # Were its work believed as it was measured, it would take about as much longer on its own share.
            revised = outlook.revised(a)
            own, alone = float(lasted[a]) * revised, reference.alone(a, at.gpus, at.start_s) * revised
            out[a] = OwnShare(
                rho_reference=life / own,
                rho_attainable=life / max(own, alone),
                ends=entry.arrival + entry.held + own,
                expected=expected,
                in_time=holds(life, max(own, alone)),
            )
    return out


def add_to_shares(users: Sequence[schema.UserShare], own: Mapping[int, OwnShare], at: Present) -> None:
    """The worst and the median of each user's active apps."""
    for row in users:
        mine = [share for a, share in own.items() if at.users[a] == row.user]
        if mine:
            row.sooner_worst_s = min(share.sooner for share in mine)
            row.rho_reference_worst = max(share.rho_reference for share in mine)
            row.rho_reference_median = float(np.median([share.rho_reference for share in mine]))
            row.rho_attainable_worst = max(share.rho_attainable for share in mine)
            row.promise_known, row.promise_kept = len(mine), sum(share.in_time for share in mine)


def add_to_apps(
    rows: Sequence[schema.App], reference: Reference, outlook: Outlook, at: Present, epoch: Seconds
) -> None:
    """How much sooner apps end, or ended, than on their own share."""
    own = shares(reference, outlook, at, [row.id for row in rows])
    lasted = reference.lasted() if any(row.state == "completed" for row in rows) else ()
    for row in rows:
        if share := own.get(row.id):
            row.sooner_s, row.expected_end = share.sooner, epoch + share.expected
            row.rho = share.rho_reference
        elif row.state == "completed" and row.ended is not None and row.id < len(lasted):
            entry = reference.apps[row.id]
            if entry.known and 0 < lasted[row.id] < FARTHEST_S:
                lived = row.ended - epoch - entry.arrival - entry.held
                row.sooner_s, row.rho = float(lasted[row.id]) - lived, lived / float(lasted[row.id])


def add_to_why(
    reply: schema.WhyReply, app: int, reference: Reference, outlook: Outlook, at: Present, epoch: Seconds
) -> None:
    """Add the end of the app, its own share, its loans, and the time of their return.

    Parameters
    ----------
    reply : with the start by simulations, if they were made: the forecast gives way to it.
    epoch : begin of the journal, seconds since 1970.
    """
    if app not in at.users:
        return
    expected = _refined(reply, outlook.of(app, at.now), outlook.alone(app, at.now), epoch)
    known = math.isfinite(expected.ends) and expected.ends < at.now + FARTHEST_S
    if known:
        reply.expected_end = epoch + max(expected.ends, at.now)
        reply.end_low, reply.end_high = (epoch + max(end, at.now) for end in (expected.ends_low, expected.ends_high))
    if reply.start_median is None and reply.simulations == 0 and math.isfinite(expected.starts):
        reply.start_median, reply.start_earliest, reply.start_latest = (
            epoch + max(time, at.now) for time in (expected.starts, expected.starts_low, expected.starts_high)
        )
    share = shares(reference, outlook, at).get(app)
    if share is None or not known:
        return
    entry = reference.apps[app]
    life, lasted = expected.ends - entry.arrival - entry.held, share.ends - entry.arrival - entry.held
    reply.rho_reference = life / lasted
    reply.rho_attainable = share.rho_attainable * life / (share.rho_reference * lasted)
    reply.reference_end, reply.sooner_s = epoch + share.ends, share.ends - expected.ends
    lent = float(reference.received(at.now)[app]) - at.had[app]
    reply.lent_gpu_hours = lent / 3600
    if lent > 0:
        starts = reply.start_median - epoch if reply.start_median is not None else at.now
        back = _back(reference, app, at, starts, expected.ends)
        if math.isfinite(back):
            reply.lent_back = epoch + back


def _refined(reply: schema.WhyReply, expected: ExpectedTimes, alone: Seconds, epoch: Seconds) -> ExpectedTimes:
    """The forecast with the start by simulations: no end is before it and the time that the app needs alone."""
    if reply.start_median is None or not math.isfinite(expected.ends):
        return expected
    first = reply.start_median - epoch + alone
    low = max(expected.ends_low, (reply.start_earliest or reply.start_median) - epoch + alone * EARLY)
    ends = max(expected.ends, first)
    return replace(expected, ends=ends, ends_low=min(low, ends), ends_high=max(expected.ends_high, ends))


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
