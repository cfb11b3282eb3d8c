"""Every journal that a test leaves behind, folded whole and compared with what it says and with its pictures."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from themis.client import themis_pb2 as pb
from themis.core.checkpoint import save
from themis.core.scheduler import Scheduler
from themis.core.tables import Status
from themis.model.events import Compacted, Header
from themis.model.settings import Settings
from themis.policies.api import forecaster_of, make_policy
from themis.profiles.library import BOOKS
from themis.service import pictures
from themis.service.engine import Engine
from themis.service.folding import Fold, fold
from themis.service.journal import Journal
from themis.service.speeds import read_profile


@dataclass
class Audited:
    """What was compared: records, pictures, and commands that agreed within a tolerance only."""

    records: int = 0
    pictures: int = 0
    near: int = 0


def engine_over(journal: Journal) -> Engine:
    """A fresh engine for a journal, by its header."""
    _, header = next(journal.records())
    assert isinstance(header, Header)
    books = [build() for build in BOOKS.values()]
    book = next(b for b in books if b.fingerprint == header.profiles)
    book = book.with_profiles(read_profile(n, pb.Profile.FromString(m)) for n, m in journal.profiles())
    policy = make_policy(header.policy.partition(":")[0], header.params)
    settings = Settings(**{"gather_s": 0.0, **header.settings}, seed=header.seed)  # type: ignore[arg-type]
    core = Scheduler(book, settings, policy.pace, policy.needs, forecaster_of(policy))
    return Engine(journal, core, policy)


def what_counts(engine: Engine) -> bytes:
    """All that decides how an engine goes on, as bytes; of apps that are long over only what every engine keeps."""
    core = engine.core
    jobs = core.state.jobs
    here = {j for j in range(jobs.size) if jobs.status[j] != Status.ENDED} | core.state.occupied.keys()
    saved = save(core)
    saved["app_specs"] = [app.name for app in core.state.app_specs]
    saved["state"].pop("retired_below", None)
    kept: dict[str, Any] = {
        name: pictures.pack({j: v for j, v in sorted(getattr(engine, name).items()) if j in here})
        for name in ("grants", "revokes", "saved")
    }
    speeds = core.state.speeds
    return orjson.dumps(
        [saved, kept, sorted(engine.started & here), engine.wakes, speeds.scale.tolist(), speeds.slowdown.tolist()]
    )


def audit(path: Path) -> Audited:
    """Fold a copy of a journal whole, where its first records are there, and compare its pictures on the way.

    Raises AssertionError or InputError where anything differs.
    """
    found = Audited()
    with tempfile.TemporaryDirectory() as folder:
        for end in ("", "-wal"):
            if (there := Path(f"{path}{end}")).exists():
                shutil.copyfile(there, Path(folder) / f"journal.db{end}")
        with closing(Journal(Path(folder) / "journal.db")) as journal:
            if journal.last()[0] == 0:
                return found
            compacted = any(isinstance(record, Compacted) for _, record in journal.records())
            numbers = [number for (number,) in journal.db.execute("SELECT number FROM checkpoints ORDER BY number")]
            engine = engine_over(journal)

            def seen(state: Fold) -> None:
                found.records, found.near = found.records + 1, state.near
                if state.number in numbers:
                    other = engine_over(journal)
                    stored = journal.picture(state.number)
                    assert stored is not None
                    pictures.restore(other, stored[1])
                    assert what_counts(other) == what_counts(engine), f"{path}: the picture after record {state.number}"
                    found.pictures += 1

            fold(engine, whole=not compacted, seen=seen)
            short = engine_over(journal)
            fold(short)
            assert what_counts(short) == what_counts(engine), f"{path}: from the last picture, and from the beginning"
    return found
