"""Fair finish: endless streams, work that is not what was believed, scale, origin, order, and the theorem on seven GPU types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from themis.core import reference
from themis.core.scheduler import Scheduler
from themis.model.answers import Solved
from themis.model.cluster import Cluster
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.speed import Curve, ProfileBook, linear
from themis.model.units import Float
from themis.model.workload import App, Bag, CurveStopping, LossCurve, User, Workload
from themis.policies.api import Workbench, make_policy
from themis.policies.fair_finish import FairFinish, _covered
from themis.report.metrics import Fold
from themis.sim.runner import Outage, Simulation, _Run
from themis.testing.builders import app, job, machines, random_simulation

NO_COSTS = Settings(lease_s=60.0, tick_s=1.0, step_s=15.0, container_s=0.0)
WEIGHTS = (0.37, 1 / 3, 1.0, 7.0)
FLAT = linear("flat", 1.0, slowdown=(1.0, 1.0, 1.0, 1.0), checkpoint_s=0.0)
BOOK = ProfileBook.of([FLAT])


def _simulation(
    apps: Sequence[App],
    cluster: Cluster,
    *,
    policy: str = "fair_finish",
    settings: Settings = NO_COSTS,
    weights: dict[str, float] | None = None,
    book: ProfileBook = BOOK,
) -> Simulation:
    users = tuple(User(name=name, weight=weight) for name, weight in (weights or {}).items())
    return Simulation(
        workload=Workload(name="made", apps=tuple(apps), users=users),
        cluster=cluster,
        book=book,
        policy_name=policy,
        policy=make_policy(policy),
        settings=settings,
    )


def _ended(core: Scheduler) -> dict[str, float]:
    s = core.state
    return {spec.name: float(s.apps.ended[a]) for a, spec in enumerate(s.app_specs)}


def _dues(core: Scheduler) -> dict[str, float]:
    s = core.state
    due = reference.finishes(s, np.arange(s.apps.size))
    return {spec.name: float(due[a]) for a, spec in enumerate(s.app_specs)}


# ---- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fair_finish", "srsf"])
def test_a_stream_twice_as_long_delays_a_long_app_under_srsf_alone(policy: str) -> None:
    """Another user's short apps keep the cluster full: the long app waits for all of them, or for its own share and no longer."""
    settings = replace(NO_COSTS, between="users")
    end = []
    for n in (80, 160):
        stream = [app(f"s{i}", [job(95.0 * 4, (1, 4))], arrival=95.0 * i, user="bob") for i in range(n)]
        core = _simulation(
            [app("long", [job(2000.0 * 4, (1, 4))], user="ada"), *stream], machines(4), policy=policy, settings=settings
        ).run()
        end.append(_ended(core)["long"])
    if policy == "srsf":
        assert end[1] - end[0] > 0.9 * 80 * 95.0
    else:
        assert max(end) <= 4000.0 + 2 * settings.lease_s


def test_a_stream_that_reacts_does_not_starve_a_long_app() -> None:
    """The adversary's apps are each a little shorter than what the long app has left, so shortest first never comes to it."""
    settings = replace(NO_COSTS, between="users")
    left, at = 2000.0, 0.0
    stream: list[App] = []
    while at < 20000.0:
        stream.append(app(f"s{len(stream)}", [job(0.9 * left * 4, (1, 4))], arrival=at, user="bob"))
        at += 0.9 * left
    for policy, latest in (("srsf", np.inf), ("fair_finish", 4000.0 + 2 * settings.lease_s)):
        core = _simulation(
            [app("long", [job(left * 4, (1, 4))], user="ada"), *stream], machines(4), policy=policy, settings=settings
        ).run()
        assert _ended(core)["long"] <= latest
        if policy == "srsf":
            assert _ended(core)["long"] > 15000.0


# ---- wrong work -------------------------------------------------------------------------------------------------------


def _believing(
    apps: Sequence[App],
    cluster: Cluster,
    wrong_by: Mapping[str, float],
    *,
    unknown: bool = False,
    settings: Settings = NO_COSTS,
) -> Scheduler:
    """A run in which the work of these apps is believed so many times of what it is, and nobody corrects that.

    ``unknown`` : it is known that what is believed is an assumption.
    """
    truth, believed, own = [], [], []
    for spec in apps:
        profile = replace(FLAT, name=spec.name)
        wrong = wrong_by.get(spec.name, 1.0)
        slower = {k: Curve(gpus=c.gpus, rate=tuple(r / wrong for r in c.rate)) for k, c in profile.curves.items()}
        truth.append(profile)
        believed.append(replace(profile, curves=slower))
        own.append(replace(spec, jobs=tuple(replace(j, model=spec.name) for j in spec.jobs)))
    simulation = replace(
        _simulation(own, cluster, book=BOOK.with_profiles(truth), settings=settings),
        estimated=BOOK.with_profiles(believed),
        unknown=unknown,
    )
    run = _Run(simulation, lambda *_: None, lambda *_: None, Workbench(), lambda: False)
    run.executor.measures = False
    return run.run()


