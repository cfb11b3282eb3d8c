"""What jobs receive of the time shares that they were promised, under three rules of dealing rounds: delivered.md.

    python reproduction/delivered_rounds.py gang|mixed|batch|ledger

``gang`` : one gang of 8 GPUs and seven single jobs on one machine of 8, equal weights, 400 rounds, every policy of time shares.
``mixed`` : 31 jobs with gangs of 1 to 8 on three GPU types, drawn from a seed; their shares of max-min fairness in rounds.
``batch`` : Gavel's recorded batch on 36 GPUs: makespan and mean completion time.
``ledger`` : received over entitled on a Themis workload, a policy a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from unittest.mock import patch

import numpy as np

from gavel_runs import Cell, simulate
from themis.core import intend
from themis.core.rounds import Rounds
from themis.errors import ThemisError
from themis.model.answers import TimeShare
from themis.model.cluster import Cluster, Machine
from themis.model.events import Allocated, Grant, Revoke
from themis.model.settings import Settings
from themis.model.speed import ProfileBook, linear
from themis.model.units import Bool, Float, Int, Seconds
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.report.delivery import Missing
from themis.report.metrics import Fold
from themis.sim.runner import Record, Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

ROUND = 360.0
SHARING = (
    "max_min_fairness",
    "max_min_water_filling",
    "finish_time_fairness",
    "makespan",
    "max_throughput",
    "proportional",
    "gandiva_fair",
    "hierarchical",
    "isolated",
    "fifo_hetero",
    "sjf_hetero",
    "allox",
)


class _Enough(Exception):
    """The run is long enough."""


class Delivered:
    """A sink: [J, K] seconds promised and received by each job on each type, from the log alone."""

    def __init__(self, kinds: list[int], jobs: int, until: Seconds) -> None:
        self.kinds, self.until = kinds, until
        types = max(kinds) + 1
        self.promised, self.received = np.zeros((jobs, types)), np.zeros((jobs, types))
        self.share, self.since = np.zeros((jobs, types)), 0.0
        self.held: dict[int, tuple[Seconds, int]] = {}

    def __call__(self, now: Seconds, record: Record) -> None:
        """One record of the log."""
        if now >= self.until:
            self.close(self.until)
            raise _Enough
        if isinstance(record, Allocated) and isinstance(record.solved.answer, TimeShare):
            answer = record.solved.answer
            self.promised += self.share * (now - self.since)
            self.since = now
            self.share[:] = 0.0
            self.share[answer.combos[:, 0]] = answer.x
        elif isinstance(record, Grant):
            self.held[record.job] = now, self.kinds[record.gpus[0]]
        elif isinstance(record, Revoke):
            self._end(record.job, now)

    def _end(self, job: int, now: Seconds) -> None:
        since, kind = self.held.pop(job)
        self.received[job, kind] += now - since

    def close(self, now: Seconds) -> None:
        """Count what is held until now."""
        for job in list(self.held):
            self._end(job, now)
        self.promised += self.share * (now - self.since)
        self.since = now


def deliver(policy: str, apps: list[App], on: Cluster, book: ProfileBook, rounds: int) -> Delivered:
    """Run so many rounds."""
    sink = Delivered([k for k, m in enumerate(on.machines) for _ in range(m.gpus)], len(apps), rounds * ROUND)
    run = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=on,
        book=book,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(container_s=0.0),
    )
    with suppress(_Enough):
        run.run(sink)
    return sink


def _app(name: str, model: str, gpus: int, steps: float) -> App:
    job = Job(name="j", model=model, regimes=(Regime(steps=steps),), gpus_min=gpus, gpus_max=gpus, step_scale=1.0)
    return App(name=name, user=name, arrival=0.0, jobs=(job,))


def absolute(
    self: Rounds, now: Seconds, until: Seconds, able: Bool, speeds: object = None, packs: bool = False
) -> Float:
    """The order before: the largest deficit in rounds first."""
    assert self.answer is not None
    self._accrue(now)
    x = self.answer.x
    owed = (self.entitled + x * (until - now) - self.received) / ROUND
    runs = (x > 0) & able[:, None] & (owed > 1e-6)
    out: Float = np.where(runs, owed, 0.0)
    if self.answer.due is not None:
        due = x * self.answer.due[:, None]
        behind = (self.due + due * (until - now) - self.received) / ROUND
        idle = np.maximum(1.0 - due.sum(axis=1, keepdims=True), 1e-6)
        out = np.where(runs & (behind > 1e-6), float(out.max(initial=0.0)) + 1.0 + behind / idle, out)
    return out


def published(
    self: Rounds, now: Seconds, until: Seconds, able: Bool, speeds: object = None, packs: bool = False
) -> Float:
    """Gavel's own order (§5): share over fraction received; whoever is ahead runs too where there is room."""
    assert self.answer is not None
    self._accrue(now)
    got = self.received / max(now, ROUND)
    return np.where(able[:, None] & (self.answer.x > 0), self.answer.x / np.maximum(got, 1e-9), 0.0)


Order = Callable[[Rounds, Seconds, Seconds, Bool], Float]
RULES: dict[str, Order | None] = {"absolute deficits": absolute, "share over received": published, "ours": None}


