"""Gavel's workloads, continuous-single and continuous-multiple, and their static form (Gavel §7.1).

Every job is an app of its own: one of the 26 measured models, equally likely, that trains for

    60 * 10^U(1.5, 3) s with probability 0.8,   60 * 10^U(3, 4) s with probability 0.2

on V100s; its steps are that time at the rate measured with its GPUs. Arrivals are Poisson. Gangs take 1, 2, 4 or 8 GPUs with 70 %,
10 %, 15 % and 5 %; the paper says 25 % for "between 2 and 4" and leaves their split to its code. A model that was not
measured with this many GPUs is not drawn for a gang of them.

Assumptions: a job of high priority weighs 5; entities own equally many jobs on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError, UnknownName
from themis.model.speed import ProfileBook
from themis.model.units import Float, Int, Seconds
from themis.model.workload import App, Job, Regime, User, Workload
from themis.traces.mix import stream
from themis.traces.profiles.measured import gavel_book
from themis.traces.shapes import describe_parameters

REFERENCE = "V100"
SCALES: tuple[tuple[int, float], ...] = ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05))
"""GPUs of a gang and their probability (§7.1, continuous-multiple)."""

DAY: Seconds = 86400.0
MOST_JOBS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _GavelJobs:
    """Options common to both workloads.

    Attributes
    ----------
    jobs : how many, at least 1.
    rate : arrivals an hour, above 0; the paper's high load is 5.6 for single GPUs and 2.6 for gangs, on 36 + 36 + 36 GPUs.
    static : all jobs arrive at time 0.
    models : names of measured models, joined by commas; empty for all 26 pairs of model and batch size.
    days : durations to draw from evenly, in days; empty for the distribution above. (Cost: 0.5, 1, 2, 4, 8.)
    slo : factors on a job's duration to draw its deadline from evenly; empty for none. (Cost: 1.2, 2, 10.)
    high : share of jobs, 0 to 1, of high priority. ``high_weight`` : their weight; the others' is 1.
    entities : weights of the users that the jobs belong to, drawn evenly; empty: every job is a user of its own.
    """

    jobs: int = 500
    rate: float = 5.6
    static: bool = False
    models: str = ""
    days: tuple[float, ...] = ()
    slo: tuple[float, ...] = ()
    high: float = 0.0
    high_weight: float = 5.0
    entities: tuple[float, ...] = ()

    name: ClassVar[str]
    profiles: ClassVar[str] = "gavel"
    """The book that the models are of."""
    scales: ClassVar[tuple[tuple[int, float], ...]]

    def __post_init__(self) -> None:
        what = f"workload {self.name!r}"
        if not 1 <= self.jobs <= MOST_JOBS:
            raise InputError(f"{what}: jobs is {self.jobs}, expected 1 to {MOST_JOBS:,}.")
        for key, values in (
            ("rate", (self.rate,)),
            ("high_weight", (self.high_weight,)),
            ("days", self.days),
            ("slo", self.slo),
            ("entities", self.entities),
        ):
            if any(not 0 < value < float("inf") for value in values):
                raise InputError(f"{what}: {key} is {getattr(self, key)}, expected more than 0.")
        if not 0 <= self.high <= 1:
            raise InputError(f"{what}: high is {self.high}, expected a share from 0 to 1.")

    def generate(self, *, seed: int, book: ProfileBook | None = None) -> Workload:
        """Draw the workload; the same seed and parameters give the same one.

        Parameters
        ----------
        book : where the models' rates are; by default the measured ones.

        Raises
        ------
        UnknownName : ``models`` names one that was not measured.
        """
        rates = _rates(book if book is not None and _knows(book) else gavel_book(), self.models)
        durations, gpus = self._durations(seed), self._gpus(seed, rates)
        arrivals = self._arrivals(seed)
        users = stream(seed, "entities").integers(max(len(self.entities), 1), size=self.jobs)
        high = stream(seed, "high").random(self.jobs) < self.high
        factor = stream(seed, "slo").integers(max(len(self.slo), 1), size=self.jobs)
        pick = stream(seed, "models").random(self.jobs)
        apps = []
        for i, (duration, size, arrival) in enumerate(zip(durations.tolist(), gpus.tolist(), arrivals.tolist())):
            measured = rates[size]
            model, batch, rate = measured[int(pick[i] * len(measured))]
            name = f"job{i:05d}"
            job = Job(
                name=name,
                model=model,
                regimes=(Regime(steps=duration * rate, batch=batch),),
                gpus_min=size,
                gpus_max=size,
            )
            apps.append(
                App(
                    name=name,
                    user=f"entity{users[i]}" if self.entities else name,
                    arrival=arrival,
                    jobs=(job,),
                    weight=self.high_weight if high[i] else 1.0,
                    deadline=arrival + self.slo[factor[i]] * duration if self.slo else None,
                )
            )
        owners = tuple(User(name=f"entity{e}", weight=weight) for e, weight in enumerate(self.entities))
        return Workload(
            name=self.name, apps=tuple(apps), source=describe_parameters(self.name, self, seed), users=owners
        )

    def _durations(self, seed: int) -> Float:
        rng = stream(seed, "durations")
        if self.days:
            return np.array(self.days)[rng.integers(len(self.days), size=self.jobs)] * DAY
        long = rng.random(self.jobs) >= 0.8
        u = rng.random(self.jobs)
        out: Float = 60.0 * 10.0 ** np.where(long, 3.0 + u, 1.5 + 1.5 * u)
        return out

    def _gpus(self, seed: int, rates: dict[int, list[tuple[str, int, float]]]) -> Int:
        able = [(gpus, share) for gpus, share in self.scales if rates[gpus]]
        upto = np.cumsum([share for _, share in able])
        drawn = np.searchsorted(upto / upto[-1], stream(seed, "gpus").random(self.jobs), side="right")
        return np.array([gpus for gpus, _ in able])[np.minimum(drawn, len(able) - 1)]

    def _arrivals(self, seed: int) -> Float:
        """Arrival times, the first at 0."""
        if self.static:
            return np.zeros(self.jobs)
        gaps = stream(seed, "arrivals").exponential(3600.0 / self.rate, size=self.jobs)
        gaps[0] = 0.0
        times: Float = np.cumsum(gaps)
        return times


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelSingle(_GavelJobs):
    """Gavel's continuous-single: jobs of one GPU each, of 26 measured models, arriving at random."""

    name: ClassVar[str] = "gavel_single"
    scales: ClassVar[tuple[tuple[int, float], ...]] = ((1, 1.0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelMulti(_GavelJobs):
    """Gavel's continuous-multiple: 70 % of the jobs take one GPU, the others gangs of 2, 4 or 8."""

    rate: float = 2.6

    name: ClassVar[str] = "gavel_multi"
    scales: ClassVar[tuple[tuple[int, float], ...]] = SCALES


def _knows(book: ProfileBook) -> bool:
    """True if the book has every measured model on the reference, at every batch size."""
    return all(
        name in book.profiles and profile.curves.keys() <= book.get(name).curves.keys()
        for name, profile in gavel_book().profiles.items()
        if any(kind == REFERENCE for kind, _ in profile.curves)
    )


def _rates(book: ProfileBook, models: str) -> dict[int, list[tuple[str, int, float]]]:
    """Models of each gang size: name, batch and measured steps/s on the reference type."""
    known = [name for name, p in gavel_book().profiles.items() if any(kind == REFERENCE for kind, _ in p.curves)]
    wanted = [name.strip() for name in models.split(",") if name.strip()] or known
    out: dict[int, list[tuple[str, int, float]]] = {gpus: [] for gpus, _ in SCALES}
    for name in wanted:
        if name not in known:
            raise UnknownName("measured model", name, known)
        curves = {batch: curve for (kind, batch), curve in book.get(name).curves.items() if kind == REFERENCE}
        own = [batch for batch in curves if batch] or [0]
        for batch in sorted(own):
            for gpus, rate in zip(curves[batch].gpus, curves[batch].rate):
                if gpus in out:
                    out[gpus].append((name, batch, rate))
    return out
