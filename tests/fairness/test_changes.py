"""The posterior with an unknown number of changes: by hand, against simulation, and learned from finished jobs."""

from __future__ import annotations

import numpy as np
import pytest

from themis.core.checkpoint import load, save
from themis.core.scheduler import Scheduler
from themis.fairness.forecasts.evaluate import RULES, evaluate
from themis.fairness.forecasts.history import NEVER, History, learn, prior
from themis.fairness.forecasts.rules import FORECASTER, Rule, changes_ahead, late_pace, spread
from themis.model.dynamic import Dynamic, Mode
from themis.model.events import AppSubmitted
from themis.model.settings import Settings
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import forecaster_of, make_policy
from themis.sim.runner import Simulation
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster
from themis.traces.trace_summary import paces

GNS = Dynamic(mode=Mode.GNS, epoch_steps=((32, 400.0), (64, 200.0), (128, 100.0)))


def job(name: str, *epochs: tuple[float, int]) -> Job:
    return Job(name=name, model="generic", regimes=tuple(Regime(steps=e, batch=b) for e, b in epochs), dynamic=GNS)


def app(name: str, arrival: float, *epochs: tuple[float, int]) -> App:
    return App(name=name, user="u", arrival=arrival, jobs=(job(name, *epochs),))


def test_before_any_job_finished_half_never_change_and_other_numbers_are_alike() -> None:
    assert prior({}, "gns", "m", 32, 4) == (NEVER, *[(1 - NEVER) / 4] * 4)
    assert prior({}, "gns", "m", 32, 0) == (1.0,)


def test_finished_jobs_teach_their_own_group_most_and_then_those_like_them() -> None:
    history: History = {}
    for _ in range(20):
        learn(history, "gns", "m", 32, 2)
    own, model, mode, none = (
        prior(history, *key, 4)[2]
        for key in (("gns", "m", 32), ("gns", "m", 64), ("gns", "n", 64), ("accordion", "m", 32))
    )
    assert own > model > mode > 0.9 > none == (1 - NEVER) / 4
    assert sum(prior(history, "gns", "m", 32, 4)) == pytest.approx(1.0)
    # More changes than a job can have count as all that it can.
    assert prior(history, "gns", "m", 32, 1)[1] > 0.9


def test_a_posterior_by_hand() -> None:
    # Of 0 or 1 changes in 100 epochs, none in 60: 0.5 against 0.5 x 0.4.
    found = changes_ahead(np.array([[0.5, 0.5]]), np.array([100.0]), np.array([60.0]), np.array([0]))
    assert found[0] == pytest.approx([1 / 1.4, 0.4 / 1.4])
    # One came; 1 or 2 in all, 2 twice as likely to have one of them there: 0.5 against 0.5 x 2 x 0.4.
    found = changes_ahead(np.array([[0.0, 0.5, 0.5]]), np.array([100.0]), np.array([60.0]), np.array([1]))
    assert found[0] == pytest.approx([0.5 / 0.9, 0.4 / 0.9, 0.0])
    assert spread(found)[0] == pytest.approx([0.5 / 0.9 + 0.2 / 0.9, 0.2 / 0.9, 0.0])


def test_the_posterior_is_that_of_a_simulation() -> None:
    rng, most, done = np.random.default_rng(0), 4, 0.35
    known = np.array([0.4, 0.1, 0.2, 0.2, 0.1])
    number = rng.choice(most + 1, p=known, size=200_000)
    at = np.sort(np.where(np.arange(most) < number[:, None], rng.random((len(number), most)), 9.0), axis=1)
    before = (at <= done).sum(axis=1)
    for finished in (0, 1, 2):
        some = before == finished
        truth = np.bincount(number[some] - finished, minlength=most + 1) / some.sum()
        found = changes_ahead(known[None], np.array([1.0]), np.array([done]), np.array([finished]))
        assert found[0] == pytest.approx(truth, abs=0.02)
        ends = np.clip(at[some][:, finished], done, 1.0) - done
        assert spread(found)[0, 0] * (1 - done) == pytest.approx(ends.mean(), abs=0.01)


