"""``themis up --repair``: what can be read of a damaged journal becomes a journal again, and what is lost is said first.

The state goes on from the furthest record up to which everything follows: from the beginning, or from a snapshot of the state. Of
what came later, the queue is brought up to date by what is left: submissions are entered again under their numbers, apps that
are over stay over, and a job's next attempt has a number that none had. The damaged file is kept.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from themis.core.state import State
from themis.errors import InputError, ThemisError, counted
from themis.machines.engines.program import Program
from themis.model.cluster import Machine
from themis.model.events import (
    AppCancelled,
    AppFinished,
    AppHeld,
    AppSubmitted,
    Compacted,
    Grant,
    JournalRepaired,
    MachineFailed,
    MachineJoined,
)
from themis.model.log import decode, encode
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.model.workload import App, Job, Regime
from themis.service.engine import chain, integrity
from themis.service.engine.books import DONE
from themis.service.engine.engine import Engine
from themis.service.engine.folding import Differs, fold
from themis.service.engine.journal import Entry, Journal
from themis.service.engine.records import KEPT
from themis.service.engine.recovery import engine_over
from themis.service.engine.salvage import Salvage, salvage
from themis.traces.profiles.models import GENERIC

_LOST = "its submission was lost with the damaged part of the journal; submit it again"


def repair(path: Path, book: ProfileBook, say: Callable[[str], None], machines: Sequence[Machine] = ()) -> bool:
    """Repair a journal if it is damaged; no process may have it open. Returns whether it was damaged.

    Parameters
    ----------
    say : called with each sentence about what is lost, before anything is changed.
    machines : those that the service is started with, in order; none where nodes of an engine join by themselves.

    Raises
    ------
    InputError : too little is left; restore a backup.
    """
    if not path.exists() or not path.stat().st_size:
        Journal(path).close()  # which says why it cannot begin here; or there is nothing yet
        return False
    with TemporaryDirectory(prefix=".repair-", dir=path.parent) as folder:
        there = Path(folder)
        copy_journal(path, there / "old")
        problem = _problem(there / "old" / path.name, book)
        if not problem:
            say(f"{path} is not damaged; there is nothing to repair.")
            return False
        copy_journal(path, there / "raw")
        found = salvage(there / "raw" / path.name, path)
        draft = there / "new" / path.name
        lines = _rebuild(found, path, draft, book, machines)
        say(problem.replace(str(there / "old"), str(path.parent)))
        for line in lines:
            say(line)
        _swap(path, draft, say)
    return True


def copy_journal(path: Path, folder: Path) -> None:
    """Copy a journal with its write-ahead log and trace, byte for byte."""
    folder.mkdir(mode=0o700)
    for there in (path, Path(f"{path}-wal"), integrity.trace_path(path)):
        with suppress(FileNotFoundError):
            shutil.copyfile(there, folder / there.name)


def _problem(copy: Path, book: ProfileBook) -> str:
    try:
        with closing(Journal(copy)) as journal:
            journal.verify()
            fold(engine_over(journal, book))
    except ThemisError as error:
        return str(error)
    return ""


# ---- building ---------------------------------------------------------------------------------------------------------


def _rebuild(found: Salvage, old: Path, draft: Path, book: ProfileBook, machines: Sequence[Machine]) -> list[str]:
    """Make the new journal; returns its notes."""
    whole = {row[0]: row for row, good in found.records if good}
    snapshots = [int(row["number"]) for row in found.tables.get("checkpoints", ())]
    bases = sorted(((_reach(base, whole), -base) for base in (0, *snapshots)), reverse=True)
    for end, negative in bases:
        base = -negative
        while end > base or (base and end == base):
            shutil.rmtree(draft.parent, ignore_errors=True)
            if not _write(found, draft, whole, base, end, old):
                break
            with closing(Journal(draft)) as journal:
                try:
                    engine = engine_over(journal, book)
                    fold(engine)
                except Differs as error:
                    end = error.number - 1
                    continue
                except ThemisError:
                    break
                tail = [row for n, row in sorted(whole.items()) if n > end]
                return _go_on(found, engine, base, end, tail, machines)
    raise InputError(
        f"too little of {old} can be read to continue from it; restore a backup with `themis restore`, or move the "
        "data directory away to begin with "
        "a new one."
    )


def _reach(base: int, whole: dict[int, chain.Row]) -> int:
    """The last record up to which everything follows."""
    end = base
    while end + 1 in whole and (base or whole[1][2] == "Header"):
        end += 1
    return end


def _write(found: Salvage, draft: Path, whole: dict[int, chain.Row], base: int, end: int, old: Path) -> bool:
    """Write the good records up to ``end`` and the good rows; False where these do not make a journal."""
    before = [row for n, row in sorted(whole.items()) if n <= base]
    gaps = base and any(row[2] == "Compacted" for row in before) + len(before) < base
    if gaps:
        kept = [row for row in before if row[2] in KEPT]
        at = max(set(range(1, base + 1)) - {row[0] for row in kept})
        compacted = sum(orjson.loads(row[3])["records"] for row in before if row[2] == "Compacted")
        moment = max((row[1] for row in before if row[0] <= at), default=0.0)
        line = encode(moment, Compacted(records=max(base - len(kept), compacted)))
        before = sorted([*kept, (at, moment, "Compacted", line, None)])
    rows = [*before, *(whole[n] for n in range(base + 1, end + 1))]
    if not rows or rows[0][2] != "Header":
        return False
    with closing(Journal(draft)) as journal, journal.transaction():
        for row in found.tables.get("meta", ()):
            if row["name"] not in ("schema", "head"):
                journal.set_meta(row["name"], row["value"])
        if journal.meta("epoch") is None:
            journal.set_meta("epoch", repr(old.stat().st_mtime - max(record[1] for record, _ in found.records)))
        digest = chain.BEGIN
        for number, moment, kind, line, _ in rows:
            link = chain.link(digest, number, moment, kind, line)
            stored = chain.compacted(digest, link, number, moment, line) if kind == "Compacted" else link
            digest = stored[: chain.SIZE]
            journal.write("INSERT INTO records VALUES (?, ?, ?, ?, ?)", (number, moment, kind, line, stored))
        journal.head = end, digest
        for table in chain.sealed(journal.db):
            for values in found.tables.get(table, ()):
                if table != "meta" and (table != "checkpoints" or values["number"] == base):
                    names = ", ".join(values)
                    marks = ", ".join("?" * len(values))
                    journal.write(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))
    return True


def _go_on(
    found: Salvage, engine: Engine, base: int, end: int, tail: list[chain.Row], machines: Sequence[Machine]
) -> list[str]:
    """Bring the state up to what is known of the time after the last good record; returns its notes."""
    journal, state = engine.journal, engine.core.state
    lost = found.known - end
    holes = base - sum(row[0] <= base for row, good in found.records if good)
    out = [_of_records(found, journal, base, end, holes, tail)]
    late: list[object] = []
    for row in tail:
        with suppress(InputError):
            late.append(decode(row[3])[1] if row[2] != "Wake" else None)
    submitted = {record.app.name: record for record in late if isinstance(record, AppSubmitted)}
    entries = {entry.app: entry for entry in journal.apps()}
    apps_bad = [(key, what) for table, key, what in found.bad if table == "apps"]
    numbers = [*entries, *(int(key) for key, _ in apps_bad if key.isdecimal()), state.apps.size - 1]
    now = max(time.time() - float(journal.meta("epoch") or 0.0), state.now) + 1.0
    attempts = Counter[int]()
    for job, attempt in journal.db.execute("SELECT job, max(attempt) FROM attempts GROUP BY job"):
        attempts[int(job)] = int(attempt)
    for record in late:
        if isinstance(record, Grant):
            attempts[record.job] = max(attempts[record.job], record.attempt)
    for job, attempt in journal.db.execute("SELECT job, max(attempt) FROM leases GROUP BY job"):
        attempts[int(job)] = max(attempts[int(job)], int(attempt))
    again, gone, over = list[str](), list[str](), list[str]()
    ends = {record.app: (at, record) for at, record in journal.records() if isinstance(record, AppFinished)}
    with journal.transaction():
        _books_again(found, engine, whole=not base and not lost)
        # If nothing that the state depends on is lost, the service continues as if nothing had happened.
        if lost or apps_bad:
            engine.feed(JournalRepaired(lost=lost, attempts=tuple(sorted(attempts.items()))), now)
        for machine in _machines_again(state, end, machines, late):
            engine.feed(MachineJoined(machine=machine), now)
        for number in range(max(numbers, default=-1) + 1):
            _bring_back(engine, number, entries.get(number), submitted, now, (again, gone, over), ends.get(number))
        drained = journal.drained()
        for n, machine in enumerate(state.machines):
            if machine.name in drained and state.machine_up[n]:
                engine.feed(MachineFailed(machine=n), now)
        engine.books.close_others(state.job_gpus)
    if again:
        out.append(f"Entered again as submitted: {', '.join(again)}.")
    if over:
        out.append(f"Finished according to the list of apps; the records of how are lost: {', '.join(over)}.")
    if gone:
        out.append(f"Lost; submit them again: {', '.join(gone)}.")
    others = Counter(table for table, _, _ in found.bad if table not in ("apps", "checkpoints"))
    names = {
        "attempts": "of how attempts ended (retries and run times count without them)",
        "nodes": "of drained machines",
        "profiles": "of speeds that came with submissions",
        "meta": "of the journal's own settings",
        "leases": "of accounts of attempts",
        "usage": "of accounts of days",
        "run_ids": "of run ids in MLflow or Weights & Biases",
    }
    out += [
        f"Lost: {counted(count, 'row')} {names.get(table, f'of {table}')}." for table, count in sorted(others.items())
    ]
    active = int(state.apps.active[: state.apps.size].sum())
    out.append(
        f"Kept: {counted(state.apps.size, 'app')}, {active} of them queued or running; users, tokens and checkpoints are files of "
        "their own. Jobs that ran after the last good record continue from their last checkpoint."
    )
    return out


def _books_again(found: Salvage, engine: Engine, *, whole: bool) -> None:
    """Open the accounts; where rows of them are damaged and every record is there (``whole``), make them again."""
    journal = engine.journal
    damaged = {table for table, key, _ in found.bad if table in ("leases", "usage") or (table, key) == ("meta", DONE)}
    if damaged and whole and not journal.lines_of(("Compacted",)):
        journal.write("DELETE FROM leases")
        journal.write("DELETE FROM usage")
        journal.write("DELETE FROM meta WHERE name = ?", (DONE,))
        found.bad = [row for row in found.bad if row[0] not in ("leases", "usage")]
    elif damaged:
        # Keep the surviving rows: folding the surviving records would charge them twice.
        journal.set_meta(DONE, "1")
    engine.books.open(engine.core.state, [grant for grant, _, _ in engine.held()])


def _machines_again(state: State, end: int, machines: Sequence[Machine], late: Sequence[object]) -> list[Machine]:
    """Machines with lost records, in order: without them, apps that need them would fit nowhere and block the start."""
    known = {machine.name for machine in state.machines}
    if not machines:
        # Each with the first of its records; what changed since, a node says when it introduces itself.
        there = {r.machine.name: r.machine for r in reversed(late) if isinstance(r, MachineJoined)}
        return [machine for name, machine in reversed(there.items()) if name not in known]
    # Those of one machine's service are the records after the header, before anything else.
    only = end == 1 + len(known) and state.machines == list(machines[: len(known)])
    return list(machines[len(known) :]) if only else []


def _of_records(found: Salvage, journal: Journal, base: int, end: int, holes: int, tail: list[chain.Row]) -> str:
    lost = found.known - end
    epoch = float(journal.meta("epoch") or 0.0)
    if not lost:
        if base and holes > 0:
            return (
                f"No record after the snapshot of the state at record {base} is lost. Some records before it cannot be read any "
                "more; reports and explanations lack them."
            )
        return f"All {end} records are there."
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch + journal.last()[1]))
    kinds = Counter(row[2] for row in tail if row[2] != "Wake")
    counts = f", among them {', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}" if kinds else ""
    gone = lost - len(tail)
    unread = (
        f" {gone} of them cannot be read at all: apps that were submitted in them, and of which nothing else is left, are lost "
        "without a name."
    )
    return (
        f"The state continues from record {end}, of {when}. {counted(lost, 'record')} after it cannot be used{counts}."
        + unread * (gone > 0)
    )


def _bring_back(
    engine: Engine,
    number: int,
    entry: Entry | None,
    submitted: dict[str, AppSubmitted],
    now: Seconds,
    lists: tuple[list[str], list[str], list[str]],
    end: tuple[Seconds, AppFinished] | None,
) -> None:
    """Restore one app in the state and in the list of apps, as far as it is known."""
    journal, state = engine.journal, engine.core.state
    again, gone, over = lists
    if number >= state.apps.size:
        event = submitted.get(entry.name) if entry else None
        if event is None and entry is None:
            # Numbers are given in turn, so the record is that of the first app that the state does not have.
            known = {app.name for app in state.app_specs}
            names = [n for n in submitted if n not in known and not journal.has_app(n)]
            event = submitted[names[0]] if names else None
        if event is None:
            event = AppSubmitted(app=_stand_in(number, entry, now), weight=1.0)
            complete = False
        else:
            complete = entry is not None
        try:
            engine.feed(replace(event, app=replace(event.app, arrival=now)), now)
        except ThemisError:
            complete, event = False, AppSubmitted(app=_stand_in(number, entry, now), weight=1.0)
            engine.feed(event, now)
    else:
        event, complete = None, entry is not None
    spec = state.app_specs[number]
    label = f"{spec.name!r} of {spec.user} (app {number})"
    if entry is None:
        entry = Entry(
            app=number,
            name=spec.name,
            user=spec.user,
            key="",
            submitted=float(state.apps.arrival[number]),
            retries=0,
            programs=tuple(Program(argv=("false",), cwd="/") for _ in spec.jobs),
            reason=_LOST,
        )
        journal.add_app(entry)
        journal.give_reason(number, _LOST)
    active = bool(state.apps.active[number])
    if entry.outcome:
        if active:
            engine.feed(AppCancelled(app=number), now)
            over.append(label)
        return
    if not active:
        if end is not None:
            journal.end_app(number, end[1].outcome, end[0], end[1].rho_paper)
    elif not complete:
        journal.give_reason(number, _LOST)
        engine.feed(AppCancelled(app=number), now)
        journal.end_app(number, "cancelled", now, 0.0)
        gone.append(label)
    else:
        if event is not None:
            again.append(label)
        if (entry.options.held or entry.options.waiting) and not state.apps.held[number]:
            engine.feed(AppHeld(app=number), now)


def _stand_in(number: int, entry: Entry | None, now: Seconds) -> App:
    """Placeholder for an app with an unreadable submission, so that later apps keep their numbers and their jobs'."""
    jobs = tuple(
        Job(name=f"job{i}", model=GENERIC, regimes=(Regime(steps=1.0),))
        for i in range(len(entry.programs) if entry else 1)
    )
    return App(
        name=entry.name if entry else f"lost-{number}", user=entry.user if entry else "nobody", arrival=now, jobs=jobs
    )


def _swap(path: Path, draft: Path, say: Callable[[str], None]) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.link(path, aside)
    # The old write-ahead log must never meet the new file.
    for end in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{end}", f"{aside}{end}")
    os.replace(draft, path)
    os.replace(integrity.trace_path(draft), integrity.trace_path(path))
    say(f"The damaged journal is kept as {aside}.")
