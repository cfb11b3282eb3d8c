"""What columns say of themselves is true of the snapshots that the core takes."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated

import numpy as np
import pytest

from themis.core import fairness_unit, reference
from themis.core import take_snapshot as snapshots
from themis.model.events import FairnessSet
from themis.model.forecast import Ahead
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.snapshot_columns import AXES, ONE, Column, S, columns_of, in_other_seconds
from themis.model.speed import ProfileBook, linear
from themis.model.workload import Halving, Rung
from themis.testing.builders import app, job, machines, state_at
from themis.testing.policies import relabelled, rescaled

NEEDS = frozenset({"ahead", "reference"})


def world(factor: float = 1.0, between: str = "apps") -> Snapshot:
    """Single jobs, a bag and a sweep of two users, some of them running; a second is ``factor`` times as many."""
    settings = Settings(lease_s=1200.0 * factor, tick_s=30.0 * factor, container_s=12.0 * factor)
    book = ProfileBook.of([linear("flat", factor, slowdown=(1.0, 1.0, 1.0, 1.0)), linear("other", 2.0 * factor)])
    sweep = Halving(rungs=(Rung(jobs=4, steps=100.0), Rung(jobs=1, steps=300.0)))
    apps = [
        app("single", [job(900.0, 2)], 10.0 * factor, user="u", deadline=5000.0 * factor),
        app("bag", [job(500.0), job(700.0), job(200.0)], 40.0 * factor, user="v", weight=2.0),
        app("sweep", [job(400.0, (1, 2), model="other") for _ in range(4)], 90.0 * factor, user="u", tuner=sweep),
    ]
    held = [(0, (0, 1), 1500.0 * factor), (1, (2,), 2000.0 * factor), (4, (3,), 400.0 * factor)]
    state = state_at(machines(4, 2), apps, settings=settings, book=book)
    state.keeps_reference = True
    for a in range(3):
        reference.enter(state, a)
    fairness_unit.set_unit(state, FairnessSet(between=between, groups=()))
    state.advance(100.0 * factor)
    for j, gpus, until in held:
        state.lease(j, gpus, 0, until, state.locality(gpus))
        state.occupy(j, gpus, 0)
        state.start(j)
    state.advance(400.0 * factor)
    state.finished_service = np.array([100.0, 250.0]) * factor
    return snapshots.take(state, needs=NEEDS)


def same(one: object, other: object, name: str) -> None:
    if is_dataclass(one):
        for f in fields(one):
            same(getattr(one, f.name), getattr(other, f.name), f"{name}.{f.name}")
    elif isinstance(one, np.ndarray):
        np.testing.assert_allclose(np.asarray(other, dtype=float), one.astype(float), rtol=1e-9, err_msg=name)
    elif isinstance(one, float):
        assert other == pytest.approx(one), name
    else:
        assert one == other, name


@pytest.mark.parametrize("between", ["apps", "users"])
def test_units_say_how_columns_scale_with_time(between: str) -> None:
    """The same world with a second three times as many gives exactly the snapshot that the columns' units foretell."""
    foretold, found = rescaled(world(between=between), 3.0), world(3.0, between)
    assert found.reference is not None
    assert np.isfinite(found.reference).all()
    assert found.ahead is not None
    assert (between == "users") == (found.unit_received is not None)
    for name in columns_of(Snapshot):
        if name != "speeds":
            same(getattr(found, name), getattr(foretold, name), name)


def test_axes_say_how_long_columns_are() -> None:
    s = world(between="users")
    lengths = {
        "A": 3,
        "J": s.jobs,
        "K": 1,
        "N": 2,
        "G": 6,
        "P": s.phase_work.shape[1],
        "S": 2,
        "V": 2,
        "F": 2,
        "B": 4,
    }
    assert s.jobs == 8
    for name, column in columns_of(Snapshot).items():
        value = getattr(s, name)
        if isinstance(value, np.ndarray | tuple):
            assert np.shape(value) == tuple(lengths[axis] for axis in column.axes), name
        else:
            assert column.axes == "" or value is None, name


def test_apps_and_jobs_are_renumbered_in_every_column_of_theirs() -> None:
    s = replace(world(between="users"), rho_said=np.array([1.0, 2.0, 3.0]))
    turned, back = relabelled(s), relabelled(relabelled(s))
    for name in columns_of(Snapshot):
        if name != "speeds":
            same(getattr(back, name), getattr(s, name), name)
    for name in ("app_weight", "app_left_held", "reference", "rho_said", "unit_received", "phase_work"):
        same(getattr(turned, name), getattr(s, name)[::-1], name)
    assert turned.ahead is not None
    assert s.ahead is not None
    same(turned.ahead.isolated_s, s.ahead.isolated_s[::-1], "isolated_s")
    # The job that has the first seat of GPU 0 is the last of eight now.
    assert (s.gpu_job[0, 0], turned.gpu_job[0, 0]) == (0, 7)


def test_every_field_is_a_column() -> None:
    for kind in (Snapshot, Ahead):
        assert [*columns_of(kind)] == [f.name for f in fields(kind)]
        assert all(set(column.axes) <= AXES.keys() and column.meaning for column in columns_of(kind).values())


@dataclass
class _Plain:
    time: Annotated[float, Column("", S, "a time")]
    plain: float


@dataclass
class _Times:
    time: Annotated[float, Column("", S, "a time")]
    part: Annotated[float, Column("", ONE, "a part")]
    missing: Annotated[float | None, Column("", S, "a time, or nothing")] = None


def test_a_field_that_is_no_column_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"_Plain\.plain is no column"):
        columns_of(_Plain)
    assert in_other_seconds(_Times(time=2.0, part=3.0), 60.0) == {"time": 120.0}
