"""Dependencies between apps: missing ones, and cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from themis.faults import did_you_mean
from themis.jobs.spec import After, Submission, When


def unmet(
    submissions: Sequence[Submission], names: Collection[str], known: Collection[str] | None
) -> Iterator[tuple[Submission, str]]:
    """Dependencies that can never be satisfied, each with a sentence.

    Parameters
    ----------
    names : apps submitted together. ``known`` : apps submitted before; None: not checked.
    """
    existing = sorted({*names, *(known or ())})
    for spec in submissions:
        for other in spec.after:
            if known is not None and other.name not in existing:
                yield spec, f"key 'after': there is no app {other.name!r}.{did_you_mean(other.name, existing)}"
    waits = {spec.name: [other.name for other in spec.after] for spec in submissions}
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        # graphlib lists the cycle from the dependency to the app that waits.
        circle = [str(name) for name in reversed(error.args[1])]
        first = min(range(len(circle) - 1), key=lambda i: circle[i])
        circle = circle[first:-1] + circle[:first]
        chain = " waits for ".join([*circle, circle[0]])
        spec = next(s for s in submissions if s.name == circle[0])
        yield spec, f"key 'after': circular dependency ({chain}); none of these apps would ever start."


def decide(after: Sequence[After], ended: dict[str, bool]) -> bool | None:
    """Whether an app may start: True, None (not yet), or False (never).

    Parameters
    ----------
    ended : ended apps by name: whether all their jobs completed.
    """
    verdicts = [_met(other.when, ended[other.name]) if other.name in ended else None for other in after]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _met(when: When, well: bool) -> bool:
    return when is When.ANY or (when is When.OK) == well
