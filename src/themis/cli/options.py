"""Options and arguments as the verbs declare them: in the annotations of a function's parameters, once.

``parse`` reads a command line by them without loading anything else; ``typed`` makes typer's parameters of them, for help,
completion and messages about wrong input.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Declared:
    """A parameter of a verb.

    Attributes
    ----------
    names : ``--name`` and ``-n`` of an option; empty: after the function's parameter.
    argument : it is an argument, by position.
    least, most : the smallest and the largest number, None for any. ``reads`` : converts the text.
    shown : words for the default.
    """

    __slots__ = ("argument", "help", "least", "metavar", "most", "names", "reads", "shown")

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        least: int | None = None,
        most: int | None = None,
        argument: bool = False,
        reads: Callable[[str], object] | None = None,
        shown: str = "",
    ) -> None:
        self.names, self.help, self.metavar = names, help, metavar
        self.least, self.most, self.argument, self.reads, self.shown = least, most, argument, reads, shown


def option(*names: str, help: str, metavar: str | None = None, least: int | None = None) -> Declared:
    """An option."""
    return Declared(*names, help=help, metavar=metavar, least=least)


def argument(*, metavar: str, help: str) -> Declared:
    """An argument; a list takes all that follow."""
    return Declared(metavar=metavar, help=help, argument=True)


def whole_rest(verb: Callable[..., None]) -> Callable[..., None]:
    """Mark a verb whose options end at its first argument: the rest belongs to a program."""
    verb.__dict__["whole_rest"] = True
    return verb


def helped(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb another help than its docstring."""

    def give(verb: Callable[..., None]) -> Callable[..., None]:
        verb.__dict__["help"] = text
        return verb

    return give


Home = Annotated[
    Path | None,
    option(
        "--data-dir",
        "--home",
        metavar="DIR",
        help="The service's data directory (default: $THEMIS_DATA_DIR or ~/.themis).",
    ),
]
"""``--data-dir``, with ``--home`` as an alias."""
Output = Annotated[str, option("--output", "-o", metavar="table|json|yaml|csv", help="Output format.")]
Watch = Annotated[bool, option("--watch", "-w", help="Refresh every two seconds.")]
Verbose = Annotated[bool, option("--verbose", "-v", help="Show all columns, with rho, bids and payments.")]
User = Annotated[str, option("--user", "-u", help="Show this user only.")]
Owner = Annotated[str, option("--user", "-u", help="Owner of the app. Default: you.")]
AppName = Annotated[str, argument(metavar="APP", help="Number or name of an app.")]
AppNames = Annotated[list[str], argument(metavar="APP...", help="Numbers or names of apps.")]
NodeNames = Annotated[list[str], argument(metavar="NODE...", help="Names of machines, as themis nodes lists them.")]
