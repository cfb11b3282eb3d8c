"""The certificate that a service shows: renewed, and read again from changed files, while it serves.

Connections that are open continue; each new handshake uses the newest certificate.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from themis.errors import InputError
from themis.trust.authority.ca import Authority
from themis.trust.authority.contexts import ServerFiles, day, server_context
from themis.trust.authority.facts import Facts, check_own, read_facts

LOOK_S = 10.0
"""Seconds between two looks at the files, and at the life that is left."""

log = logging.getLogger("themis.service")


class Certificates:
    """The certificate of a service that listens.

    Parameters
    ----------
    folder : of the service's authority, which issues the certificate unless ``own`` has one.
    names : host names and addresses that it is to be for; asked at each look.
    own : files that the administrator gave.
    clock : seconds since the epoch.

    Attributes
    ----------
    context : for the next handshake. ``facts`` : of the certificate in use.

    Raises
    ------
    InputError : there is no usable certificate.
    """

    def __init__(
        self,
        folder: Path,
        names: Callable[[], Sequence[str]],
        own: ServerFiles | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.authority = None if own else Authority.open(folder, clock)
        self._own, self._names, self._clock = own, names, clock
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._seen, self.files, self.facts = self._look()
        self.context = server_context(self.files)
        self._failed = ""
        self._thread = threading.Thread(target=self._watch, name="themis-certificates", daemon=True)

    def start(self) -> None:
        """Begin to look after the certificate, in a thread."""
        self._thread.start()

    @property
    def cacert(self) -> Path:
        """The file that clients of this data directory verify against: the authority, or the administrator's
        certificate."""
        return self.authority.path if self.authority else self.files.certificate

    @property
    def expires(self) -> float | None:
        """Expiry of the service's CA, in seconds since the epoch."""
        return self.authority.expires if self.authority else None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the service's authority, for users to compare; empty if the administrator gave a
        certificate."""
        return self.authority.fingerprint if self.authority else ""

    def refresh(self) -> str:
        """Renew the certificate if it is due, read files that changed; returns what was done as a sentence, or nothing.

        Raises
        ------
        InputError : the new certificate cannot be used; the one before stays in use.
        """
        with self._lock:
            seen, files, facts = self._look()
            if seen == self._seen:
                return ""
            self.context = server_context(files)
            self._seen, self.files, self.facts = seen, files, facts
            return f"the service's certificate was renewed; it is valid until {day(facts.expires)}"

    def close(self) -> None:
        """End the thread that looks after the certificate, if it was begun."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> tuple[object, ServerFiles, Facts]:
        """A key that changes with the files, the files, and the facts of the certificate."""
        if self.authority:
            files = self.authority.server(self._names())
            return _state(files), files, read_facts(files)
        assert self._own is not None
        state = _state(self._own)
        return state, self._own, check_own(self._own, self._clock())

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                if said := self.refresh():
                    log.info("%s", said)
                self._failed = ""
            except (InputError, OSError) as error:
                if str(error) != self._failed:
                    log.error("the service goes on with its certificate until %s: %s", day(self.facts.expires), error)
                self._failed = str(error)


def _state(files: ServerFiles) -> object:
    found = []
    for path in (files.certificate, files.key):
        try:
            at = path.stat()
        except OSError as error:
            raise InputError(f"cannot read {path}, of the service's certificate: {error.strerror}.") from None
        found.append((at.st_mtime_ns, at.st_ino, at.st_size))
    return tuple(found)
