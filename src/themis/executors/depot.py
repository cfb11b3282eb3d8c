"""Answers machines that fetch bundles: a thread reads the disk, so that leases of machines are renewed meanwhile.

A machine asks for one piece, and for the next when that came. So at most one piece of each machine is on its way, and a renewal
waits for at most one piece of each; nothing is remembered here, and a connection that is lost costs one question.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from themis.bundles import PIECE
from themis.bundles.store import Store
from themis.errors import InputError
from themis.node.messages import Fetch, Message, Piece


class Depot:
    """Where machines fetch bundles. ``answer`` : sends a machine a message; called in a thread of the depot's own."""

    def __init__(self, store: Store | None, answer: Callable[[int, Message], None]) -> None:
        self.store, self.answer = store, answer
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="themis-depot")

    def fetch(self, machine: int, asked: Fetch, *, needed: bool) -> None:
        """Answer a question, later; ``needed`` : by a job of this machine, which gets no other files."""
        if needed:
            self._reader.submit(lambda: self.answer(machine, self.piece(asked)))
        else:
            problem = f"no job of this machine has the bundle {asked.bundle[:12]}"
            self.answer(machine, Piece(bundle=asked.bundle, offset=asked.offset, size=-1, problem=problem))

    def piece(self, asked: Fetch) -> Piece:
        """The answer to a question."""
        try:
            size = self.store.size(asked.bundle) if self.store is not None else None
            if self.store is None or size is None or asked.offset < 0:
                problem = f"bundle {asked.bundle[:12]} is no longer in the service's store; submit the job again"
                return Piece(bundle=asked.bundle, offset=asked.offset, size=-1, problem=problem)
            data = self.store.read(asked.bundle, asked.offset, PIECE)
        except (OSError, InputError) as error:
            problem = f"bundle {asked.bundle[:12]} cannot be read by the service: {error}"
            return Piece(bundle=asked.bundle, offset=asked.offset, size=-1, problem=problem)
        return Piece(bundle=asked.bundle, offset=asked.offset, size=size, data=base64.b64encode(data).decode())

    def close(self) -> None:
        """Answer nothing more."""
        self._reader.shutdown(wait=True, cancel_futures=True)
