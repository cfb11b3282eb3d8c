"""Generated workloads follow the published distributions, keep the stated load, and depend on the seed alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from themis.errors import InputError
from themis.model.cluster import in_racks
from themis.model.units import Float
from themis.model.workload import CurveStopping, Halving, Workload
from themis.traces import cdf
from themis.traces.formats import load_workload
from themis.traces.generate import Workload1, Workload2
from themis.traces.mix import ReferenceRates
from themis.traces.profiles.models import DEFAULT_BOOK, is_network_intensive
from themis.traces.profiles.presets import load_cluster
from themis.traces.shapes import halving_sizes
from themis.traces.trace_summary import app_work, check_fits, describe, job_seconds, shares_run

MANY = 800


@pytest.fixture(scope="module")
def first() -> Workload:
    return Workload1(apps=MANY).generate(seed=7)


@pytest.fixture(scope="module")
def second() -> Workload:
    return Workload2(apps=MANY).generate(seed=7)


def distance(sample: Float, points: cdf.Cdf) -> float:
    """Greatest gap between a sample's and the published CDF at the published values (Kolmogorov-Smirnov)."""
    return max(abs(float((sample <= value + 0.5).mean()) - share) for value, share in points.points if share > 0)


def test_app_service_follows_the_published_distribution(first: Workload, second: Workload) -> None:
    for workload in (first, second):
        work = np.array([app_work(app) for app in workload.apps])
        assert distance(work, cdf.SERVICE) < 1.63 / MANY**0.5  # the 1 % point
        assert work.min() >= 3600 - 1e-6
        assert work.max() <= 2625444 + 1e-6


def test_jobs_per_app_follow_the_published_distributions(first: Workload, second: Workload) -> None:
    for workload, points in ((first, cdf.JOBS_1), (second, cdf.JOBS_2)):
        assert distance(np.array([len(app.jobs) for app in workload.apps]), points) < 1.63 / MANY**0.5 + 0.02


def test_jobs_of_workload_1_use_at_most_1_2_or_3_gpus_in_75_23_and_2_percent(first: Workload) -> None:
    most = np.array([job.gpus_max for app in first.apps for job in app.jobs])
    assert np.bincount(most)[1:] / len(most) == pytest.approx([0.75, 0.23, 0.02], abs=0.01)
    assert {job.gpus_min for app in first.apps for job in app.jobs} == {1}


def test_sweeps_of_workload_2_use_at_most_1_2_4_or_8_gpus_in_the_published_shares(second: Workload) -> None:
    most = np.array([app.jobs[0].gpus_max for app in second.apps])
    assert [float((most == g).mean()) for g in (1, 2, 4, 8)] == pytest.approx([0.20, 0.18, 0.60, 0.02], abs=0.04)


def test_load_1_on_256_gpus_is_about_one_app_every_3240_seconds() -> None:
    assert cdf.SERVICE.mean / 256 == pytest.approx(3240, rel=0.001)


@pytest.mark.parametrize("load", [0.9, 1.4, 2.0])
def test_the_offered_load_is_the_one_asked_for(load: float) -> None:
    summary = describe(Workload2(apps=MANY, load=load).generate(seed=1), load_cluster("sim-256"))
    assert summary.offered_load == pytest.approx(load, rel=0.1)


def test_the_median_job_of_workload_1_is_within_a_third_of_the_papers_3_75_gpu_hours(first: Workload) -> None:
    rates = ReferenceRates(DEFAULT_BOOK)
    run = [share * job_seconds(j, 1, rates) for a in first.apps for j, share in zip(a.jobs, shares_run(a))]
    assert np.median(run) / 3600 == pytest.approx(3.75, rel=1 / 3)


def test_most_jobs_of_workload_1_are_stopped_early_and_the_work_is_what_they_leave(first: Workload) -> None:
    rates = ReferenceRates(DEFAULT_BOOK)
    summary = describe(first)
    full = sum(job_seconds(job, 1, rates) for app in first.apps for job in app.jobs)
    assert 0.9 < summary.stopped / summary.jobs < 1.0
    assert 0.15 < summary.work / full < 0.45


