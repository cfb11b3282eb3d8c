"""All errors that Themis raises.

    ThemisError
    +-- InputError            the user's input is wrong; the command line exits with code 2
    |   +-- UnknownName       an unregistered name, with "did you mean"
    |   +-- TraceError        a wrong row of a trace file: file, line, column, value, what was expected
    |   +-- ClusterError      a cluster that cannot exist, or a job that does not fit on any of its machines
    +-- MissingColumn         a policy reads a snapshot column that is not filled; says how to turn it on
    +-- NotSolved             an optimiser could not prove its answer within the requested gap
    +-- InvariantBroken       a bug in Themis: the state contradicts itself; carries the events that led to it

A message is one sentence: what is wrong, where, the value, what was expected, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable


class ThemisError(Exception):
    """Base of all errors that Themis raises."""


INSTALL_AGAIN = (
    "If a package of yours adds it, install the package again, for instance with `pip install -e .`, so that Python "
    "finds it"
)
"""For names that other packages register: Python reads a package's entry points at its installation only."""


class InputError(ThemisError):
    """The user's input is wrong; shown as one sentence, exit code 2."""


MOST_NAMES = 80
"""Known names in a message."""


class UnknownName(InputError):
    """A name that is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        """``hint`` : a sentence for the case that no known name is close."""
        name, names = name[:100], sorted(known)
        close = closest(name, names)
        after = f" {hint}" if hint and not close else ""
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        super().__init__(
            f"unknown {kind} {name!r}.{close} Known: {', '.join(names[:MOST_NAMES]) or 'none'}{more}.{after}"
        )


class TraceError(InputError):
    """A wrong value in a trace file, with its line and column."""

    def __init__(self, *, file: str, line: int, column: str, value: object, expected: str) -> None:
        super().__init__(f"{file}, line {line}, column {column!r}: got {value!r}, expected {expected}.")
        self.file, self.line, self.column, self.value, self.expected = file, line, column, value, expected


class ClusterError(InputError):
    """A cluster that cannot exist, or work that can never fit it."""


class MissingColumn(ThemisError):
    """A policy needs a snapshot column that was not filled."""


class NotSolved(ThemisError):
    """No answer was proven within the requested gap."""


class InvariantBroken(ThemisError):
    """The scheduler's state contradicts itself."""


def counted(number: int, noun: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def closest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'gpus'?``, or an empty string if no known name is similar."""
    import difflib

    close = difflib.get_close_matches(name, [str(other) for other in known], n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
