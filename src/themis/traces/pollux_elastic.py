"""Pollux' applications as jobs whose GPUs and batch size may change: true curves of goodput, from the archive's measurements.

An epoch's progress is the same at any batch size, counted in steps at the smallest one. With K GPUs, spread over as few machines of
four as hold them, a job trains at the batch size of the largest goodput: measured throughput times the efficiency by the
gradients' measured norm and variance in that epoch. Epochs whose noise differs by less than a tenth are one regime; a regime's
"batch size" is its noise level (``model.goodput.level_of``). ``ncf`` keeps the batch size that the artifact gives it.

Differs from the artifact: the best batch size is known, and between measured gangs the curve is a line on logarithmic axes.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import numpy as np

from themis.model.goodput import Adaptive, level_of, noise_of
from themis.model.speed import ANY_TYPE, Curve, Profile
from themis.model.units import Float
from themis.model.workload import Regime
from themis.traces.bundle import texts
from themis.traces.pollux_speeds import MACHINE, Application, applications

FIXED = {"ncf": 32768}
"""Batch size of applications that keep it."""
CHANGED = 1.1
"""Ratio of noise from which on it counts as changed."""
CANDIDATES = 50
WIDE = 8
"""GPUs at whose best batch size the noise of an epoch is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """An application: its true speeds by noise level, its regimes, its batch sizes, and the most GPUs that it can use."""

    profile: Profile
    regimes: tuple[Regime, ...]
    batches: Adaptive
    gpus: int

    def of_one(self, job: str) -> Profile:
        """The profile of a job that learns its curve: believed before is its speed on one GPU in its first regime, no more."""
        one = self.profile.curves[ANY_TYPE, self.regimes[0].batch].unit
        curves = {**self.profile.curves, (ANY_TYPE, 0): Curve(gpus=(1,), rate=(one,))}
        return replace(self.profile, name=f"{self.profile.name}/{job}", curves=curves)


@lru_cache(maxsize=2)
def elastic_applications(path: Path) -> dict[str, Elastic]:
    """The archive's applications by name; errors as of ``applications``."""
    runs: dict[str, dict[int, Float]] = {}
    for name, lines in texts(path, "validation-*.csv"):
        folder, _, base = name.replace("\\", "/").rpartition("/")
        match = re.fullmatch(r"validation-(\d+)\.csv", base)
        if match is None:
            continue
        rows = [[float(row[key]) for key in ("progress", "grad_sqr", "grad_var")] for row in csv.DictReader(lines)]
        runs.setdefault(folder.rpartition("/")[2], {})[int(match[1])] = np.array(rows)
    return {name: _elastic(name, app, runs[name]) for name, app in applications(path).items()}


