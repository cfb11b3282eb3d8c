"""The recorded optima of single policy solves: data/gavel/policy_cases."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gavel_cases import Case, assert_valid, load, total_of_pairs

from themis.optimize.shares.pairs import highest_level_paired
from themis.policies.gavel.finish_time_shares import JobsProgress, finish_time_fairness, needed
from themis.policies.gavel.makespan_shares import min_makespan
from themis.policies.gavel.max_min import max_min, max_min_water_filling, normalised, normalised_unit

MAX_MIN = [
    "gen_max_min_fairness_perf_n128_s2",
    "gen_max_min_fairness_perf_n32_s2",
    "tiny_multi5x3__max_min_fairness_perf",
    "tiny_paper3x2__max_min_fairness_perf",
    "tiny_wf4__max_min_fairness_perf",
]
WATER_FILLING = [
    "gen_max_min_fairness_water_filling_perf_n128_s2",
    "gen_max_min_fairness_water_filling_perf_n32_s2",
    "tiny_multi5x3__max_min_fairness_water_filling_perf",
    "tiny_paper3x2__max_min_fairness_water_filling_perf",
    "tiny_wf4__max_min_fairness_water_filling_perf",
]
MAKESPAN = [
    "gen_min_total_duration_perf_n128_s2",
    "gen_min_total_duration_perf_n32_s2",
    "tiny_multi5x3__min_total_duration_perf",
    "tiny_paper3x2__min_total_duration_perf",
]
FINISH_TIME = ["tiny_multi5x3__finish_time_fairness_perf", "tiny_paper3x2__finish_time_fairness_perf"]


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> Path:
    return shared_data / "gavel" / "policy_cases"


def _optimum(cases: Path, name: str) -> float:
    return float(json.loads((cases / "reference_optima.json").read_text())[f"{name}.json"]["optimum"])


def _progress(case: Case) -> JobsProgress:
    """The recorded cases begin to count isolated time at their instant."""
    return JobsProgress(
        left=case.left,
        elapsed=case.elapsed,
        isolated_elapsed=np.zeros(len(case.left)),
        isolated_rate=case.problem.isolated_rate(),
    )


@pytest.mark.parametrize("name", MAX_MIN)
def test_max_min_reaches_the_recorded_optimum(cases: Path, name: str) -> None:
    case = load(cases, f"{name}.json")
    found = max_min(case.problem, case.weight)
    assert found.objective == pytest.approx(_optimum(cases, name), rel=1e-6)
    assert found.gap < 1e-8
    assert_valid(case.problem, found.x)


@pytest.mark.parametrize("name", WATER_FILLING)
def test_water_filling_reaches_the_recorded_leximin_vector(cases: Path, name: str) -> None:
    case = load(cases, f"{name}.json")
    found = max_min_water_filling(case.problem, case.weight)
    vector = json.loads((cases / "reference_leximin.json").read_text())[f"{name}.json"]["leximin_sorted"]
    assert np.sort(normalised(case.problem, found.x) / case.weight) == pytest.approx(vector, abs=1e-6)
    assert found.objective == pytest.approx(_optimum(cases, name), rel=1e-6)
    assert_valid(case.problem, found.x)


@pytest.mark.parametrize("name", MAKESPAN)
def test_makespan_reaches_the_recorded_optimum(cases: Path, name: str) -> None:
    case = load(cases, f"{name}.json")
    found = min_makespan(case.problem, case.left)
    assert found.objective == pytest.approx(_optimum(cases, name), rel=1e-6)
    assert found.gap < 1e-8
    assert_valid(case.problem, found.x)


@pytest.mark.parametrize("name", FINISH_TIME)
def test_finish_time_fairness_reaches_the_recorded_optimum(cases: Path, name: str) -> None:
    case = load(cases, f"{name}.json")
    found = finish_time_fairness(case.problem, _progress(case), np.ones(len(case.left)))
    assert found.objective == pytest.approx(_optimum(cases, name), rel=1e-6)
    assert found.gap < 1e-8
    assert_valid(case.problem, found.x)


@pytest.mark.parametrize("size", [32, 128])
def test_finish_time_fairness_is_not_worse_than_the_published_allocation(cases: Path, size: int) -> None:
    name = f"gen_finish_time_fairness_perf_t0_n{size}_s2.json"
    case = load(cases, name)
    published = json.loads((cases / name).read_text())["gavel"]["obj_ftf_rho"]
    found = finish_time_fairness(case.problem, _progress(case), np.ones(len(case.left)))
    assert published * (1 - 1e-6) <= found.objective <= published
    assert found.gap < 1e-8


@pytest.mark.parametrize("name", ["gen_max_min_fairness_packed_n32_s2", "tiny_pack3x2__max_min_fairness_packed"])
def test_max_min_with_pairs_reaches_the_recorded_optimum(cases: Path, name: str) -> None:
    case = load(cases, f"{name}.json")
    assert case.pairs is not None
    unit = case.weight * normalised_unit(case.problem)
    ceiling = float((case.pairs.fastest(case.problem) / unit).min())
    found = highest_level_paired(case.problem, case.pairs, lambda t: t * unit, ceiling, unit[:, None])
    assert (found.throughput / unit).min() == pytest.approx(_optimum(cases, name), rel=1e-6)
    assert found.bound == pytest.approx((found.throughput / unit).min(), rel=1e-8)
    time, use = total_of_pairs(case.problem, found.combos, found.x)
    assert time.max() <= 1 + 1e-9
    assert (use <= case.problem.workers * (1 + 1e-9)).all()


def test_makespan_with_pairs_reaches_the_recorded_optimum(cases: Path) -> None:
    name = "tiny_pack3x2__min_total_duration_packed"
    case = load(cases, f"{name}.json")
    assert case.pairs is not None
    ceiling = float((case.pairs.fastest(case.problem) / case.left).min())
    found = highest_level_paired(case.problem, case.pairs, lambda t: t * case.left, ceiling, case.left[:, None])
    assert (case.left / found.throughput).max() == pytest.approx(_optimum(cases, name), rel=1e-6)
    assert 1 / found.bound == pytest.approx(_optimum(cases, name), rel=1e-6)


def test_finish_time_fairness_with_pairs_reaches_the_recorded_optimum(cases: Path) -> None:
    name = "tiny_pack3x2__finish_time_fairness_packed"
    case = load(cases, f"{name}.json")
    assert case.pairs is not None
    progress = _progress(case)
    ceiling = float((progress.alone() / (case.left / case.pairs.fastest(case.problem))).min())
    need = needed(progress, np.ones(3), np.ones(3))
    found = highest_level_paired(case.problem, case.pairs, need, ceiling, case.left[:, None])
    assert progress.rho(found.throughput).max() == pytest.approx(_optimum(cases, name), rel=1e-6)
    assert 1 / found.bound == pytest.approx(_optimum(cases, name), rel=1e-6)
