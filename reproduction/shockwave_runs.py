"""Shockwave's workloads, one simulation of each, and both rho of its jobs: what the page's tables are made of."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, fields, replace

import numpy as np

from grid import SHARED
from themis.model.dynamic import Mode
from themis.model.events import AppFinished, Grant
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.units import Float, Locality
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import Policy, make_policy
from themis.policies.planned import View
from themis.policies.shockwave import Shockwave
from themis.sim.runner import Record, Simulation
from themis.traces.pollux import Pollux
from themis.traces.profiles.gavel_table import profiles_from_gavel
from themis.traces.profiles.measured import gavel_book
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster
from themis.traces.shockwave_jobs import RANGES, ShockwaveJobs
from themis.traces.shockwave_trace import ShockwaveTrace, dynamic_of

DATA = SHARED / "shockwave"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A workload with what its jobs take alone, on so many GPUs."""

    workload: Workload
    book: ProfileBook
    alone: Float
    gpus: int


def recorded() -> World:
    """The recorded trace with its measured speeds and schedules."""
    schedules = DATA / "bs_schedules" / "dynamic_120jobs_32gpu.json"
    profiles = profiles_from_gavel(DATA / "throughputs" / "tacc_throughputs.json")
    book = DEFAULT_BOOK.with_profiles(replace(p, checkpoint_s=0.0, slowdown=(1.0, 1.0, 1.0, 1.0)) for p in profiles)
    workload = ShockwaveTrace(schedules=str(schedules)).read(DATA / "traces" / "dynamic_120jobs_32gpu.trace", book=book)
    alone = np.array([job["isolated_s"] for job in json.loads(schedules.read_text())])
    return World(workload=workload, book=book, alone=alone, gpus=32)


def generated(jobs: int, gpus: int, seed: int = 0, scale: float = 0.2, dynamic: float = 0.97) -> World:
    """A generated trace; gangs run alike wherever they are."""
    book = _alike(gavel_book())
    workload = ShockwaveJobs(jobs=jobs, gpus=gpus, scale=scale, dynamic=dynamic).generate(seed=seed, book=book)
    return World(workload=workload, book=book, alone=_alone(workload, book), gpus=gpus)


def pollux(number: int) -> World:
    """One of Pollux' published workloads, on 32 GPUs: its arrivals, GPUs and measured durations; no job changes its speed."""
    book = _alike(DEFAULT_BOOK)
    archive = SHARED / "pollux" / "pollux-osdi21.tar.gz"
    workload = Pollux(member=f"simulator/workloads/workload-{number}.csv").read(archive, book=book)
    return World(workload=workload, book=book, alone=_alone(workload, book), gpus=32)


def target_job() -> World:
    """Figure 2: a job that doubles its batch size three times, from 32 to 256, among seven like jobs that do not, on 2 GPUs."""
    book = _alike(gavel_book())
    jobs = [_resnet("dynamic", 32, ((32, 21), (64, 10), (128, 20), (256, 89)), book)]
    jobs += [_resnet(f"static{i}", 64, ((64, 70.0 + 10 * i),), book) for i in range(7)]
    return _world(jobs, book, gpus=2)


def example_4() -> World:
    """Figure 4: two jobs that look longest and are not, and one that is, on 2 GPUs."""
    book = _alike(gavel_book())
    doubling = ((16, 10), (32, 10), (64, 10), (128, 10), (256, 60))
    jobs = [_resnet(f"dynamic{i}", 16, doubling, book) for i in range(2)]
    return _world([*jobs, _resnet("static", 16, ((16, 85),), book)], book, gpus=2)


def _resnet(name: str, batch: int, regimes: tuple[tuple[int, float], ...], book: ProfileBook) -> Job:
    """ResNet-18 under GNS on one GPU, by batch sizes and epochs."""
    examples = RANGES["ResNet-18"][1]
    largest = 256 if len(regimes) > 1 else batch
    dynamic = dynamic_of(Mode.GNS, batch, largest, lambda size: float(math.ceil(examples / size)))
    stretches = tuple(Regime(steps=float(epochs), batch=size) for size, epochs in regimes)
    return Job(name=name, model="ResNet-18", regimes=stretches, dynamic=dynamic)


def _world(jobs: list[Job], book: ProfileBook, gpus: int) -> World:
    apps = tuple(App(name=job.name, user=job.name, arrival=0.0, jobs=(job,)) for job in jobs)
    workload = Workload(name="example", apps=apps)
    return World(workload=workload, book=book, alone=_alone(workload, book), gpus=gpus)


