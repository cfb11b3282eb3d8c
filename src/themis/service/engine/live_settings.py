"""The settings of a running arbiter: those in force, those that it was given, and how they change. In the arbiter's thread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from themis.core.packed import pack
from themis.errors import counted
from themis.machines.engines.hosts import Host
from themis.model.cluster import Machine
from themis.model.events import (
    Event,
    GpusWithheld,
    MachineFailed,
    MachineJoined,
    MachineResized,
    ProfilesSet,
    SettingsChanged,
)
from themis.model.speed import ProfileBook
from themis.model.units import NONE, Seconds
from themis.service.engine import setting_changes
from themis.service.engine.arbiter_queue import Outbox
from themis.service.engine.config import Config
from themis.service.engine.engine import Engine
from themis.service.engine.housekeeping import Housekeeping
from themis.service.engine.machine_changes import in_place, per_gpu
from themis.service.engine.recovery import Start, given_before, keep_book, kept_book


class LiveSettings:
    """Settings in force since their last change.

    Parameters
    ----------
    engine : engine after the fold. ``hosts`` : machines that were found, if the settings name none.
    config, book : settings and profiles of this start, without profiles that came with submissions.

    Attributes
    ----------
    config : settings in force. ``given`` : settings of this start or of the last reload.
    starting : sentences on settings that this start changed, and on those that it kept despite other values given.
    """

    def __init__(self, engine: Engine, hosts: Sequence[Host], config: Config, book: ProfileBook) -> None:
        self.engine, self.book = engine, book
        self.hosts = [self._in_place(host) for host in hosts]
        self.found = {host.machine.name: frozenset(host.devices) for host in hosts if host.devices}
        self.config = self.given = config
        self.starting: list[str] = []
        self.per_gpu = per_gpu(config, engine.core.state)

    def serve(self, executor: Outbox, housekeeping: Housekeeping) -> None:
        """Set the executor and the housekeeping, which are notified of changes."""
        self._executor, self._housekeeping = executor, housekeeping
        self.per_gpu = per_gpu(self.config, self.engine.core.state)

    @property
    def mark(self) -> tuple[Config, Config, list[str]]:
        """State for ``go_back``: what a transaction may change, besides the journal and the core."""
        return self.config, self.given, self.starting

    def go_back(self, mark: tuple[Config, Config, list[str]]) -> None:
        """A transaction that began at ``mark`` was taken back, and the core was rebuilt."""
        self.config, self.given, self.starting = mark
        self.per_gpu = per_gpu(self.config, self.engine.core.state)
        self._limits(self.config)

    def _limits(self, config: Config) -> None:
        """Apply the time limits to agents and the solver."""
        if self.engine.desk is not None:
            self.engine.desk.answer_s, self.engine.desk.misses = config.agent_s, config.agent_misses
        if self.engine.solver is not None:
            self.engine.solver.limit(config.solve_s)

    def _in_place(self, host: Host) -> Host:
        """A machine of real GPUs with each where it was, as long as a gang of the last start may be there."""
        state, name = self.engine.core.state, host.machine.name
        before = json.loads(self.engine.journal.meta("devices") or "{}").get(name)
        n = next((n for n, machine in enumerate(state.machines) if machine.name == name), None)
        if before is None or n is None or not host.devices or not state.occupants(n):
            return host
        devices = in_place(host.devices, before)
        return replace(host, machine=replace(host.machine, gpus=len(devices)), devices=devices)

    def with_missing(self, event: GpusWithheld) -> GpusWithheld:
        """Add the GPUs of a machine that are no longer found to those that it withholds."""
        state, name = self.engine.core.state, self.engine.core.state.machines[event.machine].name
        host = next((host for host in self.hosts if host.machine.name == name), None)
        if host is None or not host.devices or set(host.devices) == self.found[name]:
            return event
        lost = [i for i, device in enumerate(host.devices) if device not in self.found[name]]
        ids = [state.gpus_of[event.machine][i] for i in lost if i < len(state.gpus_of[event.machine])]
        reason = f"not found at the last start: {', '.join(host.devices[i] for i in lost)}"
        return replace(
            event,
            gpus=tuple(sorted({*event.gpus, *ids})),
            reason="; ".join(part for part in (event.reason, reason) if part),
        )

    def resume(self, start: Start) -> Config:
        """Continue with the settings in force; returns those that this start requests, after a check."""
        before = given_before(self.engine)
        changed = self.engine.core.state.changed
        in_force = before | {
            name: value for name, (value, _, _) in changed.items() if name not in setting_changes.RESTART
        }
        # Members, prices and budgets that this start gives for the first time are changes, not yet in force.
        lasting = setting_changes.values_of(Config())
        new = {name: None for name in setting_changes.values_of(start.config) if name not in lasting}
        self.config = setting_changes.with_values(start.config, new | in_force)
        wanted, self.starting = self._merge(before, start.config)
        setting_changes.plan(self.engine.core.state, self.config, wanted, self.hosts, "")
        return wanted

    def _merge(self, before: setting_changes.Values, given: Config) -> tuple[Config, list[str]]:
        """Settings in force merged with those that differ from ``before``, and a sentence on each that stays."""
        in_force, out = setting_changes.values_of(self.config), []
        new, left = setting_changes.merged(before, in_force, setting_changes.values_of(given))
        for name, value in left.items():
            if name in setting_changes.MACHINES and not value:
                continue  # the two are one choice: the sentence is on the one that is given
            _, since, user = self.engine.core.state.changed.get(name, (None, 0.0, "an administrator"))
            at = time.localtime(float(self.engine.journal.meta("epoch") or 0.0) + since)
            kept, now = setting_changes.words(name, in_force.get(name)), setting_changes.words(name, value)
            for other in setting_changes.MACHINES:
                if name in setting_changes.MACHINES and name != other and in_force.get(other):
                    kept += f" ({other}: {setting_changes.words(other, in_force[other])})"
            why = "as it was before" if before.get(name) == value else "the default of this version"
            out.append(
                f"{name} stays {kept}, as {user} set it on {time.strftime('%Y-%m-%d %H:%M', at)}. "
                f"What is given here, {now}, is {why}; `themis set {name}={now}` changes it."
            )
        return setting_changes.with_values(self.config, new), out

    def begin(self, wanted: Config, owner: str, now: Seconds) -> None:
        """The first transaction of a start: its changes, made by the owner."""
        self.starting = self.change(lambda _: wanted, owner, now) + self.starting
        self._give(self.given)
        self.starting = self._set_profiles(owner, now) + self.starting
        self._note_devices(now)

    def _set_profiles(self, user: str, now: Seconds) -> list[str]:
        """Speeds of models that this start is given otherwise than the start before hold from now on."""
        journal = self.engine.journal
        before = kept_book(journal, "given_book") or kept_book(journal, "book")
        if before is None or before.fingerprint == self.book.fingerprint:
            return []
        other = [profile for name, profile in self.book.profiles.items() if before.profiles.get(name) != profile]
        keep_book(journal, "given_book", self.book)
        if not other:
            return []
        names = ", ".join(profile.name for profile in other[:6]) + (" ..." if len(other) > 6 else "")
        self.engine.feed(SettingsChanged(user=user, values={"profiles": self.config.profiles}), now)
        self.engine.feed(ProfilesSet(profiles=tuple(pack(profile) for profile in other)), now)
        return [f"profiles: other speeds of {names}"]

    def _note_devices(self, now: Seconds) -> None:
        """Remember where each real GPU is, and withhold those that are no longer found."""
        journal, state = self.engine.journal, self.engine.core.state
        text = json.dumps({host.machine.name: list(host.devices) for host in self.hosts if host.devices})
        if text != (journal.meta("devices") or "{}"):
            journal.set_meta("devices", text)
        for n, machine in enumerate(state.machines):
            if machine.name in self.found and n not in state.removed:
                event = self.with_missing(GpusWithheld(machine=n, gpus=()))
                if event.gpus and state.withheld.get(n) != (event.gpus, event.pids, event.reason):
                    self.engine.feed(event, now)

    def _give(self, given: Config) -> None:
        """Remember what the service was given, to compare with at its next start."""
        text = json.dumps(setting_changes.values_of(given))
        if self.engine.journal.meta("given") != text:
            self.engine.journal.set_meta("given", text)

    def change(self, read: Callable[[Config], Config], user: str, now: Seconds) -> list[str]:
        """Change settings, all or none; returns what changed, and what follows for apps, in a sentence each.

        Parameters
        ----------
        read : the wanted settings, from those in force. ``user`` : who wants them.

        Raises
        ------
        InputError : they cannot be; nothing has changed then.
        """
        before, after = self.config, read(self.config)
        records = setting_changes.plan(self.engine.core.state, before, after, self.hosts, user)
        old = setting_changes.values_of(before)
        out = setting_changes.said(old, setting_changes.differing(old, setting_changes.values_of(after)).items())
        out += self.carry_out(records, now)
        self.config = after
        self.per_gpu = per_gpu(after, self.engine.core.state)
        self._limits(after)
        self._housekeeping.change(after, now)
        if any(isinstance(record, MachineResized | MachineJoined) for record in records):
            out += setting_changes.too_large(self.engine.core.state)
        return out

    def carry_out(self, records: Sequence[Event], now: Seconds) -> list[str]:
        """Take records of changes into the core, and machines to the executor; a sentence on each machine."""
        out: list[str] = []
        for record in records:
            back = record.machine if isinstance(record, MachineResized) else NONE
            back = back if back in self.engine.core.state.removed else NONE
            match record:
                case MachineJoined():
                    self._executor.join(record.machine)
                    out.append(f"machine {record.machine.name} joins with {counted(record.machine.gpus, 'GPU')}")
                case MachineResized():
                    out.append(self._resize(record))
            self.engine.feed(record, now)
            if back != NONE:
                # Gangs from before the removal may still run: the agent reports them before the machine returns.
                self._housekeeping.reachable(MachineFailed(machine=back), now)
        return out

    def joined(self, machine: Machine, now: Seconds) -> None:
        """A machine that an engine reports: a new one, or one that was removed and is back."""
        state = self.engine.core.state
        n = max((n for n, known in enumerate(state.machines) if known.name == machine.name), default=NONE)
        if n == NONE:
            self.carry_out([MachineJoined(machine=machine)], now)
        elif n in state.removed:
            self.carry_out(setting_changes.back_again(state, n, machine), now)

    def reload(self, given: Config, user: str, now: Seconds) -> list[str]:
        """Apply what differs from the settings at the service's start or last reload; same as ``change``."""
        before = setting_changes.values_of(self.given)
        wanted, left = self._merge(before, given)
        out = self.change(lambda _: wanted, user, now)
        at_start = [
            name
            for name, found in setting_changes.RESTART.items()
            if getattr(given, found.field) != getattr(self.given, found.field)
        ]
        out += [f"{name} changes when the service starts again" for name in at_start]
        fields = {found.field: getattr(self.given, found.field) for found in setting_changes.RESTART.values()}
        self.given = replace(given, **fields)
        self._give(self.given)
        return out + left

    def _resize(self, record: MachineResized) -> str:
        """The executor knows of new GPUs before the core grants them."""
        n, name = record.machine, self.engine.core.state.machines[record.machine].name
        before = int(self.engine.core.state.machine_size[n])
        self._executor.resize(n, record.gpus)
        if not record.gpus or not before:
            # It is no longer drained, nor lost, when it comes back.
            self._housekeeping.lost.discard(n)
            if name in self.engine.journal.drained():
                self.engine.journal.set_drained(name, False)
        if not record.gpus:
            return f"machine {name} is removed; its jobs continue elsewhere"
        return f"machine {name}: {before} -> {record.gpus} GPUs"
