"""fair_finish on the grounds of the papers and where users attack it: docs/reproduction/fair-finish.md.

    python reproduction/fair_finish.py [--grounds static,flood] [--policies srsf,themis] [--seeds 0-4] [--store FILE]
        [--over srsf]

Each ground is a workload with the cluster and the settings that its paper has, or a fault that users or forecasts bring in. An app
is judged by (finish - arrival) / max(reference, alone): its finish on its own share of the cluster, and its time on an
idle one. Both follow from the true work, so they are taken from a run in which the scheduler knows it. Runs are kept in the store,
one JSON line each with a fingerprint of the code. Everything is simulated, with one set of
defaults and, where no paper's rounds are kept, one grid of leases.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

import gavel_runs
import shockwave_runs
from grid import CODE, SHARED, marker, table
from themis.core.state import State
from themis.model.cluster import Cluster
from themis.model.dynamic import Mode
from themis.model.events import AppFinished
from themis.model.settings import Settings
from themis.model.speed import Curve, ProfileBook
from themis.model.units import Float, Locality
from themis.model.workload import App, Group, Job, Regime, User, Workload
from themis.policies.api import Workbench, make_policy
from themis.report.intervals import ratio_interval, t_interval
from themis.report.metrics import Fold
from themis.sim.plan import parse_seeds
from themis.sim.runner import Record, Simulation, _Run
from themis.sizes import UNKNOWN_WORK_S
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

BASELINES = ("srsf", "drf", "drf@600", "gandiva", "gandiva@600", "themis")
"""``@600`` : leases end together at multiples of ten minutes, the default of policies of turns, in place of each minute."""
PLANS = ("srsf", "shockwave", "shockwave:plan=market")
GAVEL = Settings(container_s=0.0, lease_s=360.0)
one_grid = partial(Settings, step_s=60.0)
"""Leases of all policies end together each minute, also of those that would otherwise keep them for ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a run is given.

    Attributes
    ----------
    believed : what the scheduler believes of speeds, and so of work; never corrected. None: the truth.
    unknown : the scheduler takes the work of all apps as unknown.
    judged : the apps whose figures count, by name; empty: all. The run ends when they have.
    static : [apps], seconds that Shockwave calls an app's fair time; empty where the ground does not use it.
    whole : of split apps, the app that each was a part of; an app ends with its last part.
    day : seconds after which users' parts of all GPU time are compared with those in the reference; 0: they are not.
    """

    workload: Workload
    cluster: Cluster
    book: ProfileBook = DEFAULT_BOOK
    settings: Settings = field(default_factory=one_grid)
    believed: ProfileBook | None = None
    unknown: bool = False
    judged: frozenset[str] = frozenset()
    static: tuple[float, ...] = ()
    whole: Mapping[str, str] | None = None
    day: float = 0.0


def continuous(seed: int) -> World:
    """Gavel's continuous trace: single-GPU jobs on three types; jobs 300 to 599 count."""
    world = _gavel("sim_cases/cont1000_single_lam2100.trace", seed)
    return replace(world, judged=frozenset(app.name for app in world.workload.apps[300:600]))


def static(seed: int) -> World:
    """Gavel's static trace: 120 jobs with gangs on three types, all there from the start."""
    return _gavel("sim_cases/static120_multi.trace", seed)


def batches(seed: int) -> World:
    """Gavel's generator of a batch: 100 jobs, gangs among them, all there from the start."""
    return _gavel("gavel_multi:static=true,jobs=100", seed)


def _gavel(workload: str, seed: int) -> World:
    cell = gavel_runs.Cell(policy="", workload=workload, seed=seed, table="simulation_throughputs")
    return World(
        workload=gavel_runs.workload_of(cell),
        cluster=load_cluster(gavel_runs.THIRD),
        book=gavel_runs.book_of(cell.table),
        settings=GAVEL,
    )


