"""Where nothing is left to decide, the core renews leases and places what waits, as the policy would have done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from themis.model.answers import NOTHING_TO_DECIDE, Renewal
from themis.model.cluster import Cluster
from themis.model.events import Allocated, Grant, QuotaSet, Renew
from themis.model.settings import Settings
from themis.model.units import Seconds
from themis.model.workload import App, Bag, User, Workload
from themis.policies.api import Cadence, Policy, Renews, make_policy, policy_names
from themis.sim.runner import Outage, Record, Simulation
from themis.testing.builders import BOOK, app, job, machines, random_workload

DECLARED = [name for name in policy_names() if make_policy(name).pace.renews]
MORE = ["themis:f=0", "themis:f=1", "drf", "tiresias:clients=jobs", "fifo:placement=blind"]


class Asked:
    """A policy under the same cadence, except that it is asked for every decision."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @property
    def pace(self) -> Cadence:
        return replace(self.policy.pace, renews=Renews.NO)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def __call__(self, *args: Any) -> Any:
        return self.policy(*args)


def _workload(seed: int) -> Workload:
    """Sweeps, job sets and elastic gangs of three users, and single gangs of all sizes, which seldom wait."""
    singles = tuple(
        app(
            f"s{i}",
            [job(900.0 + 137 * i, (1, 2, 4, 8)[i % 4], model=("flat", "chatty")[i % 2])],
            531.0 * i,
            user=f"u{i % 4}",
        )
        for i in range(16)
    )
    few = App(
        name="set",
        user="u1",
        arrival=9100.0,
        jobs=tuple(job(1500.0 + 50 * k, 2, name=f"k{k}") for k in range(4)),
        tuner=Bag(),
    )
    others = tuple(replace(a, arrival=4 * a.arrival) for a in random_workload(seed, apps=6).apps)
    return Workload(name="calm", apps=tuple(sorted((*singles, few, *others), key=lambda a: a.arrival)), source="test")


def _simulation(policy: Policy, world: str, seed: int = 0) -> Simulation:
    workload, cluster, settings = (
        _workload(seed),
        machines(8, 8, 8, 4, 2),
        Settings(lease_s=300.0, tick_s=30.0, seed=seed),
    )
    if world == "two types":
        kinds = ("slow", "fast")
        cluster = Cluster(
            name="two", machines=tuple(replace(m, gpu_type=kinds[n % 2]) for n, m in enumerate(cluster.machines))
        )
    if world == "weights":
        workload = replace(workload, users=tuple(User(name=f"u{i}", weight=1.0 + i) for i in range(4)))
        settings = replace(settings, between="users", step_s=60.0)
    if world == "crowded":
        workload = replace(workload, apps=tuple(replace(a, arrival=a.arrival / 8) for a in workload.apps))
    broken = (Outage(time=2500.0, machine=0, lasts=900.0), Outage(time=6222.0, machine=2, lasts=2000.0))
    quotas = (
        (3000.0, QuotaSet(name="q", users=("u2",), gpus=3)),
        (7000.0, QuotaSet(name="q", users=("u2",), gpus=None)),
    )
    return Simulation(
        workload=workload,
        cluster=cluster,
        book=BOOK,
        policy_name="policy",
        policy=policy,
        settings=settings,
        outages=broken if world == "failures" else (),
        changes=quotas if world == "quotas" else (),  # type: ignore[arg-type]
    )


def _log(simulation: Simulation) -> list[tuple[Seconds, Record]]:
    log: list[tuple[Seconds, Record]] = []
    simulation.run(lambda time, record: log.append((time, record)))
    return log


def _comparable(log: list[tuple[Seconds, Record]], forced: set[int]) -> list[tuple[Seconds, str]]:
    """All records but answers to these versions; jobs that are renewed together in rising order."""
    kept = [(t, r) for t, r in log if not (isinstance(r, Allocated) and r.version in forced)]
    return [(t, repr(replace(r, jobs=tuple(sorted(r.jobs))) if isinstance(r, Renew) else r)) for t, r in kept]


@pytest.mark.parametrize("world", ["calm", "failures", "two types", "weights", "quotas", "crowded"])
@pytest.mark.parametrize("spec", [*DECLARED, *MORE])
def test_the_core_does_what_the_policy_would_do(spec: str, world: str) -> None:
    mine = _log(_simulation(make_policy(spec), world))
    forced = {r.version for _, r in mine if isinstance(r, Allocated) and isinstance(r.solved.answer, Renewal)}
    asked = _log(_simulation(Asked(make_policy(spec)), world))
    assert _comparable(mine[1:], forced) == _comparable(asked[1:], forced)
    pace = make_policy(spec).pace
    if pace.renews is Renews.ALWAYS or world != "two types":
        answered = {t for t, r in mine if isinstance(r, Allocated) and r.version in forced}
        assert len(forced) > 2
        assert not pace.packs or answered & {t for t, r in mine if isinstance(r, Grant)}


class _Alone(Asked):
    """A policy under the same cadence, except that it is asked where one job alone fits, or none."""

    @property
    def pace(self) -> Cadence:
        return replace(self.policy.pace, lone=False)


@pytest.mark.parametrize("spec", [name for name in DECLARED if make_policy(name).pace.lone])
def test_where_one_job_alone_fits_or_none_the_policy_is_not_asked(spec: str) -> None:
    forced, asked = (
        sum(
            isinstance(r, Allocated) and r.solved.proof is NOTHING_TO_DECIDE
            for _, r in _log(_simulation(policy, "crowded"))
        )
        for policy in (make_policy(spec), _Alone(make_policy(spec)))
    )
    assert forced > asked + 3
