"""Start of an arbiter, and recovery after its predecessor ended or was killed.

It folds its journal, hands the executor every gang that may still hold GPUs, and repeats the revocations of those that should
stop. The executor then reports what runs; jobs of gangs that are gone wait for another lease.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from themis.core.packed import pack, unpack
from themis.core.scheduler import Scheduler
from themis.core.state import State
from themis.errors import InputError
from themis.machines.engines.hosts import Host
from themis.machines.engines.program import Program
from themis.model.cluster import Machine
from themis.model.events import SCHEMA, Header, MachineJoined
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.units import NONE
from themis.policies.api import forecaster_of, logged_params, make_policy
from themis.schema import messages as schema
from themis.service.engine.arbiter_queue import LiveExecutor
from themis.service.engine.config import Config
from themis.service.engine.engine import Engine
from themis.service.engine.folding import Unfolded, fold
from themis.service.engine.journal import Journal
from themis.service.engine.quarantine import Owner
from themis.service.engine.setting_changes import values_of
from themis.service.engine.speed_estimator import read_profile
from themis.version import __version__

log = logging.getLogger("themis.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start values of an arbiter that its journal has to match.

    Attributes
    ----------
    machines : machines in order; empty if nodes of an engine join by themselves.
    fingerprint : fingerprint of the profiles without those that came with submissions.
    """

    config: Config
    settings: Settings
    machines: Sequence[Machine]
    fingerprint: str


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
        settings=start.settings.in_header,
        profiles=start.fingerprint,
    )
    with journal.transaction():
        journal.set_meta("epoch", repr(wall))
        journal.set_meta("given", json.dumps(values_of(config)))
        keep_book(journal, "book", engine.core.state.book)
        journal.compare_exactly()
        journal.append(0.0, header)
        engine.books.open(engine.core.state)
        for machine in start.machines:
            engine.feed(MachineJoined(machine=machine), 0.0)
        if config.between != engine.core.state.between:
            engine.feed(config.fairness(), 0.0)
        engine.advance(0.0)


def fresh_engine(journal: Journal, book: ProfileBook, config: Config) -> Engine:
    """An engine for a journal that is empty."""
    policy = make_policy(config.policy)
    core = Scheduler(book, config.core_settings, policy.pace, policy.needs, forecaster_of(policy))
    return Engine(journal, core, policy)


def engine_over(journal: Journal, book: ProfileBook) -> Engine:
    """A fresh engine for a journal, by its header; ``book`` : what the service is started with.

    Raises
    ------
    InputError : the journal does not begin with a header.
    """
    header = header_of(journal)
    submitted = [read_profile(name, schema.Profile.model_validate_json(m)) for name, m in journal.profiles()]
    book = book_of(journal, header, book).with_profiles(submitted)
    policy = make_policy(header.policy)
    settings = Settings(**header.settings, seed=header.seed)
    return Engine(journal, Scheduler(book, settings, policy.pace, policy.needs, forecaster_of(policy)), policy)


def keep_book(journal: Journal, name: str, book: ProfileBook) -> None:
    """Keep models' speeds with the journal: those that it began with (``book``), or that it was last given (``given_book``)."""
    journal.set_meta(name, json.dumps(pack(list(book.profiles.values()))))


def kept_book(journal: Journal, name: str) -> ProfileBook | None:
    """The profile book that ``keep_book`` saved."""
    found = journal.meta(name)
    return None if found is None else ProfileBook.of(unpack(json.loads(found)))


def book_of(journal: Journal, header: Header, book: ProfileBook) -> ProfileBook:
    """The models' speeds that a journal began with; ``book`` : of this start, where those are not kept.

    Raises
    ------
    InputError : they are not kept, and not those of this start.
    """
    kept = kept_book(journal, "book") or book
    if header.profiles != kept.fingerprint:
        raise _begun_with(journal, "the models' profiles", header.profiles, kept.fingerprint)
    return kept


def header_of(journal: Journal) -> Header:
    """The first record; raises InputError if it is no header."""
    _, header = next(journal.records(), (0.0, None))
    if not isinstance(header, Header):
        raise InputError(f"{journal.path} begins with a {type(header).__name__}, expected a Header.")
    return header