def test_reports_without_noise_stop_more_of_workload_1_sooner() -> None:
    exact, noisy = (Workload1(apps=60, noise=noise).generate(seed=3) for noise in (0.0, 0.05))
    shares = [np.mean([share for app in workload.apps for share in shares_run(app)]) for workload in (exact, noisy)]
    assert shares[0] < shares[1]


def test_categories_are_the_papers_10_60_30_percent(first: Workload) -> None:
    kinds = [DEFAULT_BOOK.get(app.jobs[0].model).category for app in first.apps]
    assert [kinds.count(k) / MANY for k in ("CV", "NLP", "Speech")] == pytest.approx([0.1, 0.6, 0.3], abs=0.04)


def test_workload_1_is_sweeps_under_curve_stopping_with_twenty_reports_a_job(first: Workload) -> None:
    for app in first.apps[:50]:
        assert isinstance(app.tuner, CurveStopping)
        assert {job.steps for job in app.jobs} == {app.jobs[0].steps}
        assert app.tuner.check_steps * 20 == pytest.approx(app.jobs[0].steps)
        assert len({job.loss for job in app.jobs}) == len(app.jobs)


def test_workload_2_halves_its_jobs_and_spreads_the_budget_evenly_over_the_rungs(second: Workload) -> None:
    for app in second.apps[:50]:
        assert isinstance(app.tuner, Halving)
        budgets = [rung.jobs * rung.steps for rung in app.tuner.rungs]
        assert budgets == pytest.approx([budgets[0]] * len(budgets))
        assert tuple(rung.jobs for rung in app.tuner.rungs) == halving_sizes(len(app.jobs))
        assert {job.steps for job in app.jobs} == {sum(rung.steps for rung in app.tuner.rungs)}


def test_halving_runs_down_to_one_job() -> None:
    assert halving_sizes(13) == (13, 6, 3, 1)
    assert halving_sizes(1) == (1,)


def test_both_workloads_share_arrivals_users_and_models_for_one_seed(first: Workload, second: Workload) -> None:
    def key(workload: Workload) -> list[tuple[float, str, str]]:
        return [(app.arrival, app.user, app.jobs[0].model) for app in workload.apps]

    assert key(first) == key(second)


@pytest.mark.parametrize("name", ["demo", "themis1", "themis2"])
def test_the_seed_alone_decides(name: str) -> None:
    options = {} if name == "demo" else {"apps": 10}
    assert load_workload(name, seed=5, **options) == load_workload(name, seed=5, **options)
    assert load_workload(name, seed=5, **options).apps != load_workload(name, seed=6, **options).apps


def test_a_drawn_workload_never_changes_between_versions() -> None:
    """A golden draw: results name a seed, and the seed must mean the same workload tomorrow."""
    app = Workload1(apps=3).generate(seed=0).apps[2]
    assert (app.jobs[0].model, len(app.jobs), app.user) == GOLDEN_NAMES
    assert (app.arrival, app.jobs[0].steps) == pytest.approx(GOLDEN_NUMBERS, rel=1e-9)


GOLDEN_NAMES = ("WaveNet", 6, "u12")
GOLDEN_NUMBERS = (5956.786038097027, 4035.455066199123)


def test_more_apps_leave_the_earlier_ones_as_they_were() -> None:
    few, more = (Workload1(apps=n).generate(seed=2) for n in (5, 9))
    assert few.apps == more.apps[:5]


def test_scale_shrinks_work_and_gaps_alike() -> None:
    full, tenth = (Workload1(apps=5, scale=s).generate(seed=2) for s in (1.0, 0.1))
    for a, b in zip(full.apps, tenth.apps, strict=True):
        assert b.arrival == pytest.approx(a.arrival / 10)
        assert app_work(b) == pytest.approx(app_work(a) / 10)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_share_of_network_intensive_apps_is_the_one_asked_for(share: float) -> None:
    workload = Workload2(apps=600, network_intensive=share).generate(seed=4)
    intensive = np.mean([is_network_intensive(DEFAULT_BOOK.get(app.jobs[0].model)) for app in workload.apps])
    assert intensive == pytest.approx(share, abs=0.0 if share in {0.0, 1.0} else 0.06)


