"""Appendix F of Shockwave: welfare in expectation, on small markets."""

from __future__ import annotations

import numpy as np
import pytest

from themis.errors import InputError
from themis.fairness.stochastic_market import Chain, most_expected_welfare

STEADY = Chain(gain=np.ones(1), move=np.ones((1, 1)))


def speeds_up(chance: float, factor: float = 2.0) -> Chain:
    """Each round that it is served, its speed rises by this chance, once."""
    return Chain(gain=np.array([1.0, factor]), move=np.array([[1 - chance, chance], [0.0, 1.0]]))


def test_alike_jobs_share_evenly() -> None:
    found = most_expected_welfare([STEADY, STEADY], gpus=1, rounds=4)
    assert found.utility == pytest.approx([2.0, 2.0], rel=1e-3)
    assert found.bound - found.objective <= 2e-6 + 1e-12


def test_gangs_exclude_each_other() -> None:
    big = Chain(gain=np.ones(1), move=np.ones((1, 1)), gpus=2)
    found = most_expected_welfare([big, STEADY, STEADY], gpus=2, rounds=3)
    # The gang has a share p of the rounds, the others both have the rest: p (1 - p)^2 is largest at 1/3.
    assert found.utility == pytest.approx([1.0, 2.0, 2.0], rel=2e-3)


def test_a_certain_change_is_the_deterministic_market() -> None:
    """Served in round 1, the job is twice as fast ever after: of two rounds more, it wants to be early."""
    found = most_expected_welfare([speeds_up(1.0), STEADY], gpus=1, rounds=2)
    # x: share of the policies that serve it twice (3), y: once (1), the rest never; the other gets what is left.
    best = max((3 * x + y) * (2 - 2 * x - y) for x in np.linspace(0, 1, 401) for y in (0.0, 1 - x))
    assert np.exp(found.objective) == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.8])
def test_knowing_the_state_is_worth_no_less_than_any_fixed_schedule(chance: float) -> None:
    """By enumeration of all schedules that ignore the state, and of all mixtures of two."""
    jobs, rounds = [speeds_up(chance), speeds_up(chance, 3.0)], 3
    found = most_expected_welfare(jobs, gpus=1, rounds=rounds)

    def expected(job: Chain, served: int) -> float:
        state, total = np.array([1.0, 0.0]), 0.0
        for _ in range(served):
            total += float(state @ job.gain)
            state = state @ job.move
        return total

    points = [(expected(jobs[0], k), expected(jobs[1], rounds - k)) for k in range(rounds + 1)]
    mixed = max(
        (m * p[0] + (1 - m) * q[0]) * (m * p[1] + (1 - m) * q[1])
        for p in points
        for q in points
        for m in np.linspace(0.0, 1.0, 33)
    )
    assert found.bound >= np.log(mixed) - 1e-9
    assert found.objective == pytest.approx(np.log(mixed), abs=0.15)  # the expected trajectory comes close


def test_budgets_tilt_the_shares() -> None:
    rich = Chain(gain=np.ones(1), move=np.ones((1, 1)), budget=3.0)
    assert most_expected_welfare([rich, STEADY], gpus=1, rounds=4).utility == pytest.approx([3.0, 1.0], rel=2e-3)


def test_what_is_too_large_or_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="variables"):
        most_expected_welfare([speeds_up(0.5)] * 8, gpus=4, rounds=9)
    with pytest.raises(InputError, match="add up to 1"):
        Chain(gain=np.ones(2), move=np.ones((2, 2)))
