"""A snapshot's copies: what is computed from its columns is kept where it stays true, and nowhere else."""

from __future__ import annotations

import pickle

import numpy as np

from themis.fairness.finish_time import FinishTime, Form
from themis.model.snapshot import Snapshot
from themis.policies.tuning.app_agent import Agents
from themis.testing.builders import app, job, machines, snapshot_of


def two_apps() -> Snapshot:
    return snapshot_of(machines(4), [app("a", [job(800.0)]), app("b", [job(100.0)])])


def test_figures_are_computed_once_for_all_forms_of_bids() -> None:
    s = two_apps()
    bids = Agents.of(s, Form.PAPER).bid(np.arange(2), s.free)
    with_bids = s.with_bids(bids)
    assert with_bids.bids is bids
    assert s.bids is None
    assert FinishTime.of(with_bids) is FinishTime.of(s)
    assert FinishTime.of(s, Form.EXACT) is not FinishTime.of(s)


def test_figures_of_other_columns_are_computed_anew() -> None:
    s = two_apps()
    before = FinishTime.of(s).rho
    later = s.having(app_left_held=np.array([5.0, 5.0]))
    assert FinishTime.of(later).rho.tolist() == FinishTime(later).rho.tolist() != before.tolist()
    assert FinishTime.of(s).rho is before


def test_only_columns_travel() -> None:
    s = two_apps()
    before = len(pickle.dumps(s))
    _ = FinishTime.of(s).rho, s.gangs
    assert len(pickle.dumps(s)) == before
    assert FinishTime.of(pickle.loads(pickle.dumps(s))).rho.tolist() == FinishTime.of(s).rho.tolist()