def _made(seed: int, n: int = 10, gpus: int = 4) -> list[App]:
    """Elastic apps of one user each, work from 300 to 10,000 GPU-seconds, load about 1."""
    rng = np.random.default_rng(seed)
    work = 10 ** rng.uniform(2.5, 4.0, n)
    arrival = np.sort(rng.uniform(0.0, work.sum() / gpus, n))
    return [
        app(f"a{i}", [job(float(w), (1, gpus))], arrival=float(t), user=f"u{i}")
        for i, (w, t) in enumerate(zip(work, arrival))
    ]


def _lateness(core: Scheduler, due: dict[str, float], apps: Sequence[App]) -> Float:
    ended = _ended(core)
    return np.array([(ended[a.name] - a.arrival) / (due[a.name] - a.arrival) for a in apps])


@pytest.mark.parametrize(("error", "worst"), [(0.2, 1.1), (1.0, 2.0)])
def test_work_that_is_believed_wrong_makes_apps_late_by_a_bounded_part(error: float, worst: float) -> None:
    """Factors up to 1 + error, either way, against the dues of the true work.

    Measured: 1.04 and 1.29 while leases ended apart, 1.80 for the second since they end together (decision 99).
    """
    rng = np.random.default_rng(7)
    for seed in range(4):
        apps = _made(seed)
        factor = {a.name: float((1.0 + error) ** rng.uniform(-1.0, 1.0)) for a in apps}
        due = _dues(_simulation(apps, machines(4)).run())
        core = _believing(apps, machines(4), factor)
        assert _lateness(core, due, apps).max() <= worst


def test_where_no_user_says_how_long_jobs_take_short_ones_are_not_last() -> None:
    """All are estimated alike. The latest of ten, mean of the seeds: 1.98 by the estimate, 1.59 where it is known to be assumed."""
    worst, settings = dict[bool, list[float]](), replace(NO_COSTS, lease_s=100.0, tick_s=20.0)
    for seed in range(4):
        apps = _made(seed)
        work = np.array([a.jobs[0].regimes[0].steps for a in apps])
        factor = {a.name: float(work.mean() / w) for a, w in zip(apps, work)}
        due = _dues(_simulation(apps, machines(4), settings=settings).run())
        for unknown in (False, True):
            core = _believing(apps, machines(4), factor, unknown=unknown, settings=settings)
            worst.setdefault(unknown, []).append(float(_lateness(core, due, apps).max()))
    assert np.mean(worst[True]) < 0.9 * np.mean(worst[False])


def test_a_sweep_that_stops_early_delays_nobody() -> None:
    """Most of its jobs are given up after a tenth of what they were believed to need."""
    stopping = CurveStopping(check_steps=40.0, keep=1, noise=0.001)
    sweep = [job(1000.0, 1, name=f"j{k}", loss=LossCurve(a=1.0, b=0.01, c=0.1 * k)) for k in range(8)]
    others = [app(f"a{i}", [job(1500.0, (1, 4))], arrival=300.0 * i, user=f"u{i}") for i in range(5)]
    apps = [app("sweep", sweep, user="ada", tuner=stopping), *others]
    ended = _ended(_simulation(apps, machines(4)).run())
    # In the reference the sweep runs for as long as it was believed to, so its dues are bounds for the others.
    whole = _dues(_simulation([replace(apps[0], tuner=Bag()), *others], machines(4)).run())
    assert ended["sweep"] < 0.8 * whole["sweep"]
    assert all(ended[a.name] <= whole[a.name] + 2 * NO_COSTS.lease_s for a in others)


@pytest.mark.parametrize(("believed", "worst"), [(0.01, 1.05), (0.1, 1.05), (0.5, 1.6)])
def test_an_app_that_needs_more_than_what_is_believed_has_its_share_and_no_more(believed: float, worst: float) -> None:
    """Others against the dues of the true work. Measured: 1.00, 1.00 and 1.51; 5.7 where such an app went by its first due."""
    for seed in range(6):
        apps = [app("endless", [job(8000.0, (1, 4))], user="ada"), *_made(seed)]
        due = _dues(_simulation(apps, machines(4)).run())
        core = _believing(apps, machines(4), {"endless": believed})
        late = _lateness(core, due, apps)
        assert late[1:].max() <= worst
        assert late[0] <= 1.6, "nor does it starve"


