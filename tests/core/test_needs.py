"""Work on the best place there is: the time alone, the reference and the time left agree with an app that runs alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from themis.core import needs
from themis.core.state import State
from themis.model.cluster import Cluster, Machine, places, reaches
from themis.model.settings import Settings
from themis.model.speed import Curve, Profile, ProfileBook
from themis.model.units import Locality
from themis.model.workload import App, Bag, Halving, Hyperband, Job, LossCurve, Regime, Rung, Workload
from themis.policies.api import make_policy
from themis.report.metrics import Fold
from themis.report.result import RunMetrics
from themis.sim.runner import Simulation
from themis.testing.builders import NO_OVERHEAD, app, job, machines, state_at

BOOK = ProfileBook.of(
    [
        Profile(
            name="wide",
            curves={
                ("a", b): Curve(gpus=(1, 2, 4, 8), rate=(r, 1.8 * r, 3.2 * r, 5.0 * r))
                for b, r in ((8, 1.0), (16, 0.6))
            }
            | {
                ("b", b): Curve(gpus=(1, 2, 4, 8), rate=(r, 1.9 * r, 3.6 * r, 6.5 * r))
                for b, r in ((8, 0.7), (16, 0.5))
            },
            slowdown=(1.0, 1.2, 1.5, 2.2),
        ),
        Profile(
            name="flat",
            curves={(k, b): Curve(gpus=(1,), rate=(1.0 / b**0.5,)) for k in "ab" for b in (8, 16)},
            slowdown=(1.0, 1.0, 1.1, 1.3),
        ),
    ]
)


def _cluster(rng: np.random.Generator) -> Cluster:
    """Four or eight machines, of slots and racks, in a third of the draws of two types."""
    gpus, slots, types = int(rng.choice([4, 8])), int(rng.choice([1, 2])), int(rng.integers(3)) == 0
    return Cluster(
        name="drawn",
        machines=tuple(
            Machine(
                name=f"m{i}",
                gpus=gpus,
                gpus_per_slot=gpus // slots,
                rack=f"r{i // 4}",
                gpu_type="b" if types and i >= 4 else "a",
            )
            for i in range(8)
        ),
    )


def _app(rng: np.random.Generator, cluster: Cluster) -> App:
    """A job, a bag or a sweep whose jobs fit next to each other on one type: the cluster is theirs."""
    room = min(int((cluster.machine_type == k).sum()) for k in range(len(cluster.gpu_types)))
    room *= int(cluster.machine_gpus[0])
    count = int(rng.choice([1, 2, 4]))
    gang = int(rng.choice([g for g in (1, 2, 3, 4, 6, 8, 12, 16) if g * count <= room]))
    if count > 1:  # gangs that fit only side by side with others' leftovers are another test's
        gang = max(g for g in (1, 2, 4) if g <= gang)
    model = str(rng.choice(["wide", "flat"]))
    batches = (8, 16) if rng.random() < 0.4 else (8,)
    low = gang if rng.random() < 0.6 else max(gang // 2, 1)
    drawn = [tuple(Regime(steps=float(rng.uniform(2000, 9000)) * gang, batch=b) for b in batches) for _ in range(count)]
    jobs = tuple(
        Job(name=f"j{i}", model=model, regimes=regimes, gpus_min=low, gpus_max=gang, loss=LossCurve(b=0.01, c=float(i)))
        for i, regimes in enumerate(drawn)
    )
    if count == 4 and rng.random() < 0.7:
        steps = [3000.0 * gang, 4000.0 * gang, 6000.0 * gang]
        scale = rng.uniform(0.5, 2.0, 4).tolist()
        jobs = tuple(
            replace(j, regimes=(Regime(steps=sum(steps), batch=8),), step_scale=s) for j, s in zip(jobs, scale)
        )
        one = Halving(rungs=tuple(Rung(jobs=n, steps=s) for n, s in zip((4, 2, 1), steps)))
        two = Hyperband(brackets=(Halving(rungs=one.rungs[1:]), Halving(rungs=(Rung(jobs=2, steps=sum(steps)),))))
        return App(name="alone", user="u", arrival=0.0, jobs=jobs, tuner=one if rng.random() < 0.5 else two)
    return App(name="alone", user="u", arrival=0.0, jobs=jobs, tuner=Bag())


def _run(app: App, cluster: Cluster, container_s: float = 35.0) -> tuple[RunMetrics, State]:
    fold = Fold()
    core = Simulation(
        workload=Workload(name="one", apps=(app,)),
        cluster=cluster,
        book=BOOK,
        policy_name="fair_finish",
        policy=make_policy("fair_finish"),
        settings=Settings(container_s=container_s),
    ).run(fold)
    return fold.result(), core.state


@pytest.mark.parametrize("seed", range(60))
def test_an_app_alone_on_an_idle_cluster_is_not_late(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = _cluster(rng)
    run, _ = _run(_app(rng, cluster), cluster)
    least = 0.99 if len(cluster.gpu_types) == 1 else 0.8  # the reference has GPUs of mean speed
    assert least <= run.rho_attainable.max <= 1.01


@pytest.mark.parametrize("seed", range(60))
def test_what_an_app_needed_is_what_it_took_alone(seed: int) -> None:
    """Without starts, on GPUs of one type."""
    rng = np.random.default_rng(seed)
    cluster = _cluster(rng)
    cluster = replace(cluster, machines=tuple(replace(m, gpu_type="a") for m in cluster.machines))
    one = _app(rng, cluster)
    run, state = _run(one, cluster, container_s=0.0)
    work, longest = state.need[:, 0]
    if isinstance(one.tuner, Hyperband):
        longest = np.array([max(longest[:2].sum(), longest[2])])
    speed = float(state.config_speed[state.apps.config[0]])
    assert work.sum() / speed == pytest.approx(run.gpu_seconds, rel=0.01)
    assert longest.sum() / speed == pytest.approx(run.jct_mean, rel=0.01)


def test_the_best_place_of_a_gang_is_the_narrowest_that_holds_it() -> None:
    reach = reaches(replace(m, gpus_per_slot=2) for m in machines(4, 4, 4, per_rack=2).machines)["gpu"]
    assert reach == (2, 4, 8, 12)
    wide = [places(gpus, gpus, reach) for gpus in (2, 4, 8, 12, 13)]
    assert wide == [
        [(2, Locality.SLOT)],
        [(4, Locality.MACHINE)],
        [(8, Locality.RACK)],
        [(12, Locality.CROSS_RACK)],
        [],
    ]
    assert [gpus for gpus, _ in places(1, 16, reach)] == [2, 4, 8, 12]


def test_an_app_that_arrives_before_its_machines_needs_what_it_would_on_the_best_place() -> None:
    state = state_at(machines(2), [app("a", [job(800.0, 8, model="chatty")])], settings=NO_OVERHEAD)
    assert state.need[:, 0, 0].tolist() == [800.0, 100.0]


def test_rigid_jobs_that_do_not_fit_side_by_side_take_turns_alone() -> None:
    """Ten gangs of 4 on 32 GPUs: eight, then two; a share without gangs would take 1.25 times one."""
    run, _ = _run(replace(_sweep_of(10), name="turns"), machines(*[4] * 8, gpu_type="a"))
    assert run.rho_attainable.max <= 1.01
    assert run.apps[0].t_alone == pytest.approx(2 * (35.0 + 1000.0))


def _sweep_of(jobs: int) -> App:
    return app(
        "bag",
        [
            Job(name=f"j{i}", model="flat", regimes=(Regime(steps=4000.0 / 8**0.5, batch=8),), gpus_min=4, gpus_max=4)
            for i in range(jobs)
        ],
    )


def test_the_known_change_of_a_batch_size_counts_at_the_speed_of_each_batch() -> None:
    regimes = (Regime(steps=500.0, batch=8), Regime(steps=300.0, batch=16))
    one = App(
        name="a", user="u", arrival=0.0, jobs=(Job(name="j", model="wide", regimes=regimes, gpus_min=8, gpus_max=8),)
    )
    state = state_at(machines(8, gpu_type="a"), [one], book=BOOK, settings=NO_OVERHEAD)
    assert state.need[1, 0, 0] == pytest.approx(500.0 / 5.0 + 300.0 / 3.0)
    left = needs.left(state, np.array([0]))
    assert [left.alone[0], left.whole[0]] == pytest.approx([200.0, 200.0])
