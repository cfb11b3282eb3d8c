"""Reading what users send, at their own cost: one request of a user at a time, and CPU seconds out of a bucket that fills slowly.

So a user who posts the most expensive job files in parallel delays only his own calls.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from themis.model.units import Seconds
from themis.service.api.access import Caller
from themis.service.api.call_limits import CallLimit
from themis.service.api.submission import Limit

BUCKET_S, SHARE = 10.0, 0.1
"""CPU seconds that a user may spend without a pause, and the part of a core at which they come back."""
TURN_S = 30.0
"""Seconds that a request waits while others of its user are read."""
READINGS, READINGS_OF_USER, READINGS_KEPT = 48, 12, 12
"""Limits of requests being read or waiting for it: in total, of one user, and of the total for administrators only."""


@dataclass(slots=True)
class _Account:
    """Account of a user: CPU seconds left at an instant, and the request whose turn it is."""

    left: float
    at: Seconds
    turn: threading.Lock = field(default_factory=threading.Lock)


class Costs:
    """CPU seconds that users spent; for any thread. ``clock`` : seconds that pass. ``cpu`` : seconds of the calling thread."""

    def __init__(
        self, clock: Callable[[], Seconds] = time.monotonic, cpu: Callable[[], Seconds] = time.thread_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.Lock()
        self._places = CallLimit(
            READINGS, READINGS_OF_USER, READINGS_KEPT, "send requests", "try again when one of them was read"
        )

    @contextmanager
    def reading(self, caller: Caller) -> Iterator[None]:
        """A block that reads a request of the caller: alone among those of its user, and charged.

        Raises
        ------
        Limit : the user has spent too much, or has too many requests waiting.
        """
        with self._places.take(caller):
            turn = self._account(caller).turn
            if not turn.acquire(timeout=TURN_S):
                raise Limit(
                    f"other requests of user {caller.user} were read for {TURN_S:g} s; try again later.", retry_s=5.0
                )
            try:
                with self.charged(caller):
                    yield
            finally:
                turn.release()

    @contextmanager
    def charged(self, caller: Caller) -> Iterator[None]:
        """A block whose CPU time is charged to the caller, also after an error.

        Raises
        ------
        Limit : the user, who is no administrator, has spent more than the bucket holds.
        """
        account = self._account(caller)
        if account.left < 0 and not caller.admin:
            raise Limit(
                f"reading the requests of user {caller.user} took more than {BUCKET_S:g} CPU seconds lately; try again in "
                f"{math.ceil(-account.left / SHARE)} s, with fewer or smaller requests.",
                retry_s=-account.left / SHARE,
            )
        began = self._cpu()
        try:
            yield
        finally:
            with self._lock:
                account.left -= self._cpu() - began

    def _account(self, caller: Caller) -> _Account:
        """The caller's account, up to now."""
        with self._lock:
            now = self._clock()
            account = self._accounts.setdefault(caller.user, _Account(BUCKET_S, now))
            account.left, account.at = min(account.left + SHARE * (now - account.at), BUCKET_S), now
            return account
