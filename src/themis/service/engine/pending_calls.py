"""What callers' threads ask of the arbiter's thread: a function to run there, and its result once all is on disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from themis.errors import InputError, ThemisError
from themis.service.engine.transactions import NoRoom


class Closed(ThemisError):
    """The arbiter is ending; ask again when it is back."""


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
        Exception : of a bug after something was written, or a disk that is full; the transaction is lost.
        """
        before = changes()
        try:
            return partial(self.reply.set_result, self.do())
        except (InputError, Closed) as error:
            return partial(self.reply.set_exception, error)
        except BaseException as error:
            self.reply.set_exception(error)
            # Whatever changes the core is written down before. So a bug in the checks of a submission is its sender's alone too.
            # A disk that is full at the first statement has changed nothing, and yet ended the transaction.
            lost = isinstance(error, NoRoom) or not isinstance(error, Exception)
            if lost or (self.changes and changes() != before):
                raise
            return lambda: None

    def refuse(self, why: str) -> None:
        """Answer with ``Closed``, unless there is an answer."""
        if not self.reply.done():
            self.reply.set_exception(Closed(why))
