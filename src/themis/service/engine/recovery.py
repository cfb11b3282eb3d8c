"""How an arbiter begins, and how it goes on after it ended or was killed.

It folds its journal, hands the executor every gang that may still hold GPUs, and says again which of them should stop;
machines then tell what is there, and what is not waits for another lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from themis import __version__
from themis.client import themis_pb2 as pb
from themis.core.scheduler import Scheduler
from themis.errors import InputError
from themis.model.events import SCHEMA, Header, MachineJoined
from themis.model.settings import EARLIER, Settings
from themis.policies.api import forecaster_of, logged_params, make_policy
from themis.service.engine.engine import Engine
from themis.service.engine.folding import fold
from themis.service.engine.speeds import read_profile

if TYPE_CHECKING:
    from themis.profiles.speed import ProfileBook
    from themis.service.engine.arbiter import Arbiter
    from themis.service.engine.journal import Journal


def begin(arbiter: Arbiter, wall: float) -> None:
    """Write the beginning of a fresh journal: header and machines; ``wall`` is now, in seconds since 1970."""
    config, engine, journal = arbiter.config, arbiter.engine, arbiter.journal
    known = config.cluster.name if config.cluster else "this machine"
    cluster = config.engine if config.engine != "local" else known
    header = Header(
        schema=SCHEMA, version=__version__, simulated=False, policy=config.policy, params=logged_params(engine.policy),
        seed=config.seed, workload="live", source=str(journal.path), cluster=cluster,
        settings=_core_settings(arbiter), profiles=arbiter.fingerprint,
    )  # fmt: skip
    with journal.turn():
        journal.set_meta("epoch", repr(wall))
        journal.compare_exactly()
        journal.append(0.0, header)
        for host in arbiter.hosts:
            engine.feed(MachineJoined(machine=host.machine), 0.0)
        if config.between != arbiter.state.between:
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


def recall(arbiter: Arbiter) -> int:
    """Check that the journal is ours, then fold it; returns its records.

    Raises
    ------
    InputError : it was begun with other machines or settings, or another version of Themis wrote it.
    """
    journal = arbiter.journal
    records = journal.records()
    _, header = next(records)
    if not isinstance(header, Header):
        raise InputError(f"{journal.path} begins with a {type(header).__name__}, expected a Header.")
    then: dict[str, object] = {**EARLIER, **header.settings, "policy": header.policy, "seed": header.seed}
    now: dict[str, object] = {
        **_core_settings(arbiter), "policy": arbiter.config.policy, "seed": arbiter.config.seed
    }  # fmt: skip
    for name, value in now.items():
        if then.get(name) != value:
            key = name.removesuffix("_s")  # as people write it
            unit = " s" if key != name else ""
            raise _begun_with(arbiter, key, f"{then.get(name)}{unit}", f"{value}{unit}")
    if header.profiles != arbiter.fingerprint:
        raise _begun_with(arbiter, "the models' profiles", header.profiles, arbiter.fingerprint)
    records.close()  # type: ignore[attr-defined]
    count = fold(arbiter.engine)
    with journal.turn():
        journal.compare_exactly()
    machines, mine = arbiter.state.machines, [host.machine for host in arbiter.hosts]
    # The nodes of an engine come and go; those that are there introduce themselves.
    if machines != mine and arbiter.config.engine == "local":
        raise _begun_with(arbiter, "machines", _sizes(machines), _sizes(mine))
    return count


def hand_over(arbiter: Arbiter) -> None:
    """Tell the executor of every app, of machines that are away, of gangs that may be there."""
    state, executor, engine = arbiter.state, arbiter.executor, arbiter.engine
    # Of an app that was cancelled a gang may still be ending.
    there = {int(state.jobs.app[job]) for job in state.occupied}
    ending = ", ".join(map(str, sorted(there)))
    entries = arbiter.journal.apps(f"ended IS NULL OR app IN ({ending})")
    arbiter.programs = {entry.name: entry.programs for entry in entries}
    for a in sorted({*np.flatnonzero(state.apps.active[: state.apps.size]).tolist()} | there):
        executor.admit(int(state.apps.first_job[a]), state.app_specs[a])
    drained = arbiter.journal.drained()
    if arbiter.config.engine != "local":
        for machine in state.machines:
            executor.join(machine)
    for n, machine in enumerate(state.machines):
        if not state.machine_up[n] and machine.name not in drained:
            arbiter.lost.add(n)
            executor.restore_lost(n)
    for n in sorted(state.withheld):
        executor.restore_withheld(n)
    for grant, steps, started in engine.held():
        executor.restore(grant, steps, started=started)
        if grant.job in engine.core.stopping:
            executor.submit(engine.revokes[grant.job])


def _core_settings(arbiter: Arbiter) -> dict[str, float]:
    names = ("lease_s", "tick_s", "container_s", "gather_s", "checkpoint_every_s", "renew_idle", "shortest_lease_s")
    return {name: getattr(arbiter.settings, name) for name in names}


def _begun_with(arbiter: Arbiter, name: str, then: object, now: object) -> InputError:
    return InputError(
        f"{arbiter.journal.path} was begun with {name} {then}, now it is {now}; start the arbiter as before, or with "
        "another home."
    )


def _sizes(machines: Sequence[Any]) -> str:
    return ", ".join(f"{m.name} ({m.gpus} x {m.gpu_type})" for m in machines[:6]) + (
        " ..." if len(machines) > 6 else ""
    )
