"""How journals of older versions become those of this one: a step for each version of the tables, in one transaction.

A step that was released is never changed; what comes later is another step. Records keep their lines as they were
written: a new kind of record, or a new field with a default, needs no step.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from themis.errors import InputError
from themis.service.engine import chain

STEPS: tuple[str, ...] = (
    # 1 -> 2: pictures of the whole state, so that a start need not fold the journal from its beginning.
    """
    CREATE TABLE checkpoints (number INTEGER PRIMARY KEY, t REAL NOT NULL, state BLOB NOT NULL);
    """,
    # 2 -> 3: what an app waits for, its walltime, whether its user holds it.
    """
    ALTER TABLE apps ADD COLUMN options TEXT NOT NULL DEFAULT '{}';
    """,
    # 3 -> 4: what is asked of the queue and of one user does not grow with the apps that ever were.
    """
    CREATE INDEX open_apps ON apps (app) WHERE ended IS NULL;
    CREATE INDEX apps_of_user ON apps (user, submitted);
    """,
    # 4 -> 5: digests over records and rows; those of what is there already are made after the steps.
    """
    ALTER TABLE records ADD COLUMN digest BLOB;
    CREATE TABLE seals (name TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID;
    """,
    # 5 -> 6: accounts, which are made from the records when the journal is opened; ids of runs in MLflow and W&B.
    """
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
    """,
)
"""``STEPS[v - 1]`` brings the tables from schema v to v + 1."""

SCHEMA = len(STEPS) + 1
"""Of the tables; that of the records is ``themis.model.events.SCHEMA``."""


CHAINED = 5
"""The first schema with digests."""


def migrate(db: sqlite3.Connection, path: Path, found: str | None) -> None:
    """Bring the tables up to ``SCHEMA``; all steps or none.

    Raises
    ------
    InputError : the journal is of a later version, or says none.
    """
    if found is None or not found.isdecimal() or not 1 <= int(found) <= SCHEMA:
        raise InputError(
            f"{path} has journal schema {found}, this Themis reads 1 to {SCHEMA}; use the version that wrote it."
        )
    if int(found) == SCHEMA:
        return
    if int(found) >= CHAINED and (broken := chain.broken_seals(db)):
        raise InputError(
            f"{path} is damaged: row {broken[0][1]} of {broken[0][0]} is {broken[0][2]}. Repair it with the version that "
            "wrote it, or restore a backup, and upgrade then."
        )
    db.execute("BEGIN IMMEDIATE")
    try:
        for step in STEPS[int(found) - 1 :]:
            for statement in statements(step):
                db.execute(statement)
        db.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (str(SCHEMA),))
        if int(found) < CHAINED:
            chain.chain_all(db)
        # Of the rows as they are now: a step may have given them columns.
        chain.seal_all(db)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def statements(script: str) -> list[str]:
    """The statements of a script; none of ours holds a semicolon within."""
    return [text for part in script.split(";") if (text := part.strip())]
