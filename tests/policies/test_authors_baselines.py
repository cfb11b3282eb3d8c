"""Baselines as their authors built them: a client is a job, gangs go anywhere; the defaults are as before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from themis.errors import UnknownName
from themis.model.answers import GpuGrant
from themis.model.events import Allocated, AppFinished, Grant, Header
from themis.model.log import decode, encode
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.units import NONE
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import Workbench, logged_params, make_policy
from themis.policies.baseline import each_job_an_app
from themis.policies.placement.blind import blind_counts
from themis.sim.runner import Record, Simulation
from themis.testing.policies import check_policy, sample_snapshots
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

BASELINES = ("tiresias", "optimus", "slaq", "srtf", "srsf", "gandiva", "fifo", "random")


@pytest.mark.parametrize("name", ["srtf", "slaq", "gandiva", "random"])
def test_each_skeleton_of_a_baseline_conforms_with_jobs_placed_blindly(name: str) -> None:
    check_policy(lambda: make_policy(f"{name}:clients=jobs,placement=blind"), seeds=(1,))


@pytest.mark.parametrize("name", BASELINES)
def test_a_log_does_not_name_the_parameters_that_were_added_unless_they_are_given(name: str) -> None:
    assert logged_params(make_policy(name)) == {}
    assert logged_params(make_policy(f"{name}:placement=blind")) == {"placement": "blind"}


def test_a_wrong_value_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"clients of policy tiresias.*apps, jobs"):
        make_policy("tiresias:clients=users")
    with pytest.raises(UnknownName, match=r"placement of policy fifo.*blind, packed"):
        make_policy("fifo:placement=anywhere")


def sweep(jobs: int, *, arrival: float = 0.0, hours: float = 1.0, gpus: int = 1) -> App:
    """An app of alike jobs that cannot be stopped early."""
    job = Job(name="", model="VGG16", regimes=(Regime(steps=hours * 3600 / SERIAL),), gpus_min=gpus, gpus_max=gpus)
    named = tuple(replace(job, name=f"j{i}") for i in range(jobs))
    return App(name=f"{jobs}@{arrival:g}", user="u", arrival=arrival, jobs=named)


SERIAL = float(1.0 / DEFAULT_BOOK.rate("VGG16", 0, "gpu", 1, 0))  # type: ignore[arg-type]


def run(policy: str, apps: tuple[App, ...], cluster: str, seed: int = 0) -> list[tuple[float, Record]]:
    """The log of a run."""
    log: list[tuple[float, Record]] = []
    Simulation(
        workload=Workload(name="w", apps=apps, source="test"),
        cluster=load_cluster(cluster),
        book=DEFAULT_BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(seed=seed),
    ).run(lambda time, record: log.append((time, record)))
    return log


def jct(log: list[tuple[float, Record]], app: int) -> float:
    """An app's completion time."""
    return next(r.jct for _, r in log if isinstance(r, AppFinished) and r.app == app)


def test_where_a_client_is_a_job_a_large_sweep_takes_the_cluster_from_a_small_app() -> None:
    apps = (sweep(15), sweep(1, hours=4.0))
    shared, alone = (jct(run(f"tiresias:clients={c}", apps, "1x4"), 1) for c in ("apps", "jobs"))
    # Apps: the small one has half a turn at once and never waits. Jobs: one of sixteen equal clients on four GPUs.
    assert shared < 4.2 * 3600
    assert alone > shared + 2000


def test_fifo_serves_jobs_in_the_order_of_their_apps_and_names_them() -> None:
    log = run("fifo:clients=jobs", (sweep(3), sweep(2, arrival=1.0)), "1x4")
    grants = [(record.app, record.job) for _, record in log if isinstance(record, Grant)]
    assert grants[:4] == [(0, 0), (0, 1), (0, 2), (1, 3)]
    answers = [r.solved.answer for _, r in log if isinstance(r, Allocated) and isinstance(r.solved.answer, GpuGrant)]
    assert answers[0].job is not None
    assert answers[0].job.tolist() == [0, 1, 2]
    for time, record in log:
        if isinstance(record, Allocated):
            again = decode(encode(time, record))[1]
            assert encode(time, again) == encode(time, record), "a grant that names jobs is read as it was written"


