"""Settings, machines and policy of an arbiter that change while it runs, and at its next start."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake import World, request, world

from audit import audit, engine_over
from themis.cli.report import replay_home
from themis.errors import InputError
from themis.machines.engines.hosts import Host
from themis.model.cluster import Cluster, Machine
from themis.model.events import GpusWithheld, Grant, JobStopped, Renew, SettingsChanged
from themis.model.speed import Profile
from themis.model.units import Locality
from themis.service.api import views
from themis.service.api.prometheus import _of_state
from themis.service.api.submission import submit
from themis.service.engine.config import Config, UserSettings
from themis.service.engine.folding import fold
from themis.service.engine.machine_changes import host_name
from themis.service.engine.setting_changes import values_of, with_values
from themis.service.operations.changing import changed
from themis.traces.profiles.models import DEFAULT_BOOK


def put(w: World, user: str = "ann", **texts: object) -> list[str]:
    """As ``themis set`` does."""
    given = {name.replace("__", "."): str(value) for name, value in texts.items()}
    return w.ask(lambda a: a.change(lambda config: changed(config, given), user))  # type: ignore[no-any-return]


def enter(w: World, name: str = "a", **more: Any) -> None:
    w.ask(lambda a: submit(a, request(name, **more)))


def cluster(*gpus: int) -> Cluster:
    return Cluster(name="test", machines=tuple(Machine(name=f"m{n}", gpus=g) for n, g in enumerate(gpus)))


def size(w: World) -> int:
    return int(w.arbiter.state.machine_size.sum())


def whole(home: Path) -> None:
    """The journal folds to the last bit, from its beginning and from its snapshots, and replays."""
    audit(home / "journal.db")
    assert replay_home(home, None).difference is None


def test_a_change_is_a_record_with_who_and_when_and_holds_from_the_next_lease_on(tmp_path: Path) -> None:
    with world(tmp_path, gpus=2, lease_s=4.0) as w:
        enter(w)
        first = float(w.arbiter.state.jobs.until[0])
        assert put(w, policy="drf", lease="2s") == ["lease: 4s -> 2s", "policy: fair_finish -> drf"]
        assert float(w.arbiter.state.jobs.until[0]) == first, "a lease that runs keeps its length"
        w.turn(5.0)
        renewed = [c for c in w.executor.commands if isinstance(c, Renew)][-1]
        assert renewed.until - w.arbiter.state.now <= 2.0
        (record,) = [r for _, r in w.arbiter.journal.records() if isinstance(r, SettingsChanged)]
        assert (record.user, record.policy, record.settings) == ("ann", "drf", {"lease_s": 2.0})
        assert record.values == {"lease": 2.0, "policy": "drf"}
        assert type(w.arbiter.engine.policy).__name__.lower() == "drf"
        assert put(w, policy="drf") == []
    whole(tmp_path)


def test_what_was_set_outlives_the_next_start_unless_that_is_given_something_new(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, gpus=2, clock=clock) as w:
        put(w, policy="drf", lease="3s")
    with world(tmp_path, gpus=2, clock=clock) as w:
        w.turn()
        assert (w.arbiter.config.policy, w.arbiter.settings.lease_s) == ("drf", 3.0)
        assert [line.partition(",")[0] for line in w.arbiter.live.starting] == [
            "lease stays 3s",
            "policy stays drf",
        ]
    with world(tmp_path, gpus=2, clock=clock, policy="tiresias") as w:
        w.turn()
        assert w.arbiter.live.starting[0] == "policy: drf -> tiresias"
        assert (w.arbiter.config.policy, w.arbiter.settings.lease_s) == ("tiresias", 3.0)
    with world(tmp_path, gpus=2, clock=clock, policy="tiresias") as w:
        w.turn()
        assert [r.user for _, r in w.arbiter.journal.records() if isinstance(r, SettingsChanged)] == ["ann", ""]
    whole(tmp_path)


def test_the_default_policy_of_a_later_version_is_a_recorded_change(tmp_path: Path) -> None:
    """A service whose settings named no policy began with the auction, the default then; jobs are in the system."""
    clock = [1000.0]
    with world(tmp_path, gpus=2, clock=clock, policy="themis") as w:
        enter(w, "a", jobs=2, gpus=(2, 2))
        enter(w, "b")
        w.turn(3.0)
    with world(tmp_path, gpus=2, clock=clock) as w:
        w.turn(0.1)
        assert w.arbiter.live.starting == ["policy: themis -> fair_finish"]
        w.turn(5.0)
        enter(w, "c")
        w.turn(5.0)
        assert (w.arbiter.config.policy, Config().policy) == ("fair_finish", "fair_finish")
        (record,) = [r for _, r in w.arbiter.journal.records() if isinstance(r, SettingsChanged)]
        assert (record.policy, record.values) == ("fair_finish", {"policy": "fair_finish"})
    whole(tmp_path)
    with world(tmp_path, gpus=2, clock=clock) as w:
        w.turn(0.1)
        assert (w.arbiter.config.policy, w.arbiter.live.starting) == ("fair_finish", [])
    with world(tmp_path, gpus=2, clock=clock, policy="themis") as w:
        w.turn(0.1)
        assert (w.arbiter.config.policy, w.arbiter.live.starting) == ("themis", ["policy: fair_finish -> themis"])
    whole(tmp_path)


def test_members_and_prices_that_a_later_start_gives_first_are_recorded(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, gpus=2, clock=clock) as w:
        w.turn()
    more = {"users": {"bob": UserSettings(weight=1 / 3)}, "prices": {"*": 2.5}}
    with world(tmp_path, gpus=2, clock=clock, **more) as w:
        w.turn()
        changed = [r for _, r in w.arbiter.journal.records() if isinstance(r, SettingsChanged)]
        assert [{k: r.values[k] for k in ("users.bob.weight", "price.*")} for r in changed] == [
            {"users.bob.weight": 1 / 3, "price.*": 2.5}
        ]
        assert w.arbiter.config.prices == {"*": 2.5}
    with world(tmp_path, gpus=2, clock=clock) as w:
        w.turn()
        assert w.arbiter.config.prices == {}
        assert w.arbiter.config.users == {}
    whole(tmp_path)


def test_machines_of_the_next_start_join_grow_shrink_and_go(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 4, 2, clock=clock) as w:
        for name in "abcdef":
            enter(w, name)
    with world(tmp_path, 3, clock=clock) as w:
        w.turn(0.1)
        assert size(w) == 3
        assert all(g < 3 for gpus in w.held().values() for g in gpus)
        assert w.executor.sizes == {0: 3, 1: 0}
        w.turn(5.0)
        assert len(w.held()) == 3
        assert [row.name for row in views.nodes(w.arbiter).nodes] == ["m0"]
    with world(tmp_path, 6, 2, clock=clock) as w:
        w.turn(0.1)
        assert sorted(g for gpus in w.held().values() for g in gpus) == [0, 1, 2, 3, 4, 5] or len(w.held()) == 6
        assert w.executor.joined[0].gpus == 4, "as it joined, so that GPUs keep their ids"
        assert w.arbiter.state.gpus_of == [[0, 1, 2, 3, 6, 7], [4, 5]]
    with world(tmp_path, 6, 2, clock=clock) as w:
        w.turn(0.1)
        assert w.executor.sizes == {0: 6}
        assert w.arbiter.live.starting == []
    whole(tmp_path)


def test_several_machines_and_keys_of_a_user_change_at_once_and_new_gpus_are_leased_and_charged(tmp_path: Path) -> None:
    with world(tmp_path, cluster=cluster(1, 1)) as w:
        put(
            w, machines__m0__gpus=3, machines__m1="none", machines__m2__gpus=2, users__ann__gpus=4, users__ann__weight=2
        )
        assert w.arbiter.state.machine_size.tolist() == [3, 0, 2]
        assert w.arbiter.config.users == {"ann": UserSettings(weight=2.0, gpus=4)}
        for name in "abcde":
            enter(w, name)
        w.turn(1.0)
        assert sorted(gpu for gpus in w.held().values() for gpu in gpus) == [0, 2, 3, 4, 5]
    whole(tmp_path)


def test_a_machine_joins_the_one_that_gpus_stands_for(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, gpus=2, clock=clock) as w:
        enter(w)
        held, name = w.held(), host_name()
        lines = put(w, machines__m1__gpus=4)
        assert lines == [
            "gpus: 2 -> 0",
            f"machines: none -> {name} with 2 GPUs, m1 with 4 GPUs",
            "machine m1 joins with 4 GPUs",
        ]
        assert w.held() == held, "its job runs on"
    with world(tmp_path, gpus=2, clock=clock) as w:
        (line,) = w.arbiter.live.starting
        assert line.startswith(f"gpus stays 0 (machines: {name} with 2 GPUs, m1 with 4 GPUs), as ann set it on ")
        assert line.endswith("; `themis set gpus=2` changes it.")
        assert put(w, gpus=2) == [
            "gpus: 0 -> 2",
            f"machines: {name} with 2 GPUs, m1 with 4 GPUs -> none",
            "machine m1 is removed; its jobs continue elsewhere",
        ]
        nodes = next(figure for figure in _of_state(w.arbiter) if figure[1] == "themis_nodes")
        assert dict(nodes[-1])["lost",] == 0.0, "a removed machine is not a lost one"
    whole(tmp_path)


def test_a_removed_machine_is_listed_until_its_last_job_has_ended(tmp_path: Path) -> None:
    with world(tmp_path, cluster=cluster(1, 1), silent=True) as w:
        enter(w, "a")
        enter(w, "b")
        assert len(w.held()) == 2
        lines = put(w, machines__m1="none")
        assert "machine m1 is removed; its jobs continue elsewhere" in lines
        with pytest.raises(InputError, match=r"node m1 was removed; `themis set machines\.m1\.gpus=N` puts it back"):
            w.ask(lambda a: a.drain(1, False))
        rows = {row.name: row.state for row in views.nodes(w.arbiter).nodes}
        assert rows == {"m0": "up", "m1": "leaving"}
        (job,) = w.arbiter.engine.core.stopping
        w.say(JobStopped(job=job, attempt=1, steps=3.0))
        assert [row.name for row in views.nodes(w.arbiter).nodes] == ["m0"]
        put(w, machines__m1__gpus=2)
        w.turn(0.1)
        assert size(w) == 3
        assert {row.name: row.gpus for row in views.nodes(w.arbiter).nodes} == {"m0": 1, "m1": 2}
    whole(tmp_path)


def test_an_app_that_no_longer_fits_is_named_and_waits(tmp_path: Path) -> None:
    with world(tmp_path, gpus=4) as w:
        enter(w, "big", gpus=(4, 4))
        assert any("'big'" in line and "waits" in line for line in put(w, gpus=2))
        assert w.held() == {}
        put(w, gpus=5)
        w.turn(0.1)
        assert len(w.held()[0]) == 4
    whole(tmp_path)


def test_weights_and_quotas_hold_for_apps_that_are_there(tmp_path: Path) -> None:
    with world(tmp_path, gpus=4) as w:
        for name in "abcd":
            enter(w, name, user="ann" if name < "c" else "bob")
        put(w, users__ann__weight=3, users__ann__gpus=1, groups__ml__weight=2)
        put(w, users__bob__group="ml")
        s = w.arbiter.state
        assert s.apps.given[:4].tolist() == [3.0, 3.0, 2.0, 2.0]
        assert s.apps.weight[:4].tolist() == [1.5, 1.5, 1.0, 1.0], "a user's share is divided among the user's apps"
        assert s.quotas == {"user ann": (("ann",), 1)}
        w.turn(5.0)
        assert sum(int(s.jobs.gpus[j]) for j in w.held() if s.app_specs[int(s.jobs.app[j])].user == "ann") == 1
        put(w, users__ann="none", others__weight=0.5)
        assert s.apps.given[:4].tolist() == [0.5, 0.5, 2.0, 2.0]
        assert s.quotas == {}
    whole(tmp_path)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"gpus": 0}, "gpus is 0, expected at least 1 GPU"),
        ({"gpus": "x"}, "setting gpus: gpus is 'x', expected"),
        ({"policy": "dfr"}, "unknown policy 'dfr'. Did you mean 'drf'"),
        ({"policy": "themis:g=1"}, "unknown parameter of policy themis 'g'"),
        ({"lease_s": -1}, "setting lease: lease is -1, expected"),
        ({"lease": "1ms"}, "lease is 0.001 s, shorter than tick"),
        ({"leese": 3}, "unknown setting 'leese'. Did you mean 'lease'"),
        ({"port": 1}, "port changes only when the service starts"),
        ({"lease": 5, "lease_s": 6}, "give each setting once"),
        ({"gpus": 5, "machines__m1__gpus": 2}, "give each setting once"),
        ({"users__ann__weight": 5, "users__ann": "none"}, "give each setting once"),
        ({"users__ann__wieght": 2}, "unknown setting 'users.ann.wieght'. Did you mean 'weight'"),
        ({"users__ann__weight": 0}, "weight is 0, expected a number from 1e-06 to 1000000"),
        ({"users__ann__group": "ml"}, "unknown group 'ml'"),
        ({"users__zoe": "none"}, "unknown user 'zoe'"),
        ({"machines": "2by2"}, "unknown cluster '2by2'"),
        ({"machines__m9": "none"}, "unknown machine 'm9'"),
        ({"policy": "drf", "gpus": 0}, "gpus is 0"),
        ({}, "nothing to set was given"),
    ],
)
def test_wrong_input_is_one_sentence_and_changes_nothing(
    tmp_path: Path, texts: dict[str, object], message: str
) -> None:
    with world(tmp_path, gpus=2) as w:
        enter(w)
        before, config = w.arbiter.journal.last(), w.arbiter.config
        with pytest.raises(InputError) as error:
            put(w, **texts)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert w.arbiter.config == config
        w.turn()
        assert w.arbiter.journal.last()[0] == before[0]


def test_two_administrators_at_the_same_time_both_have_their_change(tmp_path: Path) -> None:
    from concurrent.futures import Future

    from themis.service.engine.pending_calls import Call

    with world(tmp_path, gpus=2) as w:
        replies: list[Future[Any]] = []
        for user, texts in (("ann", {"lease": "5s"}), ("bob", {"policy": "drf"}), ("ann", {"lease": "7s"})):
            reply: Future[Any] = Future()
            replies.append(reply)
            w.arbiter.queue.put(
                Call(lambda u=user, t=texts: w.arbiter.change(lambda config: changed(config, t), u), reply)
            )
        w.turn()
        assert [reply.result(0) for reply in replies] == [
            ["lease: 2s -> 5s"],
            ["policy: fair_finish -> drf"],
            ["lease: 5s -> 7s"],
        ]
        assert (w.arbiter.settings.lease_s, w.arbiter.config.policy) == (7.0, "drf")
        assert {k: v[2] for k, v in w.arbiter.state.changed.items()} == {"lease": "ann", "policy": "bob"}
    whole(tmp_path)


def test_every_setting_survives_being_spelled() -> None:
    config = with_values(
        Config(),
        {
            "machines": {"name": "x", "machines": [{"name": "m", "gpus": 2}]},
            "users.a.b.weight": 2.0,
            "users.a.b.group": "g",
            "users.a.b.gpus": 3,
            "groups.g.weight": 0.37,
            "groups.g.gpus": 0,
            "others.gpus": 4,
        },
    )
    assert with_values(Config(), values_of(config)) == config
    assert config.weight("a.b") == 2.0 * 0.37
    assert config.quotas("zoe") == {"user zoe": (frozenset({"zoe"}), 4)}
    assert os.linesep not in str(values_of(config))


def test_a_fold_knows_the_settings_in_force(tmp_path: Path) -> None:
    with world(tmp_path, gpus=2) as w:
        put(w, lease="5s", policy="themis:f=0.4")
        for full in (True, False):
            engine = engine_over(w.arbiter.journal)
            fold(engine, whole=full)
            assert engine.core.settings.lease_s == 5.0
            assert engine.policy == w.arbiter.engine.policy
            assert engine.core.pace == w.arbiter.engine.core.pace
        enter(w)
        assert any(isinstance(c, Grant) for c in w.executor.commands)


def test_a_real_gpu_keeps_its_place_while_a_job_may_be_on_it(tmp_path: Path) -> None:
    """One of four is lost, and another one found: nobody gets a GPU that a gang of the last start still has."""
    clock = [1000.0]

    def node(*devices: str) -> list[Host]:
        return [Host(machine=Machine(name="node", gpus=len(devices)), devices=devices)]

    with world(tmp_path, clock=clock, hosts=node("A", "B", "C", "D")) as w:
        for name in "abcd":
            enter(w, name)
    with world(tmp_path, clock=clock, hosts=node("A", "C", "D", "E"), silent=True) as w:
        w.turn(0.1)
        assert w.executor.devices == {"node": ("A", "B", "C", "D", "E")}
        (withheld,) = w.arbiter.state.withheld.values()
        assert withheld == ((1,), (), "not found at the last start: B")
        w.say(GpusWithheld(machine=0, gpus=(2,), pids=(7,), reason="busy"))
        assert w.arbiter.state.withheld[0] == ((1, 2), (7,), "busy; not found at the last start: B")
        assert size(w) == 5
        for job in range(4):
            w.ask(lambda a, job=job: a.cancel(job))
            w.say(JobStopped(job=job, attempt=int(w.arbiter.state.jobs.attempt[job]), steps=1.0))
    with world(tmp_path, clock=clock, hosts=node("A", "C", "D", "E")) as w:
        w.turn(0.1)
        assert w.executor.devices == {"node": ("A", "C", "D", "E")}, "nothing runs there, so all is as it was found"
        assert size(w) == 4
    whole(tmp_path)


def test_other_profiles_hold_from_the_start_that_is_given_them(tmp_path: Path) -> None:
    clock = [1000.0]
    model = "ResNet50"
    twice = faster(DEFAULT_BOOK.get(model))
    with world(tmp_path, gpus=2, clock=clock) as w:
        made = request("a")
        made.jobs[0].model = model
        w.ask(lambda a: submit(a, made))
        before = w.arbiter.book.rate(model, 0, "gpu", 1, Locality.SLOT)
        step = float(w.arbiter.state.jobs.serial[0])
    for start in range(3):
        book = DEFAULT_BOOK.with_profiles([twice]) if start else DEFAULT_BOOK
        with world(tmp_path, gpus=2, clock=clock, book=book) as w:
            w.turn(0.1)
            assert w.arbiter.live.starting == ([f"profiles: other speeds of {model}"] if start == 1 else [])
            rate = w.arbiter.book.rate(model, 0, "gpu", 1, Locality.SLOT)
            assert rate == pytest.approx(before * (2 if start else 1))
            assert w.arbiter.state.jobs.serial[0] == step, "the unit of its work stays"
    whole(tmp_path)
    with world(tmp_path, gpus=2, clock=clock) as w:
        w.turn(0.1)
        assert w.arbiter.live.starting == [f"profiles: other speeds of {model}"]
        assert w.arbiter.book.rate(model, 0, "gpu", 1, Locality.SLOT) == pytest.approx(before)


def faster(profile: Profile) -> Profile:
    """Twice as fast on every GPU type."""
    curves = {key: replace(curve, rate=tuple(2 * r for r in curve.rate)) for key, curve in profile.curves.items()}
    return replace(profile, curves=curves)