def test_at_the_end_nothing_is_to_come() -> None:
    found = changes_ahead(np.array([[0.0, 1.0]]), np.array([10.0]), np.array([10.0]), np.array([0]))
    assert found.tolist() == [[1.0, 0.0]]


def test_the_late_pace_is_a_quantile_of_what_is_left_and_never_below_the_mean() -> None:
    rng = np.random.default_rng(1)
    pace = np.array([[9.0, 5.0, 2.0]])
    chance = np.array([[0.05, 0.25, 0.7]])
    draws = []
    for m, share in enumerate(chance[0]):
        draws.append(rng.dirichlet(np.ones(m + 1), size=int(200_000 * share)) @ pace[0, : m + 1])
    truth = np.concatenate(draws)
    assert late_pace(chance, pace, 0.9)[0] == pytest.approx(np.quantile(truth, 0.9), rel=0.12)
    assert late_pace(chance, pace, 0.01)[0] == pytest.approx(truth.mean(), rel=0.01)
    # Where it most likely never changes, the risk is that it stays as slow as it is.
    assert late_pace(np.array([[0.5, 0.5]]), np.array([[9.0, 1.0]]))[0] == 9.0


def test_jobs_that_never_change_are_soon_believed_not_to() -> None:
    jobs = [job(f"j{i}", (50.0, 32)) for i in range(12)]
    changing = [job(f"c{i}", (10.0, 32), (40.0, 64)) for i in range(12)]
    for some, believed in ((jobs, False), (changing, True)):
        errors = evaluate(
            paces(Workload(name="w", apps=tuple(App(name=j.name, user="u", arrival=0.0, jobs=(j,)) for j in some)))
        )
        posterior, restatement = RULES.index(Rule.POSTERIOR), RULES.index(Rule.RESTATEMENT)
        assert bool(errors.change_expected[posterior, -1, 0]) is believed
        assert errors.change_expected[restatement, :, 0].all()
        assert errors.mean(Rule.POSTERIOR, "regimes") < errors.mean(Rule.RESTATEMENT, "regimes")


def test_the_core_learns_from_jobs_that_completed_and_keeps_it_through_a_restart() -> None:
    policy = make_policy("shockwave")
    assert forecaster_of(policy) == FORECASTER
    assert FORECASTER.rule is Rule.POSTERIOR
    apps = [app(f"a{i}", 5.0 * i, (3.0, 32), (3.0, 64)) for i in range(3)] + [app("b", 20.0, (6.0, 32))]
    core = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=load_cluster("1x2"),
        book=DEFAULT_BOOK,
        policy_name="shockwave",
        policy=policy,
    ).run()
    assert core.state.history["gns", "generic", "32"] == [1, 3]
    again = load(save(core), Scheduler(DEFAULT_BOOK, Settings(), policy.pace, policy.needs, forecaster_of(policy)))
    assert again.state.history == core.state.history


def test_the_forecast_column_follows_what_was_learned() -> None:
    from themis.core.forecasting import forecast_jobs
    from themis.model.events import MachineJoined

    policy = make_policy("shockwave")
    core = Scheduler(DEFAULT_BOOK, Settings(), policy.pace, policy.needs, forecaster_of(policy))
    for machine in load_cluster("1x2").machines:
        core.step(MachineJoined(machine=machine), 0.0)
    core.step(AppSubmitted(app=app("a", 0.0, (100.0, 32))), 0.0)
    before = forecast_jobs(core.state, np.array([0]), np.zeros(1))
    for _ in range(30):
        learn(core.state.history, "gns", "generic", 32, 0)
    after = forecast_jobs(core.state, np.array([0]), np.zeros(1))
    assert before.left_s[0] < after.left_s[0] < 100 * 400.0
    assert before.share.sum() == pytest.approx(1.0)
    # Half of all jobs never change: the risk is all of it at the first batch size.
    assert before.risk_s[0] == pytest.approx(100 * 400.0)
    assert (after.risk_s >= after.left_s).all()
