"""Two jobs on the two seats of one gang's GPUs: who runs, how fast, and that nobody restarts for a new neighbour."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from themis.errors import InputError
from themis.model.answers import Solved, TimeShare
from themis.model.cluster import Cluster, Machine
from themis.model.events import AppFinished, Grant, JobReached, JobStarted, Revoke
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.speed import ANY_TYPE, ProfileBook, linear
from themis.model.units import NONE, Locality
from themis.model.workload import App, Regime, Workload
from themis.policies.api import Cadence, Granularity, Workbench
from themis.sim.runner import Record, Simulation
from themis.testing.builders import app, job, leased_twice, machines

ROUND = 100.0
KEPT = {("one", "two"): 0.75, ("two", "one"): 0.5, ("one", "one"): 0.6, ("two", "two"): 0.9}
BOOK = ProfileBook.of(
    [
        replace(
            linear(name, 1.0, slowdown=(1.0, 1.0, 1.0, 1.0)),
            beside={(ANY_TYPE, 0, other, 0): share for (me, other), share in KEPT.items() if me == name},
        )
        for name in ("one", "two")
    ]
    + [linear("loner", 1.0, slowdown=(1.0, 1.0, 1.0, 1.0))]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Neighbours by id share their GPUs all the time; whoever is left runs alone."""

    turn: int = 0
    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.JOB

    @property
    def pace(self) -> Cadence:
        return Cadence(round_s=ROUND, spare=False)

    def __call__(self, s: Snapshot, bench: Workbench) -> Solved:
        ids = np.roll(s.job_id, self.turn * s.round)
        combos = [(int(a), int(b)) for a, b in zip(ids[::2], ids[1::2])] + [(int(j), NONE) for j in ids]
        row = {int(j): r for r, j in enumerate(s.job_id)}
        gpus = [int(s.job_gpus_min[row[a]]) for a, _ in combos]
        x = np.where(np.array([b for _, b in combos]) == NONE, 0.01, 1.0)[:, None] * np.ones(len(s.gpu_types))
        return Solved(answer=TimeShare(combos=np.array(combos), gpus=np.array(gpus), x=x, round_s=ROUND))


def run(apps: list[App], *gpus: int, turn: int = 0, **settings: float) -> list[tuple[float, Record]]:
    given = {"container_s": 0.0, **settings}
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=machines(*gpus),
        book=BOOK,
        policy_name="pairs",
        policy=Pairs(turn=turn),
        settings=Settings(validate=True, **given),  # type: ignore[arg-type]
    )
    log: list[tuple[float, Record]] = []
    simulation.run(lambda time, record: log.append((time, record)))
    assert not leased_twice(log)
    return log


def finished(log: list[tuple[float, Record]]) -> list[float]:
    return [t for t, r in log if isinstance(r, AppFinished)]


def test_a_pair_runs_on_one_gpu_at_its_measured_speeds_and_the_survivor_speeds_up_where_it_is() -> None:
    log = run([app("a", [job(400.0, model="one")]), app("b", [job(400.0, model="two")])], 1)
    ends = 400 / 0.75
    # b did half as much meanwhile, and does the rest alone.
    assert finished(log) == [pytest.approx(ends), pytest.approx(ends + 400 - ends * 0.5)]
    grants = [r for _, r in log if isinstance(r, Grant)]
    assert [(g.gpus, g.seat) for g in grants] == [((0,), 0), ((0,), 1)], "nobody moved, nobody restarted"


def test_a_gang_is_shared_whole() -> None:
    log = run([app("a", [job(300.0, 2, model="one")]), app("b", [job(300.0, 2, model="one")])], 2)
    assert [(g.gpus, g.seat) for _, g in log if isinstance(g, Grant)] == [((0, 1), 0), ((0, 1), 1)]
    assert finished(log) == [pytest.approx(300 / 2 / 0.6)] * 2


def test_pairs_that_nobody_measured_do_not_share() -> None:
    log = run([app("a", [job(100.0, model="one")]), app("b", [job(100.0, model="loner")])], 1)
    assert {g.seat for _, g in log if isinstance(g, Grant)} == {0}
    assert finished(log) == [100.0, 200.0]


def test_the_neighbours_container_starts_before_it_trains() -> None:
    """A neighbour slows its partner from the moment that it is on the GPUs, its own start included."""
    apps = [app("a", [job(400.0, model="one")]), app("b", [job(400.0, model="two")])]
    log = run(apps, 1, container_s=30.0)
    assert finished(log)[0] == pytest.approx(30 + 400 / 0.75)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_pairs_come_and_go_belief_and_truth_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    apps = []
    for i in range(9):
        size = int(rng.choice([1, 1, 2]))
        regimes = tuple(Regime(steps=float(rng.integers(50, 400))) for _ in range(int(rng.integers(1, 3))))
        one = replace(job(1.0, size, model=str(rng.choice(["one", "two", "one", "two", "loner"]))), regimes=regimes)
        apps.append(app(f"a{i}", [one], float(rng.integers(0, 500))))
    policy_turn = seed % 3
    log = run(apps, 2, 1, turn=policy_turn, container_s=float(rng.choice([0.0, 20.0])))
    assert len(finished(log)) == 9
    assert any(g.seat for _, g in log if isinstance(g, Grant))
    model = [a.jobs[0].model for a in sorted(apps, key=lambda a: a.arrival)]
    by_hand = steps_by_hand(log, model)
    for j, (steps, target) in by_hand.items():
        assert steps == pytest.approx(target, abs=1e-6), j
    assert len(by_hand) == 9


