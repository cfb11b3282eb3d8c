"""Named clusters of the Themis and Gavel papers, a shorthand for uniform ones, and the way to a file.

Racks hold eight machines unless a preset says otherwise; the papers do not say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from themis.errors import ClusterError, UnknownName
from themis.model.cluster import UNNAMED, Cluster, Machine, in_racks
from themis.traces.profiles.cluster_file import read_cluster
from themis.traces.profiles.openb_cluster import openb, read_nodes

RACK_SIZE = 8

PRESETS: Mapping[str, Callable[[], Cluster]] = MappingProxyType(
    {
        # Themis §6.1: 8 NC12 (2 K80) and 12 NC24 (4 K80) of Azure. A K80 card carries two GPUs: slots of 2.
        "testbed-64": lambda: in_racks("testbed-64", [(8, 2, 2), (12, 4, 2)], gpu_type="K80"),
        # Themis §6.1 says 256 GPUs but footnote 6 lists machines for 168; more 8-GPU machines close the gap.
        "sim-256": lambda: in_racks("sim-256", [(27, 8, 2), (6, 4, 1), (16, 1, 1)]),
        "sim-168": lambda: in_racks("sim-168", [(16, 8, 2), (6, 4, 1), (16, 1, 1)]),
        # sim-256 halved and quartered, for 2x and 4x contention (Figure 14); odd machine counts rounded so that
        # the GPUs are exactly a half and a quarter.
        "sim-128": lambda: in_racks("sim-128", [(13, 8, 2), (4, 4, 1), (8, 1, 1)]),
        "sim-64": lambda: in_racks("sim-64", [(7, 8, 2), (1, 4, 1), (4, 1, 1)]),
        # Themis §6.3, truth-telling (Figure 18): one machine that everybody wants.
        "truth-64": lambda: in_racks("truth-64", [(1, 8, 2), (28, 2, 2)]),
        # Gavel §7.1: 36 GPUs of each type in simulations, 8 V100, 16 P100 and 24 K80 for real; and a third of the former.
        # It says "8 GPUs per server if using 8-GPU servers" (§3.1) and no more: servers of 4, as gangs of 8 may span.
        "gavel-108": lambda: _vintages("gavel-108", 36, 36, 36),
        "gavel-36": lambda: _vintages("gavel-36", 12, 12, 12),
        "gavel-48": lambda: _vintages("gavel-48", 8, 16, 24),
        # The same mixture of shapes as sim-256, small enough to read a schedule by eye.
        "demo-32": lambda: in_racks("demo-32", [(2, 8, 2), (3, 4, 1), (4, 1, 1)], rack_size=3),
    }
)

_VINTAGES = ("V100", "P100", "K80")
_VINTAGE_MACHINE = 4

_GROUP = re.compile(r"(?P<count>\d+)x(?P<gpus>\d+)(/(?P<slot>\d+))?(@(?P<type>[A-Za-z0-9_.-]+))?")
_LOOKS_LIKE_SHORTHAND = re.compile(r"\d+x\d")


def load_cluster(name_or_path: str) -> Cluster:
    """Return a preset, a cluster from the shorthand, or one from a YAML file.

    Parameters
    ----------
    name_or_path :
        a name in ``PRESETS``; or groups ``COUNTxGPUS[/SLOT][@TYPE]`` joined by ``+``, e.g. ``8x4`` (8 machines of 4
        GPUs) or ``2x8/2@V100+4x1@K80``, in racks of 8; or the path of a file (see ``themis.traces.profiles.cluster_file``); or
        ``openb`` or a list of its nodes as CSV (see ``themis.traces.profiles.openb_cluster``).

    Raises
    ------
    UnknownName : neither a preset, nor the shorthand, nor a file.
    ClusterError : the shorthand or the file describes a cluster that cannot exist.
    """
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]()
    if name_or_path == "openb":
        return openb()
    path = Path(name_or_path)
    if path.name.endswith((".csv", ".csv.gz")):
        return read_nodes(path)
    if path.suffix in {".yaml", ".yml", ".json"} or path.is_file():
        return read_cluster(path)
    if _LOOKS_LIKE_SHORTHAND.match(name_or_path):
        return from_shorthand(name_or_path)
    raise UnknownName("cluster", name_or_path, [*PRESETS, "openb"])


def _vintages(name: str, *gpus: int) -> Cluster:
    """This many GPUs of each of Gavel's types, on machines of four."""
    types = [kind for kind, count in zip(_VINTAGES, gpus) for _ in range(count // _VINTAGE_MACHINE)]
    machines = tuple(
        Machine(name=f"m{i:03d}", gpus=_VINTAGE_MACHINE, gpu_type=kind, rack=f"rack{i // RACK_SIZE}")
        for i, kind in enumerate(types)
    )
    return Cluster(name=name, machines=machines)


def from_shorthand(text: str) -> Cluster:
    """Machines as ``load_cluster`` takes them, ``2x8/2@V100+4x1``.

    Raises
    ------
    ClusterError : another text, or machines that cannot exist.
    """
    machines: list[Machine] = []
    for part in text.split("+"):
        match = _GROUP.fullmatch(part.strip())
        if match is None:
            raise ClusterError(
                f"cluster {text!r}: group {part!r} is not COUNTxGPUS[/SLOT][@TYPE], for example 8x4 or 2x8/2@V100."
            )
        for _ in range(_count(text, match["count"])):
            machines.append(
                Machine(
                    name=f"m{len(machines):03d}",
                    gpus=int(match["gpus"]),
                    gpus_per_slot=int(match["slot"] or 0),
                    gpu_type=match["type"] or UNNAMED,
                    rack=f"rack{len(machines) // RACK_SIZE}",
                )
            )
    return Cluster(name=text, machines=tuple(machines))


def _count(text: str, digits: str) -> int:
    count = int(digits)
    if not 1 <= count <= 1_000_000:
        raise ClusterError(f"cluster {text!r} asks for {count} machines in a group, expected 1 to 1,000,000.")
    return count
