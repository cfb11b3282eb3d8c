"""rho_reference of a running service: the reference goes on where it stopped, and says what it says over the whole log."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from themis.model.events import AppFinished, AppSubmitted, FairnessSet
from themis.report.metrics import Fold
from themis.report.reference_finish import BETWEEN_MARKS, Reference
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, machines, random_workload


def _from_the_start(reference: Reference) -> Reference:
    out = copy.deepcopy(reference)
    out.run, out.revised = None, []
    return out


def _finished(rng: np.random.Generator, a: int) -> AppFinished:
    phases = int(rng.integers(1, 4))
    needed = tuple((float(rng.uniform(1.0, 400.0)), float(rng.integers(1, 5))) for _ in range(phases))
    return AppFinished(
        app=a,
        outcome=str(rng.choice(["completed", "completed", "cancelled"])),
        jct=1.0,
        rho_paper=1.0,
        rho_exact=1.0,
        t_id_paper=1.0,
        t_id_exact=1.0,
        contention=1.0,
        capacity=4.0,
        gpu_seconds=1.0,
        needed=needed if rng.random() < 0.9 else (),
    )


def _event(rng: np.random.Generator, reference: Reference, now: float) -> None:
    """One more event; half of the apps need something else than was believed when they came."""
    active = [a for a, entry in enumerate(reference.apps) if not entry.over]
    what = rng.random()
    if what < 0.4 or not active:
        event = AppSubmitted(app=app(f"a{len(reference.apps)}", [job(100.0, (1, 4))]), weight=1.0)
        reference.submit(now, AppSubmitted(app=event.app, weight=1.0, alone=(float(rng.uniform(1, 300)), 30.0)))
    elif what < 0.5:
        reference.service(now, int(rng.choice([1, 2])) if rng.random() < 0.6 else -1)
    elif what < 0.6:
        a = int(rng.choice(active))
        reference.hold(now, a, bool(np.isnan(reference.apps[a].held_since)))
    elif what < 0.7:
        reference.reweigh(now, int(rng.choice(active)), float(rng.uniform(0.3, 3.0)))
    elif what < 0.98:
        a = int(rng.choice(active))
        reference.finish(now, _finished(rng, a))
    else:
        reference.fairness(FairnessSet(between=str(rng.choice(["apps", "users"]))))


@pytest.mark.parametrize("seed", range(6))
def test_asked_at_any_time_it_says_what_a_run_from_the_start_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reference, now = Reference(), 0.0
    reference.service(0.0, 4)
    for i in range(6 * BETWEEN_MARKS):
        now += float(rng.exponential(10.0)) if rng.random() < 0.9 else 0.0
        _event(rng, reference, now)
        if rng.random() < 0.05 or i == 6 * BETWEEN_MARKS - 1:
            whole = _from_the_start(reference)
            np.testing.assert_allclose(reference.lasted(), whole.lasted(), rtol=1e-6)
            np.testing.assert_allclose(reference.received(now + 5.0), whole.received(now + 5.0), rtol=1e-6, atol=1e-6)
    assert reference.run is not None
    assert len(reference.run.marks) <= 7


def test_a_run_asked_after_each_record_has_the_references_of_its_report() -> None:
    """Bags, sweeps in rungs and ones that stop their own jobs, whose work is known when they end."""
    whole, pieces = Fold(), Fold()

    def watch(time: float, record: Record) -> None:
        whole.add(time, record)
        pieces.add(time, record)
        pieces.reference.lasted()

    Simulation(
        workload=random_workload(3),
        cluster=machines(4, 4),
        book=BOOK,
        policy_name="srsf",
        policy=_policy(),
        settings=NO_OVERHEAD,
    ).run(watch)
    want = [row.t_reference for row in whole.result().apps]
    assert len(want) > 3
    assert [row.t_reference for row in pieces.result().apps] == pytest.approx(want, rel=1e-6)


def test_work_that_was_believed_rightly_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked after each of 400 apps, the run advances as often as there are steps, and not again from the start."""
    from themis.report import reference_finish as module

    reference, count = Reference(), [0]
    reference.service(0.0, 4)
    advance = module._Run._advance

    def counted(self: module._Run, seconds: float) -> None:
        count[0] += 1
        advance(self, seconds)

    monkeypatch.setattr(module._Run, "_advance", counted)
    for a in range(400):
        event = AppSubmitted(app=app(f"a{a}", [job(30.0, (1, 4))]), weight=1.0, alone=(30.0, 7.5))
        reference.submit(10.0 * a, event)
        end = _finished(np.random.default_rng(0), a)
        reference.finish(
            10.0 * a + 9.0, AppFinished(**{**_fields(end), "outcome": "completed", "needed": ((30.0, 4.0),)})
        )
        reference.lasted()
    assert count[0] <= len(reference.steps)


def test_a_history_that_is_over_needs_one_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark holds all apps that are not over, so one for every few records would be quadratic in memory."""
    from themis.report import reference_finish as module

    reference, kept, mark = Reference(), list[int](), module._Run._mark

    def marked(self: module._Run) -> object:
        kept.append(len(self.marks))
        return mark(self)

    monkeypatch.setattr(module._Run, "_mark", marked)
    reference.service(0.0, 4)
    for a in range(4 * BETWEEN_MARKS):
        event = AppSubmitted(app=app(f"a{a}", [job(30.0, (1, 4))]), weight=1.0, alone=(30.0, 7.5))
        reference.submit(10.0 * a, event)
        reference.finish(10.0 * a + 9.0, _finished(np.random.default_rng(0), a))
    reference.lasted()
    assert len(kept) >= 4
    assert max(kept) == 0


def _fields(end: AppFinished) -> dict[str, object]:
    return {name: getattr(end, name) for name in AppFinished.__dataclass_fields__}


def _policy() -> object:
    from themis.policies.api import make_policy

    return make_policy("srsf")
