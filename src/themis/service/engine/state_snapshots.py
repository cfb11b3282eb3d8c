"""Snapshots of the engine's whole state in the journal: a start folds only the records after the last one.

A snapshot is taken when no decision is pending, so that it and the records after it give exactly the state that all records
give from the beginning. An upgrade continues from it too: a later version reads the snapshot, and need not repeat the
decisions of the version before.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import orjson

from themis.core.checkpoint import load, save
from themis.core.packed import pack, unpack
from themis.core.tables import Status
from themis.errors import InputError
from themis.model.units import Seconds
from themis.policies.api import forecaster_of, make_policy
from themis.service.engine.engine import Engine

EVERY = 20_000
"""Records between two snapshots."""
_ATTRIBUTES = ("wakes", "grants", "revokes", "started", "saved")


def take(engine: Engine) -> bytes:
    """The engine and its core; to be written in the transaction of the records that led there.

    The engine forgets here what no restart needs: the commands of finished jobs.
    """
    core = engine.core
    jobs = core.state.jobs
    here = {*np.flatnonzero(jobs.status[: jobs.size] != Status.ENDED).tolist()} | core.state.occupied.keys()
    engine.started &= here
    for name in ("grants", "revokes", "saved"):
        setattr(engine, name, {j: value for j, value in getattr(engine, name).items() if j in here})
    values: dict[str, Any] = {name: getattr(engine, name) for name in _ATTRIBUTES}
    return zlib.compress(orjson.dumps({"core": save(core), "engine": pack(values)}), 1)


def restore(engine: Engine, data: bytes) -> None:
    """Bring a fresh engine to the state of a snapshot.

    Raises
    ------
    InputError : the snapshot is damaged, or of a later version.
    """
    try:
        found = orjson.loads(zlib.decompress(data))
        values = unpack(found["engine"])
        load(found["core"], engine.core)
    except (zlib.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{engine.journal.path}: a snapshot of the state is damaged ({error}); restore a copy."
        ) from None
    for name in _ATTRIBUTES:
        setattr(engine, name, values[name])
    if (changed := engine.core.state.policy) is not None:
        policy = make_policy(changed[0].partition(":")[0], changed[1])
        engine.core.use(policy)
        engine.core.state.forecaster = forecaster_of(policy)
        engine.follow(policy)


def maybe_take(engine: Engine, now: Seconds, keep: Seconds, *, every: int = EVERY) -> bool:
    """Take a snapshot if one is due and no decision is pending, and drop records that are no longer needed.

    Parameters
    ----------
    keep : records that are older, and before the last snapshot until now, are dropped.
    every : records after the last snapshot after which the next is due.
    """
    journal = engine.journal
    number = journal.head[0]
    if engine.core.solving is not None or number < journal.snapshot_number() + every:
        return False
    journal.add_snapshot(number, now, take(engine))
    journal.compact(now - keep)
    return True
