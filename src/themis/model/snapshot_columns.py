"""Descriptions of columns: axes and unit, which also says how a column scales with the unit of time.

A class of columns is a dataclass whose fields are ``Annotated`` with a ``Column``. Code that treats all columns the
same way reads this: the conformance kit's relabelling and rescaling, and the reference of the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_type_hints

AXES: Mapping[str, str] = MappingProxyType(
    {
        "A": "apps",
        "J": "jobs",
        "K": "GPU types",
        "N": "machines",
        "G": "GPUs",
        "P": "phases",
        "S": "seats of a GPU",
        "V": "users",
        "F": "finished apps",
        "B": "apps + 1",
        "R": "regimes",
        "Z": "GPUs of a gang + 1",
    }
)
"""Objects that an axis counts, by its letter."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit, and the power of time in it: a value is multiplied by factor ** time when seconds are."""

    name: str
    time: int = 0


ONE, FLAG, NAME, COUNT, TABLE = Unit("1"), Unit("yes or no"), Unit("name"), Unit("number"), Unit("table")
GPUS, STEPS, PER_STEP = Unit("GPUs"), Unit("steps"), Unit("1 / step")
S, GPU_S, S_STEP = Unit("s", 1), Unit("GPU-s", 1), Unit("s / step", 1)
ROW, APP_ROW, JOB_ROW, APP_ID, JOB_ID = Unit("row"), Unit("app row"), Unit("job row"), Unit("app id"), Unit("job id")


@dataclass(frozen=True, slots=True)
class Column:
    """Description of one field of a class of columns.

    Attributes
    ----------
    axes : letters of ``AXES`` in order; "" for one value. ``unit`` : of its values. ``meaning`` : in a few words.
    """

    axes: str
    unit: Unit
    meaning: str


_KNOWN: dict[type[Any], Mapping[str, Column]] = {}


def columns_of(kind: type[Any]) -> Mapping[str, Column]:
    """The columns of a class by name, in order; TypeError where a field has no ``Column``."""
    if kind not in _KNOWN:
        _KNOWN[kind] = MappingProxyType(_read(kind))
    return _KNOWN[kind]


def _read(kind: type[Any]) -> dict[str, Column]:
    out: dict[str, Column] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        found = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Column)]
        if not found or not set(found[0].axes) <= AXES.keys():
            raise TypeError(
                f"{kind.__name__}.{name} is no column: annotate it with a Column of axes {', '.join(AXES)}."
            )
        out[name] = found[0]
    return out


def in_other_seconds(table: Any, factor: float) -> dict[str, Any]:
    """Values of each present column that has time in its unit, in a unit of time in which a second is ``factor`` units."""
    return {
        name: getattr(table, name) * factor**column.unit.time
        for name, column in columns_of(type(table)).items()
        if column.unit.time and getattr(table, name) is not None
    }