def _elastic(name: str, app: Application, runs: dict[int, Float]) -> Elastic:
    sizes = np.array(sorted(runs))
    epochs = min(len(rows) for rows in runs.values())
    table = np.stack([runs[size][:epochs] for size in sizes.tolist()])  # [batch, epoch, (progress, sqr, var)]
    steps = np.diff(table[:, :, 0].min(axis=0), prepend=0.0)
    fixed = FIXED.get(name)
    batch = np.array([float(fixed)]) if fixed else np.geomspace(sizes[0], sizes[-1], CANDIDATES)
    sqr, var = (
        np.array([np.interp(batch, sizes, table[:, e, column]) for e in range(epochs)]) for column in (1, 2)
    )  # [epoch, batch]
    scale = batch / sizes[0]
    gain = (var + sqr) / (var / scale + sqr)
    narrow = _speeds(app, batch, {k: (k,) if k <= MACHINE else (MACHINE,) * (k // MACHINE) for k in _GANGS})
    rate = {k: (gain * speed).max(axis=1) for k, speed in narrow.items()}  # [epoch] each, steps/s
    at = (gain * narrow[WIDE]).argmax(axis=1)
    rows = np.arange(epochs)
    noise = sizes[0] * var[rows, at] / sqr[rows, at]
    level = _levels(noise)
    slower = _spread(app, batch, gain, rate)
    curves = {}
    for number in dict.fromkeys(level):
        here = np.array([found == number for found in level])
        mean = {k: float(steps[here].sum() / (steps[here] / r[here]).sum()) for k, r in rate.items()}
        # Curves are at the best locality: a gang of several machines is slower by the slowdown there.
        curves[ANY_TYPE, number] = Curve(
            gpus=tuple(mean), rate=tuple(r * (slower if k > MACHINE else 1.0) for k, r in mean.items())
        )
    profile = Profile(
        name=f"pollux-{name}",
        curves=curves,
        slowdown=(1.0, 1.0, slower, slower),
        checkpoint_s=0.0,
        source="Pollux OSDI'21",
        iterations=_iterations(app, batch, gain, level),
    )
    least = int(min(points[0][0] for points in app.times.values()))
    batches = Adaptive(
        base=int(sizes[0]),
        least=fixed or 0,
        most=fixed or int(sizes[-1]),
        local=(least, app.local_limit),
        machine=MACHINE,
    )
    pieces = [
        (number, sum(s for _, s in part)) for number, part in groupby(zip(level, steps.tolist()), key=lambda e: e[0])
    ]
    regimes = tuple(Regime(steps=total, batch=number) for number, total in pieces if total > 0)
    return Elastic(profile=profile, regimes=regimes, batches=batches, gpus=max(rate))


_GANGS = (1, 2, 3, *range(MACHINE, 16 * MACHINE + 1, MACHINE))


def _speeds(app: Application, batch: Float, places: dict[int, tuple[int, ...]]) -> dict[int, Float]:
    """Iterations/s of gangs that were measured, by GPUs: of each batch size, 0 where it is too small for them."""
    smallest = min(points[0][0] for points in app.times.values())
    out = {}
    for gpus, placement in places.items():
        if placement not in app.times or batch[-1] < smallest * gpus:
            continue
        seconds = np.array([app.iteration_s(placement, b) for b in batch])
        out[gpus] = np.where(batch >= smallest * gpus, 1.0 / seconds, 0.0)
    return out


def _iterations(
    app: Application, batch: Float, gain: Float, level: list[int]
) -> dict[tuple[int, int, int], tuple[float, float, float]]:
    """``Profile.iterations``: at the true best batch size of each noise level, in the first epoch that has it."""
    places = [(k, 1 if k <= MACHINE else 2, (k,) if k <= MACHINE else (MACHINE,) * (k // MACHINE)) for k in _GANGS]
    places += [(2, 2, (1, 1)), (4, 2, (2, 2))]
    out = {}
    for gpus, machines, placement in places:
        speed = _speeds(app, batch, {gpus: placement}).get(gpus)
        if speed is None:
            continue
        for number in dict.fromkeys(level):
            best = float(batch[int((gain[level.index(number)] * speed).argmax())])
            local, _, grad_s, step_s = app.parts(placement, best)
            out[number, gpus, machines] = float(local), grad_s, step_s
    return out


def _spread(app: Application, batch: Float, gain: Float, rate: dict[int, Float]) -> float:
    """Slowdown of gangs that fit one machine and are spread over two."""
    apart = _speeds(app, batch, {2: (1, 1), 4: (2, 2)})
    ratios = [np.log(rate[k] / (gain * speed).max(axis=1)).mean() for k, speed in apart.items()]
    return max(float(np.exp(np.mean(ratios))), 1.0) if ratios else 1.0


def _levels(noise: Float) -> list[int]:
    """Noise level of each epoch; it stays until the noise differs by a tenth."""
    out: list[int] = []
    for phi in noise.tolist():
        last = noise_of(out[-1]) if out else 0.0
        out.append(out[-1] if last and last / CHANGED <= phi <= last * CHANGED else level_of(phi))
    return out
