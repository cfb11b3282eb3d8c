"""Gavel's generated workloads follow the distributions of its §7.1 and depend on the seed alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from themis.errors import InputError, UnknownName
from themis.model.units import Locality
from themis.model.workload import Workload
from themis.traces.formats import book_for, load_workload
from themis.traces.gavel_jobs import GavelMulti, GavelSingle
from themis.traces.profiles.measured import gavel_book

MANY = 4000


@pytest.fixture(scope="module")
def multi() -> Workload:
    return GavelMulti(jobs=MANY).generate(seed=3)


def seconds(workload: Workload) -> list[float]:
    """Each job's duration on V100s."""
    jobs = [app.jobs[0] for app in workload.apps]
    book = gavel_book()
    return [job.steps / book.rate(job.model, job.regimes[0].batch, "V100", job.gpus_max, Locality.SLOT) for job in jobs]


def test_durations_are_ten_to_the_power_of_a_uniform_number_of_minutes(multi: Workload) -> None:
    minutes = np.log10(np.array(seconds(multi)) / 60.0)
    assert (minutes >= 1.5 - 1e-9).all()
    assert (minutes <= 4.0 + 1e-9).all()
    long = minutes > 3.0
    assert long.mean() == pytest.approx(0.2, abs=0.02)
    for part, low, width in ((minutes[~long], 1.5, 1.5), (minutes[long], 3.0, 1.0)):
        uniform = (np.sort(part) - low) / width
        assert np.abs(uniform - (np.arange(len(part)) + 0.5) / len(part)).max() < 1.63 / len(part) ** 0.5


def test_gangs_have_the_published_shares_and_only_measured_sizes(multi: Workload) -> None:
    sizes = Counter(app.jobs[0].gpus_max for app in multi.apps)
    assert [sizes[g] / MANY for g in (1, 2, 4, 8)] == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.02)
    book = gavel_book()
    for app in multi.apps:
        job = app.jobs[0]
        assert job.gpus_min in book.get(job.model).curves["V100", job.regimes[0].batch].gpus


def test_all_26_models_are_alike_likely_for_single_gpus() -> None:
    workload = GavelSingle(jobs=MANY).generate(seed=1)
    models = Counter((app.jobs[0].model, app.jobs[0].regimes[0].batch) for app in workload.apps)
    assert len(models) == 26
    assert max(models.values()) / MANY == pytest.approx(1 / 26, abs=0.015)
    assert {app.jobs[0].gpus_max for app in workload.apps} == {1}


def test_arrivals_are_poisson_at_the_rate_or_all_at_once() -> None:
    arrivals = np.array([app.arrival for app in GavelSingle(jobs=MANY, rate=4.0).generate(seed=2).apps])
    gaps = np.diff(arrivals)
    assert gaps.mean() == pytest.approx(900.0, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    assert {app.arrival for app in GavelMulti(jobs=20, static=True).generate(seed=2).apps} == {0.0}


def test_the_cost_workload_has_days_and_deadlines_of_its_own() -> None:
    kind = GavelSingle(jobs=200, models="ResNet-50,A3C", days=(0.5, 1, 2, 4, 8), slo=(1.2, 2, 10))
    workload = kind.generate(seed=0)
    assert {app.jobs[0].model for app in workload.apps} == {"ResNet-50", "A3C"}
    took = np.array(seconds(workload))
    assert {round(s / 86400, 6) for s in took} == {0.5, 1, 2, 4, 8}
    factors = [(app.deadline or 0) - app.arrival for app in workload.apps] / took
    assert {round(f, 6) for f in factors} == {1.2, 2, 10}


def test_priorities_and_entities_are_weights_of_jobs_and_users() -> None:
    workload = GavelSingle(jobs=MANY, high=0.2, high_weight=3, entities=(1, 2, 3)).generate(seed=0)
    assert np.mean([app.weight == 3 for app in workload.apps]) == pytest.approx(0.2, abs=0.02)
    assert {app.weight for app in workload.apps} == {1.0, 3.0}
    assert [(u.name, u.weight) for u in workload.users] == [("entity0", 1), ("entity1", 2), ("entity2", 3)]
    owned = Counter(app.user for app in workload.apps)
    assert [owned[f"entity{e}"] / MANY for e in range(3)] == pytest.approx([1 / 3] * 3, abs=0.03)


def test_the_seed_alone_decides_and_a_factor_of_its_own_leaves_the_other_draws() -> None:
    one, same = GavelMulti(jobs=50).generate(seed=5), GavelMulti(jobs=50).generate(seed=5)
    assert one == same
    assert one != GavelMulti(jobs=50).generate(seed=6)
    with_slo = GavelMulti(jobs=50, slo=(2.0,)).generate(seed=5)
    assert [app.jobs for app in with_slo.apps] == [app.jobs for app in one.apps]
    assert [app.arrival for app in with_slo.apps] == [app.arrival for app in one.apps]


def test_options_come_as_text_lists_joined_by_commas() -> None:
    assert book_for("gavel_multi") == "gavel"
    assert book_for("demo") == book_for("jobs.csv") == ""
    workload = load_workload("gavel_single", seed=4, jobs="30", days="0.5,1", slo="1.2, 2")
    assert workload == GavelSingle(jobs=30, days=(0.5, 1), slo=(1.2, 2)).generate(seed=4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"jobs": "0"}, "jobs is 0, expected 1 to"),
        ({"rate": "-1"}, "rate is -1.0, expected more than 0"),
        ({"high": "2"}, "high is 2.0, expected a share from 0 to 1"),
        ({"days": "1,0"}, "days is"),
        ({"days": "1,soon"}, "option 'days.1' got 'soon'"),
        ({"rates": "3"}, "Did you mean 'rate'"),
        ({"models": "ResNet50"}, "Did you mean 'ResNet-50'"),
    ],
)
def test_a_wrong_option_is_answered_in_one_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        load_workload("gavel_single", **options)
    assert "\n" not in str(caught.value)


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="measured model"):
        GavelMulti(models="Resnet18").generate(seed=0)