def shockwave(seed: int) -> World:
    """Shockwave's recorded trace: 120 dynamic jobs on 32 GPUs."""
    return _shockwave(shockwave_runs.recorded())


def generated(seed: int, jobs: int = 220, gpus: int = 64, scale: float = 0.2, dynamic: float = 0.97) -> World:
    """Shockwave's generator; by default at the recorded trace's length, nearly all jobs dynamic."""
    return _shockwave(shockwave_runs.generated(jobs, gpus, seed=seed, scale=scale, dynamic=dynamic))


def scheduled(seed: int) -> World:
    """The generator's jobs, which say from the start when they will change their batch sizes."""
    world = generated(seed)
    apps = [replace(app, jobs=tuple(map(_says_when, app.jobs))) for app in world.workload.apps]
    return replace(world, workload=replace(world.workload, apps=tuple(apps)))


def _says_when(job: Job) -> Job:
    return replace(job, dynamic=job.dynamic and replace(job.dynamic, mode=Mode.DECLARED))


def _shockwave(world: shockwave_runs.World) -> World:
    fair = world.alone * max(1.0, len(world.alone) / world.gpus)
    return World(
        workload=world.workload,
        cluster=load_cluster(shockwave_runs.shape(world.gpus)),
        book=world.book,
        settings=Settings(container_s=20.0, lease_s=120.0),
        static=tuple(fair.tolist()),
    )


def philly(seed: int) -> World:
    """Philly's densest fortnight: 732 apps on 256 GPUs."""
    return World(
        workload=load_workload(str(SHARED / "philly" / "philly_themis_like_apps.csv.gz"), seed=0),
        cluster=load_cluster("sim-256"),
    )


def philly_quarter(seed: int) -> World:
    """Every fourth app of Philly's fortnight, from that of this number (0 to 3) on, on a quarter of the GPUs."""
    world = philly(0)
    return replace(
        world, workload=replace(world.workload, apps=world.workload.apps[seed::4]), cluster=load_cluster("sim-64")
    )


def itp(seed: int) -> World:
    """Days 10 to 13 of the ten ITP clusters, each job an app, on 192 machines of 8 GPUs."""
    workload = load_workload(str(SHARED / "itp" / "raw-traces.tar.gz"), seed=0)
    days = [app for app in workload.apps if 10 * 86400.0 <= app.arrival < 14 * 86400.0]
    return World(workload=replace(workload, apps=tuple(days)), cluster=load_cluster("192x8"))


def pollux(seed: int) -> World:
    """Pollux' workload 6, all jobs rigid, on 16 machines of 4 GPUs."""
    archive = str(SHARED / "pollux" / "pollux-osdi21.tar.gz")
    member = f"simulator/workloads/workload-{seed + 1}.csv"
    return World(workload=load_workload(archive, format="pollux", member=member), cluster=load_cluster("16x4"))


def themis1(seed: int) -> World:
    """Themis' first workload: sweeps that stop their own jobs."""
    return _themis("themis1", seed)


def themis2(seed: int) -> World:
    """Themis' second workload: sweeps with gangs that fill the cluster."""
    return _themis("themis2", seed)


def _themis(name: str, seed: int, load: float = 1.4, gpus: int = 64, cluster: str = "testbed-64") -> World:
    """``gpus`` : those that the load is of; a smaller cluster is in contention."""
    return World(
        workload=load_workload(name, seed=seed, apps=24, load=load, gpus=gpus, scale=0.25),
        cluster=load_cluster(cluster),
        settings=one_grid(seed=seed),
    )


def demo(seed: int) -> World:
    """The workload of ``make simulate``: 16 apps on 32 GPUs."""
    return World(
        workload=load_workload("demo", seed=seed), cluster=load_cluster("demo-32"), settings=one_grid(seed=seed)
    )


