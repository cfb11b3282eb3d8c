"""Calls from other threads to the arbiter's thread: a function to run there, and its result once all is on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from themis.errors import InputError, ThemisError
from themis.service.engine.transactions import NoRoom


class Closed(ThemisError):
    """The arbiter is ending; ask again when it is back."""


log = logging.getLogger("themis.service")

ENDING = "the service is stopping; try again when it is back."


@dataclass(frozen=True, slots=True)
class Call:
    """An item of the arbiter's queue that a caller waits for.

    Attributes
    ----------
    do : to be run in the arbiter's thread. ``reply`` : its result, or what it raised.
    changes : False where it only reads; then a bug in it concerns the caller alone.
    """

    do: Callable[[], Any]
    reply: Future[Any] = field(default_factory=Future)
    changes: bool = True

    def run(self, changes: Callable[[], int]) -> Callable[[], object]:
        """Run it; returns the function that answers the caller, to be called when the transaction is on disk.

        Parameters
        ----------
        changes : the number of changes written to the journal so far.

        Raises
        ------
        Exception : of a bug after something was written, for which the caller has no answer yet, or a disk that is full; the
            transaction is lost.
        """
        before = changes()
        try:
            return partial(self.reply.set_result, self.do())
        except (InputError, Closed) as error:
            if self.changes and changes() != before:
                raise  # what was written is taken back, and the caller gets this answer
            return partial(self.reply.set_exception, error)
        except Exception as error:
            # Changes of the core are written first, so a bug in the checks of a submission affects its sender only. A
            # disk that is full at the first statement has changed nothing, and yet ended the transaction.
            if isinstance(error, NoRoom):
                self.fail(error)
                raise
            if self.changes and changes() != before:
                raise
            log.exception("a call failed; nothing was changed")
            return partial(self.reply.set_exception, error)
        except BaseException as error:
            self.reply.set_exception(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Answer with an error, unless there is an answer."""
        if not self.reply.done():
            self.reply.set_exception(error)

    def refuse(self, why: str) -> None:
        """Answer with ``Closed``, unless there is an answer."""
        self.fail(Closed(why))
