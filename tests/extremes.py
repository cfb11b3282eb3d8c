"""Messages near to right ones, as JSON: with one extreme value, with a field missing or doubled, or as they should be.

``drawn`` gives one of the three kinds. Extreme values are JSON text, so that values that no Python object is written as (a
list 100,000 deep, a number of 400 digits) reach the reader as they are.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Mapping
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

EXTREMES: Mapping[str, str] = {
    "0": "0",
    "-1": "-1",
    "-2**63": str(-(2**63)),
    "2**31": str(2**31),
    "2**63": str(2**63),
    "10**30": str(10**30),
    "10**400": "1" + "0" * 400,
    "5,000 digits": "9" * 5000,
    "1e-320": "1e-320",
    "1e-10": "1e-10",
    "1e300": "1e300",
    "1e999": "1e999",
    "a half": "0.5",
    "NaN": "NaN",
    '"NaN"': '"NaN"',
    '"-Infinity"': '"-Infinity"',
    "null": "null",
    "true": "true",
    "an empty text": '""',
    "1 MB": '"' + "x" * 1_000_000 + '"',
    "a NUL": '"a\\u0000b"',
    "an escape sequence": '"\\u001b[31mred\\u001b[0m"',
    "markup": '"<script>alert(1)</script>"',
    "half of a surrogate pair": '"\\ud800"',
    "an unknown name": '"there-is-none"',
    "100,000 deep": "[" * 100_000,
    "100,000 deep, closed": "[" * 100_000 + "]" * 100_000,
    "objects 10,000 deep": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "100,000 values": "[" + "0," * 99_999 + "0]",
    "an empty list": "[]",
    "an empty object": "{}",
}
"""JSON text by a name for it."""
_HERE = "\N{BLACK STAR} here"


def count(name: str, few: int) -> int:
    """How many examples to try: the environment variable of this name, or ``few``."""
    return int(os.environ.get(name, few))


def paths(value: Any, at: Path = ()) -> list[Path]:
    """The place of every value in a message, the message itself left out."""
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    out: list[Path] = []
    for key, inner in rows:
        out += [(*at, key), *paths(inner, (*at, key))]
    return out


def with_text(message: Any, path: Path, text: str) -> bytes:
    """The message as JSON, with this JSON text as the value at ``path``."""
    out = copy.deepcopy(message)
    _around(out, path)[path[-1]] = _HERE
    return json.dumps(out).replace(json.dumps(_HERE), text, 1).encode()


def without(message: Any, path: Path) -> bytes:
    """The message as JSON, without the value at ``path``."""
    out = copy.deepcopy(message)
    del _around(out, path)[path[-1]]
    return json.dumps(out).encode()


def doubled(message: Any, path: Path) -> bytes:
    """The message as JSON, with the value at ``path`` twice: its key twice, or the entry of a list."""
    around = _around(message, path)
    if isinstance(around, list):
        out = copy.deepcopy(message)
        _around(out, path).insert(int(path[-1]), copy.deepcopy(around[int(path[-1])]))
        return json.dumps(out).encode()
    again = f"{json.dumps(around[path[-1]])}, {json.dumps(path[-1])}: {json.dumps(around[path[-1]])}"
    return with_text(message, path, again)


def drawn(rng: random.Random, message: Any, number: int) -> tuple[str, bytes]:
    """What was done to a message (empty: nothing), and the message as JSON; each third number is of another kind."""
    path = rng.choice(paths(message))
    place = ".".join(map(str, path))
    match number % 3:
        case 0:
            name = rng.choice(list(EXTREMES))
            return f"{place} is {name}", with_text(message, path, EXTREMES[name])
        case 1 if rng.random() < 0.5:
            return f"{place} is missing", without(message, path)
        case 1:
            return f"{place} is doubled", doubled(message, path)
    return "", json.dumps(message).encode()


def _around(message: Any, path: Path) -> Any:
    for key in path[:-1]:
        message = message[key]
    return message
