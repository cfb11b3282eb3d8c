"""How an arbiter begins, and how it goes on after it ended or was killed.

It folds its journal, hands the executor every gang that may still hold GPUs, and repeats the revocations of those that should
stop. The executor then reports what runs; jobs of gangs that are gone wait for another lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from themis import __version__
from themis.client import themis_pb2 as pb
from themis.core.scheduler import Scheduler
from themis.errors import InputError
from themis.executors.program import Program
from themis.model.cluster import Machine
from themis.model.events import SCHEMA, Header, MachineJoined
from themis.model.settings import EARLIER, Settings
from themis.policies.api import forecaster_of, logged_params, make_policy
from themis.profiles.speed import ProfileBook
from themis.service.engine.config import Config
from themis.service.engine.engine import Engine
from themis.service.engine.executor import LiveExecutor
from themis.service.engine.folding import fold
from themis.service.engine.journal import Journal
from themis.service.engine.speeds import read_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What an arbiter is started with, as far as its journal has to agree.

    Attributes
    ----------
    machines : in order; none where nodes of an engine join by themselves.
    fingerprint : of the profiles without those that came with submissions.
    """

    config: Config
    settings: Settings
    machines: Sequence[Machine]
    fingerprint: str

    @property
    def core_settings(self) -> dict[str, float]:
        """The settings that the journal's header has."""
        names = ("lease_s", "tick_s", "container_s", "gather_s", "checkpoint_every_s", "renew_idle", "shortest_lease_s")
        return {name: getattr(self.settings, name) for name in names}


def begin(engine: Engine, start: Start, wall: float) -> None:
    """Write the beginning of a fresh journal: header and machines; ``wall`` is now, in seconds since 1970."""
    config, journal = start.config, engine.journal
    known = config.cluster.name if config.cluster else "this machine"
    header = Header(
        schema=SCHEMA,
        version=__version__,
        simulated=False,
        policy=config.policy,
        params=logged_params(engine.policy),
        seed=config.seed,
        workload="live",
        source=str(journal.path),
        cluster=config.engine if config.engine != "local" else known,
        settings=start.core_settings,
        profiles=start.fingerprint,
    )
    with journal.transaction():
        journal.set_meta("epoch", repr(wall))
        journal.compare_exactly()
        journal.append(0.0, header)
        engine.books.open(engine.core.state)
        for machine in start.machines:
            engine.feed(MachineJoined(machine=machine), 0.0)
        if config.between != engine.core.state.between:
            engine.feed(config.fairness(), 0.0)
        engine.advance(0.0)


def engine_over(journal: Journal, book: ProfileBook) -> Engine:
    """A fresh engine for a journal, by its header; ``book`` : what the service is started with.

    Raises
    ------
    InputError : the journal does not begin with a header.
    """
    _, header = next(journal.records(), (0.0, None))
    if not isinstance(header, Header):
        raise InputError(f"{journal.path} does not begin with a Header.")
    book = book.with_profiles(read_profile(name, pb.Profile.FromString(m)) for name, m in journal.profiles())
    policy = make_policy(header.policy)
    settings = Settings(**{**EARLIER, **header.settings}, seed=header.seed)
    return Engine(journal, Scheduler(book, settings, policy.pace, policy.needs, forecaster_of(policy)), policy)


def as_begun(journal: Journal, settings: Settings) -> Settings:
    """The settings of the core; a journal from before there was one of them goes on as it began."""
    _, header = next(journal.records(), (0.0, None))
    if not isinstance(header, Header):
        return settings
    return replace(settings, **{name: value for name, value in EARLIER.items() if name not in header.settings})


def recall(engine: Engine, start: Start) -> int:
    """Check that the journal is ours, then fold it; returns its records.

    Raises
    ------
    InputError : it was begun with other machines or settings, or another version of Themis wrote it.
    """
    journal, config = engine.journal, start.config
    _, header = next(journal.records())
    if not isinstance(header, Header):
        raise InputError(f"{journal.path} begins with a {type(header).__name__}, expected a Header.")
    then: dict[str, object] = {**EARLIER, **header.settings, "policy": header.policy, "seed": header.seed}
    now: dict[str, object] = {**start.core_settings, "policy": config.policy, "seed": config.seed}
    for name, value in now.items():
        if then.get(name) != value:
            key = name.removesuffix("_s")  # as people write it
            unit = " s" if key != name else ""
            raise _begun_with(journal, key, f"{then.get(name)}{unit}", f"{value}{unit}")
    if header.profiles != start.fingerprint:
        raise _begun_with(journal, "the models' profiles", header.profiles, start.fingerprint)
    count = fold(engine)
    with journal.transaction():
        journal.compare_exactly()
        engine.books.open(engine.core.state, [grant for grant, _, _ in engine.held()])
    machines = engine.core.state.machines
    # The nodes of an engine come and go; those that are there introduce themselves.
    if machines != list(start.machines) and config.engine == "local":
        raise _begun_with(journal, "machines", _sizes(machines), _sizes(start.machines))
    return count


def programs_of(engine: Engine) -> dict[str, tuple[Program, ...]]:
    """The programs of every app that has not ended, or of which a gang may still be ending, by the app's name."""
    state = engine.core.state
    ending = ", ".join(map(str, sorted({int(state.jobs.app[job]) for job in state.occupied})))
    return {entry.name: entry.programs for entry in engine.journal.apps(f"ended IS NULL OR app IN ({ending})")}


def hand_over(engine: Engine, executor: LiveExecutor, *, join: bool) -> set[int]:
    """Give the executor every app, the machines that are away, and the gangs that may run; returns the lost machines.

    ``join`` : also all machines, where the executor does not know them from its start.
    """
    state = engine.core.state
    # Of an app that was cancelled a gang may still be ending.
    ending = {int(state.jobs.app[job]) for job in state.occupied}
    for a in sorted({*np.flatnonzero(state.apps.active[: state.apps.size]).tolist()} | ending):
        executor.admit(int(state.apps.first_job[a]), state.app_specs[a])
    if join:
        for machine in state.machines:
            executor.join(machine)
    drained = engine.journal.drained()
    lost = {n for n, m in enumerate(state.machines) if not state.machine_up[n] and m.name not in drained}
    for n in sorted(lost):
        executor.restore_lost(n)
    for n in sorted(state.withheld):
        executor.restore_withheld(n)
    for grant, steps, started in engine.held():
        executor.restore(grant, steps, started=started)
        if grant.job in engine.core.stopping:
            executor.submit(engine.revokes[grant.job])
    return lost


def _begun_with(journal: Journal, name: str, then: object, now: object) -> InputError:
    return InputError(
        f"{journal.path} was begun with {name} {then}, now it is {now}; start the arbiter as before, or with another data "
        "directory."
    )


def _sizes(machines: Sequence[Any]) -> str:
    return ", ".join(f"{m.name} ({m.gpus} x {m.gpu_type})" for m in machines[:6]) + (
        " ..." if len(machines) > 6 else ""
    )