def steps_by_hand(log: list[tuple[float, Record]], model: list[str]) -> dict[int, tuple[float, float]]:
    """(steps by adding up leases and neighbours, steps reported) of each job when it reached its target."""
    where: dict[int, tuple[int, ...]] = {}
    training: set[int] = set()
    done = dict.fromkeys(range(len(model)), 0.0)
    out: dict[int, tuple[float, float]] = {}
    before = 0.0
    for now, record in log:
        for j in training:
            beside = [k for k in where if k != j and where[k] == where[j]]
            share = KEPT[model[j], model[beside[0]]] if beside else 1.0
            done[j] += (now - before) * len(where[j]) * share
        before = now
        if isinstance(record, JobReached):
            out[record.job] = (done[record.job], record.steps)
        elif isinstance(record, Grant):
            where[record.job] = record.gpus
        elif isinstance(record, JobStarted):
            training.add(record.job)
        elif isinstance(record, Revoke):
            del where[record.job]
            training.discard(record.job)
    return out


def test_speed_beside_a_partner_takes_the_most_specific_entry() -> None:
    profile = replace(
        linear("m", 2.0),
        beside={
            (ANY_TYPE, 0, "n", 0): 0.5,
            ("V100", 0, "n", 0): 0.6,
            ("V100", 64, "n", 0): 0.7,
            ("V100", 64, "n", 8): 0.8,
        },
    )
    book = ProfileBook.of([profile, linear("n", 1.0)])

    def rate(gpu_type: str, batch: int, partner: tuple[str, int]) -> float:
        return 2.0 * book.rate("m", batch, gpu_type, 1, Locality.SLOT, partner)

    assert rate("K80", 64, ("n", 8)) == pytest.approx(0.5)
    assert rate("V100", 32, ("n", 8)) == pytest.approx(0.6)
    assert rate("V100", 64, ("n", 16)) == pytest.approx(0.7)
    assert rate("V100", 64, ("n", 8)) == pytest.approx(0.8)
    assert rate("V100", 64, ("m", 0)) == 0.0
    with pytest.raises(InputError, match="a negative share of its speed on a shared GPU"):
        replace(profile, beside={(ANY_TYPE, 0, "n", 0): -0.1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Figure 7's kind of shares: a pair and its jobs alone, on two types; gangs of ``size``."""

    size: int
    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.JOB

    @property
    def pace(self) -> Cadence:
        return Cadence(ROUND, 0.0)

    def __call__(self, s: Snapshot, bench: Workbench) -> Solved:
        return Solved(
            answer=TimeShare(combos=np.array(COMBOS), gpus=np.full(len(COMBOS), self.size), x=X, round_s=ROUND)
        )


COMBOS = [(0, 1), (0, NONE), (1, NONE), (2, NONE)]
X = np.array([[0.5, 0.0], [0.0, 0.25], [0.0, 0.25], [0.5, 0.5]])


@pytest.mark.parametrize("size", [1, 2])
def test_figure_7_a_pair_and_its_jobs_alone_come_out_of_the_rounds(size: int) -> None:
    """Gavel §5: who runs as a pair runs as nothing else in that round, and every combination has its share of rounds."""
    on = Cluster(name="c", machines=tuple(Machine(name=t, gpus=size, gpu_type=t) for t in ("V100", "K80")))
    apps = [app(f"a{j}", [job(1e6, size, model=m)]) for j, m in enumerate(("one", "two", "loner"))]
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=on,
        book=BOOK,
        policy_name="fixed",
        policy=Fixed(size=size),
        settings=Settings(container_s=0.0, validate=True),
    )
    there: dict[int, int] = {}
    counts = np.zeros_like(X)
    rounds = 80
    log: list[tuple[float, Record]] = []

    def watch(time: float, record: Record) -> None:
        log.append((time, record))
        if time >= rounds * ROUND:
            raise StopIteration

    with suppress(StopIteration):
        simulation.run(watch)
    at = 0
    for r in range(rounds):
        while at < len(log) and log[at][0] <= r * ROUND + 1e-6:
            record = log[at][1]
            if isinstance(record, Revoke):
                there.pop(record.job, None)
            elif isinstance(record, Grant):
                assert record.gpus in (tuple(range(size)), tuple(range(size, 2 * size)))
                there[record.job] = record.gpus[0] // size
            at += 1
        on_gpu = {k: tuple(sorted(j for j, g in there.items() if g == k)) for k in (0, 1)}
        assert len(there) == sum(map(len, on_gpu.values()))
        for k, jobs in on_gpu.items():
            if jobs:
                counts[COMBOS.index((*jobs, NONE)[:2]), k] += 1
    assert np.abs(counts - rounds * X).max() <= 2.0
