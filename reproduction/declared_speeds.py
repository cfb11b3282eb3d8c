"""Forecasts of ends where users declare wrong speeds. Writes docs/reproduction/declared-speeds.md.

Apps of a service are simulated: a job each, on 1 to 4 of 16 GPUs, of a median of 20 minutes, under ``fair_finish`` with leases of
two minutes. Each declares a speed of its own, wrong by a factor whose logarithm is normal (a median of 1.6 times). Once in each
app's life somebody asks when it ends, at a time drawn from the times at which it was there: the answer is the one of ``themis
why``, from the records up to then. A constant forecast says to all the median of the time left, and an interval with four fifths
of them; it is drawn up in hindsight, from all answers that it is compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from themis.model.settings import Settings
from themis.model.speed import ProfileBook, linear
from themis.model.units import Seconds
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.report.outlook import ExpectedTimes, Followed
from themis.sim.runner import Simulation
from themis.traces.profiles.presets import load_cluster

PAGE = Path(__file__).parents[1] / "docs" / "reproduction" / "declared-speeds.md"
NOTE = Path(__file__).parent / "notes" / "declared-speeds.md"
APPS, SEEDS, GPUS = 400, (0, 1, 2), 16
WRONG = 0.7
"""Standard deviation of the logarithm of declared over true speeds."""
REPORT_S = 30.0
"""Seconds of training between two reports of steps, as in the service."""
EVERY_S = 30.0
"""Seconds between two moments at which somebody may ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An answer, and what happened; seconds from the question."""

    low: Seconds
    point: Seconds
    high: Seconds
    left: Seconds

    @property
    def held(self) -> bool:
        """The end was in the interval."""
        return self.low <= self.left <= self.high


class Asking(Followed):
    """Asks about every active app at regular times, and keeps one answer of each, drawn at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng, self.next_at = np.random.default_rng(seed), EVERY_S
        self.kept: dict[int, tuple[Seconds, ExpectedTimes]] = {}
        self.times: dict[int, int] = {}
        self.answers: list[Asked] = []

    def add(self, time: Seconds, record: object) -> None:
        while self.next_at <= time:
            for number in list(self.outlook.apps):
                self.times[number] = count = self.times.get(number, 0) + 1
                if self.rng.random() < 1.0 / count:
                    self.kept[number] = self.next_at, self.outlook.of(number, self.next_at)
            self.next_at += EVERY_S
        if type(record).__name__ == "AppFinished" and (found := self.kept.pop(record.app, None)):  # type: ignore[attr-defined]
            at, said = found
            self.answers.append(
                Asked(low=said.ends_low - at, point=said.ends - at, high=said.ends_high - at, left=time - at)
            )
        super().add(time, record)


def simulation(count: int, seed: int) -> Simulation:
    """A service whose users declare wrong speeds."""
    rng = np.random.default_rng([seed, 0xDEC1])
    arrival, apps, true, declared = 0.0, [], {}, {}
    for i in range(count):
        gpus, seconds = int(rng.choice((1, 1, 2, 4))), float(rng.lognormal(math.log(1200.0), 0.8))
        arrival += float(rng.exponential(2.0 * 1650.0 / GPUS / 0.9))
        rate, name = float(rng.uniform(1.0, 20.0)), f"m{i}"
        true[name] = linear(name, 1.0 / rate, source="measured")
        declared[name] = linear(name, float(rng.lognormal(0.0, WRONG)) / rate, source="given by its submitter")
        pieces = max(round(seconds / REPORT_S), 1)
        job = Job(
            name="job",
            model=name,
            regimes=(Regime(steps=seconds * rate * gpus / pieces),) * pieces,
            gpus_min=gpus,
            gpus_max=gpus,
            step_scale=1.0,
        )
        apps.append(App(name=f"app{i}", user=f"u{i % 6}", arrival=arrival, jobs=(job,)))
    return Simulation(
        workload=Workload(name="wrong speeds", apps=tuple(apps)),
        cluster=load_cluster(f"2x{GPUS // 2}@V100"),
        book=ProfileBook(true),
        estimated=ProfileBook(declared),
        policy_name="fair_finish",
        policy=make_policy("fair_finish"),
        settings=replace(Settings(), lease_s=120.0, seed=seed, container_s=5.0),
    )


def measure(count: int, seed: int) -> list[Asked]:
    """One answer about each app that was there long enough to be asked about."""
    asking = Asking(seed)
    simulation(count, seed).run(asking.add)
    return asking.answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """``coverage`` : share of intervals that held; ``width`` : median upper over lower end; ``off`` : median factor of the error;
    ``outside`` : points outside their interval."""

    answers: int
    coverage: float
    width: float
    off: float
    outside: int

    def row(self, name: str) -> str:
        """A line of the page's table."""
        return f"| {name} | {self.answers} | {self.coverage:.0%} | {self.width:.2f} | {self.off:.2f} | {self.outside} |"


def quality(answers: list[Asked]) -> Quality:
    """Coverage and width of answers."""
    return Quality(
        answers=len(answers),
        coverage=float(np.mean([one.held for one in answers])),
        width=float(np.median([one.high / max(one.low, 1.0) for one in answers])),
        off=math.exp(float(np.median([abs(math.log(max(one.point, 1.0) / max(one.left, 1.0))) for one in answers]))),
        outside=sum(not one.low <= one.point <= one.high for one in answers),
    )


def constant(answers: list[Asked]) -> list[Asked]:
    """The same, answered with one interval and one point for all."""
    low, point, high = (float(x) for x in np.quantile([one.left for one in answers], (0.1, 0.5, 0.9)))
    return [replace(one, low=low, point=point, high=high) for one in answers]


def main() -> None:
    """Measure and write the page."""
    rows = []
    for seed in SEEDS:
        answers = measure(APPS, seed)
        rows += [
            quality(answers).row(f"themis why, seed {seed}"),
            quality(constant(answers)).row(f"constant, seed {seed}"),
        ]
        print("\n".join(rows[-2:]), flush=True)
    PAGE.write_text(NOTE.read_text().replace("{{rows}}", "\n".join(rows)))


if __name__ == "__main__":
    main()
