"""The journal: the event log in SQLite, with facts about apps that the core does not have.

    meta       the schema's version, when the arbiter's time began
    records    the log's lines in order (``themis.model.log``), and ``Wake`` with its time, which a file leaves out
    apps       what each app runs, who submitted it, how it ended
    attempts   how each attempt ended, beyond what the core needs
    profiles   speeds that came with a submission
    nodes      machines that were drained
    checkpoints  the core's whole state after a record: a start folds only what came later
    leases, usage  GPU time by attempt and by day (``books``)
    run_ids    of what a job reported to MLflow or Weights & Biases
    seals      a checksum of every row but the records', which have a chain of them (``chain``)

Everything that the arbiter changes is one transaction, on disk before any command goes out. One connection,
used by the arbiter's thread alone; readers of other threads open their own with ``read_records``.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from themis.errors import InputError
from themis.machines.engines.program import UNABLE, AttemptEnded, Ending, Program
from themis.model.units import Seconds
from themis.service.engine import chain, integrity
from themis.service.engine.records import Records
from themis.service.engine.transactions import NO_ROOM, NoRoom

SCHEMA = 10
"""Version of the table schema; that of the records is ``themis.model.events.SCHEMA``. No other version was released."""
READERS = {6: "82bb4d1", 7: "1588721", 8: "afb233a", 9: "3f022ba"}
"""The last commit that reads journals of an older schema; fcc95fc reads 1 to 5."""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE records (number INTEGER PRIMARY KEY, t REAL NOT NULL, kind TEXT NOT NULL, line BLOB NOT NULL, digest BLOB);
CREATE TABLE apps (
    app INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, user TEXT NOT NULL, key TEXT UNIQUE, submitted REAL NOT NULL,
    retries INTEGER NOT NULL, programs TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', outcome TEXT, ended REAL, rho REAL,
    options TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE attempts (
    job INTEGER NOT NULL, attempt INTEGER NOT NULL, app INTEGER NOT NULL, ended REAL NOT NULL, ending TEXT NOT NULL,
    cause TEXT NOT NULL, code INTEGER, seconds REAL NOT NULL, steps REAL NOT NULL, killed INTEGER NOT NULL,
    message TEXT NOT NULL, failure INTEGER NOT NULL, PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE TABLE profiles (name TEXT PRIMARY KEY, message TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (name TEXT PRIMARY KEY, drained INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE checkpoints (number INTEGER PRIMARY KEY, t REAL NOT NULL, state BLOB NOT NULL);
CREATE TABLE seals (name TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID;
CREATE TABLE leases (
    job INTEGER NOT NULL, attempt INTEGER NOT NULL, app INTEGER NOT NULL, user TEXT NOT NULL, user_group TEXT NOT NULL,
    gpu_type TEXT NOT NULL, currency TEXT NOT NULL, gpus INTEGER NOT NULL, since REAL NOT NULL, started REAL, ended REAL,
    booked REAL NOT NULL, cause TEXT NOT NULL, price REAL NOT NULL, lost REAL NOT NULL, idle REAL NOT NULL,
    idle_by TEXT NOT NULL, cost REAL NOT NULL, PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE TABLE usage (
    number INTEGER PRIMARY KEY, zone TEXT NOT NULL, day TEXT NOT NULL, user TEXT NOT NULL, user_group TEXT NOT NULL,
    gpu_type TEXT NOT NULL, currency TEXT NOT NULL, leased REAL NOT NULL, restart REAL NOT NULL, lost REAL NOT NULL,
    idle REAL NOT NULL, cost REAL NOT NULL, UNIQUE (zone, day, user, user_group, gpu_type, currency)
);
CREATE TABLE run_ids (
    number INTEGER PRIMARY KEY, app INTEGER NOT NULL, job INTEGER NOT NULL, attempt INTEGER NOT NULL, tracker TEXT NOT NULL,
    run TEXT NOT NULL, UNIQUE (job, tracker, run)
);
CREATE INDEX open_leases ON leases (job) WHERE ended IS NULL;
CREATE INDEX leases_of_app ON leases (app);
CREATE INDEX run_ids_of_app ON run_ids (app);
CREATE INDEX open_apps ON apps (app) WHERE ended IS NULL;
CREATE INDEX apps_of_user ON apps (user, submitted);
"""
"""Tables as of ``SCHEMA``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Conditions and limits of an app that the arbiter applies besides scheduling.

    Attributes
    ----------
    after : (app, ok | any | failed), dependencies with the required outcome. ``waiting`` : they are not met yet.
    held : its user holds it, or the service does because of ``why``.
    walltime_s : maximum seconds of each job, over all its attempts.
    """

    after: tuple[tuple[int, str], ...] = ()
    waiting: bool = False
    held: bool = False
    walltime_s: Seconds | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Details of a submission in addition to the app itself. ``key`` makes a repeated submission harmless."""

    app: int
    name: str
    user: str
    key: str
    submitted: Seconds
    retries: int
    programs: tuple[Program, ...]
    """Programs by the job's position in the app; empty where they were not asked for."""
    own_steps: bool = True
    """``Program.own_steps`` of the first one, as read."""
    reason: str = ""
    outcome: str = ""
    ended: Seconds | None = None
    rho: float | None = None
    options: Options = Options()


