"""Answers to machines that fetch bundles and send copies. A thread reads and writes the disk, so leases are renewed meanwhile.

A machine asks for one piece, and for the next when that came. So at most one piece of each machine is on its way, and a renewal
waits for at most one piece of each; nothing is remembered here, and a connection that is lost costs one question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from themis.errors import InputError
from themis.machines.agent.messages import PIECE, CopyFound, Fetch, FindCopy, Message, Piece, TaskSpec, Upload, Uploaded
from themis.machines.bundles.store import Store
from themis.machines.engines.copies import Copies
from themis.machines.engines.hosts import TASK

SIGN_S = 30.0
"""Seconds to wait for a disconnected machine that may have the last copy of an attempt."""
MOST_WAITING = 8
"""Questions of one machine that wait to be answered; it asks one at a time, and again where no answer comes."""


class Depot:
    """Bundles for machines to fetch, and copies from them. ``answer`` : sends a message to a machine, in a thread."""

    def __init__(self, store: Store | None, copies: Copies | None, answer: Callable[[int, Message], None]) -> None:
        self.store, self.copies, self.answer = store, copies, answer
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="themis-depot")
        self._lock, self._waiting = Lock(), Counter[int]()

    def _later(self, machine: int, work: Callable[[], Message]) -> None:
        """Answer a machine in the depot's thread; a question too many is dropped."""
        with self._lock:
            if self._waiting[machine] >= MOST_WAITING:
                return
            self._waiting[machine] += 1

        def run() -> None:
            try:
                self.answer(machine, work())
            finally:
                with self._lock:
                    self._waiting[machine] -= 1

        self._reader.submit(run)

    def fetch(self, machine: int, asked: Fetch, specs: Collection[TaskSpec]) -> None:
        """Answer a question, later; ``specs`` : of the machine's tasks that have not ended, which gets no other files."""
        if any(spec.bundle == asked.bundle or spec.copied for spec in specs):
            self._later(machine, lambda: self.piece(asked, specs))
        else:
            self.answer(machine, self._not_theirs(asked))

    def find(self, machine: int, asked: FindCopy, spec: TaskSpec, node: str, connected: Callable[[str], bool]) -> None:
        """Answer with which copy a task begins, later. ``connected`` : whether a machine of this name is."""
        self._later(machine, lambda: self.copy_of(asked, spec, node, connected))

    def keep(self, machine: int, node: str, sent: Upload) -> None:
        """Take a piece of a copy, and answer, later."""
        self._later(machine, lambda: self.taken(node, sent))

    def connected(self, node: str, tasks: Collection[str]) -> None:
        """A machine connected with these tasks: copies of others are not to be awaited from it."""
        kept = {(int(m[1]), int(m[2])) for task in tasks if (m := TASK.fullmatch(task))}
        if self.copies is not None:
            copies = self.copies
            self._reader.submit(lambda: copies.gone(node, kept))

    def copy_of(self, asked: FindCopy, spec: TaskSpec, node: str, connected: Callable[[str], bool]) -> CopyFound:
        """The copy that a task begins with: the newest one, once the attempt before has sent its last, or will not."""
        if self.copies is None:
            return CopyFound(task=asked.task)
        note = ""
        if before := self.copies.awaited(spec.job, spec.attempt):
            waited = asked.waited_s
            if waited < (spec.copy_s if any(map(connected, before)) else min(SIGN_S, spec.copy_s)):
                return CopyFound(task=asked.task, wait=True)
            names = " and ".join(before)
            note = f"the last copy of the attempt before, from {names}, did not arrive within {waited:.0f} s"
        self.copies.begin(spec.app, spec.job, spec.attempt, spec.machine, spec.machines, node)
        parts = self.copies.newest(spec.job)
        return CopyFound(task=asked.task, parts=tuple(copy.part for copy in parts), note=note)

    def taken(self, node: str, sent: Upload) -> Uploaded:
        """The answer to a piece of a copy."""
        found = TASK.fullmatch(sent.task)
        if self.copies is None or found is None:
            return Uploaded(
                task=sent.task, number=sent.number, offset=0, over=True, problem="this service keeps no copies"
            )
        return self.copies.take(node, int(found[1]), int(found[2]), sent)

    def piece(self, asked: Fetch, specs: Collection[TaskSpec]) -> Piece:
        """The answer to a question."""
        store = self._store_of(asked.bundle, specs)
        if store is None:
            return self._not_theirs(asked)
        try:
            size = store.size(asked.bundle)
            if size is None or asked.offset < 0:
                problem = f"bundle {asked.bundle[:12]} is no longer in the service's store; submit the job again"
                return Piece(bundle=asked.bundle, offset=asked.offset, size=-1, problem=problem)
            data = store.read(asked.bundle, asked.offset, PIECE)
        except (OSError, InputError) as error:
            problem = f"bundle {asked.bundle[:12]} cannot be read by the service: {error}"
            return Piece(bundle=asked.bundle, offset=asked.offset, size=-1, problem=problem)
        return Piece(bundle=asked.bundle, offset=asked.offset, size=size, data=data)

    def _not_theirs(self, asked: Fetch) -> Piece:
        problem = f"no job of this machine has the bundle {asked.bundle[:12]}"
        return Piece(bundle=asked.bundle, offset=asked.offset, size=-1, problem=problem)

    def _store_of(self, name: str, specs: Collection[TaskSpec]) -> Store | None:
        """Store of an archive that one of these tasks needs; None if none does."""
        if any(spec.bundle == name for spec in specs):
            return self.store
        for spec in specs:
            kept = self.copies.newest(spec.job) if self.copies is not None and spec.copied else ()
            if self.copies is not None and any(copy.sha256 == name for copy in kept):
                return self.copies.store
        return None

    def close(self) -> None:
        """Answer nothing more."""
        self._reader.shutdown(wait=True, cancel_futures=True)
