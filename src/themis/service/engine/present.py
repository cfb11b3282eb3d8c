"""The present of a journal, for what-ifs: its state now or at an instant, its apps, and earlier states to learn errors from."""

from __future__ import annotations

from itertools import dropwhile

from themis.errors import InputError
from themis.model.events import AppSubmitted
from themis.model.log import decode
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.service.engine.folding import RunningFold, fold
from themis.service.engine.journal import Journal
from themis.service.engine.recovery import engine_over, header_of
from themis.sim import dump
from themis.sim.dump import Dump
from themis.sim.forward.present_state import Present, Samples, Submissions, policy_of
from themis.traces.profiles.models import DEFAULT_BOOK

MOST_FOLDED = 60_000
"""Records that are folded from the first one on, for a longer past; a longer journal is folded from its last snapshot."""


def of_journal(
    journal: Journal,
    *,
    at: Seconds | None = None,
    now: Seconds | None = None,
    book: ProfileBook = DEFAULT_BOOK,
    state: Dump | None = None,
) -> Present:
    """Start of a what-if on a journal.

    Parameters
    ----------
    at : the instant, in seconds of the journal; None: its end, or, if all of its apps had ended by then, the state before its first
        app, with all its apps to come. ``now`` : what the time is, where the journal's end is the present of a running service.
    state : the present state, where its owner gave it; the journal then gives the past alone.

    Raises
    ------
    InputError : the journal cannot be folded, or its records before ``at`` were dropped.
    """
    found = _submissions(journal)
    whole = not journal.lines_of(["Compacted"])
    last, ends = journal.last()
    upto, coming = _number_at(journal, at), []
    if at is None and state is None and found.over():
        if not whole:
            raise InputError(
                f"all apps of {journal.path.parent} have ended, and its first records were dropped, so that it cannot be simulated "
                "from its beginning. Name an instant of its last records with --at."
            )
        at, coming = found.arrivals[0].time, found.arrivals
        upto = _first_app(journal) - 1
    header = header_of(journal)
    samples = Samples(header.policy, 0, 0 if coming else (last if upto is None else upto))
    whole = whole and (samples.last <= MOST_FOLDED or coming != [])
    samples.first = 1 if whole else journal.snapshot_number()
    engine = engine_over(journal, book)

    def seen(running: RunningFold) -> None:
        if not running.pending and engine.decision is None:
            samples.seen(running.number, engine.core)

    fold(engine, whole=whole, seen=seen, upto=upto)
    core = engine.core
    if state is None:
        state = dump.parse(dump.write(core, policy_of(core, header.policy), found.models() if coming else ()))
    begins = at if at is not None else max(now if now is not None else ends, core.state.now)
    return Present(
        dump=state,
        now=begins,
        history=[] if coming else [one for one in found.arrivals if one.time <= begins],
        coming=coming,
        waits={
            entry.app: [app for app, _ in entry.options.after]
            for entry in journal.apps("ended IS NULL", programs=False)
            if entry.options.waiting and not entry.options.held
        },
        past=samples.parsed(),
        ended=found.ended,
        unknown=frozenset(found.unknown),
    )


def _submissions(journal: Journal) -> Submissions:
    found = Submissions()
    for line in journal.lines_of(["AppSubmitted", "AppFinished"]):
        found.add(*decode(line))
    return found


def _number_at(journal: Journal, at: Seconds | None) -> int | None:
    """The last record up to an instant; None for the journal's end."""
    if at is None:
        return None
    row = journal.db.execute("SELECT coalesce(max(number), 0) FROM records WHERE t <= ?", (at,)).fetchone()
    first = journal.db.execute("SELECT coalesce(max(number), 0) FROM records WHERE kind = 'Compacted'").fetchone()
    if not row[0] or (row[0] < first[0]):
        raise InputError(f"{journal.path.parent} has no records of {at:g} s after it began; name a later instant.")
    return int(row[0])


def _first_app(journal: Journal) -> int:
    """The number of the first app's record."""
    numbered = dropwhile(lambda one: not isinstance(one[2], AppSubmitted), journal.numbered())
    return next(numbered)[0]
