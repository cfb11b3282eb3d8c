"""Machines in racks, their GPUs in slots, their GPU types.

A GPU's id is its position when the machines' GPUs are counted in order; ids never change, machines that
join later are appended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.errors import ClusterError
from themis.model.units import Int, Locality

MOST_GPUS = 100_000
"""Maximum number of GPUs of one machine: far more than any has, far fewer than fill the memory."""
UNNAMED = "gpu"
"""The type of GPUs whose type is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine: ``gpus`` GPUs of one type, wired in slots of ``gpus_per_slot`` (NVLink pairs and the like)."""

    name: str
    gpus: int
    gpu_type: str = UNNAMED
    rack: str = "rack0"
    gpus_per_slot: int = 0
    """0 means: the whole machine is one slot."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ClusterError("a machine has an empty name; give every machine a name.")
        if self.gpus < 1:
            raise ClusterError(
                f"machine {self.name!r} has {self.gpus} GPUs, expected at least 1. Leave it out instead."
            )
        if self.gpus > MOST_GPUS:
            raise ClusterError(f"machine {self.name!r} has {self.gpus} GPUs, expected at most {MOST_GPUS}.")
        if self.gpus_per_slot < 0 or self.gpus_per_slot > self.gpus:
            raise ClusterError(
                f"machine {self.name!r} has {self.gpus_per_slot} GPUs per slot, expected 0 (one slot) to {self.gpus}."
            )

    @property
    def slot(self) -> int:
        """GPUs in one slot."""
        return self.gpus_per_slot or self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A named list of machines with its array form.

    Attributes
    ----------
    gpu_types : tuple of str, the K types in order of first appearance.
    racks : tuple of str, in order of first appearance.
    machine_gpus, machine_type, machine_rack, machine_slot : Int[N]
    gpu_machine, gpu_slot : Int[G]; slot ids are unique over the cluster.
    """

    name: str
    machines: tuple[Machine, ...]
    gpu_types: tuple[str, ...] = field(init=False)
    racks: tuple[str, ...] = field(init=False)
    machine_gpus: Int = field(init=False, repr=False, compare=False)
    machine_type: Int = field(init=False, repr=False, compare=False)
    machine_rack: Int = field(init=False, repr=False, compare=False)
    machine_slot: Int = field(init=False, repr=False, compare=False)
    gpu_machine: Int = field(init=False, repr=False, compare=False)
    gpu_slot: Int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.machines:
            raise ClusterError(f"cluster {self.name!r} has no machines, expected at least one.")
        twice = [name for name, count in Counter(m.name for m in self.machines).items() if count > 1]
        if twice:
            raise ClusterError(f"cluster {self.name!r} names machine {twice[0]!r} twice; machine names must differ.")
        types = tuple(dict.fromkeys(m.gpu_type for m in self.machines))
        racks = tuple(dict.fromkeys(m.rack for m in self.machines))
        gpus = np.array([m.gpus for m in self.machines], dtype=np.int64)
        slot = np.array([m.slot for m in self.machines], dtype=np.int64)
        gpu_machine = np.repeat(np.arange(len(gpus)), gpus)
        within = np.arange(gpus.sum()) - np.repeat(np.cumsum(gpus) - gpus, gpus)
        slots_before = np.cumsum(-(-gpus // slot)) - (-(-gpus // slot))
        columns = {
            "gpu_types": types,
            "racks": racks,
            "machine_gpus": gpus,
            "machine_type": np.array([types.index(m.gpu_type) for m in self.machines], dtype=np.int64),
            "machine_rack": np.array([racks.index(m.rack) for m in self.machines], dtype=np.int64),
            "machine_slot": slot,
            "gpu_machine": gpu_machine,
            "gpu_slot": slots_before[gpu_machine] + within // slot[gpu_machine],
        }
        for name, value in columns.items():
            object.__setattr__(self, name, value)

    @property
    def gpus(self) -> int:
        """Number of GPUs G."""
        return len(self.gpu_machine)


def in_racks(
    name: str, groups: Sequence[tuple[int, int, int]], *, rack_size: int = 8, gpu_type: str = "gpu"
) -> Cluster:
    """Build a cluster from groups of equal machines, racked in order.

    Parameters
    ----------
    groups : (machines, GPUs per machine, GPUs per slot) for each group.
    rack_size : machines in a rack.
    """
    shapes = [(gpus, slot) for count, gpus, slot in groups for _ in range(count)]
    return Cluster(
        name=name,
        machines=tuple(
            Machine(name=f"m{i:03d}", gpus=gpus, gpu_type=gpu_type, rack=f"rack{i // rack_size}", gpus_per_slot=slot)
            for i, (gpus, slot) in enumerate(shapes)
        ),
    )


Reach = tuple[int, int, int, int]
"""GPUs of the largest gang in a slot, on a machine, in a rack, and of one type at all: by ``Locality``."""


def reaches(machines: Iterable[Machine]) -> dict[str, Reach]:
    """The reach of each GPU type on these machines."""
    slot, whole, racks = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for machine in machines:
        kind = machine.gpu_type
        slot[kind], whole[kind] = max(slot[kind], machine.slot), max(whole[kind], machine.gpus)
        racks[kind, machine.rack] += machine.gpus
    out = {}
    for kind in whole:
        rack = [gpus for (k, _), gpus in racks.items() if k == kind]
        out[kind] = slot[kind], whole[kind], max(rack), sum(rack)
    return out


def places(low: int, high: int, reach: Reach | None) -> list[tuple[int, Locality]]:
    """Gangs of ``low`` to ``high`` GPUs that may be the fastest on an idle cluster, with their best locality.

    The widest that there is room for, and the widest of each locality: an elastic gang may be faster if it does not spread.
    """
    if reach is None:
        return []
    sizes = {min(high, most) for most in reach if min(high, most) >= low}
    return [(size, Locality(sum(size > most for most in reach[:3]))) for size in sorted(sizes)]