@contextmanager
def rule(order: Order | None) -> Iterator[None]:
    """Deal rounds by this order; None: as the product does."""
    if order is None:
        yield
        return
    with (
        patch.object(Rounds, "priority", order),
        patch.object(Rounds, "overdue", lambda self, now, until, rows, speeds=None: np.zeros(len(rows))),
        patch.object(intend, "steadied", lambda rounds, picked, free, may: picked),
    ):
        yield


def gang() -> None:
    """The case of one large gang."""
    on = Cluster(name="1x8", machines=(Machine(name="m", gpus=8, gpu_type="t"),))
    book = ProfileBook.of([linear("m", 1.0)])
    apps = [_app(f"a{j}", "m", gpus, 1e9) for j, gpus in enumerate((8, *[1] * 7))]
    print("policy, promised gang / single; received over promised, gang / least single, by rule")
    for name in SHARING:
        line = []
        try:
            for order in RULES.values():
                with rule(order):
                    got = deliver(name, apps, on, book, 400)
                part = (got.received / np.maximum(got.promised, 1e-9))[:, 0]
                line.append(f"{part[0]:.3f} / {part[1:].min():.3f}")
        except ThemisError as error:
            line.append(str(error))
        promised = got.promised[:, 0] / (400 * ROUND)
        print(f"{name:24s} {promised[0]:.3f} / {promised[1]:.3f}   " + "   ".join(line), flush=True)


def mixed_case(
    seed: int, sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
) -> tuple[list[App], Cluster, ProfileBook, Int, Float]:
    """31 jobs, each of a model with its own speeds on three GPU types: apps, cluster, profiles, gangs [31], speeds [31, 3]."""
    rng = np.random.default_rng(seed)
    gangs = rng.choice(sizes, 31)
    speed = np.exp(rng.normal(0.0, 0.7, (31, 3))) * np.sort(rng.uniform(0.3, 1.0, 3))
    gpus = 8 * rng.integers(1, 3, 3)
    on = Cluster(
        name="mixed", machines=tuple(Machine(name=f"m{k}", gpus=int(n), gpu_type=f"t{k}") for k, n in enumerate(gpus))
    )
    book = ProfileBook.of(
        linear(f"m{j}", 1.0, type_speed={f"t{k}": float(v) for k, v in enumerate(row)}) for j, row in enumerate(speed)
    )
    apps = [_app(f"a{j}", f"m{j}", int(n), 1e9 * int(n)) for j, n in enumerate(gangs)]
    return apps, on, book, gangs, speed


def fulfilled(got: Delivered, speed: Float) -> Float:
    """[J], work received over work promised."""
    out: Float = (speed * got.received).sum(axis=1) / (speed * got.promised).sum(axis=1)
    return out


def mixed() -> None:
    """31 jobs on three types."""
    print("sizes, seed; least and mean of work received over promised, by rule")
    for sizes in ((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 4, 8), (1, 1, 1, 8)):
        for seed in range(15):  # the limit of core.rounds was chosen on seeds 0 to 4
            apps, on, book, _, speed = mixed_case(seed, sizes)
            line = []
            for order in RULES.values():
                with rule(order):
                    part = fulfilled(deliver("max_min_fairness", apps, on, book, 400), speed)
                line.append(f"{part.min():.3f} {part.mean():.3f}")
            print(f"{sizes} {seed}   " + "   ".join(line), flush=True)


def batch() -> None:
    """Gavel's recorded batch, with its own table of throughputs."""
    for name in ("makespan", "max_min_fairness"):
        found = simulate(Cell(policy=name, workload="sim_cases/static120_multi.trace", table="simulation_throughputs"))
        print(
            f"{name}: makespan {max(found.jct) / 3600:.2f} h, mean completion {found.mean:.2f} h, "
            f"median {np.median(found.jct) / 3600:.2f} h; {found.cpu:.1f} CPU s",
            flush=True,
        )


def ledger() -> None:
    """Worst and mean of received over entitled, and where the rest of what apps were entitled to went."""
    workload = load_workload("themis1", seed=0, book=DEFAULT_BOOK, apps=20, load=2.0, gpus=64, scale=0.1)
    for name in (
        "themis",
        "drf",
        "gandiva",
        "tiresias",
        "srtf",
        "max_min_fairness",
        "finish_time_fairness",
        "shockwave",
    ):
        fold = Fold()
        Simulation(
            workload=workload,
            cluster=load_cluster("sim-64"),
            book=DEFAULT_BOOK,
            policy_name=name,
            policy=make_policy(name),
            settings=Settings(),
        ).run(fold)
        run = fold.result()
        due = sum(app.entitled for app in run.apps)
        causes = {f.name: sum(getattr(app.missing, f.name) for app in run.apps) / due for f in fields(Missing)}
        print(
            f"{name:22s} worst {run.delivered_worst:.2f} mean {run.delivered_mean:.2f}   "
            + "  ".join(f"{cause} {part:+.1%}" for cause, part in causes.items()),
            flush=True,
        )


if __name__ == "__main__":
    {"gang": gang, "mixed": mixed, "batch": batch, "ledger": ledger}[sys.argv[1]]()