def test_blind_gangs_are_slower_than_packed_ones_and_the_same_seed_places_them_alike() -> None:
    apps = tuple(replace(sweep(1, gpus=4, hours=4.0), name=f"a{i}") for i in range(4))
    packed, blind, again = (run(f"fifo:placement={p}", apps, "4x4") for p in ("packed", "blind", "blind"))
    assert [repr(r) for r in blind] == [repr(r) for r in again]
    assert np.mean([jct(blind, a) for a in range(4)]) > 1.05 * np.mean([jct(packed, a) for a in range(4)])
    spans = {repr(r) for _, r in run("fifo:placement=blind", apps, "4x4", seed=1) if isinstance(r, Grant)}
    assert spans != {repr(r) for _, r in blind if isinstance(r, Grant)}, "another seed, other GPUs"


def test_blind_gangs_are_drawn_uniformly_of_one_type() -> None:
    free, of_type = np.array([4, 4, 0, 2]), np.array([0, 0, 0, 1])
    drawn = np.zeros(4)
    for seed in range(2000):
        counts = blind_counts(free, of_type, 2, np.array([2, 3]), (seed,))
        assert counts is not None
        assert sum(c for _, c in counts) == 2
        assert all(n < 2 for n, _ in counts), "two GPUs are too few on type 1, and the third machine has none free"
        for n, c in counts:
            drawn[n] += c
    assert drawn[0] == pytest.approx(2000, rel=0.08)
    # Of eight GPUs on two machines, two lie apart with probability 4/7.
    apart = [len(blind_counts(free, of_type, 2, np.array([2, 3]), (s,)) or ()) == 2 for s in range(2000)]
    assert np.mean(apart) == pytest.approx(4 / 7, abs=0.05)


def test_an_elastic_gang_gets_fewer_gpus_only_where_no_type_has_as_many() -> None:
    free, of_type = np.array([3, 5]), np.array([0, 1])
    assert blind_counts(free, of_type, 5, np.array([1, 1]), (0,)) == ((1, 5),)
    fewer = blind_counts(free, of_type, 6, np.array([1, 1]), (0,))
    assert fewer in (((0, 3),), ((1, 5),))
    assert blind_counts(free, of_type, 6, np.array([6, 6]), (0,)) is None
    assert blind_counts(free, of_type, 2, np.array([3, 3]), (0,)) is None


def test_each_job_is_an_app_with_its_own_work_and_its_apps_weight() -> None:
    seen: list[Snapshot] = list(sample_snapshots(lambda: make_policy("fifo"), 2))
    for s in seen:
        jobs = each_job_an_app(s)
        assert (jobs.apps, jobs.jobs) == (s.jobs, s.jobs)
        assert jobs.app_weight.tolist() == s.app_weight[s.job_app].tolist()
        assert jobs.app_attained.tolist() == s.job_attained.tolist()
        assert int(jobs.app_held.sum()) == int(s.app_held.sum())
        grant = make_policy("tiresias:clients=jobs")(s, Workbench()).answer
        assert isinstance(grant, GpuGrant)
        assert grant.job is not None
        rows = np.searchsorted(s.job_id, grant.job)
        assert s.app_id[s.job_app[rows]].tolist() == grant.app.tolist()
        assert (grant.extend == NONE).all()
        # A job that waits is granted at most one gang, of a size that it takes.
        gangs = {(j, g) for j, g in zip(grant.job.tolist(), grant.gang.tolist())}
        assert len({j for j, _ in gangs}) == len(gangs)


def test_the_header_of_a_default_run_is_as_it_was() -> None:
    header = next(r for _, r in run("fifo", (sweep(1),), "1x4") if isinstance(r, Header))
    assert dict(header.params) == {}
