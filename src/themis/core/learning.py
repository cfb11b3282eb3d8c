"""Measured job speeds, and the speed model corrected by them.

Themis starts unprofiled models at fixed slowdowns and corrects them from measured iteration times
(Themis §6.1, footnote 3). The slowdown of a locality is the rate of a gang at the best locality over its rate there,
for the same GPU type and number of GPUs (S in Themis eq. 1). Gavel starts with estimates, of pairs on one GPU too, and
replaces them by rates measured as rounds run (Gavel §3.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from themis.model.speed import ANY_TYPE, Curve, Profile
from themis.model.units import Locality

WEIGHT = 0.2
"""Weight of a new measurement against the estimate so far; the first measurement counts fully."""

Key = tuple[str, int, str, int, str, int, int]
"""Model, batch size, GPU type, GPUs, partner's model or "", its batch size, locality."""


class Sample(Protocol):
    """A measurement: a gang's steps/s, alone (no ``partner``) or together with another job on its GPUs."""

    @property
    def model(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def gpu_type(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def locality(self) -> int: ...
    @property
    def partner(self) -> str: ...
    @property
    def partner_batch(self) -> int: ...
    @property
    def steps_per_s(self) -> float: ...


@dataclass(slots=True)
class Measured:
    """Rates of models, smoothed, steps/s."""

    rates: dict[Key, float] = field(default_factory=dict)

    def take(self, new: Sample, step_scale: float = 1.0) -> None:
        """Take in a measurement. ``step_scale`` : steps of the job per step of its model."""
        key = (
            new.model,
            new.batch,
            new.gpu_type,
            new.gpus,
            new.partner,
            new.partner_batch,
            int(new.locality),
        )
        rate = new.steps_per_s * step_scale
        known = self.rates.get(key)
        self.rates[key] = rate if known is None else (1 - WEIGHT) * known + WEIGHT * rate

    def slowdowns(self, model: str) -> Mapping[Locality, float]:
        """Slowdown of each locality that was measured with a better one, at least 1; the mean over equal gangs."""
        found: dict[Locality, list[float]] = {}
        gangs: dict[tuple[int, str, int], dict[Locality, float]] = {}
        for (name, batch, kind, gpus, partner, _, level), rate in self.rates.items():
            if name == model and not partner:
                gangs.setdefault((batch, kind, gpus), {})[Locality(level)] = rate
        for _, at in sorted(gangs.items()):
            best = min(at)
            for where, rate in at.items():
                if where != best:
                    found.setdefault(where, []).append(max(at[best] / rate, 1.0))
        return {level: sum(values) / len(values) for level, values in sorted(found.items())}

    def corrected(self, profile: Profile) -> Profile:
        """The profile with measurements in place of assumptions.

        Slowdowns of unmeasured localities stay, raised where a better locality turned out slower. A GPU
        type's curve goes through the measured gangs, each taken to its best locality; gangs that were not measured are
        taken to be as much faster or slower than believed as those that were. A share beside a partner is the rate
        there over that alone, of the smallest gang that was measured; 0 says that the two do not fit on a GPU. Where speeds
        on some GPU types stand in for measurements, they are taken to be off by the geometric mean of what the measured types were.
        """
        slow = list(profile.slowdown)
        for level, value in self.slowdowns(profile.name).items():
            slow[level] = value * slow[Locality.SLOT]
        for wider in range(1, len(slow)):
            slow[wider] = max(slow[wider], slow[wider - 1])
        points: dict[tuple[str, int], dict[int, float]] = {}
        pairs: dict[tuple[str, int, str, int], tuple[int, float]] = {}
        for (model, batch, kind, gpus, partner, size, place), rate in sorted(self.rates.items(), reverse=True):
            if model == profile.name and partner:
                pairs[kind, batch, partner, size] = gpus, rate * slow[place]
            elif model == profile.name:
                # Best localities come last and win.
                points.setdefault((kind, batch), {})[gpus] = rate * slow[place]
        curves = dict(profile.curves)
        for (kind, batch), measured in points.items():
            curves[kind, batch] = _through(profile.curve(kind, batch), measured)
        found = replace(
            profile,
            curves=curves,
            slowdown=(slow[0], slow[1], slow[2], slow[3]),
            barred=profile.barred - points.keys(),
        )
        beside = dict(profile.beside)
        for (kind, batch, partner, size), (gpus, rate) in pairs.items():
            curve = found.curve(kind, batch)
            if curve is not None:
                beside[kind, batch, partner, size] = rate / float(curve.at(np.array(gpus)))
        types = {kind for kind, _ in points}
        like = {key: model for key, model in profile.like.items() if key[0] not in types}
        before = {key: profile.curve(*key) for key in points if profile.like}
        off = [math.log(curves[key].unit / curve.unit) for key, curve in before.items() if curve]
        if off:
            factor = math.exp(sum(off) / len(off))
            curves |= {key: curves[key].times(factor) for key in curves if key in like or key[0] == ANY_TYPE}
        return replace(found, curves=curves, beside=beside, like=like)


def _through(prior: Curve | None, measured: Mapping[int, float]) -> Curve:
    """A curve through the measurements, with the estimated curve's shape elsewhere."""
    points = dict(measured)
    if prior is not None:
        # What was believed not to fit and did says nothing of the shape.
        at = {gpus: float(prior.at(np.array(gpus))) for gpus in measured}
        off = [math.log(rate / at[gpus]) for gpus, rate in measured.items() if at[gpus] > 0]
        factor = math.exp(sum(off) / len(off)) if off else 1.0
        points = {gpus: rate * factor for gpus, rate in zip(prior.gpus, prior.rate)} | points
    barred = tuple(gpus for gpus in prior.barred if gpus not in points) if prior else ()
    return Curve(gpus=tuple(sorted(points)), rate=tuple(points[g] for g in sorted(points)), barred=barred)
