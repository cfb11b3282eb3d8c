"""Columns of a snapshot that are computed when they are first read: the same figures, whoever reads them first."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from themis.core import take_snapshot as snapshots
from themis.model.snapshot import Snapshot
from themis.testing.builders import app, job, machines, state_at


def deferring() -> Snapshot:
    """Of single jobs, two of which hold GPUs: no job set needs a schedule."""
    apps = [app(f"a{i}", [job(1000.0 + i, 1 + i % 2)]) for i in range(6)]
    s = snapshots.take(state_at(machines(4), apps, held=[(0, (0,), 900.0), (1, (1, 2), 900.0)], now=300.0))
    assert "app_left_held" not in s.__dict__
    return s


def test_a_changed_snapshot_keeps_what_its_columns_said_before() -> None:
    s = deferring()
    left = snapshots._left_held(s)
    changed = s.having(job_held=np.zeros_like(s.job_held))
    assert changed.app_left_held.tolist() == left.tolist()


def test_copies_and_other_processes_read_the_same_column() -> None:
    s = deferring()
    kept = s.once("a test", lambda columns: columns.app_left_held)
    assert s.app_left_held is kept
    assert pickle.loads(pickle.dumps(s)).app_left_held.tolist() == kept.tolist()


def test_a_column_that_there_is_not_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'job_speed'"):
        getattr(deferring(), "job_speed")  # noqa: B009 (a misspelt column, as a plug-in may ask for one)