@dataclass(frozen=True)
class Judged(FairFinish):
    """``fair_finish``, which notes how much of what its work covers each app has had."""

    parts: list[float] = field(default_factory=list)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        if snapshot.apps:
            covered = np.bincount(snapshot.job_app, weights=_covered(snapshot))
            self.parts.append(float((np.bincount(snapshot.job_app, weights=snapshot.job_attained) / covered).max()))
        return super().__call__(snapshot, bench)


@pytest.mark.parametrize("mixed", [False, True])
def test_no_app_that_tells_the_truth_is_taken_for_one_that_does_not(mixed: bool) -> None:
    """Random apps, sweeps and gangs, on one type and on three, with starts; without failures."""
    most = 0.0
    for seed in range(12):
        policy = Judged()
        random_simulation(policy, seed, name="fair_finish", mixed=mixed, failures=False).run()
        most = max(most, *policy.parts)
    assert 0.3 < most <= 1.0


def test_who_overstates_gains_nothing() -> None:
    """In no seed; twice the work costs a half on average (measured: 1.48)."""
    ratio = [_of_a_lie(seed, 2.0)[0] for seed in range(6)]
    assert min(ratio) >= 1.0 - 1e-9
    assert float(np.exp(np.mean(np.log(ratio)))) > 1.1


def test_who_understates_makes_nobody_late() -> None:
    """Half the work: of no other app's due is more than a hundredth missed."""
    assert max(_of_a_lie(seed, 0.5)[1] for seed in range(6)) <= 1.01


def _of_a_lie(seed: int, factor: float) -> tuple[float, float]:
    """The time of the app that lies over its time with the truth, and how late the others are at most."""
    apps = _made(seed)
    true = _simulation(apps, machines(4)).run()
    lied = _believing(apps, machines(4), {"a5": factor})
    own = (_ended(lied)["a5"] - apps[5].arrival) / (_ended(true)["a5"] - apps[5].arrival)
    others = [a for a in apps if a.name != "a5"]
    return own, float(_lateness(lied, _dues(true), others).max())


def test_machines_that_leave_make_no_honest_app_a_liar() -> None:
    """It ran on the slow type, which is then out of service: what it had there is judged by what it takes there."""
    book = ProfileBook.of([linear("both", 1.0, type_speed={"slow": 1.0, "fast": 4.0})])
    cluster = replace(
        machines(1, 1),
        machines=tuple(replace(m, gpu_type=t) for m, t in zip(machines(1, 1).machines, ("slow", "fast"))),
    )
    apps = [app("long", [replace(job(8000.0, 1), model="both", gpu_types=("slow",))])]
    apps += [app(f"o{i}", [replace(job(8000.0, 1), model="both")], user=f"o{i}") for i in range(3)]
    policy = Judged()
    sim = replace(_simulation(apps, cluster, book=book), policy=policy)
    replace(sim, outages=(Outage(time=6000.0, machine=0, lasts=900.0),)).run()
    assert 0.0 < max(policy.parts) <= 1.0


# ---- scale, origin, order ----------------------------------------------------------------------------------------------


def _lived(core: Scheduler, apps: Sequence[App]) -> dict[str, float]:
    ended = _ended(core)
    return {a.name: ended[a.name] - a.arrival for a in apps}


def test_all_times_times_a_power_of_two() -> None:
    settings = Settings(lease_s=64.0, tick_s=1.0, step_s=16.0, container_s=2.0)
    slow = replace(settings, lease_s=512.0, tick_s=8.0, step_s=128.0, container_s=16.0, checkpoint_every_s=4800.0)
    apps = _made(3)
    longer = [
        replace(a, arrival=8.0 * a.arrival, jobs=tuple(job(8.0 * j.regimes[0].steps, (1, 4)) for j in a.jobs))
        for a in apps
    ]
    one = _lived(_simulation(apps, machines(4), settings=settings).run(), apps)
    other = _lived(_simulation(longer, machines(4), settings=slow).run(), longer)
    assert other == pytest.approx({name: 8.0 * t for name, t in one.items()}, rel=1e-9)


def test_another_origin_of_time() -> None:
    apps = _made(4)
    later = [replace(a, arrival=a.arrival + 61440.0) for a in apps]
    one = _lived(_simulation(apps, machines(4)).run(), apps)
    assert _lived(_simulation(later, machines(4)).run(), later) == pytest.approx(one, abs=1e-6)


