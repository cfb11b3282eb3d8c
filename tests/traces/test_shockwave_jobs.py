"""Shockwave's recipe for workloads of any size."""

from __future__ import annotations

import numpy as np
import pytest

from themis.errors import InputError
from themis.model.dynamic import Mode
from themis.model.units import Locality
from themis.traces.formats import load_workload
from themis.traces.profiles.measured import gavel_book
from themis.traces.shockwave_jobs import ShockwaveJobs

BOOK = gavel_book()


def hours(workload: object) -> np.ndarray:
    jobs = [app.jobs[0] for app in workload.apps]  # type: ignore[attr-defined]
    return np.array(
        [
            sum(
                r.steps * j.scale(r.batch) / BOOK.rate(j.model, r.batch, "V100", j.gpus_max, Locality.SLOT)
                for r in j.regimes
            )
            / 3600
            for j in jobs
        ]
    )


def test_jobs_are_as_the_recipe_says() -> None:
    workload = ShockwaveJobs(jobs=300).generate(seed=1)
    jobs = [app.jobs[0] for app in workload.apps]
    assert {j.gpus_max for j in jobs} <= {1, 2, 4, 8}
    assert hours(workload).min() > 0.1  # 0.2 at the first batch size; larger ones are up to twice as fast
    assert hours(workload).max() <= 5.2
    modes = [j.dynamic.mode for j in jobs if j.dynamic]
    assert 0.35 < sum(mode is Mode.GNS for mode in modes) / 300 < 0.65
    assert any(len(j.regimes) > 2 for j in jobs)


def test_the_load_and_the_shares_of_classes_are_what_was_asked_for() -> None:
    workload = ShockwaveJobs(jobs=2000, gpus=64, load=4.0, scale=1.0, dynamic=0.0).generate(seed=0)
    jobs, span = [app.jobs[0] for app in workload.apps], workload.apps[-1].arrival
    work = hours(workload) * np.array([j.gpus_max for j in jobs])
    assert work.sum() * 3600 / 64 / span == pytest.approx(4.0, rel=0.1)
    assert (work < 8).mean() == pytest.approx(0.72, abs=0.04)
    assert (work > 16.5).mean() == pytest.approx(0.08, abs=0.02)


def test_static_jobs_have_one_regime_and_declare_one_size() -> None:
    for app in ShockwaveJobs(jobs=50, dynamic=0.0).generate(seed=3).apps:
        assert len(app.jobs[0].regimes) == 1
        assert app.jobs[0].dynamic is not None
        assert len(app.jobs[0].dynamic.batches) == 1


def test_one_seed_gives_one_workload() -> None:
    assert load_workload("shockwave_jobs", seed=5) == load_workload("shockwave_jobs", seed=5)
    assert load_workload("shockwave_jobs", seed=5) != load_workload("shockwave_jobs", seed=6)


@pytest.mark.parametrize(
    ("name", "value"), [("jobs", 0), ("gpus", 4), ("load", 0.0), ("scale", -1.0), ("dynamic", 1.5)]
)
def test_parameters_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=name):
        ShockwaveJobs(**{name: value})  # type: ignore[arg-type]
