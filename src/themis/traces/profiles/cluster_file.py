"""Clusters from YAML files.

    name: lab                 # optional; the file's name
    rack_size: 4              # optional; 8. Machines without a rack of their own fill racks of this many, in order
    machines:
      - {count: 2, gpus: 8, gpus_per_slot: 2, gpu_type: V100}
      - {name: big, gpus: 16, gpu_type: A100, rack: special}

``gpus`` is required. ``count`` equal machines (1) are named ``name`` when single, else ``name-0``, ``name-1``, ...;
without a name they are ``m000``, ``m001``, ... by position. ``gpus_per_slot`` 0 (the default): the machine is one slot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from themis.errors import ClusterError, InputError
from themis.faults import faults_of, is_not
from themis.model.cluster import Cluster, Machine
from themis.yaml_text import BadYaml, one_document

_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


class MachineGroup(BaseModel):
    """Equal machines, as written in the file."""

    model_config = _STRICT

    gpus: Annotated[int, Field(ge=1)]
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    gpus_per_slot: Annotated[int, Field(ge=0)] = 0
    gpu_type: Annotated[str, Field(min_length=1)] = "gpu"
    name: Annotated[str, Field(min_length=1)] | None = None
    rack: Annotated[str, Field(min_length=1)] | None = None


class ClusterFile(BaseModel):
    """The whole file."""

    model_config = _STRICT

    machines: Annotated[list[MachineGroup], Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)] | None = None
    rack_size: Annotated[int, Field(ge=1)] = 8


def read_cluster(path: Path) -> Cluster:
    """Read a cluster from a YAML file.

    Raises
    ------
    InputError : the file cannot be read.
    ClusterError : it is not YAML, or a key is unknown, missing or has a wrong value; names file, key, value and what
        was expected.
    """
    try:
        data = one_document(path.read_text(encoding="utf-8")).data
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"cannot read cluster file {str(path)!r}: {why}.") from None
    except BadYaml as error:
        where = f", line {error.line}" if error.line else ""
        raise ClusterError(f"{path}{where}: {error.problem}.") from None
    if not isinstance(data, dict):
        raise ClusterError(f"{path}: the file {is_not(data, 'a mapping with the key machines')}.")
    try:
        spec = ClusterFile.model_validate(data)
    except ValidationError as error:
        raise ClusterError(f"{path}: {next(faults_of(error, ClusterFile))[1]}") from None
    return build_cluster(spec, path)


def build_cluster(spec: ClusterFile, path: Path) -> Cluster:
    """The machines of a file that was read; ClusterError where names clash."""
    machines: list[Machine] = []
    racked = 0
    try:
        for group in spec.machines:
            for i in range(group.count):
                named = group.name if group.count == 1 else group.name and f"{group.name}-{i}"
                rack = group.rack or f"rack{racked // spec.rack_size}"
                racked += group.rack is None
                machines.append(
                    Machine(
                        name=named or f"m{len(machines):03d}",
                        gpus=group.gpus,
                        gpus_per_slot=group.gpus_per_slot,
                        gpu_type=group.gpu_type,
                        rack=rack,
                    )
                )
        return Cluster(name=spec.name or path.stem, machines=tuple(machines))
    except ClusterError as error:
        raise ClusterError(f"{path}: {error}") from None