def recall(engine: Engine, start: Start, book: ProfileBook, without: Sequence[Owner] = ()) -> int:
    """Fold the journal; returns its records.

    An app or a machine at whose record the fold ends with an error is quarantined from there on, and its quarantine is recorded
    with the first transaction.

    Parameters
    ----------
    without : apps to quarantine where the fold ends with an error at a record that has no owner.

    Raises
    ------
    InputError : another version of Themis wrote it, or the fold ends with an error that no quarantine avoids.
    """
    journal = engine.journal
    count = _fold(engine, book, start.config.validate, without)
    with journal.transaction():
        journal.compare_exactly()
        engine.books.open(engine.core.state, [grant for grant, _, _ in engine.held()])
    return count


def rebuild(engine: Engine, book: ProfileBook, validate: bool) -> None:
    """Bring an engine to where its journal ends, whatever it had come to in memory; outside of transactions.

    Parameters
    ----------
    book : what the service was started with. ``validate`` : check the state after every step.
    """
    fresh = engine_over(engine.journal, book)
    fresh.quarantine = engine.quarantine
    _fold(fresh, book, validate)
    fresh.books.open(fresh.core.state)
    engine.adopt(fresh)


def _fold(engine: Engine, book: ProfileBook, validate: bool, without: Sequence[Owner] = ()) -> int:
    quarantine, others = engine.quarantine, [*without]
    while True:
        engine.core.settings = engine.core.state.settings = replace(engine.core.settings, validate=validate)
        try:
            return fold(engine)
        except Unfolded as error:
            owner = error.owner or (others.pop(0) if others else None)
            if owner is None or error.number in quarantine.skips:
                raise
            log.error("record %d cannot be folded; %s is quarantined", error.number, owner, exc_info=error.error)
            quarantine.skip(error.number, owner, error.error)
            engine.adopt(engine_over(engine.journal, book))


def given_before(engine: Engine) -> dict[str, Any]:
    """The settings that the service was started with the last time, by name."""
    return dict(json.loads(engine.journal.meta("given") or "{}"))


def programs_of(engine: Engine) -> dict[str, tuple[Program, ...]]:
    """The programs of every app that has not ended, or of which a gang may still be ending, by the app's name."""
    state = engine.core.state
    ending = ", ".join(map(str, sorted({int(state.jobs.app[job]) for job in state.occupied})))
    return {entry.name: entry.programs for entry in engine.journal.apps(f"ended IS NULL OR app IN ({ending})")}


def hand_over(engine: Engine, executor: LiveExecutor, hosts: Sequence[Host]) -> set[int]:
    """Give the executor machines, apps, the machines that are away, and the gangs that may run; returns the lost machines."""
    state = engine.core.state
    # Of an app that was cancelled a gang may still be ending.
    ending = {int(state.jobs.app[job]) for job in state.occupied}
    for a in sorted({*np.flatnonzero(state.apps.active[: state.apps.size]).tolist()} | ending):
        executor.admit(int(state.apps.first_job[a]), state.app_specs[a])
    executor.equip({host.machine.name: host.devices for host in hosts if host.devices})
    _machines_again(state, executor)
    drained = engine.journal.drained()
    lost = {
        n
        for n, m in enumerate(state.machines)
        if not state.machine_up[n] and m.name not in drained and n not in state.removed
    }
    for n in sorted(lost):
        executor.restore_lost(n)
    for n in sorted(state.withheld):
        executor.restore_withheld(n)
    for grant, steps, started in engine.held():
        executor.restore(grant, steps, started=started)
        if grant.job in engine.core.stopping:
            executor.submit(engine.revokes[grant.job])
    return lost


def _machines_again(state: State, executor: LiveExecutor) -> None:
    """Machines as they joined and grew, so that each GPU has the same id, and then as they are."""
    begin = np.flatnonzero(np.diff(state.gpu_machine, prepend=NONE))
    sizes: list[int] = []
    for n, gpus in zip(
        state.gpu_machine[begin].tolist(), np.diff(begin, append=len(state.gpu_machine)).tolist(), strict=True
    ):
        if n == len(sizes):
            slots = min(state.machines[n].gpus_per_slot, gpus)
            executor.join(replace(state.machines[n], gpus=gpus, gpus_per_slot=slots))
            sizes.append(gpus)
        else:
            sizes[n] += gpus
            executor.resize(n, sizes[n])
    for n, size in enumerate(sizes):
        if int(state.machine_size[n]) != size:
            executor.resize(n, int(state.machine_size[n]))


def _begun_with(journal: Journal, name: str, then: object, now: object) -> InputError:
    return InputError(
        f"{journal.path} was begun with {name} {then}, now it is {now}; start the service as before, or with another data "
        "directory."
    )
