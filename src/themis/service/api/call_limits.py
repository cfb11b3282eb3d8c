"""Limits on concurrent calls of one kind: in total, of one user, and with some reserved for administrators.

So a user who follows events in a hundred windows, or asks why in a loop, takes no more than one user's part from the others, and
administrators are always served.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from themis.errors import counted
from themis.service.api.access import Caller
from themis.service.api.submission import Limit


@dataclass(slots=True)
class CallLimit:
    """A limit on concurrent calls of one kind; for any thread.

    Attributes
    ----------
    total : most concurrent calls. ``of_user`` : most of one user who is not an administrator.
    reserve : how many of ``total`` are for administrators only.
    what : the verb phrase of such a call, ``follow events or logs``. ``advice`` : what a refused caller can do.
    """

    total: int
    of_user: int
    reserve: int
    what: str
    advice: str
    taken: Counter[str] = field(default_factory=Counter)
    """Running calls by user."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def take(self, caller: Caller) -> Iterator[None]:
        """Count a call for the length of the block.

        Raises
        ------
        Limit : the caller, or all callers together, have as many calls as they may.
        """
        with self.lock:
            self._check(caller)
            self.taken[caller.user] += 1
        try:
            yield
        finally:
            with self.lock:
                self.taken[caller.user] -= 1
                self.taken += Counter()  # drops the users without any

    def _check(self, caller: Caller) -> None:
        if not caller.admin and self.taken[caller.user] >= self.of_user:
            raise Limit(
                f"user {caller.user} has reached the limit of {counted(self.of_user, 'concurrent call')} to {self.what}; "
                f"{self.advice}.",
                retry_s=1.0,
            )
        free = self.total - self.taken.total() - (0 if caller.admin else self.reserve)
        if free <= 0:
            calls = counted(self.taken.total(), "concurrent call")
            raise Limit(
                f"all users together have reached the limit of {calls} to {self.what}; {self.advice}.", retry_s=1.0
            )
