"""Intervals over seeds and paired differences: by hand, by simulation, and what is said when there is too little."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from report_cases import MINI, fold, runs

from themis.errors import UnknownName
from themis.report.columns import ComparisonColumn
from themis.report.compare import compare
from themis.report.intervals import FEW_APPS, p99_interval, t_interval
from themis.report.paired import paired
from themis.report.result import RunMetrics

SPAN = ComparisonColumn(name="makespan", title="h", scale=1.0, digits=0)
P99 = ComparisonColumn(name="jct_p99", title="p99", scale=1.0, digits=0)


def spans(policy: str, values: dict[int, float]) -> list[RunMetrics]:
    run = fold(MINI)
    return [replace(run, policy=policy, seed=seed, makespan=value) for seed, value in values.items()]


def test_students_t_as_in_the_tables() -> None:
    # t(0.975) with 4 degrees of freedom is 2.7764; the standard deviation of 1..5 is sqrt(2.5).
    found = t_interval([1.0, 2.0, 3.0, 4.0, 5.0, math.nan])
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.7764 * math.sqrt(2.5 / 5), abs=1e-4)
    assert (found.method, found.excludes_zero) == ("t", True)
    assert not t_interval([-1.0, 1.0]).excludes_zero


def test_one_number_or_none_has_no_interval() -> None:
    for values in ([], [math.nan], [4.0]):
        found = t_interval(values)
        assert math.isnan(found.low)
        assert math.isnan(found.half)
        assert (found.method, found.excludes_zero) == ("", False)
    assert math.isnan(p99_interval([]).mean)
    assert math.isnan(p99_interval([np.array([1.0, 2.0])]).low)


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds differ by 1000, the policies by 10 +- 1: only pairing sees it."""
    rows = compare([*spans("a", {0: 1000, 1: 2000, 2: 3000}), *spans("b", {2: 3010, 0: 1009, 1: 2011})], [SPAN])
    found = paired(rows, "a", [SPAN])
    [difference] = found.differences["b"]
    assert difference.mean == pytest.approx(10.0)
    # Differences 10, 9, 11: standard deviation 1; t(0.975) with 2 degrees of freedom is 4.3027.
    assert difference.half == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert difference.excludes_zero
    assert rows[0].cells[0].half > 1000
    assert found.differences["a"][0].mean == 0.0
    assert not found.differences["a"][0].excludes_zero
    assert "paired over 3 common seeds" in found.note


def test_only_common_seeds_are_paired() -> None:
    rows = compare([*spans("a", {0: 1, 1: 2, 5: 9}), *spans("b", {1: 7, 8: 1}), *spans("c", {7: 1})], [SPAN])
    found = paired(rows, "a", [SPAN])
    assert found.seeds == {"a": 3, "b": 1, "c": 0}
    assert found.differences["b"][0].mean == 5.0
    assert math.isnan(found.differences["b"][0].low)
    assert math.isnan(found.differences["c"][0].mean)


def test_what_is_too_little_is_said() -> None:
    rows = compare([*spans("a", {0: 1}), *spans("b", {0: 2})], [SPAN])
    assert "no interval can be given" in paired(rows, "a", [SPAN]).note
    rows = compare([*spans("a", {0: 1}), *spans("b", {1: 2})], [SPAN])
    assert "No policy has a seed in common" in paired(rows, "a", [SPAN]).note


def test_a_misspelt_baseline_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'themis'"):
        paired(compare(runs()), "themsi", [SPAN])


# ---- the bootstrap of a 99th percentile -----------------------------------------------------------------------------


def of_apps(policy: str, seed: int, jct: list[float]) -> RunMetrics:
    run = fold(MINI)
    apps = tuple(replace(run.apps[0], app=i, jct=value) for i, value in enumerate(jct))
    return replace(run, policy=policy, seed=seed, apps=apps, jct_p99=float(np.percentile(jct, 99)))


def test_a_percentile_is_bootstrapped_and_the_same_each_time() -> None:
    rng = np.random.default_rng(5)
    made = [of_apps("a", seed, rng.lognormal(0, 1, 60).tolist()) for seed in range(4)]
    cell = compare(made, [P99])[0].cells[0]
    assert cell.mean == pytest.approx(np.mean([run.jct_p99 for run in made]))
    assert cell.method == "bootstrap"
    assert cell.low < cell.mean < cell.high
    assert compare(made, [P99])[0].cells[0] == cell


def test_apps_are_paired_in_the_difference_of_percentiles() -> None:
    """Each app is served one second later: the difference is one second in every replicate."""
    rng = np.random.default_rng(6)
    jct = [rng.lognormal(2, 1, 50).tolist() for _ in range(3)]
    rows = compare(
        [of_apps("a", s, x) for s, x in enumerate(jct)]
        + [of_apps("b", s, [v + 1 for v in x]) for s, x in enumerate(jct)],
        [P99],
    )
    [difference] = paired(rows, "a", [P99]).differences["b"]
    assert (difference.mean, difference.low, difference.high) == pytest.approx((1.0, 1.0, 1.0))
    assert rows[0].cells[0].half > 1.0


def test_apps_that_one_side_never_finished_are_left_out_of_both() -> None:
    short = [of_apps("b", s, [5.0, 5.0, math.nan]) for s in range(2)]
    rows = compare([*[of_apps("a", s, [1.0, 1.0, 900.0]) for s in range(2)], *short], [P99])
    assert paired(rows, "a", [P99]).differences["b"][0].mean == pytest.approx(4.0)


def test_many_apps_a_run_get_students_t() -> None:
    rng = np.random.default_rng(7)
    samples = [rng.lognormal(0, 1, FEW_APPS) for _ in range(3)]
    found = p99_interval(samples)
    assert found == t_interval([float(np.percentile(x, 99)) for x in samples])


def test_intervals_cover_about_as_often_as_they_say() -> None:
    """200 sets of 5 seeds with 60 apps each; the true mean percentile comes from many more."""
    rng = np.random.default_rng(8)
    truth = float(np.percentile(rng.lognormal(0, 1, (20_000, 60)), 99, axis=1).mean())
    sets = rng.lognormal(0, 1, (200, 5, 60))
    covered = [(found := p99_interval(list(seeds))).low <= truth <= found.high for seeds in sets]
    assert 0.9 <= np.mean(covered) <= 1.0