class Journal(Records):
    """Journal of one arbiter; the caller ensures that there is only one arbiter."""

    def __init__(self, path: Path, connect: Callable[..., sqlite3.Connection] = sqlite3.connect) -> None:
        """Open the journal and create it if it is missing; ``connect`` as ``sqlite3.connect``.

        Raises
        ------
        InputError : no SQLite file, or one of another version, which stays as it is.
        NoRoom : the disk is full.
        """
        fresh = integrity.check_there(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Programs hold their submitters' environments: no other user may read them, from the first byte on.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            super().__init__(path, connect(path, isolation_level=None, check_same_thread=False))
            self.db.execute("PRAGMA journal_mode = WAL")
            self.db.execute("PRAGMA synchronous = FULL")
            if fresh or not self._tables():
                self._make()
            else:
                _check_schema(path, self.meta("schema"))
                chain.keep_seals(self.db)
            self.head = self._head = self._last_link()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode in NO_ROOM:
                raise NoRoom(f"{path} cannot be written ({error}); make room on its disk.") from None
            raise InputError(
                f"{path} is not a journal of Themis, or is damaged ({error}). `themis up --repair` keeps what can "
                "be read of it; or "
                "restore a backup with `themis restore`."
            ) from None

    def _tables(self) -> int:
        return int(self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    def _make(self) -> None:
        with self.transaction():
            for statement in _TABLES.split(";"):
                self.write(statement)
            chain.keep_seals(self.db)
            self.write("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA),))

    # ---- apps -----------------------------------------------------------------------------------------------------

    def add_app(self, entry: Entry) -> None:
        """Enter an app."""
        # Field by field: asdict copies every text, a millisecond for each five jobs.
        programs = json.dumps(
            [
                {name: getattr(p, name) for name in _PROGRAM} | {"env": dict(p.env), "exports": dict(p.exports)}
                for p in entry.programs
            ]
        )
        self.write(
            "INSERT INTO apps (app, name, user, key, submitted, retries, programs, options) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.app,
                entry.name,
                entry.user,
                entry.key or None,
                entry.submitted,
                entry.retries,
                programs,
                json.dumps(asdict(entry.options)),
            ),
        )

    def apps(self, where: str = "1", *values: object, last: int = -1, programs: bool = True) -> list[Entry]:
        """Apps that meet an SQL condition on their columns, in order of their numbers; only the ``last`` of them.

        ``programs`` : False leaves them out, which takes most of the time.
        """
        column = "programs" if programs else "NULL"
        rows = self.db.execute(
            f"SELECT app, name, user, key, submitted, retries, {column}, reason, outcome, ended, rho, options, "
            "json_extract(programs, '$[0].own_steps') "
            f"FROM apps WHERE {where} ORDER BY app DESC LIMIT ?",
            (*values, last),
        ).fetchall()[::-1]
        return [
            Entry(
                app=app,
                name=name,
                user=user,
                key=key or "",
                submitted=submitted,
                retries=retries,
                programs=tuple(_program(fields) for fields in json.loads(text)) if text else (),
                reason=reason,
                outcome=outcome or "",
                ended=ended,
                rho=rho,
                options=_options(options),
                own_steps=bool(own_steps),
            )
            for app, name, user, key, submitted, retries, text, reason, outcome, ended, rho, options, own_steps in rows
        ]

    def has_app(self, name: str) -> bool:
        """True if an app has, or had, this name."""
        return self.db.execute("SELECT 1 FROM apps WHERE name = ?", (name,)).fetchone() is not None

    def app_of(self, user: str, ref: str) -> int | None:
        """Number of the user's app that has this name or number."""
        row = self.db.execute(
            "SELECT max(app) FROM apps WHERE user = ? AND (name = ? OR app = ?)",
            (user, ref, number_of(ref)),
        ).fetchone()
        return None if row[0] is None else int(row[0])

    def outcomes(self, user: str = "") -> list[tuple[int, str, str, Seconds | None]]:
        """(app, user, how it ended or nothing, when) of every app that ever was, or of this user's."""
        rows = self.db.execute(
            "SELECT app, user, coalesce(outcome, ''), ended FROM apps WHERE ?1 = '' OR user = ?1 ORDER BY app", (user,)
        )
        return list(rows)

    def give_reason(self, app: int, reason: str) -> None:
        """Why an app fails or is cancelled; the first reason stays."""
        self.write("UPDATE apps SET reason = ? WHERE app = ? AND reason = ''", (reason, app))

    def set_options(self, app: int, **changes: Any) -> None:
        """Change an app's options."""
        options = replace(self.apps("app = ?", app)[0].options, **changes)
        self.write("UPDATE apps SET options = ? WHERE app = ?", (json.dumps(asdict(options)), app))

    def end_app(self, app: int, outcome: str, ended: Seconds, rho: float) -> None:
        """The app is finished."""
        self.write("UPDATE apps SET outcome = ?, ended = ?, rho = ? WHERE app = ?", (outcome, ended, rho, app))

    def over(self, by: Seconds) -> list[tuple[int, Seconds, str]]:
        """Apps that ended by then: number, when and how."""
        return self.db.execute("SELECT app, ended, outcome FROM apps WHERE ended <= ?", (by,)).fetchall()

    def add_attempt(self, time: Seconds, end: AttemptEnded) -> None:
        """Record the ending of an attempt; a repeated report after a restart counts once."""
        self.write(
            "INSERT OR IGNORE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                end.job,
                end.attempt,
                end.app,
                time,
                str(end.ending),
                end.cause,
                end.code,
                end.seconds,
                end.steps,
                end.killed,
                end.message,
                end.ending.is_failure,
            ),
        )

    def attempts(
        self, jobs: Sequence[int]
    ) -> list[tuple[int, int, float, str, str, int | None, float, float, bool, str]]:
        """(job, attempt, ended, ending, cause, code, seconds, steps, killed, message) of consecutive jobs."""
        rows = self.db.execute(
            "SELECT job, attempt, ended, ending, cause, code, seconds, steps, killed, message FROM attempts "
            "WHERE job BETWEEN ? AND ? ORDER BY job, attempt",
            (min(jobs), max(jobs)),
        )
        return list(rows)

    def failures(self, job: int) -> int:
        """Attempts of a job that failed by its own doing."""
        row = self.db.execute("SELECT count(*) FROM attempts WHERE job = ? AND failure", (job,)).fetchone()
        return int(row[0])

    def short_in_a_row(self, job: int, seconds: Seconds) -> int:
        """The number of a job's last attempts that asked to be run again (75, 143) after less than ``seconds``.

        Those that their machine was unable to start count too.
        """
        own = ", ".join(f"'{ending}'" for ending in Ending if ending.is_own)
        row = self.db.execute(
            "SELECT count(*) FROM attempts WHERE job = ?1 AND attempt > (SELECT coalesce(max(attempt), 0) FROM attempts "
            f"WHERE job = ?1 AND NOT (ending IN ({own}) AND seconds < ?2 OR ending = ?3 AND cause = ?4))",
            (job, seconds, str(Ending.NODE_LOST), UNABLE),
        ).fetchone()
        return int(row[0])

    def seconds(self, job: int) -> Seconds:
        """Seconds that a job ran in its finished attempts."""
        row = self.db.execute("SELECT coalesce(sum(seconds), 0) FROM attempts WHERE job = ?", (job,)).fetchone()
        return float(row[0])

    def add_run_id(self, app: int, job: int, attempt: int, tracker: str, run: str) -> None:
        """A job's attempt is this run of MLflow or Weights & Biases; the attempt that reported it first stays."""
        self.write(
            "INSERT OR IGNORE INTO run_ids (app, job, attempt, tracker, run) VALUES (?, ?, ?, ?, ?)",
            (app, job, attempt, tracker, run),
        )

    def run_ids(self, app: int) -> list[tuple[int, int, str, str]]:
        """(job, attempt, tracker, run) of an app, in the order of their reports."""
        rows = self.db.execute("SELECT job, attempt, tracker, run FROM run_ids WHERE app = ? ORDER BY number", (app,))
        return list(rows)

    def ran(self, jobs: Sequence[int]) -> list[tuple[int, Seconds]]:
        """(job, seconds) of jobs: run time of each in its finished attempts."""
        rows = self.db.execute(
            "SELECT job, sum(seconds) FROM attempts WHERE job IN (SELECT value FROM json_each(?)) GROUP BY job",
            (json.dumps(jobs),),
        )
        return list(rows)

    def submissions(self, user: str, since: Seconds) -> int:
        """Number of apps that a user has submitted since then."""
        row = self.db.execute("SELECT count(*) FROM apps WHERE user = ? AND submitted > ?", (user, since)).fetchone()
        return int(row[0])

    def add_profile(self, name: str, message: str) -> None:
        """Keep the speeds of a submission."""
        self.write("INSERT INTO profiles VALUES (?, ?)", (name, message))

    def profiles(self) -> list[tuple[str, str]]:
        """All of them."""
        return list(self.db.execute("SELECT name, message FROM profiles ORDER BY name"))

    # ---- machines -------------------------------------------------------------------------------------------------

    def drained(self) -> set[str]:
        """Names of the machines that an administrator took out of service."""
        return {name for (name,) in self.db.execute("SELECT name FROM nodes WHERE drained")}

    def set_drained(self, name: str, drained: bool) -> None:
        """Take a machine out of service, or back."""
        self.write("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (name, drained))


def number_of(ref: str) -> int:
    """Number of the app that a text names; -1 if it is none."""
    return int(ref) if ref.isascii() and ref.isdecimal() and len(ref) < 10 else -1


def _check_schema(path: Path, found: str | None) -> None:
    if found != str(SCHEMA):
        older = found is not None and found.isdecimal() and int(found) < SCHEMA
        reader = READERS.get(int(found), "fcc95fc") if older and found else ""
        raise InputError(
            f"{path} has journal schema {found}, this Themis reads {SCHEMA}; "
            + (f"the commit {reader} reads it." if older else "use the version that wrote it.")
        )


_PROGRAM = tuple(field.name for field in fields(Program))


def _program(given: dict[str, Any]) -> Program:
    """A program as it was written."""
    return Program(
        **{
            **given,
            "argv": tuple(given["argv"]),
            "modules": tuple(given["modules"]),
            "outputs": tuple(given["outputs"]),
            "secrets": tuple(given.get("secrets", ())),
        }
    )


@lru_cache(maxsize=64)  # most apps have the same
def _options(text: str) -> Options:
    found = json.loads(text)
    return Options(**{**found, "after": tuple((int(app), str(when)) for app, when in found.get("after", ()))})


def read_records(path: Path, after: int = 0, limit: int = -1) -> list[tuple[int, Seconds, str, str]]:
    """(number, time, kind, line) of the records after a number, for any thread; ``Wake`` is left out."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute(
            "SELECT number, t, kind, line FROM records WHERE number > ? AND kind <> 'Wake' ORDER BY number LIMIT ?",
            (after, limit),
        )
        return [(number, time, kind, line.decode()) for number, time, kind, line in rows]


def first_record(db: sqlite3.Connection, time: Seconds) -> int:
    """The number of the first record of this time or later, by halving, for times grow with numbers; else the last."""
    low, high = db.execute("SELECT coalesce(min(number), 0), coalesce(max(number), 0) FROM records").fetchone()
    while low < high:
        middle = (low + high) // 2
        row = db.execute("SELECT t FROM records WHERE number >= ? ORDER BY number LIMIT 1", (middle,)).fetchone()
        low, high = (low, middle) if row is None or row[0] >= time else (middle + 1, high)
    return int(low)


def read_reason(path: Path, app: int) -> str:
    """Why an app failed or was cancelled, for any thread; empty if there is no reason."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        row = db.execute("SELECT reason FROM apps WHERE app = ?", (app,)).fetchone()
        return str(row[0]) if row else ""


def read_why_held(path: Path, app: int) -> str:
    """Why the service holds an app, for any thread; empty if it does not."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        row = db.execute("SELECT options FROM apps WHERE app = ?", (app,)).fetchone()
        return _options(row[0]).why if row else ""


def export(path: Path, log: Path) -> int:
    """Write the journal as an event log that ``themis explain`` and ``themis replay`` read; returns its records."""
    count = 0
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db, log.open("wb") as file:
        for (line,) in db.execute("SELECT line FROM records WHERE kind <> 'Wake' ORDER BY number"):
            file.write(line + b"\n")
            count += 1
    return count
