"""How far gangs can be behind their shares on several GPU types, where the shares pack: the bound of decision 62."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from test_round_gangs import account_of, deliver, play

from themis.core.rounds import Rounds
from themis.core.steady import BEHIND, DOUBTED, potential_bound, weights
from themis.model.cluster import Cluster, Machine
from themis.model.units import NONE, Float, Int
from themis.optimize.rounds.sets import heaviest_set, packs

WEIGHTS = (0.37, 1.0, 1.0 / 3.0, 7.0, 2.0, 0.37)
"""Of the sets of which shares are the average, before they are normalised: shares that no number of rounds is a multiple of."""


def lag_bound(x: Float, rounds: int) -> Float:
    """[C, K], maximum lag in rounds behind its share of each (combination, type) after this many packable rounds."""
    bound: Float = np.sqrt(potential_bound(x, rounds) * np.sqrt(x))
    return bound


def packed_on(
    seed: int, room: list[int], gangs: int, sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8)
) -> tuple[Float, Int]:
    """Shares that are an average of sets of gangs that can run at one time, each on one type; and the gangs' GPUs."""
    rng = np.random.default_rng(seed)
    gpus, x = rng.choice(sizes, gangs), np.zeros((gangs, len(room)))
    parts = rng.dirichlet(np.ones(6)) if seed % 2 else np.array(WEIGHTS) / sum(WEIGHTS)
    for part in parts:
        left = list(room)
        for c in rng.permutation(gangs):
            for k in rng.permutation(len(room)):
                if gpus[c] <= left[k]:
                    x[c, k] += part
                    left[k] -= gpus[c]
                    break
    return x, gpus


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), types=st.sampled_from([1, 2, 3, 7]))
def test_on_several_types_no_deficit_is_above_the_proven_bound(seed: int, types: int) -> None:
    room = [8] * types if types < 7 else [4] * 7
    x, gpus = packed_on(seed, room, 8 * types if types < 7 else 24, (1, 2, 3, 4))
    account = account_of(x, gpus)
    for t, deficit in enumerate(play(account, room, 120), start=1):
        assert (deficit <= lag_bound(x, t) + 1e-9).all()
        assert float((weights(x) * deficit**2).sum()) <= potential_bound(x, t) + 1e-6
        assert deficit.min() >= -1.0, "nobody is a round ahead"
    assert account.packs, "shares that pack are never taken for shares that do not"


def test_gangs_on_three_types_are_repaid_and_by_the_order_alone_the_deficits_grow() -> None:
    room = [8, 8, 8]
    x, gpus = packed_on(107, room, 28)
    by_order = [float(d.max()) for d in play(account_of(x, gpus), room, 2400, steady=False)]
    account = account_of(x, gpus)
    deficits = [float(d.max()) for d in play(account, room, 2400)]
    assert account.packs
    assert max(by_order) > 2.0 * max(by_order[:1200]) > 4.0 * BEHIND
    assert max(deficits) <= 2.5 * BEHIND
    assert max(deficits) < 0.4 * max(by_order)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), types=st.sampled_from([1, 2, 3, 7]))
def test_of_what_an_objective_needs_no_deficit_is_above_the_proven_bound(seed: int, types: int) -> None:
    """Some shares are due in part, others wholly or not at all; what is left over goes by the order."""
    room = [8] * types if types < 7 else [4] * 7
    x, gpus = packed_on(seed, room, 8 * types if types < 7 else 24, (1, 2, 3, 4))
    part = np.random.default_rng(seed).choice([0.0, 0.37, 1.0 / 3.0, 0.9, 1.0], len(x))
    plain = account_of(x, gpus).answer
    assert plain is not None
    account, due = Rounds(), x * part[:, None]
    account.adopt(replace(plain, due=part), 0.0, 0)
    for t, deficit in enumerate(play(account, room, 120), start=1):
        lacks = np.maximum(deficit - (x - due) * t, 0.0)
        assert (lacks <= lag_bound(due, t) + 1e-9).all()
        assert float((weights(due) * lacks**2).sum()) <= potential_bound(due, t) + 1e-6
    assert account.packs, "shares that pack are never taken for shares that do not"


@pytest.mark.parametrize("seed", [53, 107])
def test_what_an_objective_needs_is_repaid_and_by_the_order_alone_the_deficits_grow(seed: int) -> None:
    room = [8, 8, 8]
    x, gpus = packed_on(seed, room, 28)
    due = np.ones(len(x))
    worst = []
    for steady in (True, False):
        account = account_of(x, gpus)
        assert account.answer is not None
        account.adopt(replace(account.answer, due=due), 0.0, 0)
        worst.append(float(play(account, room, 1200, steady=steady)[-1].max()))
    assert worst[0] <= 3.0 * BEHIND < worst[1]


def sets_that_fit(gpus: Int, room: list[int]) -> list[Float]:
    """All of them, [C, K] each: every gang on one type or on none."""
    out = []
    for kinds in product(range(-1, len(room)), repeat=len(gpus)):
        s = np.zeros((len(gpus), len(room)))
        for c, k in enumerate(kinds):
            if k >= 0:
                s[c, k] = 1.0
        if (gpus @ s <= room).all():
            out.append(s)
    return out


