"""Values of the core as plain data that JSON can hold, and back, with nothing rounded."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from themis.errors import InvariantBroken
from themis.model import answers, cluster, events, workload
from themis.model.speed import Curve, Profile

_CLASSES: Mapping[str, type[Any]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            events.Grant,
            events.Revoke,
            answers.TimeShare,
            answers.RoundPlan,
            workload.Regime,
            cluster.Machine,
            Profile,
            Curve,
        )
    }
)


def pack(value: Any) -> Any:
    """A value as JSON has it; what JSON lacks is an object with one key that begins with ``~``."""
    match value:
        case None | bool() | int() | str():
            return value
        case np.generic():
            return pack(value.item())
        case float():
            return value if math.isfinite(value) else {"~float": str(value)}
        case np.ndarray():
            data = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"), copy=False))
            return {"~array": [data.dtype.str, list(value.shape), base64.b64encode(data.tobytes()).decode()]}
        case list():
            return [pack(v) for v in value]
        case tuple():
            return {"~tuple": [pack(v) for v in value]}
        case set() | frozenset():
            return {"~set": [pack(v) for v in sorted(value)]}
        case Mapping():
            return {"~dict": [[pack(k), pack(v)] for k, v in value.items()]}
    kind = type(value)
    if _CLASSES.get(kind.__name__) is kind:
        return {"~" + kind.__name__: {f.name: pack(getattr(value, f.name)) for f in dataclasses.fields(kind)}}
    raise InvariantBroken(f"a state holds a {kind.__name__}, which core.checkpoint cannot save.")


def unpack(value: Any) -> Any:
    """The value that was packed; raises KeyError, TypeError or ValueError for malformed input."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    if tag in _READERS:
        return _READERS[tag](inner)
    return _CLASSES[tag[1:]](**{name: unpack(v) for name, v in inner.items()})


def _array(inner: Any) -> Any:
    kind, shape, data = inner
    # A copy, for a buffer of bytes cannot be written to.
    return np.frombuffer(base64.b64decode(data), dtype=np.dtype(kind)).reshape(shape).astype(np.dtype(kind), copy=True)


_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "~float": float,
        "~array": _array,
        "~tuple": lambda inner: tuple(map(unpack, inner)),
        "~set": lambda inner: set(map(unpack, inner)),
        "~dict": lambda inner: {unpack(k): unpack(v) for k, v in inner},
    }
)
