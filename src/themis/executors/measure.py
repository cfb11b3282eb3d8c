"""What jobs measure of themselves, and the speed model corrected by it.

Themis starts models that nobody has profiled at fixed slowdowns and corrects them from measured iteration times
(Themis §6.1, footnote 3). The slowdown of a locality is the rate of a gang at the best locality over its rate there,
for the same GPU type and number of GPUs (S in Themis eq. 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from themis.executors.program import Measurement
from themis.model.units import Locality
from themis.profiles.speed import Curve, Profile

WEIGHT = 0.2
"""Of a new measurement against what was known; the first counts whole."""

Key = tuple[str, str, int, Locality]


@dataclass(slots=True)
class Measured:
    """Rates of models, smoothed: (model, GPU type, GPUs, locality) -> steps/s."""

    rates: dict[Key, float] = field(default_factory=dict)

    def take(self, new: Measurement, step_scale: float = 1.0) -> None:
        """Take in a measurement. ``step_scale`` : of the job, whose steps are so many of its model's."""
        key = (new.model, new.gpu_type, new.gpus, new.locality)
        rate = new.steps_per_s * step_scale
        known = self.rates.get(key)
        self.rates[key] = rate if known is None else (1 - WEIGHT) * known + WEIGHT * rate

    def slowdowns(self, model: str) -> Mapping[Locality, float]:
        """Slowdown of each locality that was measured beside a better one, at least 1; the mean over gangs alike."""
        found: dict[Locality, list[float]] = {}
        gangs = {(t, g) for m, t, g, _ in self.rates if m == model}
        for gpu_type, gpus in sorted(gangs):
            at = {level: rate for level in Locality if (rate := self.rates.get((model, gpu_type, gpus, level)))}
            best = min(at, default=None)
            for level, rate in at.items():
                if best is not None and level != best:
                    found.setdefault(level, []).append(max(at[best] / rate, 1.0))
        return {level: sum(values) / len(values) for level, values in sorted(found.items())}

    def corrected(self, profile: Profile) -> Profile:
        """The profile with what was measured in place of what was assumed.

        Slowdowns of localities that nobody measured stay, raised where a better locality turned out slower. A GPU
        type's curve goes through the measured gangs, each taken to its best locality.
        """
        slow = list(profile.slowdown)
        for level, value in self.slowdowns(profile.name).items():
            slow[level] = value * slow[Locality.SLOT]
        for wider in range(1, len(slow)):
            slow[wider] = max(slow[wider], slow[wider - 1])
        points: dict[str, dict[int, float]] = {}
        for (model, gpu_type, gpus, level), rate in sorted(self.rates.items(), reverse=True):
            if model == profile.name:
                # Best localities come last and win.
                points.setdefault(gpu_type, {})[gpus] = rate * slow[level]
        curves = {
            (gpu_type, 0): Curve(gpus=tuple(sorted(at)), rate=tuple(at[g] for g in sorted(at)))
            for gpu_type, at in points.items()
        }
        return replace(
            profile, curves={**profile.curves, **curves}, slowdown=(slow[0], slow[1], slow[2], slow[3])
        )  # fmt: skip