def can_have(x: Float, sets: list[Float]) -> float:
    """The largest part of all shares at once that some average of these sets has: 1 or more where the shares pack."""
    columns = np.stack([s[x > 0] for s in sets], axis=1)
    found = linprog(
        np.concatenate([np.zeros(len(sets)), [-1.0]]),
        A_ub=np.hstack([-columns, x[x > 0][:, None]]),
        b_ub=np.zeros(int((x > 0).sum())),
        A_eq=np.concatenate([np.ones(len(sets)), [0.0]])[None, :],
        b_eq=[1.0],
    )
    return float(found.x[-1])


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), types=st.integers(2, 3))
def test_shares_are_taken_for_such_as_do_not_pack_where_and_only_where_no_average_of_sets_has_them(
    seed: int, types: int
) -> None:
    rng = np.random.default_rng(seed)
    room = rng.integers(2, 5, types).tolist()
    gpus = rng.integers(1, 4, 5)
    x = rng.dirichlet(np.ones(types + 1), 5)[:, :types] * (gpus[:, None] <= np.array(room))
    x /= max(1.0, float((gpus @ x / room).max()))
    part = can_have(x, sets_that_fit(gpus, room))
    account = account_of(x, gpus)
    assert account.answer is not None
    if abs(part - 1.0) > 1e-5:
        assert packs(x, gpus, account.answer.combos, room) is (part > 1.0)
    deficits = play(account, room, 300)
    if part >= 1.0 - 1e-9:
        assert account.packs
        assert (deficits[-1] <= lag_bound(x, 300)).all()
    elif part < 0.9:
        assert not account.packs


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), types=st.integers(1, 3), pairs=st.booleans())
def test_the_heaviest_set_is_found_on_several_types_pairs_of_jobs_included(seed: int, types: int, pairs: bool) -> None:
    rng = np.random.default_rng(seed)
    gangs, room = 6, rng.integers(0, 6, types).tolist()
    gpus = rng.integers(1, 5, gangs)
    value = rng.exponential(1.0, (gangs, types)) * (rng.random((gangs, types)) < 0.8)
    jobs = np.stack([np.arange(gangs), np.full(gangs, NONE)], axis=1)
    if pairs:
        jobs[4:] = [[0, 1], [1, 2]]
        gpus[4:] = gpus[0]
    found = heaviest_set(value, gpus, jobs, room)
    most = 0.0
    for s in sets_that_fit(gpus, room):
        running = jobs[s.any(axis=1)]
        if len(set(running[running != NONE].tolist())) == (running != NONE).sum():
            most = max(most, float((s * value).sum()))
    assert found.value == pytest.approx(most)
    assert found.bound == pytest.approx(most)
    assert sum(float(value[c, k]) for c, k in found.chosen) == pytest.approx(most)
    there = jobs[[c for c, _ in found.chosen]]
    assert len(set(there[there != NONE].tolist())) == (there != NONE).sum()
    for k in range(types):
        assert sum(int(gpus[c]) for c, of in found.chosen if of == k) <= room[k]


@pytest.mark.parametrize("seed", range(4))
def test_averages_of_sets_are_shown_to_pack_and_what_is_more_is_shown_not_to(seed: int) -> None:
    room = [8, 8, 8]
    x, gpus = packed_on(seed, room, 28)
    jobs = np.stack([np.arange(28), np.full(28, NONE)], axis=1)
    assert packs(x, gpus, jobs, room)
    assert packs(1.001 * x, gpus, jobs, room) is False, "these use all GPUs"


def test_shares_that_hardly_do_not_pack_are_dealt_by_the_order_after_sixteen_rounds() -> None:
    room = [8, 8, 8]
    x, gpus = packed_on(107, room, 28)
    account = account_of(1.001 * x, gpus)
    play(account, room, 1200)
    assert not account.packs
    assert account.replaced == DOUBTED


def test_a_search_for_enough_ends_there_and_says_where_there_is_not_enough() -> None:
    value, one = np.array([[3.0, 3.0], [2.0, 1.0]]), np.ones(2, dtype=np.int64)
    jobs = np.array([[0, NONE], [1, NONE]])
    assert heaviest_set(value, one, jobs, [1, 1], 4.0).value >= 4.0
    none = heaviest_set(value, one, jobs, [1, 1], 6.0)
    assert none.value == none.bound == pytest.approx(5.0)


@pytest.mark.parametrize(("types", "size", "seed"), [(3, 1, 0), (3, 2, 1), (7, 1, 2), (7, 4, 3)])
@pytest.mark.parametrize(
    "policy", ["max_min_fairness", "finish_time_fairness", "max_min_water_filling", "hierarchical"]
)
def test_what_policies_promise_to_gangs_of_one_size_is_received_within_the_bound(
    policy: str, types: int, size: int, seed: int
) -> None:
    """Any shares of gangs of one size that divides the GPUs of every type pack (Birkhoff and von Neumann)."""
    rng = np.random.default_rng(seed)
    gangs = [size] * (2 * types + 3)
    on = Cluster(
        name="c",
        machines=tuple(Machine(name=f"m{k}", gpus=size * (1 + k % 3), gpu_type=f"t{k}") for k in range(types)),
    )
    speed = np.exp(rng.normal(0.0, 0.7, (len(gangs), types)))
    rounds = 150
    weights = [(0.37, 1.0 / 3.0, 1.0, 7.0)[j % 4] for j in range(len(gangs))]
    got = deliver(policy, gangs, on, rounds, speed, weights)
    x = got.share  # nothing changes: the shares of the whole run
    lag = (got.promised - got.received) / 360.0
    assert x.sum() > 0
    assert (lag <= lag_bound(x, rounds) + 1e-9)[x > 0].all()
    work = (speed * got.promised).sum(axis=1)
    assert ((speed * got.received).sum(axis=1) >= 0.92 * work).all()
