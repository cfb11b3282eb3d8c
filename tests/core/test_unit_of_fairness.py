"""Fairness between apps, users or groups: weights follow those who contend, and N_avg is the mean of what they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.core.app_lifecycle import add_app, finish_app, set_aside, take_back
from themis.core.checkpoint import load, save
from themis.core.fairness_unit import balance, set_unit
from themis.core.job_lifecycle import END
from themis.core.scheduler import Scheduler
from themis.core.state import State
from themis.errors import UnknownName
from themis.model.events import AppHeld, AppResumed, AppSubmitted, FairnessSet, MachineJoined
from themis.model.log import LogWriter
from themis.model.settings import BETWEEN, Settings
from themis.model.workload import App, Group, User, Workload, members
from themis.policies.api import make_policy
from themis.sim.plan import make_settings
from themis.sim.replay import replay
from themis.sim.runner import Simulation
from themis.testing.builders import BOOK, app, job, machines, random_workload

GROUPS = (("lab", 3.0, ("u0", "u1")), ("shop", 0.37, ("u2",)))
OF_USER = {"u0": 0.37, "u1": 7.0, "u2": 1 / 3, "u3": 2.0}


def given_weight(own: float, user: str) -> float:
    group = next((weight for _, weight, users in GROUPS if user in users), 1.0)
    return own * OF_USER[user] * group


def expected(between: str, there: list[tuple[float, str]]) -> list[float]:
    """Weights by the words of decision 0020, app by app; ``there`` : (own weight, user) of those that contend."""
    out = []
    for own, user in there:
        part = own / sum(o for o, u in there if u == user)
        group = next(((weight, users) for _, weight, users in GROUPS if user in users), None)
        if between == "apps":
            out.append(given_weight(own, user))
        elif between == "users" or group is None:
            out.append(given_weight(1.0, user) * part)
        else:
            active = {u for _, u in there if u in group[1]}
            out.append(group[0] * OF_USER[user] / sum(OF_USER[u] for u in sorted(active)) * part)
    return out


def fresh(between: str) -> State:
    state = State(BOOK, Settings())
    for machine in machines(4).machines:
        state.add_machine(machine)
    set_unit(state, FairnessSet(between=between, groups=GROUPS))
    return state


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), between=st.sampled_from(BETWEEN))
def test_weights_and_contention_are_those_of_the_definition(seed: int, between: str) -> None:
    """Apps come, end, are held and resumed at random; N_avg is compared with the integral taken step by step."""
    rng = np.random.default_rng(seed)
    state, own, integral, life = fresh(between), [], [], []
    for _ in range(25):
        passed = float(rng.exponential(10.0))
        contend = [a for a in range(len(own)) if state.apps.active[a] and not state.apps.held[a]]
        weight = state.apps.weight[: len(own)]
        assert weight[contend] == pytest.approx(expected(between, [own[a] for a in contend]), rel=1e-9)
        assert state.weight_in_system == pytest.approx(float(weight[contend].sum()), abs=1e-9)
        for a in contend:
            integral[a] += passed * state.weight_in_system / float(weight[a])
            life[a] += passed
        state.advance(state.now + passed)
        held = [a for a in range(len(own)) if state.apps.held[a]]
        match int(rng.integers(4)):
            case 0 if contend:
                finish_app(state, int(rng.choice(contend)), "completed")
            case 1 if contend:
                set_aside(state, int(rng.choice(contend)))
            case 2 if held:
                take_back(state, int(rng.choice(held)))
            case _:
                own.append((float(rng.choice([0.37, 1 / 3, 7.0, 1.0])), str(rng.choice(list(OF_USER)))))
                name, (mine, user) = f"a{len(own)}", own[-1]
                spec = app(name, [job(100.0)], state.now, user=user, weight=mine)
                add_app(state, spec, given_weight(mine, user))
                integral.append(0.0)
                life.append(0.0)
    there = np.array([a for a in range(len(own)) if state.apps.active[a] and not state.apps.held[a] and life[a] > 0])
    if len(there):
        mean, _ = state.averages(there)
        assert mean == pytest.approx([integral[a] / life[a] for a in there], rel=1e-6)


@pytest.mark.parametrize("between", BETWEEN)
def test_a_log_replays_and_a_saved_state_goes_on_alike(between: str, tmp_path: Path) -> None:
    run = Simulation(
        workload=random_workload(3),
        cluster=machines(4, 4),
        book=BOOK,
        policy_name="themis",
        policy=make_policy("themis"),
        settings=Settings(between=between, validate=True),
    )
    path, kinds = tmp_path / "run.jsonl", []
    with LogWriter(path) as log:
        core = run.run(lambda time, record: (kinds.append(type(record)), log(time, record)))  # type: ignore[func-returns-value]
    again = replay(path, BOOK)
    assert again.difference is None
    assert again.core.state.between == between
    assert np.array_equal(again.core.state.apps.f, core.state.apps.f, equal_nan=True)
    assert (FairnessSet in kinds) == (between != "apps")


def test_a_saved_state_keeps_the_unit() -> None:
    def core() -> Scheduler:
        policy = make_policy("drf")
        return Scheduler(BOOK, Settings(validate=True), policy.pace)

    one = core()
    for machine in machines(2).machines:
        one.step(MachineJoined(machine=machine), 0.0)
    one.step(FairnessSet(between="groups", groups=GROUPS), 0.0)
    for i, user in enumerate(("u0", "u0", "u1", "u2")):
        one.step(AppSubmitted(app=app(f"a{i}", [job(100.0)], user=user), weight=given_weight(1.0, user)), 0.0)
    other = load(save(one), core())
    for each in (one, other):
        each.step(AppHeld(app=1), 7.0)
        each.step(AppResumed(app=1), 9.0)
    assert np.array_equal(one.state.apps.f, other.state.apps.f, equal_nan=True)
    assert other.state.groups == one.state.groups
    assert one.state.weight_in_system == pytest.approx(3.37)


def test_a_change_of_the_unit_keeps_what_was_until_then() -> None:
    """Users of 1 and 3 apps: between apps N is 4 for all; between users 2 for the first app and 6 for the others."""
    state = fresh("apps")
    for i in range(4):
        add_app(state, app(f"a{i}", [job(100.0)], user=f"u{min(i, 1)}"), 1.0)
    state.advance(100.0)
    set_unit(state, FairnessSet(between="users"))
    state.advance(200.0)
    assert state.averages(np.arange(4))[0] == pytest.approx([3.0, 5.0, 5.0, 5.0])


def test_groups_of_a_workload() -> None:
    users = (
        User(name="a", group="g"),
        User(name="b"),
        User(name="c", weight=2.0, group="h"),
        User(name="d", group="g"),
    )
    assert members(users, (Group(name="g", weight=0.37),)) == (("g", 0.37, ("a", "d")), ("h", 1.0, ("c",)))
    spec = App(name="x", user="a", arrival=0.0, jobs=(job(1.0),))
    assert Workload(name="w", apps=(spec,), users=users, source="test").members()[1] == ("h", 1.0, ("c",))


def test_an_unknown_unit_is_refused_in_a_sentence() -> None:
    with pytest.raises(UnknownName, match="between"):
        make_settings({"between": "user"}, seed=0)
    assert make_settings({"between": "users"}, seed=0).between == "users"


def test_the_account_of_a_user_outlives_its_apps() -> None:
    """Two users on four GPUs; the first has one app after another on two GPUs, so it had just its half."""
    state = fresh("users")
    for name, user in (("a", "x"), ("b", "y"), ("c", "y")):
        add_app(state, app(name, [job(1000.0, 2)], user=user), 1.0)
    state.lease(0, (0, 1), 0, 1e9, state.locality((0, 1)))
    state.advance(100.0)
    add_app(state, app("d", [job(1000.0, 2)], user="x"), 1.0)
    state.release(0, END)
    finish_app(state, 0, "completed")
    state.advance(150.0)
    received, entitled, rate = balance(state, np.array([3, 1, 2]))
    assert received.tolist() == [200.0, 0.0, 0.0]
    assert entitled == pytest.approx([300.0, 300.0, 300.0])
    assert rate == pytest.approx([2.0, 2.0, 2.0])
    finish_app(state, 3, "completed")
    add_app(state, app("e", [job(1000.0, 2)], user="x"), 1.0)
    assert balance(state, np.array([4]))[0].tolist() == [0.0]
