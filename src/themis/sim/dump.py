"""The state of a running scheduler in a file, and what a policy would do there: ``themis dump``, ``themis replay``.

A dump is one JSON object, gzipped: the core as ``core.checkpoint`` saves it, its policy and settings, and the speeds of all
models that it uses. It needs nothing of the service that wrote it, and holds no programs and no environments.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import orjson

from themis.core import take_snapshot as snapshots
from themis.core.checkpoint import load, save
from themis.core.conserve import left_over
from themis.core.intend import adopt, intend
from themis.core.offer import FreeGpus
from themis.core.packed import pack, unpack
from themis.core.place import place
from themis.core.placed_gangs import Placed
from themis.core.scheduler import Scheduler
from themis.core.state import EPS
from themis.core.tables import Status
from themis.errors import InputError
from themis.model.answers import Ask, Solved
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.api import Policy, Workbench, forecaster_of, make_policy
from themis.policies.tuning.app_agent import answer_ask
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.version import __version__

KIND = "themis-state"
GZIP = b"\x1f\x8b"
"""First bytes of a packed file; an unpacked file is read too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """A state as it was read: each ``core`` is a fresh one."""

    policy: str
    saved: Mapping[str, Any]

    def core(self, policy: Policy) -> Scheduler:
        """The scheduler as it was, under this policy."""
        book = DEFAULT_BOOK.with_profiles(unpack(self.saved["profiles"]))
        settings = Settings(**self.saved["settings"])
        fresh = Scheduler(book, settings, policy.pace, policy.needs, forecaster_of(policy))
        return load(self.saved["core"], fresh)


def write(core: Scheduler, policy: str, models: Iterable[str] = ()) -> bytes:
    """The file's bytes; ``models`` : further models whose speeds it has to hold."""
    s = core.state
    models = sorted({model for model, _ in s.speeds.index} | set(models))
    out = {
        "kind": KIND,
        "version": __version__,
        "policy": policy,
        "settings": {f.name: getattr(core.settings, f.name) for f in fields(core.settings)},
        "profiles": pack([s.book.get(model) for model in models]),
        "core": save(core),
    }
    return gzip.compress(orjson.dumps(out), 1, mtime=0)


def read(path: Path) -> Dump:
    """Read a dump.

    Raises
    ------
    InputError : no such file, or no dump.
    """
    try:
        return parse(path.read_bytes())
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None


def parse(data: bytes) -> Dump:
    """Read a dump's bytes."""
    try:
        saved = orjson.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError) as error:
        raise InputError(f"not a state file that `themis dump` wrote ({error}).") from None
    if not isinstance(saved, dict) or saved.get("kind") != KIND:
        raise InputError("not a state file that `themis dump` wrote.")
    return Dump(policy=saved["policy"], saved=saved)


def is_dump(path: Path) -> bool:
    """True if the file begins as a dump does; an event log does not."""
    try:
        with open(path, "rb") as plain:
            packed = plain.read(2) == GZIP
        with gzip.open(path) if packed else open(path, "rb") as file:
            return bool(file.read(40).startswith(b'{"kind":"' + KIND.encode()))
    except (OSError, EOFError, zlib.error):
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedDecision:
    """Decision of a policy on a state.

    Attributes
    ----------
    time : of the decision: the dump's, or the first at which a lease ends if no GPU was free then.
    placed : gangs on exact GPUs; ``core`` has the jobs that they name. ``cpu_s`` : of policy and agents.
    """

    time: Seconds
    core: Scheduler
    snapshot: Snapshot
    solved: Solved
    placed: list[Placed]
    cpu_s: Seconds


class NothingToDecide(InputError):
    """True if no app that could run wants more GPUs than it has, as on an idle cluster."""


def decide(dump: Dump, spec: str = "") -> DumpedDecision:
    """Run a policy, by default the dump's own, on a dump.

    Raises
    ------
    NothingToDecide : no GPU is free and no lease ends, or no app wants any.
    """
    policy = make_policy(spec or dump.policy)
    core = dump.core(policy)
    snapshot = _next(core)
    began = process_time()
    solved = policy(snapshot, Workbench())
    if isinstance(solved.answer, Ask):
        snapshot = replace(snapshot, bids=answer_ask(snapshot, solved.answer))
        solved = policy(snapshot, Workbench())
    spent = process_time() - began
    state, offer = core.state, FreeGpus(state=core.state, by=core.state.now)
    adopt(state, solved.answer, state.version)
    intent = intend(state, solved.answer, offer, policy.pace)
    placed = place(state, intent.gangs, offer)
    if policy.pace.spare and core.settings.renew_idle:
        placed += left_over(state, intent, offer, placed)
    return DumpedDecision(time=snapshot.now, core=core, snapshot=snapshot, solved=solved, placed=placed, cpu_s=spent)


def _next(core: Scheduler) -> Snapshot:
    """The state at the first instant at which any app could get GPUs."""
    s = core.state
    until = s.jobs.until[: s.jobs.size]
    ends = until[(s.jobs.status[: s.jobs.size] == Status.RUNNING) & (until > s.now + EPS) & np.isfinite(until)]
    for time in [s.now, *sorted(set(ends.tolist()))]:
        s.advance(time)
        snapshot = snapshots.take(s, needs=core.needs)
        if snapshot.free.any() and (snapshot.job_held < snapshot.job_gpus_max).any():
            return snapshot
    raise NothingToDecide(
        "nothing is to be decided in this state: no app that could run now wants more GPUs than it has."
    )
