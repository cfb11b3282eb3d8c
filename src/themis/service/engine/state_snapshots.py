"""Pictures of the whole engine in the journal: a start folds only what was written after the last one.

A picture is taken when no decision is under way, so that it and the records after it give the very state that all records
give from the beginning. It is also what an upgrade goes on from: a later version reads the picture, and need not draw the
conclusions of the version before.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from themis.core.checkpoint import load, pack, save, unpack
from themis.core.tables import Status
from themis.errors import InputError
from themis.model.units import Seconds

if TYPE_CHECKING:
    from themis.service.engine.engine import Engine

EVERY = 20_000
"""Records between two pictures."""
_ATTRIBUTES = ("wakes", "grants", "revokes", "started", "saved")


def take(engine: Engine) -> bytes:
    """The engine and its core; to be written in the transaction of the records that led there.

    The engine forgets here what no restart needs: of jobs that are over.
    """
    core = engine.core
    jobs = core.state.jobs
    here = {*np.flatnonzero(jobs.status[: jobs.size] != Status.ENDED).tolist()} | core.state.occupied.keys()
    engine.started &= here
    for name in ("grants", "revokes", "saved"):
        setattr(engine, name, {j: value for j, value in getattr(engine, name).items() if j in here})
    values: dict[str, Any] = {name: getattr(engine, name) for name in _ATTRIBUTES}
    return zlib.compress(orjson.dumps({"core": save(core), "engine": pack(values)}), 1)


def restore(engine: Engine, picture: bytes) -> None:
    """Bring a fresh engine to where the picture was taken.

    Raises
    ------
    InputError : the picture is damaged, or of a later version.
    """
    try:
        found = orjson.loads(zlib.decompress(picture))
        values = unpack(found["engine"])
        load(found["core"], engine.core)
    except (zlib.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{engine.journal.path}: a picture of the state is damaged ({error}); restore a copy."
        ) from None
    for name in _ATTRIBUTES:
        setattr(engine, name, values[name])


def maybe_take(engine: Engine, now: Seconds, keep: Seconds, *, every: int = EVERY) -> bool:
    """Take a picture if one is due and the engine is at rest, and drop records that nobody needs any more.

    Parameters
    ----------
    keep : records that are older, and before the picture that was the last until now, are dropped.
    every : so many records after the last picture one is due.
    """
    journal = engine.journal
    number = journal.last()[0]
    if engine.core.solving is not None or number < journal.pictured() + every:
        return False
    journal.add_picture(number, now, take(engine))
    journal.compact(now - keep)
    return True
