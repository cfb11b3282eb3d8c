"""Demand of a workload: summary figures, and whether every job can ever run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from themis.errors import ClusterError, InputError, counted
from themis.model.cluster import Cluster
from themis.model.speed import Profile, ProfileBook
from themis.model.units import GpuSeconds, Seconds
from themis.model.workload import App, CurveStopping, Job, Workload, brackets_of
from themis.policies.tuning.curves import dry_run
from themis.traces.mix import ReferenceRates
from themis.traces.profiles.models import DEFAULT_BOOK

LONGEST: Seconds = 1e10
"""The longest job and the latest arrival that are taken, some 300 years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """Figures of a workload on a cluster.

    Attributes
    ----------
    span : seconds from the first arrival to the last.
    work : GPU-seconds on reference GPUs with the best placement, what the tuners will run of it.
    stopped : jobs that tuners will stop early; under curve stopping, those of a dry run.
    offered_load : work / (span * GPUs); None where all apps arrive at once, or no cluster is given.
    largest_gang : largest minimum of GPUs of any job (``gpus_min``).
    widest_job : largest maximum of GPUs of any job (``gpus_max``).
    longest_job : seconds of the longest job on its ``gpus_max`` reference GPUs, best placement.
    models : apps per model, by its first job, most frequent first.
    apps_per_user : most active first.
    """

    name: str
    apps: int
    jobs: int
    users: int
    span: Seconds
    work: GpuSeconds
    stopped: int
    offered_load: float | None
    largest_gang: int
    widest_job: int
    longest_job: Seconds
    median_jobs_per_app: float
    median_app_work: GpuSeconds
    models: Mapping[str, int]
    apps_per_user: Mapping[str, int]

    @property
    def gpu_hours(self) -> float:
        """``work`` in GPU-hours."""
        return self.work / 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSummary:
    """Demand of one user; ``share`` is of all users' work, ``median_app_work`` in GPU-seconds."""

    user: str
    apps: int
    jobs: int
    work: GpuSeconds
    share: float
    median_app_work: GpuSeconds
    largest_gang: int


def describe(workload: Workload, cluster: Cluster | None = None, book: ProfileBook = DEFAULT_BOOK) -> WorkloadSummary:
    """Summarise a workload; without a cluster, all but its offered load.

    Raises
    ------
    InputError : the workload has no apps.
    """
    apps = workload.apps
    if not apps:
        raise InputError(f"workload {workload.name!r} has no apps, expected at least one.")
    jobs = [job for app in apps for job in app.jobs]
    rates = ReferenceRates(book)
    work = [_work(app, rates) for app in apps]
    span = apps[-1].arrival - apps[0].arrival
    return WorkloadSummary(
        name=workload.name,
        apps=len(apps),
        jobs=len(jobs),
        users=len({app.user for app in apps}),
        span=span,
        work=sum(work),
        stopped=sum(map(_stopped, apps)),
        offered_load=sum(work) / (span * cluster.gpus) if cluster and span > 0 else None,
        largest_gang=max(job.gpus_min for job in jobs),
        widest_job=max(job.gpus_max for job in jobs),
        longest_job=max(job_seconds(job, job.gpus_max, rates) for job in jobs),
        median_jobs_per_app=median(len(app.jobs) for app in apps),
        median_app_work=median(work),
        models=_counts(app.jobs[0].model for app in apps),
        apps_per_user=_counts(app.user for app in apps),
    )


def by_user(workload: Workload, book: ProfileBook = DEFAULT_BOOK) -> list[UserSummary]:
    """Demand of each user, most work first."""
    rates = ReferenceRates(book)
    owned: dict[str, list[App]] = {}
    for app in workload.apps:
        owned.setdefault(app.user, []).append(app)
    work = {user: [_work(app, rates) for app in apps] for user, apps in owned.items()}
    total = sum(map(sum, work.values()))
    return [
        UserSummary(
            user=user,
            apps=len(owned[user]),
            jobs=sum(len(app.jobs) for app in owned[user]),
            work=sum(parts),
            share=sum(parts) / total,
            median_app_work=median(parts),
            largest_gang=max(job.gpus_min for app in owned[user] for job in app.jobs),
        )
        for user, parts in sorted(work.items(), key=lambda item: -sum(item[1]))
    ]


def app_work(app: App, book: ProfileBook = DEFAULT_BOOK) -> GpuSeconds:
    """GPU-seconds of an app on single reference GPUs, for the part that its tuner will run.

    Of a sweep in rungs: each bracket's rungs with jobs of the app's average pace; under curve stopping: a dry run.
    """
    return _work(app, ReferenceRates(book))


def job_seconds(job: Job, gpus: int, rates: ReferenceRates) -> Seconds:
    """Seconds of a job on this many reference GPUs with the best placement."""
    return sum(r.steps * r.pace * job.scale(r.batch) / rates(job.model, gpus, r.batch) for r in job.regimes)


