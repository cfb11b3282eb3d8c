"""Estimated speeds where only some models were profiled: the profile book with estimates in place of the true speeds.

In simulation, where the true speeds are known, new jobs are measured by reading these, with noise. A live service takes what a
submission says of some GPU types, and for the others the speeds of the reference nearest to it, until jobs measure them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from themis.errors import InputError
from themis.fairness.forecasts.throughput import Config, Estimate, References, entries_of, estimate, share_entries
from themis.model.speed import Curve, Profile, ProfileBook
from themis.model.units import Float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimation:
    """Settings of profiling before jobs run.

    Attributes
    ----------
    references : how many of the measured models (each with its batch size) were profiled in full, drawn by the seed; at least 1.
    probes : share of a new job's entries that are measured when it comes, 0 to 1.
    noise : deviation of the logarithm of a measurement from the truth, 0 or more.
    """

    references: int = 13
    probes: float = 0.2
    noise: float = 0.05

    def __post_init__(self) -> None:
        if self.references < 1:
            raise InputError(f"estimate: references is {self.references}, expected at least 1.")
        if not 0 <= self.probes <= 1:
            raise InputError(f"estimate: probes is {self.probes}, expected a share from 0 to 1.")
        if not 0 <= self.noise < 10:
            raise InputError(f"estimate: noise is {self.noise}, expected 0 or more, below 10.")


def believed_book(
    book: ProfileBook, wanted: Iterable[Config], types: Sequence[str], how: Estimation, seed: int
) -> ProfileBook:
    """The book with estimates for the models of a workload that were not profiled.

    Parameters
    ----------
    wanted : models and batch sizes of the workload. Those without a measured share beside others stay as they are.
    types : GPU types of the cluster; the first is that on which new jobs are measured alone.
    """
    pool = measured_configs(book, types)
    kinds = tuple(types)
    if not pool:
        return book
    rng = np.random.default_rng([seed, 0x6A7E1])
    chosen = sorted(rng.permutation(len(pool))[: how.references].tolist())
    references = References.of(book, [pool[i] for i in chosen], kinds)
    new = [config for config in dict.fromkeys(wanted) if config in pool and config not in references.configs]
    found: dict[Config, Estimate] = {}
    for config in new:
        truth = entries_of(book, config, references.configs, kinds)
        known = rng.random(len(truth)) < how.probes
        off = np.exp(how.noise * rng.standard_normal(len(truth))) if how.noise else np.ones(len(truth))
        found[config] = estimate(references, truth * off, known)
    return _with_estimates(book, references, found)


def nearest_reference(book: ProfileBook, known: Mapping[str, Curve], kind: str) -> tuple[Config, Curve] | None:
    """The measured model whose speeds on the known GPU types are most like these, and its curve on another type, scaled.

    Compared are logarithms of the speed of one GPU over that on the first known type, by their root mean square distance; with one
    type known, the distance is that to the mean over all references on the other type. None: no model was measured on all of them.
    """
    first, *others = known
    found: list[tuple[Config, list[float]]] = []
    for profile in book.profiles.values():
        for batch in sorted({batch for _, batch in profile.curves}):
            curves = [profile.curves.get((each, batch)) for each in (first, *others, kind)]
            units = [curve.unit for curve in curves if curve is not None]
            if len(units) == len(curves) and not profile.like:
                found.append(((profile.name, batch), [math.log(unit / units[0]) for unit in units[1:]]))
    if not found:
        return None
    rows = np.array([row for _, row in found])
    mine = [math.log(known[each].unit / known[first].unit) for each in others] or [float(rows[:, -1].mean())]
    nearest = int(np.argmin(((rows[:, : len(mine)] - mine) ** 2).mean(axis=1)))
    config, ratios = found[nearest]
    curve = book.get(config[0]).curves[kind, config[1]]
    return config, _like(curve, known[first].unit * math.exp(ratios[-1]))


def measured_configs(book: ProfileBook, types: Sequence[str]) -> list[Config]:
    """Models and batch sizes whose shares beside others were measured, and that run on one GPU of the first type."""
    pool = sorted({(p.name, b) for p in book.profiles.values() for _, b, _, _ in p.beside})
    return [(m, b) for m, b in pool if types and book.get(m).curve(types[0], b) is not None]


def _with_estimates(book: ProfileBook, references: References, found: dict[Config, Estimate]) -> ProfileBook:
    row = {config: r for r, config in enumerate(references.configs)}
    taken_for = {**row, **{config: e.nearest for config, e in found.items()}}
    changed: dict[str, Profile] = {}
    for config, e in found.items():
        model, batch = config
        profile = changed.get(model, book.get(model))
        speed, mine, _ = share_entries(references, e.entries)
        curves = dict(profile.curves)
        like = book.get(references.configs[e.nearest][0])
        first = _alone(book.get(model), references.types[0], batch)
        for k, kind in enumerate(references.types):
            curves.pop((kind, batch), None)
            if speed[k] > 0:
                curves[kind, batch] = _like(like.curve(kind, references.configs[e.nearest][1]), first * float(speed[k]))
        beside = {key: share for key, share in profile.beside.items() if key[1] != batch}
        beside |= {
            (kind, batch, *other): float(mine[k, r])
            for k, kind in enumerate(references.types)
            for other, r in taken_for.items()
            if mine[k, r] > 0
        }
        changed[model] = replace(profile, curves=curves, beside=beside, source=f"{profile.source}; partly estimated")
    names = {model for model, _ in found}
    for config, r in row.items():
        # Shares that references keep beside new jobs are estimated too.
        model, batch = config
        profile = changed.get(model, book.get(model))
        beside = {key: s for key, s in profile.beside.items() if key[1] != batch or (key[2], key[3]) not in found}
        for other, e in found.items():
            theirs: Float = share_entries(references, e.entries)[2]
            beside |= {
                (kind, batch, *other): float(theirs[k, r])
                for k, kind in enumerate(references.types)
                if theirs[k, r] > 0
            }
        if names:
            changed[model] = replace(profile, beside=beside)
    return book.with_profiles(changed.values())


def _alone(profile: Profile, kind: str, batch: int) -> float:
    curve = profile.curve(kind, batch)
    assert curve is not None
    return float(curve.at(np.array(1)))


def _like(curve: Curve | None, one: float) -> Curve:
    """A curve through ``one`` step/s on one GPU that grows as another does."""
    if curve is None:
        return Curve(gpus=(1,), rate=(one,))
    return curve.times(one / curve.unit)