def narrow(seed: int) -> World:
    """A job of 1, 2, 4 or 8 GPUs for eight hours, among elastic apps that fill the cluster for as long; it alone is judged."""
    rng = np.random.default_rng(seed)
    arrival, gpus = np.cumsum(rng.exponential(600.0, 60)), 2 ** (seed % 4)
    wide = [
        _elastic(f"wide{i}", f"u{i % 5}", 64, float(t), float(rng.uniform(0.3, 1.7)) * 600.0)
        for i, t in enumerate(arrival)
    ]
    one = App(name="narrow", user="ada", arrival=0.0, jobs=(_job("narrow", gpus, gpus, 28800.0),))
    return replace(_users([one, *wide], seed), judged=frozenset({"narrow"}), settings=one_grid(seed=seed))


def flood(seed: int) -> World:
    """An app of a user, three hours of the cluster, and 240 apps of another user that alone keep it full for ten hours."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(150.0, 240))
    short = [
        _elastic(f"short{i}", "flood", 64, float(t), float(rng.uniform(0.5, 1.5)) * 150.0)
        for i, t in enumerate(arrival)
    ]
    long = _elastic("long", "ada", 64, 0.0, 10800.0)
    return replace(
        _users([long, *short], seed), judged=frozenset({"long"}), settings=one_grid(seed=seed, between="users")
    )


def waves(seed: int) -> World:
    """A gang of 1 to 32 GPUs for four hours, which is judged; every 20 minutes another user submits gangs that fill the cluster."""
    return _attacked(seed, every=1200.0, ahead=0.0)


def timed(seed: int) -> World:
    """The same gang; another user's, which keep the cluster full, come a second before each step of a minute."""
    return _attacked(seed, every=60.0, ahead=1.0)


def _attacked(seed: int, every: float, ahead: float) -> World:
    """Of the attackers' gangs, in each interval ``every`` (s), 64 GPUs have work for about that time."""
    rng, apps = np.random.default_rng(seed), []
    for i, wave in enumerate(np.arange(every, 8 * 3600.0, every)):
        left = 64.0 * every
        while left > 0.0:
            gpus, seconds = int(rng.choice([8, 16, 32])), every * float(rng.uniform(0.5, 1.5))
            name = f"attack{i}-{len(apps)}"
            apps.append(
                App(name=name, user="eve", arrival=float(wave) - ahead, jobs=(_job(name, gpus, gpus, seconds),))
            )
            left -= gpus * seconds
    gpus = 2 ** (seed % 6)
    arrival = float(rng.uniform(0.0, 4 * 3600.0))
    one = App(name="one", user="ada", arrival=arrival, jobs=(_job("one", gpus, gpus, 4 * 3600.0),))
    return replace(_users([one, *apps], seed), judged=frozenset({"one"}))


def alike(seed: int) -> World:
    """Eight users of one weight, six apps each: what the next grounds are compared with."""
    return _users(_eight(seed), seed)


def split(seed: int) -> World:
    """The same, but the first user splits each app in four; it is judged by when all four have ended."""
    apps, whole = [], {}
    for app in _eight(seed):
        if app.user != "u0":
            apps.append(app)
            continue
        for part in range(4):
            name = f"{app.name}/{part}"
            whole[name] = app.name
            jobs = app.jobs[part::4] if len(app.jobs) > 1 else (_quarter(app.jobs[0], name),)
            apps.append(replace(app, name=name, jobs=jobs))
    return replace(_users(apps, seed), whole=whole, judged=frozenset(whole))


def overstate(seed: int) -> World:
    """The first user says that its apps need twice the work that they do."""
    return _lies(seed, 2.0)


def understate(seed: int) -> World:
    """The first user says that its apps need half of the work that they do."""
    return _lies(seed, 0.5)


def _lies(seed: int, factor: float) -> World:
    world = _misjudged(alike(seed), lambda app: factor if app.user == "u0" else 1.0)
    return replace(world, judged=frozenset(app.name for app in world.workload.apps if app.user == "u0"))