def test_a_mix_of_models_can_be_given() -> None:
    workload = load_workload("themis1", apps="400", models="VGG16:3,ResNet50")
    names = [app.jobs[0].model for app in workload.apps]
    assert set(names) == {"VGG16", "ResNet50"}
    assert names.count("VGG16") / 400 == pytest.approx(0.75, abs=0.07)


def test_given_arrivals_replace_the_poisson_ones() -> None:
    workload = load_workload("themis2", arrivals=[30.0, 10.0])
    assert [app.arrival for app in workload.apps] == [10.0, 30.0]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"apps": 0}, "apps is 0"),
        ({"load": float("nan")}, "load is nan"),
        ({"correlation": 1.1}, "0 to 1"),
        ({"arrivals": [-1.0]}, "0 or more"),
        ({"apps": "many"}, "option 'apps' got 'many'"),
        ({"network_intensive": 2}, "from 0 to 1"),
        ({"network_intensive": 0.5, "models": "VGG16"}, "no compute-intensive model"),
        ({"models": "VGG16:x"}, "weight 'x'"),
        ({"models": "VGG16:0"}, "all weights"),
        ({"models": "VGG16:-1"}, "0 or more"),
        ({"models": "VGG"}, "unknown model 'VGG'"),
        ({"gpu": 4}, "no option 'gpu'. Did you mean 'gpus'"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        load_workload("themis1", **options)
    assert complaint in str(caught.value)


def test_the_demo_offers_exactly_its_load_over_its_window_and_fits_its_cluster() -> None:
    cluster = load_cluster("demo-32")
    for seed in range(20):
        workload = load_workload("demo", seed=seed)
        summary = describe(workload, cluster)
        assert summary.offered_load == pytest.approx(1.3)
        assert summary.span == pytest.approx(14 * 3600)
        assert (summary.apps, summary.users) == (16, 3)
        assert summary.longest_job < 14 * 3600
        check_fits(workload, cluster)


def test_carried_over_quantiles_are_those_of_the_source(shared_data: Path) -> None:
    files = {
        "app-service-times-themis1": cdf.SERVICE,
        "app-service-times-themis2": cdf.SERVICE,
        "num-jobs-per-app-themis1": cdf.JOBS_1,
        "num-jobs-per-app-themis2": cdf.JOBS_2,
        "max-gpus-per-job-themis1": cdf.GPUS_1,
        "max-gpus-per-job-themis2": cdf.GPUS_2,
    }
    for name, points in files.items():
        path = shared_data / "philly" / "cdf" / f"cdf-{name}.csv"
        lines = [line.split(",") for line in path.read_text().split() if not line.startswith("#")]
        theirs = {(float(value), float(share)) for value, share in lines}
        # For GPU counts, which are stepped, the source repeats the least value with share 0.
        assert {p for p in theirs if p[1] > 0} == {p for p in points.points if p[1] > 0}, name


def test_a_step_distribution_gives_only_its_values_and_a_bad_one_is_refused() -> None:
    assert cdf.GPUS_2.stepped(np.array([0.0, 0.199, 0.2, 0.379, 0.38, 0.979, 0.98, 0.999])).tolist() == [
        1,
        1,
        2,
        2,
        4,
        4,
        8,
        8,
    ]
    with pytest.raises(InputError, match="no CDF"):
        cdf.Cdf(((1, 0.5), (2, 0.4), (3, 1.0)))


def test_summary_of_a_workload_that_arrives_at_once_has_no_load() -> None:
    summary = describe(load_workload("themis1", arrivals=[5.0]), in_racks("one", [(1, 8, 2)]))
    assert summary.offered_load is None
    with pytest.raises(InputError, match="no apps"):
        describe(Workload(name="none", apps=()), in_racks("one", [(1, 8, 2)]))
