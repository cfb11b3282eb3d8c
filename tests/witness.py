"""A second opinion on leases: a fold over a log that shares no code with the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from themis.model.events import AppFinished, AppSubmitted, Grant, JobReached, JobStopped


def check_leases(records: Iterable[object], *, apps: int, jobs: int) -> dict[tuple[int, int], Grant]:
    """From a grant to the end of its gang its seats are its own; every app ends once, every job reaches its target.

    A simulation's log ends with its last app, before the last gangs have stopped. Returns the grants by (job, attempt).
    """
    seats: dict[tuple[int, int], int] = {}
    last: dict[int, Grant] = {}
    grants: dict[tuple[int, int], Grant] = {}
    counts: Counter[type] = Counter()
    reached: set[int] = set()
    for record in records:
        counts[type(record)] += 1
        if isinstance(record, JobReached):
            # What an agent reported to an arbiter that was killed is reported again to the next one.
            reached.add(record.job)
        if isinstance(record, Grant):
            assert (record.job, record.attempt) not in grants, f"{record} was granted twice"
            assert record.job not in last, f"job {record.job} has two gangs"
            for gpu in record.gpus:
                assert (gpu, record.seat) not in seats, f"GPU {gpu} is leased twice: {record}"
                seats[gpu, record.seat] = record.job
            last[record.job] = grants[record.job, record.attempt] = record
        elif isinstance(record, JobStopped) and record.job in last and last[record.job].attempt == record.attempt:
            gone = last.pop(record.job)
            for gpu in gone.gpus:
                del seats[gpu, gone.seat]
    assert (counts[AppSubmitted], counts[AppFinished], len(reached)) == (apps, apps, jobs)
    assert last.keys() <= reached, f"gangs of {last} never stopped"
    return grants
