"""The reference of elastic jobs: measured speed by GPUs, a straight line between gangs and below one GPU."""

from __future__ import annotations

import numpy as np
import pytest

from themis.fairness import fluid
from themis.model.cluster import in_racks
from themis.model.events import AppFinished
from themis.model.settings import Settings
from themis.model.speed import ANY_TYPE, Curve, Profile, ProfileBook
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.report.metrics import Fold
from themis.sim.runner import Record, Simulation


def test_in_proportion_it_is_the_reference_of_rigid_apps() -> None:
    rng = np.random.default_rng(7)
    for _ in range(30):
        apps, phases = int(rng.integers(1, 7)), int(rng.integers(1, 4))
        work = rng.uniform(0, 100, (apps, phases)) * (rng.random((apps, phases)) < 0.8)
        cap, weight = rng.integers(1, 9, (apps, phases)).astype(float), rng.choice([0.37, 1 / 3, 1.0, 4.0], apps)
        seconds = float(rng.choice([5.0, np.inf]))
        straight = [((float(cap[a].max()), 1.0),) if phases == 1 else () for a in range(apps)]
        found = fluid.run_scaled(work, cap, weight, 8.0, straight, seconds)
        for one, other in zip(found, fluid.run(work, cap, weight, 8.0, seconds)):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_a_share_between_gangs_trains_on_the_line_between_them_and_alone_at_full_speed() -> None:
    # 3 GPUs each: (0.4 + 0.6) / 2 of the full speed of 4; then 4 GPUs of the 6.
    work, cap = np.array([[40.0], [80.0]]), np.array([[4.0], [4.0]])
    curve = ((1.0, 0.25), (2.0, 0.4), (4.0, 0.6))
    got, finish = fluid.run_scaled(work, cap, np.ones(2), 6.0, [curve, curve])
    first = 40.0 / (4 * 0.5)
    assert finish.tolist() == pytest.approx([first, first + 40.0 / (4 * 0.6)])
    assert got.tolist() == pytest.approx([40.0, 80.0])
    # Below one GPU in proportion.
    assert fluid.run_scaled(work[:1], cap[:1], np.ones(1), 0.5, [curve])[1][0] == pytest.approx(40.0 / (4 * 0.125))


def test_the_report_measures_an_elastic_job_by_its_curve() -> None:
    """Two jobs of a curve that doubles from 1 to 4 GPUs: on two GPUs each they train at 1.5, not at half of 2."""
    profile = Profile(
        name="m", curves={(ANY_TYPE, 0): Curve(gpus=(1, 2, 3, 4), rate=(1.0, 1.5, 1.8, 2.0))}, slowdown=(1.0,) * 4
    )
    apps = tuple(
        App(
            name=f"a{i}",
            user=f"u{i}",
            arrival=0.0,
            jobs=(Job(name="j", model="m", regimes=(Regime(steps=600.0),), gpus_min=1, gpus_max=4),),
        )
        for i in range(2)
    )
    fold, ends = Fold(), list[AppFinished]()

    def sink(time: float, record: Record) -> None:
        fold.add(time, record)
        ends.extend([record] if isinstance(record, AppFinished) else [])

    Simulation(
        workload=Workload(name="w", apps=apps),
        cluster=in_racks("one", [(1, 4, 4)]),
        book=ProfileBook.of([profile]),
        policy_name="elastic_finish",
        policy=make_policy("elastic_finish"),
        settings=Settings(container_s=0.0, lease_s=60.0),
    ).run(sink)
    assert ends[0].scaling == ((1.0, 0.5), (2.0, 0.75), (3.0, 0.9), (4.0, 1.0))
    assert ends[0].needed == ((pytest.approx(4 * 300.0), 4.0),)
    assert [row.t_reference for row in fold.result().apps] == pytest.approx([400.0, 400.0])
    assert [row.t_alone for row in fold.result().apps] == pytest.approx([300.0, 300.0])
