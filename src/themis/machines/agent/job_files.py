"""Tasks whose files are on their way to this machine, and the cache of bundles and initial copies.

    ROOT/cache/bundles/<sha256>

A task whose files are copied asks first which copy it begins with; its archives in the service are fetched as any other then.

One bundle is fetched at a time, piece by piece over the agent's own connection: the next piece is asked for when the last one
came, so a large bundle delays no renewal of the machine's lease. What was fetched before a connection was lost is kept, but not
across an end of the agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from themis.errors import InputError
from themis.machines.agent.messages import CopyFound, Fetch, FindCopy, Part, Piece, TaskSpec
from themis.machines.agent.system import System
from themis.machines.bundles.store import Incoming, Store

ANSWER_S = 20.0
"""A question without an answer is asked again."""
TRIES = 3
"""Times that a bundle which arrived damaged is fetched."""
AGAIN_S = 0.5
"""Between two questions for a copy that may still come."""


class Arrivals:
    """Tasks that wait for their bundles.

    Parameters
    ----------
    root : the agent's folder. ``most_bytes`` : of all bundles that are kept, those that are needed included.
    """

    def __init__(self, root: Path, most_bytes: int, system: System) -> None:
        self.root, self.most_bytes, self.system = root, most_bytes, system
        self.waiting: dict[str, tuple[TaskSpec, float]] = {}
        """Tasks that wait, with their deadlines."""
        self._store: Store | None = None
        self._incoming: Incoming | None = None
        self._bundle = ""
        self._damaged = 0
        self._asked_at = -math.inf
        self._problems: dict[str, str] = {}
        """Why a bundle cannot be had."""
        self.copies: dict[str, tuple[Part, ...]] = {}
        """By task, the archives that it begins with, once known."""
        self.notes: dict[str, str] = {}
        """By task, a line for its logs that explains its first copy."""
        self._copy_asked: dict[str, tuple[float, float]] = {}
        """By task, the time of the first request for its copy, and the time of the next one."""

    @property
    def store(self) -> Store:
        """The cache; its folder is made when a job first comes with files."""
        if self._store is None:
            self._store = Store(
                self.root / "cache" / "bundles",
                self.most_bytes,
                self._needed,
                setting="node_cache",
                called="the machine's cache of bundles",
                recent_s=0.0,
            )
        return self._store

    def want(self, spec: TaskSpec) -> None:
        """A task is to start when its bundle is here; the same task again changes nothing."""
        limit = self.system.clock() + (spec.setup_s or math.inf)
        self.waiting.setdefault(spec.task, (spec, limit))

    def drop(self, task: str) -> TaskSpec | None:
        """A task waits no more; None if it did not."""
        found = self.waiting.pop(task, None)
        self._copy_asked.pop(task, None)
        self.copies.pop(task, None)
        self.notes.pop(task, None)
        return found[0] if found is not None else None

    def ready(self) -> Iterator[tuple[TaskSpec, tuple[Part, ...], str]]:
        """Tasks with complete bundles, each with its initial copy and a note for its log; they leave the queue."""
        for task, (spec, _) in [*self.waiting.items()]:
            if (spec.copied and task not in self.copies) or any(self._missing(spec)):
                continue
            found = spec, self.copies.get(task, ()), self.notes.get(task, "")
            self.drop(task)
            yield found

    def _missing(self, spec: TaskSpec) -> Iterator[str]:
        """Archives of a task that are not here."""
        for name in (spec.bundle, *(part.sha256 for part in self.copies.get(spec.task, ()))):
            if name and self.store.size(name) is None:
                yield name

    def failed(self) -> Iterator[tuple[TaskSpec, str]]:
        """Tasks whose bundles are unavailable, each with a sentence; they leave the queue."""
        now = self.system.clock()
        for task, (spec, limit) in [*self.waiting.items()]:
            problem = next((self._problems[name] for name in self._missing(spec) if name in self._problems), None)
            if problem is None and now >= limit:
                problem = f"its files did not arrive within {spec.setup_s:g} s (setup)"
            if problem is not None:
                self.drop(task)
                yield spec, problem
        self._problems.clear()

    def copy_question(self) -> FindCopy | None:
        """A task to ask the arbiter for the copy of; None while answers are awaited."""
        now = self.system.clock()
        for task, (spec, _) in self.waiting.items():
            first, again = self._copy_asked.get(task, (now, -math.inf))
            if spec.copied and task not in self.copies and now >= again:
                self._copy_asked[task] = (first, now + ANSWER_S)
                return FindCopy(task=task, waited_s=now - first)
        return None

    def found(self, answer: CopyFound) -> None:
        """Handle the reply about a checkpoint copy: the copy that the task begins with, or a request to ask again
        later."""
        if answer.task not in self.waiting or answer.task in self.copies:
            return
        first, _ = self._copy_asked.get(answer.task, (self.system.clock(), 0.0))
        if answer.wait:
            self._copy_asked[answer.task] = (first, self.system.clock() + AGAIN_S)
            return
        self.copies[answer.task] = answer.parts
        if answer.note:
            self.notes[answer.task] = answer.note

    def question(self) -> Fetch | None:
        """The next request to the arbiter; None while a reply is awaited, or if nothing is missing."""
        wanted = [name for spec, _ in self.waiting.values() for name in self._missing(spec)]
        if self._bundle not in wanted:
            self._abandon()
            self._bundle = wanted[0] if wanted else ""
        if not self._bundle or self.system.clock() < self._asked_at + ANSWER_S:
            return None
        self._asked_at = self.system.clock()
        return Fetch(bundle=self._bundle, offset=self._incoming.size if self._incoming is not None else 0)

    def interrupted(self) -> None:
        """The connection was lost, and with it an answer."""
        self._asked_at = -math.inf
        self._copy_asked = {task: (first, -math.inf) for task, (first, _) in self._copy_asked.items()}

    def take(self, piece: Piece) -> None:
        """Take a piece; a repeated piece, or one that is not the answer to the last request, changes nothing."""
        there = self._incoming.size if self._incoming is not None else 0
        if piece.bundle != self._bundle or piece.offset != there:
            return
        self._asked_at = -math.inf
        try:
            self._write(piece)
        except (InputError, OSError) as error:
            self._problems[piece.bundle] = f"its files cannot be kept on this machine: {error}"
            self._abandon()

    def _write(self, piece: Piece) -> None:
        if piece.size < 0:
            self._problems[piece.bundle] = piece.problem
            self._abandon()
            return
        if self._incoming is None:
            self._incoming = self.store.receive(piece.size)
        self._incoming.write(piece.data)
        if self._incoming.size < piece.size and piece.data:
            return
        incoming, self._incoming = self._incoming, None
        try:
            # A power failure may leave less on disk than was verified: it is verified again whenever it is unpacked.
            incoming.finish(piece.bundle, durable=False)
            self._damaged = 0
        except InputError:
            self._damaged += 1
            if self._damaged >= TRIES:
                self._damaged = 0
                raise
        finally:
            incoming.abort()

    def _abandon(self) -> None:
        if self._incoming is not None:
            self._incoming.abort()
        self._incoming, self._bundle, self._asked_at = None, "", -math.inf

    def _needed(self) -> set[str]:
        parts = {part.sha256 for parts in self.copies.values() for part in parts}
        return parts.union(spec.bundle for spec, _ in self.waiting.values())