def test_another_order_of_apps_that_come_together() -> None:
    apps = [replace(a, arrival=0.0) for a in _made(5)]
    one = _lived(_simulation(apps, machines(4)).run(), apps)
    for seed in range(3):
        shuffled = [apps[i] for i in np.random.default_rng(seed).permutation(len(apps))]
        assert _lived(_simulation(shuffled, machines(4)).run(), apps) == pytest.approx(one, abs=1e-6)


def test_twice_the_gpus_for_twice_the_gangs() -> None:
    """Each machine, gang and work twice: the same times."""
    apps = _made(6)
    wide = [replace(a, jobs=tuple(job(2.0 * j.regimes[0].steps, (2, 8)) for j in a.jobs)) for a in apps]
    rigid = [replace(a, jobs=tuple(job(j.regimes[0].steps, 4) for j in a.jobs)) for a in apps]
    rigid_wide = [replace(a, jobs=tuple(job(2.0 * j.regimes[0].steps, 8) for j in a.jobs)) for a in apps]
    for few, many in ((apps, wide), (rigid, rigid_wide)):
        one = _lived(_simulation(few, machines(4)).run(), few)
        assert _lived(_simulation(many, machines(8)).run(), many) == pytest.approx(one, rel=0.1)


# ---- the theorem -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_divisible_apps_with_odd_weights_keep_their_dues_but_for_leases(seed: int) -> None:
    """64 GPUs, leases of 20 s: apps that can use all GPUs end at most two leases after their due (measured: 6 s)."""
    rng = np.random.default_rng(seed)
    n, gpus = 12, 64
    settings = replace(NO_COSTS, lease_s=20.0)
    work = gpus * 10 ** rng.uniform(2.0, 3.3, n)
    arrival = np.sort(rng.uniform(0.0, work.sum() / gpus, n))
    apps = [
        app(f"a{i}", [job(float(w), (1, gpus))], arrival=float(t), user=f"u{i}")
        for i, (w, t) in enumerate(zip(work, arrival))
    ]
    weights = {f"u{i}": float(w) for i, w in enumerate(rng.choice(WEIGHTS, n))}
    core = _simulation(apps, machines(gpus), settings=settings, weights=weights).run()
    due, ended = _dues(core), _ended(core)
    assert all(ended[a.name] <= due[a.name] + 2 * settings.lease_s for a in apps)


@pytest.mark.parametrize("seed", range(4))
def test_on_seven_types_apps_of_many_small_jobs_keep_their_dues(seed: int) -> None:
    """All models gain alike from a type, so the mean speed of the reference is what an app gets of a part of each type."""
    rng = np.random.default_rng(seed)
    kinds = [f"t{k}" for k in range(7)]
    speeds = dict(zip(kinds, (2.0 ** np.linspace(-0.5, 0.5, 7)).tolist()))
    book = ProfileBook.of([linear("flat", 1.0, type_speed=speeds, checkpoint_s=0.0)])
    cluster = machines(*[4] * 7)
    cluster = replace(cluster, machines=tuple(replace(m, gpu_type=t) for m, t in zip(cluster.machines, kinds)))
    n, arrival, apps = 5, 0.0, []
    for i in range(n):
        jobs = [job(float(rng.uniform(40.0, 100.0)), name=f"j{k}") for k in range(int(rng.integers(60, 100)))]
        apps.append(app(f"a{i}", jobs, arrival=arrival, user=f"u{i}"))
        arrival += float(rng.uniform(0.0, 300.0))
    weights = {f"u{i}": float(w) for i, w in enumerate(rng.choice(WEIGHTS, n))}
    settings = replace(NO_COSTS, lease_s=30.0)
    core = _simulation(apps, cluster, weights=weights, book=book, settings=settings).run()
    due, ended = _dues(core), _ended(core)
    assert all(ended[a.name] <= due[a.name] + 2 * settings.lease_s for a in apps)


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_narrow_job_ends_as_on_its_own_share_whatever_fills_the_cluster(gpus: int, seed: int) -> None:
    """Elastic apps that fill 16 GPUs come all the time; a share of theirs is always wider than the job."""
    rng = np.random.default_rng(seed)
    wide = [
        app(f"w{i}", [job(float(rng.uniform(0.4, 1.6)) * 16 * 400.0, (1, 16))], float(t))
        for i, t in enumerate(np.cumsum(rng.exponential(400.0, 12)))
    ]
    fold = Fold()
    Simulation(
        workload=Workload(name="w", apps=(app("narrow", [job(4800.0 * gpus, gpus)]), *wide)),
        cluster=machines(4, 4, 4, 4),
        book=BOOK,
        policy_name="fair_finish",
        policy=make_policy("fair_finish"),
        settings=Settings(),
    ).run(fold)
    narrow = next(row for row in fold.result().apps if row.name == "narrow")
    assert narrow.rho_attainable <= 1.05
