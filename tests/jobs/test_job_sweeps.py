"""Sweeps: search spaces, trials, and the tuner's parameters."""

from __future__ import annotations

import math

import pytest
from job_texts import faults, job

from themis.errors import InputError
from themis.jobs.search_space import Choice, NumberRange, sample
from themis.jobs.tuners import halving
from themis.model.workload import Bag, CurveStopping, Halving, Hyperband, Rung
from themis.policies.tuning.halving import hyperband

SPACE = {
    "lr": NumberRange(low=1e-5, high=1e-1, log=True),
    "layers": NumberRange(low=2, high=5, whole=True),
    "width": NumberRange(low=8, high=4096, log=True, whole=True),
    "drop": NumberRange(low=0.0, high=0.5),
    "optimizer": Choice(values=("adam", "sgd")),
}
LR = "parameters: {lr: {loguniform: [1e-5, 1e-1]}}"


def test_samples_lie_in_their_ranges_and_spread_over_them() -> None:
    trials = [trial.parameters for trial in sample(SPACE, 2000, seed=0, grid=False)]
    assert all(1e-5 <= t["lr"] <= 1e-1 and 0 <= t["drop"] <= 0.5 and 8 <= t["width"] <= 4096 for t in trials)  # type: ignore[operator]
    assert {t["layers"] for t in trials} == {2, 3, 4, 5}
    assert {t["optimizer"] for t in trials} == {"adam", "sgd"}
    assert all(isinstance(t["width"], int) for t in trials)
    # A quarter of the samples in each quarter of the magnitudes, within five standard deviations.
    for quarter in range(4):
        inside = sum(quarter <= math.log10(float(t["lr"])) + 5 < quarter + 1 for t in trials)
        assert inside == pytest.approx(500, abs=5 * math.sqrt(2000 * 3 / 16))


def test_the_same_seed_gives_the_same_trials_whatever_is_added() -> None:
    few = sample({"lr": SPACE["lr"]}, 5, seed=3, grid=False)
    many = sample(SPACE, 9, seed=3, grid=False)
    assert [t.parameters["lr"] for t in few] == [t.parameters["lr"] for t in many[:5]]
    assert sample(SPACE, 9, seed=3, grid=False) == many
    assert sample(SPACE, 9, seed=4, grid=False) != many


def test_a_grid_tries_every_combination_once() -> None:
    spec = job(
        "sweep: {parameters: {a: [1, 2], b: {int: [3, 5]}, c: x}, budget: 9, sampler: grid}", "name: a\ncommand: x\n"
    )
    tried = [(t.parameters["a"], t.parameters["b"], t.parameters["c"]) for t in spec.trials]
    assert tried == [(a, b, "x") for a in (1, 2) for b in (3, 4, 5)]
    assert spec.tuner == Bag()


def test_a_grid_parameter_is_enumerated_while_others_are_drawn() -> None:
    spec = job(f"sweep: {{{LR[:-1]}, a: {{grid: [1, 2, 3]}}}}, budget: 9, trials: 6}}")
    assert [t.parameters["a"] for t in spec.trials] == [1, 2, 3, 1, 2, 3]
    assert len({t.parameters["lr"] for t in spec.trials}) == 6


def test_halving_is_a_bracket_of_hyperband() -> None:
    """Li et al., JMLR'18, algorithm 1 at R = 81, eta = 3: the most aggressive bracket has 81 trials of one step."""
    assert halving(81, 81.0, 3, 1.0) == hyperband(81, 3, 1).brackets[0]


def test_halving_has_no_more_rungs_than_trials_or_least_work_allow() -> None:
    assert [r.jobs for r in halving(10, 100.0, 3).rungs] == [10, 3, 1]
    assert [r.jobs for r in halving(10, 100.0, 3, 20.0).rungs] == [10, 3]
    assert halving(2, 100.0, 3).rungs == (Rung(jobs=2, steps=100.0),)
    assert halving(27, 81.0, 3).steps == pytest.approx(81)
    with pytest.raises(InputError, match="at most the budget"):
        halving(9, 81.0, 3, 82.0)


