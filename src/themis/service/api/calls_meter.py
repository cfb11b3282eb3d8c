"""Counts of calls, and of messages in the log, for monitoring."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from themis.service.engine.tallies import SECONDS, Tally


class CallsMeter(logging.Filter):
    """Calls by method and status, and how long they took; for any thread. As a filter of a logger it counts its messages.

    Attributes
    ----------
    calls : by (api, method, status). ``seconds`` : by (api, method). ``messages`` : by level, warnings and errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str, str]] = Counter()
        self.seconds: dict[tuple[str, str], Tally] = {}
        self.messages: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, api: str, method: str, status: str, seconds: float | None) -> None:
        """Count a call; ``seconds`` : None for a stream, which takes as long as its reader likes."""
        with self._lock:
            self.calls[api, method, status] += 1
            if seconds is not None:
                self.seconds.setdefault((api, method), Tally(SECONDS)).add(seconds)

    def filter(self, record: logging.LogRecord) -> bool:
        """Count a message of the log, and let it pass."""
        if record.levelno >= logging.WARNING:
            with self._lock:
                self.messages[record.levelname.lower()] += 1
        return True