def first(seed: int) -> World:
    """The first user's apps where all say the truth."""
    world = alike(seed)
    return replace(world, judged=frozenset(app.name for app in world.workload.apps if app.user == "u0"))


def errors20(seed: int) -> World:
    """The work of each app is believed up to 20 % wrong."""
    rng = np.random.default_rng([seed, 20])
    return _misjudged(alike(seed), lambda app: float(rng.uniform(0.8, 1.2)))


def errors100(seed: int) -> World:
    """The work of each app is believed up to twice or half of what it is."""
    rng = np.random.default_rng([seed, 100])
    return _misjudged(alike(seed), lambda app: float(2.0 ** rng.uniform(-1.0, 1.0)))


def unsaid(seed: int) -> World:
    """The work of all apps is unknown: each job is believed to need what the service assumes, and no report corrects that."""
    world = alike(seed)
    return replace(_misjudged(world, lambda app: UNKNOWN_WORK_S / _on_fewest(world.book, app.jobs[0])), unknown=True)


def _on_fewest(book: ProfileBook, job: Job) -> float:
    return job.steps / book.rate(job.model, 0, "K80", job.gpus_min, Locality.SLOT)


def tenants(seed: int) -> World:
    """Six users of weights 1 and 3, with 1, 3 and 30 apps in a day each, together 1.1 times what 64 GPUs do in it."""
    return _tenants(seed, {}, "users")


def tenant_groups(seed: int) -> World:
    """The same users in three groups of weights 1, 1 and 2: those with one app, with three, and with thirty."""
    return _tenants(seed, {1: 1.0, 3: 1.0, 30: 2.0}, "groups")


def _tenants(seed: int, groups: Mapping[int, float], between: str) -> World:
    rng = np.random.default_rng(seed)
    day, share = 86400.0, {(n, w): w / 4.0 * groups.get(n, 1.0) for n in (1, 3, 30) for w in (1.0, 3.0)}
    apps, users = [], []
    for (n, weight), part in share.items():
        user = f"u{n}w{weight:g}"
        users.append(User(name=user, weight=weight, group=f"g{n}" if groups else ""))
        work = 1.1 * day * 64.0 * part / sum(share.values()) * rng.dirichlet(np.full(n, 4.0))
        arrival = (np.arange(n) + rng.uniform(0.0, 0.5, n) * (n > 1)) * day / n
        apps += [
            _elastic(f"{user} {i}", user, 32, float(t), float(w) / 32.0) for i, (t, w) in enumerate(zip(arrival, work))
        ]
    workload = Workload(
        name="tenants",
        apps=tuple(apps),
        users=tuple(users),
        groups=tuple(Group(name=f"g{n}", weight=weight) for n, weight in groups.items()),
    )
    return World(
        workload=workload,
        cluster=load_cluster("testbed-64"),
        settings=one_grid(seed=seed, between=between),
        day=day,
    )


def _eight(seed: int) -> list[App]:
    """Elastic and rigid apps, work log-uniform from 4 minutes to 1 hour of the 64 GPUs, load 1.2."""
    rng = np.random.default_rng(seed)
    seconds = np.exp(rng.uniform(np.log(240.0), np.log(3600.0), 48))
    arrival = np.sort(rng.uniform(0.0, seconds.sum() / 1.2, 48))
    gangs = rng.choice([4, 8, 16, 32], 48)
    return [
        _elastic(f"a{i}", f"u{i % 8}", int(gangs[i]), float(arrival[i]), float(seconds[i]) * 64.0 / float(gangs[i]))
        if i % 3
        else _rigid(f"a{i}", f"u{i % 8}", float(arrival[i]), float(seconds[i]))
        for i in range(48)
    ]


def _users(apps: Sequence[App], seed: int) -> World:
    users = tuple(User(name=name) for name in sorted({app.user for app in apps}))
    workload = Workload(name="made", apps=tuple(sorted(apps, key=lambda app: app.arrival)), users=users)
    return World(workload=workload, cluster=load_cluster("testbed-64"), settings=one_grid(seed=seed, between="users"))