def paces(workload: Workload, book: ProfileBook = DEFAULT_BOOK) -> list[tuple[Job, Callable[[int], Seconds]]]:
    """All jobs, with their seconds per step (of a dynamic one: per epoch) alone on the most GPUs, by batch size."""
    rates = ReferenceRates(book)

    def pace(job: Job) -> Callable[[int], Seconds]:
        return lambda batch: job.scale(batch) / rates(job.model, job.gpus_max, batch)

    return [(job, pace(job)) for app in workload.apps for job in app.jobs]


def check_fits(workload: Workload, cluster: Cluster, book: ProfileBook = DEFAULT_BOOK) -> None:
    """Check that every job could run if it had the cluster to itself; jobs may span machines and racks.

    Raises
    ------
    ClusterError : a job needs more GPUs than there are of the types that it may use and its model runs on.
    UnknownName : a model is not in the book.
    """
    of_type = dict.fromkeys(cluster.gpu_types, 0)
    for machine in cluster.machines:
        of_type[machine.gpu_type] += machine.gpus
    checked: dict[tuple[str, tuple[str, ...], frozenset[int]], int] = {}
    for app in workload.apps:
        for job in app.jobs:
            key = (job.model, job.gpu_types, frozenset(regime.batch for regime in job.regimes))
            if key not in checked:
                checked[key] = _usable(app, job, book.get(job.model), of_type, cluster.name)
            if job.gpus_min > checked[key]:
                kind = f" of type {' or '.join(job.gpu_types)}" if job.gpu_types else ""
                raise ClusterError(
                    f"job {job.name!r} of app {app.name!r} needs {counted(job.gpus_min, 'GPU')}{kind}; cluster {cluster.name!r} "
                    f"has {checked[key]} that it can use. Lower its gpus_min or take a larger cluster."
                )


def check_lengths(workload: Workload, book: ProfileBook = DEFAULT_BOOK) -> None:
    """Check that arrivals and jobs lie within ``LONGEST``; beyond, a lease is lost in the rounding of the clock.

    Raises
    ------
    InputError : an app arrives later, or a job takes longer on its most GPUs.
    """
    rates = ReferenceRates(book)
    for app in workload.apps:
        if not app.arrival <= LONGEST:
            raise InputError(f"app {app.name!r} arrives at {app.arrival:.3g} s, expected at most {LONGEST:.0e} s.")
        for job in app.jobs:
            takes = job_seconds(job, job.gpus_max, rates)
            if not takes <= LONGEST:
                raise InputError(
                    f"job {job.name!r} of app {app.name!r} takes {takes:.3g} s, expected at most {LONGEST:.0e} s "
                    "(300 years). Correct its duration or steps."
                )


def _usable(app: App, job: Job, profile: Profile, of_type: Mapping[str, int], cluster: str) -> int:
    allowed = [name for name in of_type if not job.gpu_types or name in job.gpu_types]
    if not allowed:
        raise ClusterError(
            f"job {job.name!r} of app {app.name!r} may use only GPUs of type {' or '.join(job.gpu_types)}; "
            f"cluster {cluster!r} has {', '.join(of_type)}. Correct its gpu_types or the cluster's."
        )
    batches = {regime.batch for regime in job.regimes}
    runs = [name for name in allowed if all(profile.curve(name, batch) is not None for batch in batches)]
    if not runs:
        raise ClusterError(
            f"job {job.name!r} of app {app.name!r} trains {job.model!r}, which has no speed on {' or '.join(allowed)} "
            f"of cluster {cluster!r}. Add a curve to its profile."
        )
    return sum(of_type[name] for name in runs)


def _work(app: App, rates: ReferenceRates) -> GpuSeconds:
    brackets = brackets_of(app.tuner)
    if brackets:
        mean = sum(job.scale(job.regimes[0].batch) / rates(job.model) for job in app.jobs) / len(app.jobs)
        return sum(rung.jobs * rung.steps for bracket in brackets for rung in bracket.rungs) * mean
    return sum(share * job_seconds(job, 1, rates) for job, share in zip(app.jobs, shares_run(app)))


@lru_cache(maxsize=4096)
def shares_run(app: App) -> tuple[float, ...]:
    """Share of each job's steps that is run, in (0, 1]: less than 1 where a dry run of curve stopping ends it early."""
    if not isinstance(app.tuner, CurveStopping):
        return (1.0,) * len(app.jobs)
    return tuple(float(done) / job.steps for job, done in zip(app.jobs, dry_run(app)))


def _stopped(app: App) -> int:
    brackets = brackets_of(app.tuner)
    if brackets:
        return sum(bracket.rungs[0].jobs - bracket.rungs[-1].jobs for bracket in brackets)
    return sum(share < 1 for share in shares_run(app))


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())
