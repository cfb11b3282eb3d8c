"""Books of profiles by name: ``themis`` (Table 4), ``gavel`` (its measured table), files, and what a user added.

Names are joined by commas; where several know one model, the last one wins. What a user adds lies as ``NAME.csv`` in a
folder of profiles, one table each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from themis.errors import InputError, UnknownName
from themis.model.speed import ProfileBook
from themis.traces.profiles.csv_file import read_csv, write_csv
from themis.traces.profiles.gavel_table import read_throughputs
from themis.traces.profiles.measured import gavel_book
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.throughputs import Throughputs, profiles_of

BOOKS: Mapping[str, Callable[[], ProfileBook]] = MappingProxyType({"themis": lambda: DEFAULT_BOOK, "gavel": gavel_book})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def load_book(names: str, folder: Path | None = None) -> ProfileBook:
    """The book of these names, joined by commas: ``themis``, ``gavel``, a user's own, or a CSV or JSON file.

    ``folder`` : where the user's own lie.

    Raises
    ------
    UnknownName : no book has the name and no such file exists. InputError : a file is wrong.
    """
    book = DEFAULT_BOOK
    for name in filter(None, (part.strip() for part in names.split(","))):
        book = book.with_profiles(_book(name, folder).profiles.values())
    return book


def every_model(folder: Path) -> ProfileBook:
    """All models that any book here knows, for files that may be meant for any service, which knows its own book.

    Where books differ in a model, it is as without ``--profiles``.
    """
    return load_book(",".join([*BOOKS, *added(folder)]), folder).with_profiles(DEFAULT_BOOK.profiles.values())


def added(folder: Path) -> dict[str, Path]:
    """Tables that a user added, by name."""
    return {path.stem: path for path in sorted(folder.glob("*.csv"))} if folder.is_dir() else {}


def add(folder: Path, name: str, rates: Throughputs, *, force: bool = False) -> Path:
    """Keep a table under a name; raises as ``place_of`` does."""
    path = place_of(folder, name, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}.csv.new"
    write_csv(draft, rates)
    draft.replace(path)
    return path


def place_of(folder: Path, name: str, *, force: bool = False) -> Path:
    """The file of a table that is to be kept under a name.

    Raises
    ------
    InputError : the name is no file's, is a shipped book's, or is taken.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"name is {name[:100]!r}, expected 1 to 64 letters, digits, dots, dashes or underscores.")
    if name in BOOKS:
        raise InputError(f"name is {name!r}, which is a shipped book; choose another.")
    path = folder / f"{name}.csv"
    if path.exists() and not force:
        raise InputError(f"{path} exists; name it otherwise or give --force.")
    return path


def _book(name: str, folder: Path | None) -> ProfileBook:
    if name in BOOKS:
        return BOOKS[name]()
    mine = added(folder) if folder else {}
    path = mine.get(name, Path(name))
    if name not in mine and path.suffix not in (".csv", ".json") and not path.is_file():
        raise UnknownName("book of profiles", name, [*BOOKS, *mine])
    rates = read_throughputs(path) if path.suffix == ".json" else read_csv(path)
    return ProfileBook.of(profiles_of(rates, f"measured: {path.name}"))
