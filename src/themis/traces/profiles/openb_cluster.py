"""Clusters from Alibaba's node list of 2023, "openb" (Weng et al., ATC'23): 1,213 machines, 6,212 GPUs of seven types.

Columns ``sn, gpu, model`` (a machine's name, its GPUs and their type), others are ignored; machines without GPUs are left out.
The file may be gzipped. Racks are not in the list: machines of one type fill racks of eight, an assumption.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from themis.errors import ClusterError, InputError, TraceError
from themis.model.cluster import Cluster, Machine

DATA = "THEMIS_DATA"
NODES = Path("alibaba-gpu-v2023") / "openb_node_list_gpu_node.csv.gz"
COLUMNS = ("sn", "gpu", "model")
_RACK_SIZE = 8


def openb() -> Cluster:
    """The whole cluster, from the folder of traces that ``THEMIS_DATA`` names.

    Raises
    ------
    InputError : the variable is not set, or the list is not there.
    """
    folder = os.environ.get(DATA, "")
    if not folder:
        raise InputError(
            f"cluster 'openb' is read from the folder of traces; set {DATA} to it, or name the file {NODES.name}."
        )
    return read_nodes(Path(folder) / NODES, name="openb")


def read_nodes(path: Path, *, name: str = "") -> Cluster:
    """The machines of a node list.

    Raises
    ------
    InputError : the file cannot be read, or lacks a column (TraceError: a cell is wrong).
    ClusterError : no machine has a GPU, or two have one name.
    """
    machines: list[Machine] = []
    of_type: Counter[str] = Counter()
    for line, row in _rows(path):
        text, kind = row["gpu"], row["model"]
        if not text.isdecimal() or int(text) > 1024:
            raise TraceError(
                file=str(path), line=line, column="gpu", value=text, expected="a whole number of GPUs, 0 to 1024"
            )
        if not int(text):
            continue
        if not kind:
            raise TraceError(file=str(path), line=line, column="model", value=kind, expected="the type of its GPUs")
        rack = f"{kind}-{of_type[kind] // _RACK_SIZE}"
        of_type[kind] += 1
        machines.append(Machine(name=row["sn"], gpus=int(text), gpu_type=kind, rack=rack))
    if not machines:
        raise ClusterError(f"{path} has no machine with GPUs, expected at least one.")
    return Cluster(name=name or path.name.split(".")[0], machines=tuple(machines))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8, gzipped or not"
        raise InputError(f"cannot read node list {str(path)!r}: {why}.") from None
    reader = csv.DictReader(text.splitlines())
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise InputError(
            f"{path}: column {missing[0]!r} is missing, expected {', '.join(COLUMNS)} as in openb's node list."
        )
    for row in reader:
        yield reader.line_num, {column: (row[column] or "").strip() for column in COLUMNS}