def _elastic(name: str, user: str, gpus: int, arrival: float, seconds: float) -> App:
    """An app of one job that can use 1 to ``gpus`` GPUs; it takes ``seconds`` on all of them."""
    return App(name=name, user=user, arrival=arrival, jobs=(_job(name, 1, gpus, seconds),))


def _rigid(name: str, user: str, arrival: float, seconds: float) -> App:
    """Eight jobs of 4 GPUs."""
    return App(
        name=name,
        user=user,
        arrival=arrival,
        jobs=tuple(_job(f"{name}/{i}", 4, 4, seconds * 2.0) for i in range(8)),
    )


def _job(name: str, low: int, high: int, seconds: float) -> Job:
    steps = seconds * DEFAULT_BOOK.rate("ResNet50", 0, "K80", high, Locality.SLOT)
    return Job(name=name, model="ResNet50", regimes=(Regime(steps=steps),), gpus_min=low, gpus_max=high)


def _quarter(job: Job, name: str) -> Job:
    """A quarter of the work on a quarter of the GPUs."""
    regimes = tuple(replace(r, steps=r.steps / 4.0) for r in job.regimes)
    return replace(job, name=name, regimes=regimes, gpus_max=max(job.gpus_max // 4, 1))


def _misjudged(world: World, factor: Callable[[App], float]) -> World:
    """The scheduler believes that an app needs ``factor`` times its work: each app trains a copy of its model."""
    truth, believed, apps = [], [], []
    for app in world.workload.apps:
        wrong = factor(app)
        copies = {job.model: f"{job.model}#{app.name}" for job in app.jobs}
        for model, copy in copies.items():
            profile = replace(world.book.get(model), name=copy)
            slower = {
                key: Curve(gpus=c.gpus, rate=tuple(r / wrong for r in c.rate)) for key, c in profile.curves.items()
            }
            truth.append(profile)
            believed.append(replace(profile, curves=slower))
        apps.append(replace(app, jobs=tuple(replace(job, model=copies[job.model]) for job in app.jobs)))
    return replace(
        world,
        workload=replace(world.workload, apps=tuple(apps)),
        book=world.book.with_profiles(truth),
        believed=world.book.with_profiles(believed),
    )


GROUNDS: Mapping[str, tuple[Callable[[int], World], tuple[str, ...], int]] = {
    "continuous": (continuous, ("srsf", "max_min_fairness", "allox"), 1),
    "static": (static, ("srsf", "max_min_fairness", "makespan"), 1),
    "batches": (batches, ("max_min_fairness", "makespan", "allox"), 5),
    "shockwave": (shockwave, PLANS, 1),
    "generated": (generated, PLANS, 5),
    "generated-0.5": (partial(generated, scale=0.5), PLANS, 3),
    "generated-1": (partial(generated, scale=1.0), PLANS, 3),
    "generated-128": (partial(generated, jobs=460, gpus=128), PLANS, 3),
    "generated-256": (partial(generated, jobs=900, gpus=256), PLANS, 2),
    "generated-half": (partial(generated, dynamic=0.5), PLANS, 3),
    "generated-none": (partial(generated, dynamic=0.0), PLANS, 3),
    "scheduled": (scheduled, ("srsf", "shockwave"), 10),
    "pollux": (pollux, BASELINES, 5),
    "demo": (demo, BASELINES, 25),
    "narrow": (narrow, ("srsf",), 20),
    "flood": (flood, ("srsf", "drf", "drf@600", "themis"), 5),
    "waves": (waves, ("srsf",), 20),
    "timed": (timed, ("srsf",), 20),
    "alike": (alike, BASELINES, 20),
    "first": (first, ("srsf",), 20),
    "split": (split, ("srsf",), 20),
    "overstate": (overstate, ("srsf",), 20),
    "understate": (understate, ("srsf",), 20),
    "errors20": (errors20, ("srsf",), 20),
    "errors100": (errors100, ("srsf",), 20),
    "themis1": (themis1, BASELINES, 5),
    "themis2": (themis2, BASELINES, 5),
    "themis1-0.9": (partial(_themis, "themis1", load=0.9), BASELINES, 5),
    "themis1-3": (partial(_themis, "themis1", load=3.0), BASELINES, 5),
    "themis2-0.9": (partial(_themis, "themis2", load=0.9), BASELINES, 5),
    "themis2-3": (partial(_themis, "themis2", load=3.0), BASELINES, 5),
    "themis1-4x": (partial(_themis, "themis1", load=0.9, gpus=256, cluster="sim-64"), BASELINES, 5),
    "themis2-4x": (partial(_themis, "themis2", load=0.9, gpus=256, cluster="sim-64"), BASELINES, 5),
    "unsaid": (unsaid, ("srsf", "drf", "drf@600", "themis"), 20),
    "tenants": (tenants, ("srsf", "drf", "drf@600", "themis"), 5),
    "tenant-groups": (tenant_groups, ("srsf", "drf", "drf@600", "themis"), 5),
    "philly": (philly, BASELINES, 1),
    "philly-quarter": (philly_quarter, ("srsf",), 4),
    "itp": (itp, BASELINES, 1),
}
"""World, rivals, seeds."""
COLUMNS = {
    "above": ("above 1.1 %", 100.0, 1),
    "worst": ("worst", 1.0, 2),
    "p99": ("p99", 1.0, 2),
    "p95": ("p95", 1.0, 2),
    "static_worst": ("worst rho_static", 1.0, 2),
    "static_unfair": ("unfair %", 100.0, 1),
    "parts": ("mean distance of parts from 1, %", 100.0, 1),
    "jct": ("mean JCT s", 1.0, 0),
    "makespan": ("makespan s", 1.0, 0),
    "gpu_s": ("GPU h", 1 / 3600.0, 0),
    "restarts": ("starts", 1.0, 0),
}
"""Of a number: its column's title, the factor to that unit, digits."""
Runs = Sequence[Mapping[str, float]]
"""Numbers of the seeds of a policy on a ground."""
RATIOS = {
    "above": "above 1.1, points",
    "worst": "worst",
    "p95": "p95",
    "jct": "mean JCT",
    "makespan": "makespan",
    "gpu_s": "GPU time",
}
INTERVALS = 5
"""Seeds from which on a mean has its interval."""


class _Enough(Exception):
    """All apps that count have ended."""


class _Uncorrected(_Run):
    """The simulator, but nobody reports measured speeds: beliefs stay as they are."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, lambda *_: None, lambda *_: None, Workbench(), lambda: False)
        self.executor.measures = False


@lru_cache(maxsize=4)
def fair_times(ground: str, seed: int) -> Mapping[str, float]:
    """Seconds of each app, the longer of its time in the reference and alone, by name: from a run that knows the truth."""
    world = GROUNDS[ground][0](seed)
    fold = Fold()
    _simulation(replace(world, believed=None), "fair_finish").run(fold.add)
    return {app.name: max(app.t_reference, app.t_alone) for app in fold.result().apps}


def _simulation(world: World, policy: str) -> Simulation:
    policy, _, step = policy.partition("@")
    return Simulation(
        workload=world.workload,
        cluster=world.cluster,
        book=world.book,
        policy_name=policy,
        policy=make_policy(policy),
        settings=replace(world.settings, step_s=float(step)) if step else world.settings,
        estimated=world.believed,
        unknown=world.unknown,
    )


def run(ground: str, policy: str, seed: int) -> dict[str, float]:
    """Simulate a cell: its numbers; seconds and shares."""
    world = GROUNDS[ground][0](seed)
    fold, ended, parts = Fold(), dict[int, float](), dict[str, float]()
    counted = {a for a, app in enumerate(world.workload.apps) if not world.judged or app.name in world.judged}
    arrives = [app.arrival for app in world.workload.apps]

    def watch(now: float, record: Record) -> None:
        if now >= world.day > 0.0 and not parts:
            parts.update(_parts(world, fold, running.core.state))
        fold.add(now, record)
        if type(record) is AppFinished:
            ended[record.app] = now
            if world.judged and counted <= ended.keys():
                raise _Enough

    simulation, began = _simulation(world, policy), time.process_time()
    running = _Run(simulation, watch, lambda *_: None, Workbench(), lambda: False)
    running.executor.measures = False
    with suppress(_Enough):
        running.run()
    cpu = time.process_time() - began
    metrics = fold.result()
    rows = sorted(counted)
    jct: Float = np.array([ended[a] - arrives[a] for a in rows])
    numbers = {
        "jct": float(_whole(world, rows, ended).mean()) if world.whole else float(jct.mean()),
        "makespan": max(ended.values()) - min(arrives),
        "gpu_s": metrics.gpu_seconds,
        "restarts": float(metrics.restarts),
        "cpu_s": cpu,
        **parts,
    }
    if not world.judged or ground in ("flood", "narrow", "waves", "timed", "continuous"):
        fair = fair_times(ground, seed) if world.believed else _of_log(metrics.apps)
        late = np.array([t / fair[world.workload.apps[a].name] for a, t in zip(rows, jct)])
        numbers |= {
            "worst": float(late.max()),
            "p99": float(np.percentile(late, 99)),
            "p95": float(np.percentile(late, 95)),
            "above": float((late > 1.1).mean()),
            "late_alone": float(np.mean([app.t_alone > 1.1 * app.t_reference for app in metrics.apps])),
        }
    if world.static:
        rho = jct / np.array(world.static)
        numbers |= {"static_worst": float(rho.max()), "static_unfair": float((rho > 1.0).mean())}
    return numbers


def _parts(world: World, fold: Fold, state: State) -> dict[str, float]:
    """How far the users' parts of all GPU time so far are from those in the reference, on average, as a share of these."""
    apps = world.workload.apps[: state.apps.size]
    names = [user.name for user in world.workload.users]
    user = np.array([names.index(app.user) for app in apps])
    had, due = state.apps_attained(), fold.reference.received(state.now)
    parts = [np.bincount(user, weights=x, minlength=len(names)) / x.sum() for x in (had, due)]
    ratio = parts[0] / parts[1]
    return {"parts": float(np.abs(ratio - 1.0).mean())}


def _of_log(apps: Sequence[object]) -> Mapping[str, float]:
    return {app.name: max(app.t_reference, app.t_alone) for app in apps}  # type: ignore[attr-defined]


def _whole(world: World, rows: Sequence[int], ended: Mapping[int, float]) -> Float:
    """[apps that were split], seconds until the last part of each has ended."""
    end: dict[str, float] = {}
    for a in rows:
        app = world.workload.apps[a]
        name = (world.whole or {})[app.name]
        end[name] = max(end.get(name, 0.0), ended[a] - app.arrival)
    return np.array(list(end.values()))


def stored(store: Path) -> dict[str, dict[str, float]]:
    """The runs of this code."""
    if not store.exists():
        return {}
    lines = [json.loads(line) for line in store.read_text(encoding="utf-8").splitlines()]
    return {line["cell"]: line["numbers"] for line in lines if line["code"] == CODE}


def cells(grounds: Sequence[str], policies: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Ground after ground, seed after seed."""
    for ground in grounds:
        _, rivals, most = GROUNDS[ground]
        for seed in seeds or range(most):
            for policy in policies or ("fair_finish", *rivals):
                yield ground, policy, seed


def main() -> None:
    """Measure, and print a table for each ground: means over seeds by policy; or one of ratios of ``fair_finish`` to ``--over``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grounds", default=",".join(GROUNDS))
    parser.add_argument("--policies", default="")
    parser.add_argument("--seeds", default="")
    parser.add_argument("--store", type=Path, default=Path("out/reproduction/fair-finish.jsonl"))
    parser.add_argument(
        "--over", default="", help="print paired ratios of fair_finish to this policy, with intervals of 95 %%"
    )
    parser.add_argument("--against", default="", help="print paired ratios of each policy to itself on this ground")
    given = parser.parse_args()
    grounds = given.grounds.split(",")
    if wrong := [name for name in given.grounds.split(",") if name not in GROUNDS]:
        parser.error(f"--grounds has {wrong[0]!r}, expected of {', '.join(GROUNDS)}.")
    policies = ["fair_finish", given.over] if given.over else [p for p in given.policies.split(",") if p]
    seeds = list(parse_seeds(given.seeds)) if given.seeds else []
    found = stored(given.store)
    given.store.parent.mkdir(parents=True, exist_ok=True)
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    with given.store.open("a", encoding="utf-8") as file:
        for ground, policy, seed in cells([*grounds, *filter(None, [given.against])], policies, seeds):
            key = f"{policy} {ground} seed={seed}"
            if key not in found:
                found[key] = run(ground, policy, seed)
                file.write(json.dumps({"code": CODE, "cell": key, "numbers": found[key]}) + "\n")
                file.flush()
            runs.setdefault((ground, policy), []).append(found[key])
    command = "python " + " ".join(["reproduction/fair_finish.py", *sys.argv[1:]])
    if given.over:
        pairs = {g: (runs[g, "fair_finish"], runs[g, given.over]) for g in grounds}
        print(marker(f"grounds-over-{given.over}", command) + _ratios("ground", pairs))
    elif given.against:
        others = {at: of for at, of in runs.items() if at[0] != given.against}
        pairs = {f"{ground}, {policy}": (of, runs[given.against, policy]) for (ground, policy), of in others.items()}
        print(marker(f"grounds-against-{given.against}", command) + _ratios("ground, policy", pairs))
    else:
        for ground in grounds:
            means = _means({policy: of for (g, policy), of in runs.items() if g == ground})
            print(marker(f"grounds-{ground}", command) + means)


def _means(runs: Mapping[str, Runs]) -> str:
    """A row for each policy: means over seeds, with intervals where there are ``INTERVALS`` seeds."""
    kept = {name: how for name, how in COLUMNS.items() if name in next(iter(runs.values()))[0]}
    rows = [
        [
            f"`{policy}`",
            *(_cell([run[name] * factor for run in of], digits) for name, (_, factor, digits) in kept.items()),
        ]
        for policy, of in runs.items()
    ]
    return table(["policy", *(title for title, _, _ in kept.values())], rows) + "\n"


def _cell(values: Sequence[float], digits: int) -> str:
    x = t_interval(values)
    within = f" [{x.low:,.{digits}f}, {x.high:,.{digits}f}]" if len(values) >= INTERVALS else ""
    return f"{x.mean:,.{digits}f}{within}"


def _ratios(title: str, pairs: Mapping[str, tuple[Runs, Runs]]) -> str:
    """A row for each pair: geometric means of paired ratios; of the share above 1.1, points between the means."""
    known = [name for name in RATIOS if any(name in ours[0] for ours, _ in pairs.values())]
    rows = []
    for at, (ours, theirs) in pairs.items():
        row = [at, str(len(ours))]
        for name in known:
            if name not in ours[0]:
                row.append("")
            elif name == "above":
                x = t_interval([100 * (a[name] - b[name]) for a, b in zip(ours, theirs)])
                row.append(f"{x.mean:+.1f} [{x.low:.1f}, {x.high:.1f}]")
            else:
                x = ratio_interval([run[name] for run in ours], [run[name] for run in theirs])
                row.append(f"{x.mean:.3f} [{x.low:.3f}, {x.high:.3f}]")
        rows.append(row)
    return table([title, "seeds", *(RATIOS[name] for name in known)], rows) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
