"""How far rounds can be from the shares that they realise: what holds, and what no mechanism can do (decision 13)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.core.rounds import Rounds, pick
from themis.model.answers import TimeShare
from themis.model.units import NONE, Float, Int

ROUND = 360.0


def answer(x: Float, gpus: Int | None = None) -> TimeShare:
    combos = np.stack([np.arange(len(x)), np.full(len(x), NONE)], axis=1)
    return TimeShare(combos=combos, gpus=np.ones(len(x), dtype=np.int64) if gpus is None else gpus, x=x, round_s=ROUND)


def deal(account: Rounds, r: int, free: Sequence[int]) -> list[tuple[int, int]]:
    """Deal round r out; returns (combination, type)."""
    given_ = account.answer
    assert given_ is not None
    priority = account.priority(r * ROUND, (r + 1) * ROUND, np.ones(len(given_.x), dtype=bool))
    picked = pick(priority, given_.combos, given_.gpus, free)
    for c, k in picked:
        account.add_received(c, k, ROUND)
    return picked


def off(x: Float, free: Sequence[int], rounds: int) -> tuple[float, float]:
    """(most behind, most ahead) of the integral of a share at any round's end, in rounds."""
    account = Rounds()
    account.adopt(answer(x), 0.0, 0)
    dealt, behind, ahead = np.zeros_like(x), 0.0, 0.0
    for r in range(rounds):
        for c, k in deal(account, r, free):
            dealt[c, k] += 1.0
        lag = x * (r + 1) - dealt
        behind, ahead = max(behind, float(lag.max())), max(ahead, float(-lag.min()))
    return behind, ahead


@st.composite
def full_shares(draw: st.DrawFn, types: int) -> tuple[Float, list[int]]:
    """Shares of single-GPU jobs that use all of a small cluster: a mixture of ways to put jobs on its GPUs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    gpus = rng.integers(1, 4, types)
    kind = np.repeat(np.arange(types), gpus)
    jobs = len(kind) + int(rng.integers(1, 6))
    x = np.zeros((jobs, types))
    for weight in rng.dirichlet(np.ones(6)):
        x[rng.permutation(jobs)[: len(kind)], kind] += weight
    return x, gpus.tolist()


@settings(max_examples=40)
@given(case=full_shares(1))
def test_single_gpu_jobs_stay_within_a_round_of_their_shares_of_one_type(case: tuple[Float, list[int]]) -> None:
    assert max(off(*case, rounds=60)) <= 1.0


@settings(max_examples=60)
@given(case=st.integers(2, 3).flatmap(full_shares))
def test_on_two_or_three_types_nobody_falls_two_rounds_behind(case: tuple[Float, list[int]]) -> None:
    assert off(*case, rounds=60)[0] <= 2.0


@settings(max_examples=60)
@given(case=st.integers(1, 4).flatmap(full_shares))
def test_nobody_is_ever_a_round_ahead(case: tuple[Float, list[int]]) -> None:
    """Proven: a round is dealt only to who is owed some of it by its end."""
    assert off(*case, rounds=60)[1] < 1.0


def test_when_jobs_end_no_mechanism_can_keep_everybody_within_a_round() -> None:
    """Four jobs on one GPU; whoever runs ends with the round, which nobody knows before.

    The one that is left was promised 1/4 + 1/3 + 1/2 of a round and got nothing, whatever the rule; with n jobs it is
    the harmonic sum, which grows without limit.
    """
    for jobs in (4, 12):
        account, left = Rounds(), list(range(jobs))
        for r in range(jobs - 1):
            x = np.zeros((jobs, 1))
            x[left] = 1.0 / len(left)
            account.adopt(answer(x), r * ROUND, r)
            ((served, _),) = deal(account, r, [1])
            left.remove(served)
        account.priority((jobs - 1) * ROUND, jobs * ROUND, np.ones(jobs, dtype=bool))
        behind = float((account.entitled - account.received)[left[0], 0]) / ROUND
        assert behind == pytest.approx(sum(1.0 / n for n in range(2, jobs + 1)))
        assert behind > 1.0


def test_gangs_that_do_not_pack_fall_behind_for_ever() -> None:
    """Three gangs of 2 on 3 GPUs: valid shares promise 1.5 gangs a round, and one fits, whatever the rule."""
    account = Rounds()
    account.adopt(answer(np.full((3, 1), 0.5), np.full(3, 2)), 0.0, 0)
    dealt = np.zeros(3)
    for r in range(60):
        for c, _ in deal(account, r, [3]):
            dealt[c] += 1
    assert dealt.tolist() == [20.0] * 3, "but they fall behind alike"
