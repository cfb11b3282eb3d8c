"""How many calls of one kind may be under way: in total, of one user, and with some kept for administrators.

So a user who follows events in a hundred windows, or asks why in a loop, takes nothing away from other users but what each of
them may have as well, and administrators are always served.
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
class Places:
    """Places for calls of one kind; for any thread.

    Attributes
    ----------
    total : calls under way at most. ``of_user`` : of these, of one user who is no administrator.
    reserve : places that administrators alone may take.
    what : the verb phrase of such a call, ``follow events or logs``. ``advice`` : what a refused caller can do.
    """

    total: int
    of_user: int
    reserve: int
    what: str
    advice: str
    taken: Counter[str] = field(default_factory=Counter)
    """Calls under way, by user."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def take(self, caller: Caller) -> Iterator[None]:
        """Hold a place for the length of the block.

        Raises
        ------
        Limit : the caller has as many as one user may have, or none is free that the caller may take.
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
                f"{counted(self.of_user, 'call')} of user {caller.user} {self.what} already, the most of one user; "
                f"{self.advice}."
            )
        free = self.total - self.taken.total() - (0 if caller.admin else self.reserve)
        if free <= 0:
            raise Limit(
                f"{self.taken.total()} calls {self.what} already, as many as this arbiter serves; {self.advice}."
            )