def test_tuners_take_their_parameters_in_epochs() -> None:
    head = f"steps_per_epoch: 10\nsweep:\n  {LR}\n  budget: 81 epochs\n  tuner: "
    band = job(head + "{kind: hyperband, eta: 3, min_work: 1 epoch}")
    assert band.tuner == hyperband(810, 3, 10)
    assert isinstance(band.tuner, Hyperband)
    assert len(band.trials) == sum(bracket.rungs[0].jobs for bracket in band.tuner.brackets) == 143
    rungs = job(
        head + "{kind: halving, rungs: [{trials: 9, work: 1 epoch}, {trials: 2, work: 80 epochs}]}\n  trials: 9"
    )
    assert rungs.tuner == Halving(rungs=(Rung(jobs=9, steps=10), Rung(jobs=2, steps=800)))
    curve = job(head + "{kind: curve, check: 2 epochs, keep: 2, confidence: 0.9, warmup: 5}\n  trials: 9")
    assert curve.tuner == CurveStopping(check_steps=20, keep=2, confidence=0.9, warmup=5)


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        (f"{LR}, budget: 9", "missing key 'trials' in sweep"),
        (f"{LR}, trials: 9", "missing key 'budget' in sweep"),
        (f"{LR}, budget: 9, trials: 3, sampler: gird", "expected one of random, grid. Did you mean 'grid'?"),
        (f"{LR}, budget: 9, sampler: grid", "'lr' has [1e-05, 0.1]"),
        (f"{LR}, budget: 9, trials: 9, tuner: halvin", "Did you mean 'halving'?"),
        (
            f"{LR}, budget: 9, trials: 9, tuner: {{kind: halving, etta: 3}}",
            "key 'etta' in sweep.tuner. Did you mean 'eta'?",
        ),
        (f"{LR}, budget: 9, trials: 9, tuner: {{kind: halving, min_work: 10}}", "at most the budget of 9"),
        (f"{LR}, budget: 9, tuner: halving", "missing key 'trials' in sweep"),
        (
            f"{LR}, budget: 9, tuner: {{kind: halving, rungs: [{{trials: 2, work: 8}}]}}",
            "8 steps in total, expected the budget",
        ),
        (f"{LR}, budget: 9 gpu-hours, trials: 9, tuner: halving", "'budget' in sweep is in GPU time"),
        (
            f"{LR}, budget: 9, tuner: {{kind: hyperband, min_work: 1 gpu-hour}}",
            "'min_work' in sweep.tuner is in GPU time",
        ),
        (f"{LR}, budget: 1e9, tuner: {{kind: hyperband, min_work: 1}}", "Increase min_work"),
        (f"{LR}, budget: 81, trials: 9, tuner: {{kind: hyperband, min_work: 1}}", "got 9, expected 143"),
        (f"{LR}, budget: 9, trials: 9, tuner: {{kind: curve, check: 9}}", "expected less than the budget of 9"),
        ("parameters: {lr: {loguniform: [0, 1]}}, budget: 9, trials: 1", "two numbers [low, high] with 0 < low < high"),
        ("parameters: {lr: {int: [1, 2.5]}}, budget: 9, trials: 1", "two whole numbers"),
        ("parameters: {lr: {unifrom: [1, 2]}}, budget: 9, trials: 1", "Did you mean 'uniform'?"),
        ("parameters: {index: [1, 2]}, budget: 9, trials: 1", "is reserved"),
        ("parameters: {lr: [1], LR: [2]}, budget: 9, trials: 1", "differ only in case"),
        ("parameters: {lr: []}, budget: 9, trials: 1", "a non-empty list of values"),
        ("parameters: {}, budget: 9, trials: 1", "at least 1 entr"),
    ],
)
def test_faults_of_sweeps_are_told(sweep: str, expected: str) -> None:
    assert expected in " ".join(faults(f"name: a\ncommand: x {{lr}}\nsweep: {{{sweep}}}\n"))


def test_a_sweeps_work_is_its_budget() -> None:
    assert "write the work of a trial as 'budget'" in " ".join(
        faults(f"name: a\ncommand: x {{lr}}\nwork: 9\nsweep: {{{LR}, budget: 9, trials: 1}}\n")
    )


def test_faults_of_sweep_and_tuner_are_told_beside_those_of_the_job() -> None:
    told = " ".join(
        faults("name: a\ncommnd: x\nsweep: {parameters: {p: {unform: 1}}, tuner: {kind: curve, chek: 1}}\n")
    )
    assert all(word in told for word in ("'command'", "'uniform'", "'budget'", "'check'"))
