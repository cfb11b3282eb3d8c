"""Measured throughputs, and the resulting profiles: rates alone, apart, and of two jobs on one GPU (Gavel §3.1).

Where they come from is the business of ``gavel_table`` (Gavel's JSON), ``measured`` (the shipped table) and
``csv_file`` (a user's own).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from themis.model.speed import Curve, Profile

SLOWDOWN_GPUS = 4
"""Gang whose rates together and apart make the slowdown; else the largest that was measured both ways."""

CROSS_RACK = 1.3 / 1.1

Alone = tuple[str, int, int]
Beside = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Steps/s by GPU type, those above 0 only.

    Attributes
    ----------
    together : (model, batch or 0, GPUs) -> rate of a gang on as few machines as possible. ``apart`` : on as many as possible.
    beside : (model, batch, partner's model, its batch) -> the first one's rate on one GPU with the other.
    barred : (model, batch, GPUs) that were measured as 0 together: the model does not fit.
    """

    together: Mapping[str, Mapping[Alone, float]]
    apart: Mapping[str, Mapping[Alone, float]]
    beside: Mapping[str, Mapping[Beside, float]]
    barred: Mapping[str, frozenset[Alone]] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """Models in the order of their first rate."""
        return tuple(dict.fromkeys(model for jobs in self.together.values() for model, _, _ in jobs))


def profiles_of(rates: Throughputs, source: str) -> tuple[Profile, ...]:
    """A profile for each model, one curve for each GPU type and batch size.

    Batch size 0, the profile's own, is the smallest measured. A rate of 0 bars the gang, and where no gang of that batch size
    has another rate, the GPU type. The reference is the first GPU type, V100 before others.
    Slowdown across machines is the ratio of four GPUs together to four apart, the geometric mean over batch sizes and
    types, at least 1; across racks 1.3/1.1 more, an assumption. Differs from what was measured: that ratio depends on
    type, batch size and gang.
    """
    return tuple(_profile(model, rates, source) for model in rates.models)


def _profile(model: str, rates: Throughputs, source: str) -> Profile:
    curves: dict[tuple[str, int], Curve] = {}
    barred: set[tuple[str, int]] = set()
    for kind in sorted(rates.together, reverse=True):  # V100 first, which makes it the reference
        points: dict[int, dict[int, float]] = {}
        for (name, batch, gpus), rate in rates.together[kind].items():
            if name == model:
                points.setdefault(batch, {})[gpus] = rate
        zero: dict[int, set[int]] = {}
        for name, batch, gpus in rates.barred.get(kind, ()):
            if name == model:
                zero.setdefault(batch, set()).add(gpus)
        barred |= {(kind, batch) for batch in zero if batch not in points}
        for batch in sorted(points):
            measured = sorted(points[batch].items())
            curve = Curve(
                gpus=tuple(gpus for gpus, _ in measured),
                rate=tuple(rate for _, rate in measured),
                barred=tuple(sorted(zero.get(batch, set()) - points[batch].keys())),
            )
            curves[kind, batch] = curve
            curves.setdefault((kind, 0), curve)
    rack = _rack_slowdown(model, rates)
    cross = round(rack * CROSS_RACK, 3) if rack > 1.0 else rack
    beside = {
        (kind, batch, partner, other): rate / rates.together[kind][model, batch, 1]
        for kind, pairs in rates.beside.items()
        for (name, batch, partner, other), rate in pairs.items()
        if name == model and (model, batch, 1) in rates.together[kind]
    }
    return Profile(
        name=model,
        curves=curves,
        slowdown=(1.0, 1.0, rack, cross),
        source=source,
        beside=beside,
        barred=frozenset(barred),
    )


def _rack_slowdown(model: str, rates: Throughputs) -> float:
    ratios: list[float] = []
    for kind, jobs in rates.together.items():
        apart = rates.apart.get(kind, {})
        both = [key for key in jobs if key[0] == model and key in apart]
        for batch in sorted({batch for _, batch, _ in both}):
            sizes = sorted(gpus for _, b, gpus in both if b == batch)
            gang = SLOWDOWN_GPUS if SLOWDOWN_GPUS in sizes else sizes[-1]
            if gang > 1:
                ratios.append(math.log(jobs[model, batch, gang] / apart[model, batch, gang]))
    return max(1.0, round(math.exp(sum(ratios) / len(ratios)), 3)) if ratios else 1.0
