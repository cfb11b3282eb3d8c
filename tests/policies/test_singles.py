"""Bids of single jobs: as arrays they are what their definition says, to the last bit."""

from __future__ import annotations

from dataclasses import fields
from itertools import product

import numpy as np
import pytest

from themis.fairness.finish_time import FinishTime
from themis.model.bids import Bids
from themis.model.cluster import Cluster, Machine
from themis.model.snapshot import Snapshot
from themis.model.speed import Curve, Profile
from themis.model.units import Float, Int
from themis.policies.tuning import singles
from themis.policies.tuning.app_agent import Agents
from themis.testing.builders import BOOK, app, job, machines, snapshot_of


def of_single_jobs(seed: int, jobs: int = 14, *, elastic: bool = False) -> Snapshot:
    """Some hold GPUs beyond this instant, some until it, some wait; models that suffer from distance and others."""
    rng = np.random.default_rng(seed)
    sizes = [int(rng.choice([1, 1, 2, 4])) for _ in range(jobs)]
    apps = [
        app(
            f"a{i}",
            [job(float(rng.integers(50, 5000)), (n, n + elastic * (i % 3)), model=str(rng.choice(["flat", "chatty"])))],
            arrival=float(i),
        )
        for i, n in enumerate(sizes)
    ]
    first = np.cumsum([0, *sizes])
    held = [(i, tuple(range(first[i], first[i + 1])), (60.0, 600.0)[i % 2]) for i in range(4)]
    return snapshot_of(machines(4, 4, 4, 8, 2), apps, held=held, now=60.0)


def one_by_one(s: Snapshot, limit: Float, rows: Int, offered: list[int]) -> list[tuple[int, int, int, int, float]]:
    """The rows of single jobs from the definition: every size that a job takes, on every type, in every span that differs."""
    out = []
    for b, a in enumerate(rows.tolist()):
        j = int(s.job_ptr[a])
        slowdown = s.speeds.slowdown[s.job_config[j]].tolist()
        for k, size in product(range(len(offered)), range(s.job_gpus_min.item(j), s.job_gpus_max.item(j) + 1)):
            if size > offered[k] or not s.job_allowed[j, k]:
                continue
            for span in singles.distinct_spans(size, slowdown):
                left = s.job_left.item(j) / (s.speeds.scale.item(s.job_config[j], k, size) / slowdown[span])
                if left < limit[a]:
                    out.append((b, size, span, k, left))
    return out


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_as_arrays_and_one_by_one_are_the_same(seed: int, elastic: bool) -> None:
    s = of_single_jobs(seed, elastic=elastic)
    agents = Agents(s, FinishTime(s))
    waits = np.flatnonzero(s.job_held == 0)
    some = False
    for offer in ([int(s.free.sum())], [3], [1], [0]):
        columns = singles.rows(s, agents.limit, waits, np.arange(len(waits)), offer)
        found = list(zip(*(column.tolist() for column in columns)))
        assert found == one_by_one(s, agents.limit, waits, offer)
        some |= bool(found)
    assert some


def test_models_that_do_not_run_on_a_type_are_not_bid_for_there() -> None:
    curve = Curve(gpus=(1, 2, 4), rate=(1.0, 2.0, 4.0))
    book = BOOK.with_profiles([Profile(name="only_fast", curves={("fast", 0): curve})])
    cluster = Cluster(name="test", machines=tuple(Machine(name=t, gpus=4, gpu_type=t) for t in ("slow", "fast")))
    models = ("only_fast", "flat", "flat")
    apps = [app(f"a{i}", [job(100.0 + i, 1 + i % 2, model=models[i % 3])]) for i in range(14)]
    s = snapshot_of(cluster, apps, book=book)
    limit, everyone = FinishTime(s).left, np.arange(s.apps)
    bidder, _, _, kind, _ = singles.rows(s, limit, everyone, everyone, [4, 4])
    assert not np.isin(bidder[kind == 0], np.arange(0, s.apps, 3)).any()
    assert set(bidder.tolist()) == set(everyone.tolist())
    rows = singles.rows(s, limit, everyone, everyone, [4, 4])
    assert list(zip(*(column.tolist() for column in rows))) == one_by_one(s, limit, everyone, [4, 4])


@pytest.mark.parametrize("seed", range(8))
def test_a_job_takes_a_gang_exactly_where_it_would_bid_for_one(seed: int) -> None:
    s = of_single_jobs(seed)
    agents = Agents(s, FinishTime(s))
    for a in range(s.apps):
        assert (singles.wanted(s, a) == 0) == bool(s.job_held[a] > 0)
        for gpus in (0, 1, 2, 4, 10):
            if singles.wanted(s, a):
                bid = len(singles.rows(s, agents.limit, np.array([a]), np.array([0]), [gpus])[0]) > 0
                assert singles.serves(s, float(agents.limit[a]), a, [gpus]) == bid


@pytest.mark.parametrize("seed", range(8))
def test_columns_of_our_own_agents_would_pass_every_check_of_bids(seed: int) -> None:
    s = of_single_jobs(seed)
    made = Agents(s, FinishTime(s)).bid(np.flatnonzero(s.job_held == 0), s.free)
    checked = Bids(**{f.name: getattr(made, f.name) for f in fields(Bids) if f.init})
    assert made.expiring_gpus.sum() > 0
    for f in fields(Bids):
        assert np.array_equal(getattr(made, f.name), getattr(checked, f.name)), f.name
        assert getattr(made, f.name).dtype == getattr(checked, f.name).dtype
