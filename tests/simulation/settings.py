"""Settings that the operator changes while the service runs: how they are drawn, and what must be in force after each start."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulation.disk import MOMENTS
from simulation.plan import ACTIVE_S, POLICIES, Action, Event, Fault
from themis.errors import InputError
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Budget, Config, GroupSettings
from themis.service.engine.setting_changes import values_of
from themis.service.operations.changing import changed

if TYPE_CHECKING:
    from simulation.world import World

USERS = ("u0", "u1", "u2")

CHARGED = ("price", "currency", "others.budget")
"""Settings of what is charged, by the beginning of their names."""


# ---- drawn ---------------------------------------------------------------------------------------------------------------


def draw_changes(seed: int, machines: tuple[int, ...]) -> list[Event]:
    """Changes of settings, in two of three histories; half of them with a crash in their transaction or soon after it.

    They have random numbers of their own, so that the rest of a seed's plan is the same with and without them.
    """
    rng = np.random.default_rng([seed, 2])
    out: list[Event] = []
    if rng.random() < 1 / 3:
        return out
    for _ in range(int(rng.integers(1, 5))):
        at = float(rng.uniform(0.5, ACTIVE_S))
        if rng.random() < 0.5:
            moment, count = str(rng.choice(MOMENTS)), int(rng.integers(10))
            out.append(Fault(at=at, what="service crashes", moment=moment, count=count))
        texts = [_change(rng, machines) for _ in range(int(rng.choice([1, 1, 2, 3])))]
        # Each setting once.
        target = " ".join({text.partition("=")[0]: text for text in texts}.values())
        out.append(Action(at=at, what="set", target=target))
    if rng.random() < 0.3:
        at = float(rng.uniform(2.0, ACTIVE_S))
        price, hours = rng.choice([0.0, 0.1, 2.5]), rng.choice([0.0005, 0.002, 0.01])
        target = f"price={price:g}" if rng.random() < 0.5 else f"price={price:g} budget={hours:g}"
        out.append(Action(at=at, what="configure", target=target))
        out.append(Fault(at=at, what=str(rng.choice(["service killed", "service stops in good order"]))))
    return out


def draw_edits(seed: int, machines: tuple[int, ...]) -> list[Event]:
    """Edits of the settings file, in one of three histories; most are read again while the service runs, some at its next start."""
    rng = np.random.default_rng([seed, 3])
    out: list[Event] = []
    if rng.random() < 2 / 3:
        return out
    for _ in range(int(rng.integers(1, 4))):
        at = float(rng.uniform(0.5, ACTIVE_S))
        texts = [_edit(rng, machines) for _ in range(int(rng.choice([1, 2])))]
        out.append(
            Action(at=at, what="edit", target=" ".join({text.partition("=")[0]: text for text in texts}.values()))
        )
        if rng.random() < 0.7:
            at += float(rng.exponential(0.5))
            if rng.random() < 0.5:
                moment, count = str(rng.choice(MOMENTS)), int(rng.integers(10))
                out.append(Fault(at=at, what="service crashes", moment=moment, count=count))
            out.append(Action(at=at, what="reload", target="the settings file"))
    return out


def _edit(rng: np.random.Generator, machines: tuple[int, ...]) -> str:
    user, group = str(rng.choice(USERS)), str(rng.choice(["g0", "g1"]))
    match int(rng.integers(6)):
        case 0:
            return f"policy={rng.choice(POLICIES)}"
        case 1:
            return f"lease={rng.choice([5, 6, 12])}"
        case 2:
            return f"machines.m{rng.integers(len(machines))}.gpus={rng.integers(1, 5)}"
        case 3:
            return f"users.{user}.weight={rng.choice([0.1, 0.37, 1, 3])}"
        case 4:
            return f"groups.{group}.weight={rng.choice([1 / 3, 1, 7])} users.{user}.group={group}"
        case _:
            return f"groups.{group}.weight={rng.choice([0.37, 2])} groups.{group}.gpus={rng.integers(1, 4)}"


def _change(rng: np.random.Generator, machines: tuple[int, ...]) -> str:
    n, user = int(rng.integers(len(machines) + 1)), str(rng.choice(USERS))
    match int(rng.integers(10)):
        case 0 | 1:
            return f"policy={rng.choice(POLICIES)}"
        case 2:
            return f"lease={rng.choice([1, 4, 6, 12])}"
        case 3:
            return f"tick={rng.choice([1, 2, 5])}"
        case 4 | 5 | 6:
            return f"machines.m{n}.gpus={rng.integers(1, 5)}"
        case 7:
            return f"machines.m{n}=none"
        case 8:
            return f"users.{user}.weight={rng.choice([0.1, 0.37, 1, 3])}"
        case _:
            return str(rng.choice([f"users.{user}.gpus={rng.integers(1, 4)}", "others.gpus=1", "between=apps"]))


# ---- carried out ---------------------------------------------------------------------------------------------------------


def configured(config: Config, target: str) -> Config:
    """What the next start is given: prices, and a budget of each user."""
    texts = _texts(target)
    budget = Budget(hard=float(texts["budget"]), per="total") if "budget" in texts else None
    return replace(config, prices={"*": float(texts["price"])}, currency="EUR", others=GroupSettings(budget=budget))


@dataclass(frozen=True, slots=True)
class Known:
    """All settings after a change: its number, the values in force, and what the file said when it was read last."""

    number: int
    values: dict[str, Any]
    given: dict[str, Any]

    def reading(self, file: dict[str, Any]) -> Known:
        """After a start, or a reload, with this file: what it says otherwise than before is in force, all else stays."""
        names = {*file, *self.given}
        new = {name: file.get(name) for name in names if file.get(name) != self.given.get(name)}
        values = _there({**self.values, **new})
        members = {name.rpartition(".")[0] for name in values if name.startswith(("users.", "groups."))}
        return Known(self.number, {f"{member}.weight": 1.0 for member in members} | values, file)


@dataclass
class Settings:
    """What changes were carried out, and which of them were acknowledged.

    Attributes
    ----------
    known : the changes that may be in force after the next start, in the order they were made.
    acknowledged : number of the last change that was.
    """

    world: World
    known: list[Known] = field(default_factory=list)
    started: bool = False
    made: int = 0
    acknowledged: int = 0

    @property
    def changed(self) -> bool:
        """A setting may be in force that refuses a submission: machines are too small, or a budget is used up."""
        edited = any(isinstance(event, Action) and event.what == "edit" for event in self.world.plan.events)
        return bool(self.made) or edited or self.world.service.config.others.budget is not None

    def edit(self, target: str) -> None:
        """The operator changes the file that the service reads at its start, or when it is told to."""
        service = self.world.service
        try:
            service.config = changed(service.config, _texts(target))
        except InputError as error:
            self.world.tell(f"edit {target} is refused: {error}")

    def change(self, arbiter: Arbiter, target: str) -> int:
        """``themis set``, in the arbiter's thread; returns its number."""
        return self._made(
            arbiter, target, lambda: arbiter.change(lambda config: changed(config, _texts(target)), "operator")
        )

    def reload(self, arbiter: Arbiter) -> int:
        """``themis set --reload``, in the arbiter's thread; returns its number."""
        config = self.world.service.config
        expected = [known.reading(plain(config)) for known in self.known if known.number == self.known[-1].number]
        number = self._made(arbiter, "the file", lambda: arbiter.live.reload(config, "operator", arbiter.instant))
        found = self.known[-1]
        self.world.checks.require(
            any(found.values == known.values for known in expected),
            lambda: f"after a reload, {_apart(expected[-1].values, found.values)}",
        )
        self.known[-1] = replace(found, given=expected[-1].given)
        return number

    def _made(self, arbiter: Arbiter, target: str, change: Callable[[], object]) -> int:
        before, written = plain(arbiter.config), arbiter.journal.changes
        try:
            change()
        except InputError:
            same = plain(arbiter.config) == before and arbiter.journal.changes == written
            self.world.checks.require(same, lambda: f"{target} was refused and changed something")
            raise
        self.made += 1
        self.known.append(Known(self.made, plain(arbiter.config), self.known[-1].given))
        return self.made

    def acknowledge(self, number: int) -> None:
        """The operator has the answer: this change holds from now on, or a later one."""
        self.acknowledged = max(self.acknowledged, number)

    def before_start(self) -> None:
        """The first start keeps what the file says; whether it got so far, only the next one shows."""
        if not self.started:
            file = plain(self.world.service.config)
            self.known.append(Known(0, file, file))

    def after_start(self, arbiter: Arbiter, require: Callable[[bool, Callable[[], str]], None]) -> None:
        """In force is what was acknowledged last, or a later change, whole; and machines and policy are those of the settings."""
        now, config, state = plain(arbiter.config), arbiter.config, arbiter.state
        may = [known for known in self.known if known.number >= self.acknowledged]
        found = [known for known in may if known.values == now]
        require(
            bool(found), lambda: f"after a start, settings are not those acknowledged: {_apart(may[0].values, now)}"
        )
        self.started = True
        # What the file says otherwise than before is the first change that this start makes.
        file = plain(self.world.service.config)
        self.known = [*found, *(known.reading(file) for known in found)]
        assert config.cluster is not None
        wanted = {machine.name: machine.gpus for machine in config.cluster.machines}
        there = {machine.name: int(size) for machine, size in zip(state.machines, state.machine_size) if size}
        require(there == wanted, lambda: f"the machines are {there}, the settings say {wanted}")
        policy = state.policy[0] if state.policy else self.world.plan.policy
        require(policy == config.policy, lambda: f"the policy is {policy}, the settings say {config.policy}")
        core = state.settings.lease_s, state.settings.tick_s
        require(core == (config.lease_s, config.tick_s), lambda: f"lease and tick of the core are {core}: {config}")

    def put_back(self) -> None:
        """After all faults the operator lets every app run: machines as at first, no quotas, no budgets."""
        world = self.world
        kinds = {event.what for event in world.plan.events if isinstance(event, Action)}
        if not kinds & {"set", "configure", "edit"}:
            return
        if "edit" in kinds:
            world.service.config = world.service.configured()
            world.users.does(Action(at=world.now, what="reload", target="the settings file"))
        sizes = [f"machines.m{n}.gpus={gpus}" for n, gpus in enumerate(world.plan.machines)]
        lifted = [f"users.{user}.gpus=none" for user in USERS]
        target = " ".join([*sizes, *lifted, "others.gpus=none", "lease=8", "tick=1"])
        world.users.does(Action(at=world.now, what="set", target=target))
        if world.service.config.others.budget is not None:
            world.service.config = replace(world.service.config, others=GroupSettings())
            world.service.stop()


def plain(config: Config) -> dict[str, Any]:
    """All settings but those of what is charged, which starts are given, as JSON keeps them."""
    return _there(dict(json.loads(json.dumps(values_of(config)))))


def _there(values: dict[str, Any]) -> dict[str, Any]:
    """Without settings that have no value, and without those of what is charged."""
    return {name: value for name, value in values.items() if value is not None and not name.startswith(CHARGED)}


def _texts(target: str) -> dict[str, str]:
    return dict(part.split("=") for part in target.split())


def _apart(expected: dict[str, Any], found: dict[str, Any]) -> str:
    names = [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    return "; ".join(f"{name} is {found.get(name)}, acknowledged was {expected.get(name)}" for name in names)
