"""Options common to the Themis paper's baselines: who their clients are, and whether they place gangs (decision 30).

By default a baseline shares between apps and packs gangs as Themis does, so that a comparison shows its order alone. As
originally built, these schedulers know jobs and no apps (``clients=jobs``): each of an app's hundred jobs is a client
of its own. Those that count GPUs and know no machines take GPUs anywhere (``placement=blind``).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

import numpy as np

from themis.model.answers import GpuGrant, Solved
from themis.model.snapshot import Kind, Snapshot
from themis.policies.api import ADDED, PACKING, RENEWING, Cadence, Granularity, Workbench
from themis.policies.placement.blind import Placing


class Clients(StrEnum):
    """Clients between which a baseline shares GPUs: ``apps``, or each of their ``jobs`` on its own."""

    APPS = "apps"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A policy that hands out free GPUs in some order of its clients.

    Attributes
    ----------
    clients : ``apps``, whose own schedulers choose among their jobs; or ``jobs``, each with its app's weight and arrival.
    placement : ``packed``, on the narrowest locality with room; or ``blind``, on GPUs drawn by the seed. Gangs whose lease
        ends stay where they are under either, unless ``packed`` has a better place for them.
    """

    clients: Clients = field(default=Clients.APPS, metadata=ADDED)
    placement: Placing = field(default=Placing.PACKED, metadata=ADDED)

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP
    turns: ClassVar[bool] = False
    """Its order changes as apps hold GPUs, so its leases are turns and are not decided again at each tick."""

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free."""
        return replace(PACKING if self.placement is Placing.PACKED else RENEWING, ticks=not self.turns)

    @abstractmethod
    def grant(self, snapshot: Snapshot) -> Solved:
        """Hand out the offer to the snapshot's apps; with ``clients=jobs`` each of them is one job."""

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Decide between the clients."""
        if self.clients is Clients.APPS:
            return self.grant(snapshot)
        return _named(self.grant(each_job_an_app(snapshot)), snapshot)


def each_job_an_app(s: Snapshot) -> Snapshot:
    """The same state with each job as an app of its own, whose id is the job's: rows [A] become rows [J].

    A job has its app's weight, user and arrival, its own work and the GPU time that it got itself. What its app may still
    start later is not known to it.
    """
    app = s.job_app
    of_app = (
        "app_user",
        "app_weight",
        "app_arrival",
        "app_contention",
        "app_capacity",
        "app_speed",
        "app_deadline",
        "app_away",
    )
    columns = {name: getattr(s, name)[app] for name in of_app}
    for name in ("unit_received", "unit_entitled", "unit_rate"):
        if (of_unit := getattr(s, name)) is not None:
            columns[name] = of_unit[app]
    longest = s.job_left / s.job_gpus_max
    left = np.full(s.jobs, np.inf)
    held = s.job_held.nonzero()[0]
    left[held] = s.job_left[held] / s.speeds.effective(
        s.job_config[held], s.job_gpu_type[held], s.job_held[held], s.job_locality[held]
    )
    none = np.zeros((s.jobs, 1))
    return s.having(
        **columns,
        app_id=s.job_id,
        app_kind=np.full(s.jobs, int(Kind.SINGLE)),
        app_attained=s.job_attained,
        app_held=s.job_held,
        app_gang_min=s.job_gpus_min,
        app_gang_max=s.job_gpus_max,
        app_rigid=s.job_gpus_min == s.job_gpus_max,
        app_unknown=s.app_unknown[s.job_app],
        app_budget=s.job_left,
        app_demand=s.job_gpus_max,
        app_longest=longest,
        app_left_held=left,
        phase_work=s.job_left[:, None],
        phase_longest=s.job_left[:, None],
        phase_jobs=np.ones((s.jobs, 1), dtype=np.int64),
        phase_bracket=none.astype(np.int64),
        future_work=none,
        future_longest=none,
        future_jobs=none.astype(np.int64),
        job_ptr=np.arange(s.jobs + 1),
        job_app=np.arange(s.jobs),
        job_bracket=np.zeros(s.jobs, dtype=np.int64),
        rho_said=None,
    )


def _named(solved: Solved, s: Snapshot) -> Solved:
    """The grant to jobs as one to their apps that names the jobs."""
    grant = solved.answer
    assert isinstance(grant, GpuGrant)
    rows = np.searchsorted(s.job_id, grant.app)
    return replace(solved, answer=replace(grant, app=s.app_id[s.job_app[rows]], job=grant.app))
