"""The tables of machines and GPUs: existing ones, those in service, and the job in each seat of each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from themis.core.tables import Growing, derived, kept
from themis.errors import ClusterError, counted
from themis.model.cluster import MOST_GPUS, Machine
from themis.model.speed import ANY_TYPE
from themis.model.units import NONE, Bool, Float, Int, Locality, Seconds
from themis.model.workload import App

SEATS = 2
_SLOT, _MACHINE = Locality.SLOT, Locality.MACHINE


def _no_seats() -> Int:
    return np.zeros((0, SEATS), dtype=np.int64)


def _no_numbers() -> Int:
    return np.zeros(0, dtype=np.int64)


@dataclass(eq=False, repr=False, kw_only=True)
class Machines:
    """Machines N, their GPUs G, GPU types K; rows are appended and never removed.

    GPUs that a machine had and has no more keep their ids, and get them back when it grows again.
    """

    machines: list[Machine] = derived(list)
    gpu_types: list[str] = derived(list)
    racks: dict[str, int] = derived(dict)
    type_gpus: Float = kept(lambda: np.zeros(0))
    """[K], GPUs in service."""
    machines_of: list[list[int]] = derived(list)
    """Machines of each type."""
    machine_first: list[int] = derived(list)
    """The first GPU of each machine; the others follow it, except of those that are ``scattered``."""
    gpus_of: list[list[int]] = derived(list)
    """All GPUs that each machine ever had, in order; the first ``machine_size`` of them exist now."""
    slots: int = kept(int)
    """Number of slots."""
    removed: set[int] = kept(set)
    """Machines that have no GPUs any more."""
    scattered: set[int] = derived(set)
    """Machines whose GPU ids are not consecutive."""
    machine_size: Int = derived(_no_numbers)
    """GPUs that each machine has now."""
    machine_type: Int = derived(_no_numbers)
    machine_rack: Int = derived(_no_numbers)
    machine_slot: Int = derived(_no_numbers)
    machine_up: Bool = kept(lambda: np.zeros(0, dtype=bool))
    away: set[int] = kept(set)
    """Machines that were taken out of service on purpose, where others failed."""
    draining: dict[int, Seconds] = kept(dict)
    """Machines on which nothing more is placed, until when their gangs may stay."""
    withheld: dict[int, tuple[tuple[int, ...], tuple[int, ...], str]] = kept(dict)
    """By machine: GPUs that get no gang, foreign processes on them, and the reason."""
    gpu_machine: Int = kept(_no_numbers)
    gpu_slot: Int = kept(_no_numbers)
    gpu_there: Bool = derived(lambda: np.zeros(0, dtype=bool))
    """[G], GPUs that their machine still has."""
    gpu_job: Int = kept(_no_seats)
    """[G, seats], the job that has a lease on the seat, or -1."""
    gpu_occupant: Int = kept(_no_seats)
    """[G, seats], the job whose processes run there, or -1."""

    def __post_init__(self) -> None:
        self._columns = [Growing(_no_numbers()) for _ in range(4)]
        self._up = Growing(self.machine_up)
        self._gpu_machine, self._gpu_slot = Growing(self.gpu_machine), Growing(self.gpu_slot)
        self._gpu_there, self._all_there = Growing(self.gpu_there), True
        self._open: Bool | None = None
        self._taken: Bool | None = None
        self._gpu_job, self._gpu_occupant = Growing(self.gpu_job), Growing(self.gpu_occupant)
        self._map_gpus()

    def _append_machine(self, machine: Machine) -> None:
        """A machine of a known type; its GPUs get the next ids."""
        rack = self.racks.setdefault(machine.rack, len(self.racks))
        n, k = len(self.machines), self.gpu_types.index(machine.gpu_type)
        self.machines.append(machine)
        self.machines_of[k].append(n)
        row = (machine.gpus, k, rack, machine.slot)
        self.machine_size, self.machine_type, self.machine_rack, self.machine_slot = (
            column.extend(np.array([value])) for column, value in zip(self._columns, row)
        )
        self.machine_up = self._up.extend(np.array([True]))
        self.machine_first.append(len(self.gpu_machine))
        self.gpus_of.append([])
        self._append_gpus(n, machine.gpus)

    def _append_gpus(self, n: int, gpus: int) -> None:
        """Append this many GPUs to a machine, with the next ids; they follow all GPUs that the machine ever had."""
        machine, here, first = self.machines[n], self.gpus_of[n], len(self.gpu_machine)
        if here and here[-1] != first - 1:
            self.scattered.add(n)
        # The machine is one slot, or its slots follow each other, and the last of them may be filled up.
        place = np.arange(len(here), len(here) + gpus) // (machine.gpus_per_slot or MOST_GPUS)
        begun = {i // (machine.gpus_per_slot or MOST_GPUS): int(self.gpu_slot[g]) for i, g in enumerate(here)}
        for at in np.unique(place).tolist():
            if at not in begun:
                begun[at] = self.slots
                self.slots += 1
        here.extend(range(first, first + gpus))
        self.gpu_machine = self._gpu_machine.extend(np.full(gpus, n))
        self.gpu_slot = self._gpu_slot.extend(np.array([begun[at] for at in place.tolist()], dtype=np.int64))
        self.gpu_there = self._gpu_there.extend(np.ones(gpus, dtype=bool))
        empty = np.full((gpus, SEATS), NONE)
        self.gpu_job, self.gpu_occupant = self._gpu_job.extend(empty), self._gpu_occupant.extend(empty)
        self._open = self._taken = None
        self._map_gpus()

    def _set_size(self, n: int, gpus: int) -> None:
        """Set a machine's number of GPUs from now on; missing ones are appended."""
        if gpus > len(self.gpus_of[n]):
            self._append_gpus(n, gpus - len(self.gpus_of[n]))
        here = self.gpus_of[n]
        self.gpu_there[here[:gpus]], self.gpu_there[here[gpus:]] = True, False
        self._all_there, self._open = bool(self.gpu_there.all()), None
        self.machine_size[n] = gpus
        if not gpus:
            self.removed.add(n)
            return
        self.removed.discard(n)
        spec = self.machines[n]
        self.machines[n] = replace(spec, gpus=gpus, gpus_per_slot=min(spec.gpus_per_slot, gpus))
        self.machine_slot[n] = self.machines[n].slot

    def _map_gpus(self) -> None:
        """Views for one GPU at a time: a tenth of the time that indexing the array takes."""
        # No fields: they follow from the columns, and a copy of the tables shares them.
        self.machine_of, self.slot_of, self.type_of = self.gpu_machine.data, self.gpu_slot.data, self.machine_type.data
        # Of each seat.
        self.leased_to = self.gpu_job[:, 0].data, self.gpu_job[:, 1].data
        self.occupied_by = self.gpu_occupant[:, 0].data, self.gpu_occupant[:, 1].data

    def open_machines(self) -> Bool:
        """[N], machines on which gangs may be placed: in service and not draining."""
        if not self.draining:
            return self.machine_up
        out = self.machine_up.copy()
        out[list(self.draining)] = False
        return out

    def withhold(self, machine: int, gpus: tuple[int, ...], pids: tuple[int, ...], reason: str) -> None:
        """Exactly these GPUs of a machine get no gang from now on."""
        self._open = None
        self.withheld.pop(machine, None)
        if gpus:
            self.withheld[machine] = (gpus, pids, reason)

    def drain(self, machine: int, until: Seconds | None) -> None:
        """Nothing more is placed on a machine, whose gangs may stay until then; None: it is an ordinary machine again."""
        self._open = None
        self.draining.pop(machine, None)
        if until is not None:
            self.draining[machine] = until

    def open_gpus(self) -> Bool:
        """[G], GPUs on which gangs may be placed; kept until a machine changes, so not to be written to."""
        if self._open is None:
            self._open = self.open_machines()[self.gpu_machine]
            if not self._all_there:
                self._open &= self.gpu_there
            for gpus, _, _ in self.withheld.values():
                self._open[list(gpus)] = False
            self._open.flags.writeable = False
        return self._open

    @property
    def taken(self) -> Bool:
        """[G], GPUs with a lease or with processes, on either seat; kept up to date by leases and gangs."""
        if self._taken is None:
            self._taken = ((self.gpu_job != NONE) | (self.gpu_occupant != NONE)).any(axis=1)
        return self._taken

    def _seat(self, seat: memoryview, gpus: Sequence[int], job: int) -> None:
        """Write who holds, or is on, a seat of these GPUs, and what follows for ``taken``."""
        for g in gpus:
            seat[g] = job
        if self._taken is None:
            return
        taken = self._taken.data
        if job != NONE:
            for g in gpus:
                taken[g] = True
            return
        (one, other), (on_one, on_other) = self.leased_to, self.occupied_by
        for g in gpus:
            taken[g] = on_one[g] != NONE or one[g] != NONE or on_other[g] != NONE or other[g] != NONE

    def check_fits(self, app: App, expected: Sequence[Machine] | None = ()) -> None:
        """Raise ClusterError if one of the app's jobs could never run on the machines known, nor on those that are expected.

        ``expected`` : all machines that may be there one day; the type ``ANY_TYPE`` is any. None: nothing is known of them.
        """
        if expected is None:
            return
        for job in app.jobs:
            sizes = self.machine_size
            if job.gpu_types:
                sizes = sizes[
                    [n for k, t in enumerate(self.gpu_types) if t in job.gpu_types for n in self.machines_of[k]]
                ]
            later = [m.gpus for m in expected if not job.gpu_types or m.gpu_type in (ANY_TYPE, *job.gpu_types)]
            room, largest = max(int(sizes.sum()), sum(later)), max(int(sizes.max(initial=0)), *later, 0)
            whose = "the cluster has" if not expected else "the machines that are expected have"
            if job.one_machine and largest < job.gpus_min <= room:
                raise ClusterError(
                    f"app {app.name!r}, job {job.name!r} is one process with {counted(job.gpus_min, 'GPU')}, and the "
                    f"largest {'expected ' if expected else ''}machine has {largest}. For a process on each GPU give "
                    "launch: gpu; for torchrun, launch: machine."
                )
            if room < job.gpus_min:
                of_type = f" of type {' or '.join(job.gpu_types)}" if job.gpu_types else ""
                raise ClusterError(
                    f"app {app.name!r}, job {job.name!r} wants at least {counted(job.gpus_min, 'GPU')}{of_type}; "
                    f"{whose} {room}. Lower its gpus or use a larger cluster."
                )

    def locality(self, gpus: Sequence[int]) -> Locality:
        """The widest boundary these GPUs span."""
        if len(gpus) == 1 or len({self.slot_of[g] for g in gpus}) == 1:
            return _SLOT
        machines = {self.machine_of[g] for g in gpus}
        if len(machines) == 1:
            return _MACHINE
        return Locality.RACK if len({int(self.machine_rack[n]) for n in machines}) == 1 else Locality.CROSS_RACK

    def occupants(self, machine: int) -> list[int]:
        """Jobs with a lease on a machine, or with processes that still run there."""
        here = self.gpu_machine == machine
        found = np.unique(np.concatenate([self.gpu_job[here].ravel(), self.gpu_occupant[here].ravel()]))
        return [int(j) for j in found if j != NONE]

    def running_on(self, machine: int) -> list[int]:
        """Jobs with a lease on a machine, in order of id."""
        held = self.gpu_job[self.gpu_machine == machine].ravel()
        return sorted(int(j) for j in np.unique(held[held >= 0]))