def _alike(book: ProfileBook) -> ProfileBook:
    """No checkpoints, and gangs that run alike wherever they are."""
    return book.with_profiles(
        replace(p, checkpoint_s=0.0, slowdown=(1.0, 1.0, 1.0, 1.0)) for p in book.profiles.values()
    )


def _alone(workload: Workload, book: ProfileBook) -> Float:
    """Seconds of each job alone on its gang, all its changes of speed included."""
    seconds = [
        sum(
            r.steps * job.scale(r.batch) / book.rate(job.model, r.batch, "V100", job.gpus_max, Locality.SLOT)
            for r in job.regimes
        )
        for job in (app.jobs[0] for app in workload.apps)
    ]
    return np.array(seconds)


def later(world: World, seconds: float) -> World:
    """The same, every job that much later."""
    return _with_apps(world, [replace(app, arrival=app.arrival + seconds) for app in world.workload.apps])


def at_once(world: World) -> World:
    """The same jobs, all there from the start."""
    return _with_apps(world, [replace(app, arrival=0.0) for app in world.workload.apps])


def shuffled(world: World, seed: int) -> World:
    """The same jobs written down in another order."""
    apps = world.workload.apps
    return _with_apps(world, [apps[i] for i in np.random.default_rng(seed).permutation(len(apps))])


def _with_apps(world: World, apps: list[App]) -> World:
    """With other apps of the same names; a workload puts them in order of arrival."""
    alone = dict(zip((app.name for app in world.workload.apps), world.alone.tolist()))
    workload = replace(world.workload, apps=tuple(apps))
    return replace(world, workload=workload, alone=np.array([alone[app.name] for app in workload.apps]))


PUBLISHED_BUDGETS = ", published budgets"
"""End of the name of a policy that has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBudgets(Shockwave):
    """Budgets of the published code on 32 GPUs: of jobs that are late, and of those with less than a round left more.

    Its rho is by the clock of the trace: (now + R N) / (arrival + P N), with N as of now.
    """

    def budgets(self, view: View) -> Float:
        contention = max(1.0, len(view.rows) / 32)
        fair = view.now - view.elapsed + view.ahead.isolated_s * contention
        late = (view.now + view.ahead.left_s * contention) / fair
        power = np.where(view.ahead.left_s < self.round_s, 100.0, self.power)
        raised = np.where(late > 1.0, np.minimum(late**power, 1e12), 1.0)
        out: Float = raised / raised.mean()
        return out


def _policy(text: str) -> Policy:
    made = make_policy(text.removesuffix(PUBLISHED_BUDGETS))
    if not text.endswith(PUBLISHED_BUDGETS):
        return made
    assert isinstance(made, Shockwave)
    return PublishedBudgets(**{f.name: getattr(made, f.name) for f in fields(made)})


def simulate(world: World, policy: str) -> tuple[Float, int, float]:
    """(JCT of every job, starts, CPU seconds)."""
    jct: dict[int, float] = {}
    starts = 0

    def watch(now: float, record: Record) -> None:
        nonlocal starts
        if isinstance(record, AppFinished):
            jct[record.app] = record.jct
        starts += isinstance(record, Grant)

    began = time.process_time()
    Simulation(
        workload=world.workload,
        cluster=load_cluster(shape(world.gpus)),
        book=world.book,
        policy_name=policy,
        policy=_policy(policy),
        settings=Settings(container_s=20.0, lease_s=120.0),
    ).run(watch)
    return np.array([jct[a] for a in range(len(jct))]), starts, time.process_time() - began


def shape(gpus: int) -> str:
    """Machines of 4 V100, or of 2 where 4 do not divide them."""
    return f"{gpus // 4}x4@V100" if gpus % 4 == 0 else f"{gpus // 2}x2@V100"


def rhos(world: World, jct: Float) -> tuple[Float, Float, Float]:
    """(end of every job, seconds from the first arrival, rho_static, rho_contention)."""
    arrival = np.array([app.arrival for app in world.workload.apps])
    arrival -= arrival.min()
    end = arrival + jct
    static = jct / (world.alone * max(1.0, len(jct) / world.gpus))
    together = np.minimum(end[:, None], end) - np.maximum(arrival[:, None], arrival)
    contention = np.maximum(together, 0.0).sum(axis=1) / jct / world.gpus
    return end, static, jct / (world.alone * np.maximum(1.0, contention))
