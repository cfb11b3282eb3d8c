"""rho_reference: the finish on one's own share, which no policy can influence, from the log alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from themis.core import reference as core_reference
from themis.core.scheduler import Scheduler
from themis.model import events as e
from themis.model.events import AppFinished, AppSubmitted
from themis.model.workload import App, Bag, CurveStopping, Job, Workload, brackets_of
from themis.policies.api import make_policy
from themis.report.metrics import Fold
from themis.report.reference_finish import Reference
from themis.report.result import RunMetrics
from themis.sim.runner import Simulation
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, machines, random_workload


def _submitted(name: str, weight: float = 1.0, user: str = "ann") -> AppSubmitted:
    return AppSubmitted(app=app(name, [job(100.0, (1, 4))], user=user), weight=weight)


def _finished(app: int, *needed: tuple[float, float], outcome: str = "completed") -> AppFinished:
    return AppFinished(
        app=app,
        outcome=outcome,
        jct=100.0,
        rho_paper=1.0,
        rho_exact=1.0,
        t_id_paper=1.0,
        t_id_exact=1.0,
        contention=1.0,
        capacity=4.0,
        gpu_seconds=1.0,
        needed=needed,
    )


def test_two_apps_share_by_weight_until_the_first_ends() -> None:
    reference = Reference()
    reference.service(0.0, 4)
    reference.submit(0.0, _submitted("a", weight=3.0))
    reference.submit(10.0, _submitted("b"))
    ends = [_finished(0, (100.0, 4.0)), _finished(1, (40.0, 4.0))]
    for end in ends:
        reference.finish(50.0, end)
    out = reference.isolated(ends, start_s=5.0)
    # a: 40 by 10 s, then 3 of 4 GPUs: 60 / 3 = 20 s more. b: 20 by then, then all 4 GPUs: 5 s.
    assert out.reference.tolist() == pytest.approx([30.0, 25.0])
    assert out.alone.tolist() == pytest.approx([30.0, 15.0])


def test_a_real_app_of_unknown_work_needed_what_it_was_leased_and_its_own_share_is_unknown() -> None:
    """What it was believed to need, an hour, is invented: neither it nor the others are compared with that."""
    for live, expected in ((True, [math.nan, 10.25]), (False, [50.0, 20.0])):
        reference = Reference()
        reference.service(0.0, 4)
        reference.submit(0.0, replace(_submitted("a"), unknown=True))
        reference.submit(10.0, _submitted("b"))
        ends = [replace(_finished(0, (160.0, 4.0)), gpu_seconds=41.0), _finished(1, (40.0, 4.0))]
        for end in ends:
            reference.finish(50.0, end, live=live)
        out = reference.isolated(ends, start_s=5.0)
        # a has had 40 by 10 s. Live: it needed 1 more, so b gets 2 of 4 GPUs for 0.5 s, then 4. Simulated: halves until b ends.
        assert out.reference.tolist() == pytest.approx(expected, nan_ok=True)
        assert math.isnan(out.alone[0]) == live


def test_phases_follow_one_another_and_a_cap_leaves_gpus_to_others() -> None:
    reference = Reference()
    reference.service(0.0, 4)
    for name in ("a", "b"):
        reference.submit(0.0, _submitted(name))
    ends = [_finished(0, (10.0, 1.0), (20.0, 4.0)), _finished(1, (60.0, 4.0))]
    for end in ends:
        reference.finish(50.0, end)
    # a: 10 s at one GPU, b has 30 by then; both at 2: a ends after 10 s more, b has 10 left at 4.
    assert reference.isolated(ends, 0.0).reference.tolist() == pytest.approx([20.0, 22.5])


def test_who_is_held_stands_still_and_who_is_cancelled_leaves() -> None:
    reference = Reference()
    reference.service(0.0, 2)
    for name in ("a", "b", "c"):
        reference.submit(0.0, _submitted(name))
    reference.hold(3.0, 0, True)
    reference.finish(6.0, gone := _finished(1, (50.0, 2.0), outcome="cancelled"))
    reference.hold(9.0, 0, False)
    ends = [_finished(0, (20.0, 2.0)), gone, _finished(2, (20.0, 2.0))]
    reference.finish(99.0, ends[0])
    reference.finish(99.0, ends[2])
    out = reference.isolated(ends, 0.0)
    # A third each: 2. Then b and c have 1 each: c has 5 by 6 s, and alone 11 by 9 s. Halves: c ends 9 s later, a then needs 4.5.
    assert out.reference[[0, 2]].tolist() == pytest.approx([3.0 + 9.0 + 4.5, 18.0])
    assert math.isnan(out.reference[1])
    assert out.held.tolist() == [6.0, 0.0, 0.0]


def test_between_users_the_one_with_three_apps_has_half() -> None:
    reference = Reference()
    reference.service(0.0, 6)
    reference.fairness(e.FairnessSet(between="users"))
    for name, user in (("a", "ann"), ("b", "ann"), ("c", "ann"), ("d", "bob")):
        reference.submit(0.0, _submitted(name, user=user))
    ends = [_finished(a, (30.0, 6.0)) for a in range(4)]
    for end in ends:
        reference.finish(50.0, end)
    assert reference.isolated(ends, 0.0).reference.tolist() == pytest.approx([20.0, 20.0, 20.0, 10.0])


def test_a_log_without_what_apps_needed_has_no_rho_reference() -> None:
    reference = Reference()
    reference.service(0.0, 4)
    reference.submit(0.0, _submitted("a"))
    reference.finish(5.0, end := _finished(0))
    assert np.isnan(reference.isolated([end], 0.0).reference).all()


def _run(workload: Workload, policy: str) -> tuple[Scheduler, RunMetrics]:
    fold = Fold()
    core = Simulation(
        workload=workload,
        cluster=machines(4, 4),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=NO_OVERHEAD,
    ).run(fold)
    return core, fold.result()


def _equal(app: App) -> tuple[Job, ...]:
    return tuple(replace(app.jobs[0], name=job.name) for job in app.jobs)


@pytest.mark.parametrize("seed", range(6))
def test_the_log_gives_the_reference_that_the_core_keeps(seed: int) -> None:
    """Bags, elastic ones and sweeps of equal jobs, weights 0.37 and 1/3: none whose work the core learns as they go."""
    workload = random_workload(seed)
    odd = tuple(
        replace(app, weight=(0.37, 1 / 3, 7.0)[i % 3], jobs=_equal(app) if brackets_of(app.tuner) else app.jobs)
        for i, app in enumerate(workload.apps)
        if not isinstance(app.tuner, CurveStopping) and not app.at_once
    )
    core, run = _run(replace(workload, apps=odd), "fair_finish")
    rows = np.arange(len(odd))
    due = core_reference.finishes(core.state, rows) - core.state.apps.arrival[rows]
    assert [row.t_reference for row in run.apps] == pytest.approx(due.tolist(), rel=1e-6)


def test_no_policy_influences_the_reference() -> None:
    workload = random_workload(11)
    bags = replace(workload, apps=tuple(app for app in workload.apps if isinstance(app.tuner, Bag)))
    times = [[row.t_reference for row in _run(bags, policy)[1].apps] for policy in ("drf", "srsf", "themis", "fifo")]
    assert len(times[0]) > 4
    for other in times[1:]:
        assert other == pytest.approx(times[0], rel=1e-9)


def test_nobody_is_quicker_than_alone() -> None:
    _, run = _run(random_workload(5), "srsf")
    assert all(row.jct >= row.t_alone * (1 - 1e-9) for row in run.apps)
    assert run.rho_attainable.max <= run.rho_reference.max
