"""The way in: one call for generated workloads and for files of every known format; all give a ``Workload``.

A format or generator is a frozen dataclass of its options: a line of ``BUILT_IN`` or, in other packages, an entry point of the
group ``themis.traces``.
A generator has ``generate(seed, book)``; a reader has ``read(path, seed, book)`` and knows its files by their header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, cast, runtime_checkable

from pydantic import TypeAdapter, ValidationError

from themis.errors import INSTALL_AGAIN, InputError, UnknownName, closest
from themis.model.speed import ProfileBook
from themis.model.workload import Workload
from themis.traces.bundle import Glimpse, glimpse
from themis.traces.csv_table import read_header
from themis.traces.profiles.models import DEFAULT_BOOK

GROUP = "themis.traces"
"""Group of the entry points by which other packages add generators and formats."""
_PLUG_INS = f"{INSTALL_AGAIN} (entry points of the group {GROUP})."

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "demo": "themis.traces.demo_workload:Demo",
        "themis1": "themis.traces.generate:Workload1",
        "themis2": "themis.traces.generate:Workload2",
        "csv": "themis.traces.csv_generic:GenericCsv",
        "philly_apps": "themis.traces.philly:PhillyApps",
        "philly_jobs": "themis.traces.philly:PhillyJobs",
        "philly_log": "themis.traces.philly_log:PhillyLog",
        "itp": "themis.traces.itp:Itp",
        "pollux": "themis.traces.pollux:Pollux",
        "openb": "themis.traces.openb:Openb",
        "gavel": "themis.traces.gavel:Gavel",
        "gavel_single": "themis.traces.gavel_jobs:GavelSingle",
        "gavel_multi": "themis.traces.gavel_jobs:GavelMulti",
        "shockwave": "themis.traces.shockwave_trace:ShockwaveTrace",
        "shockwave_jobs": "themis.traces.shockwave_jobs:ShockwaveJobs",
        "helios": "themis.traces.helios:Helios",
        "slurm": "themis.traces.slurm:Slurm",
    }
)
"""Those that come with Themis, by name. A new one is a line here; nothing has to be installed again."""


@runtime_checkable
class Generator(Protocol):
    """A workload from parameters and a seed; the class is a frozen dataclass of the parameters."""

    def generate(self, *, seed: int, book: ProfileBook) -> Workload:
        """Draw the workload; the same seed and parameters give the same one."""
        ...


@runtime_checkable
class Reader(Protocol):
    """A workload from a file; the class is a frozen dataclass of the options."""

    @classmethod
    def recognises(cls, header: tuple[str, ...]) -> bool:
        """True if a CSV file with these columns is of this format."""
        ...

    def read(self, path: Path, *, seed: int, book: ProfileBook) -> Workload:
        """Read the workload."""
        ...


@runtime_checkable
class ByLooks(Protocol):
    """A reader that also knows files without a CSV header, folders or archives."""

    @classmethod
    def fits(cls, seen: Glimpse) -> bool:
        """True if a path that looks like this is of this format."""
        ...


def load_workload(
    spec: str, *, seed: int = 0, book: ProfileBook = DEFAULT_BOOK, format: str = "", **options: object
) -> Workload:
    """Return a generated workload or read one from a file.

    Parameters
    ----------
    spec : a registered generator (``demo``, ``themis1``, ``themis2``, ...) or the path of a file.
    seed : 0 or more; draws everything random, and for traces the models that they do not name.
    book : the profiles that turn durations into steps.
    format : the reader's name; empty recognises the file by its header.
    options : the generator's or reader's own; text is converted, so they can come from a command line.

    Raises
    ------
    UnknownName : nothing is registered under the name, and no such file exists.
    InputError : an option is unknown or wrong, or the file cannot be read (TraceError: a row of it is wrong).
    """
    if seed < 0:
        raise InputError(f"seed is {seed}, expected 0 or more.")
    known = registered()
    if spec in known and _generates(spec) and not format:
        generator = cast(Generator, build_options(spec, known[spec], options))
        return generator.generate(seed=seed, book=book)
    return reader_of(spec, format, options).read(Path(spec), seed=seed, book=book)


def book_for(spec: str) -> str:
    """Name of a workload's book of profiles, unless the caller names one (``traces.profiles.library``)."""
    return str(getattr(registered().get(spec), "profiles", "")) if spec in registered() and _generates(spec) else ""


def reader_of(spec: str, format: str, options: Mapping[str, object]) -> Reader:
    """The reader for a file, with its options; raises as ``load_workload`` does."""
    known = registered()
    path = Path(spec)
    if not path.exists() and not format and not path.suffix and path.name == spec:
        generators = [name for name, cls in known.items() if hasattr(cls, "generate")]
        raise UnknownName("workload", spec, generators, hint=_PLUG_INS)
    name = format or recognise(path)
    readers = readers_of(known)
    if name not in readers:
        raise UnknownName("trace format", name, readers, hint=_PLUG_INS)
    return cast(Reader, build_options(name, readers[name], options))


def recognise(path: Path) -> str:
    """The name of the format that a file, folder or archive is of, by its looks or its header.

    Raises
    ------
    InputError : the file cannot be read, or no reader knows its columns.
    """
    readers = readers_of(registered())
    seen = glimpse(path)
    for name, cls in readers.items():
        if hasattr(cls, "fits") and cast(type[ByLooks], cls).fits(seen):
            return name
    header = read_header(path)
    for name, cls in readers.items():
        if cast(type[Reader], cls).recognises(header):
            return name
    raise InputError(
        f"{path}: no format has the columns {', '.join(header)}; rename them to those of the generic CSV "
        f"(at least app, submit_s, gpus, duration_s) or name a format: {', '.join(sorted(readers))}."
    )


def _generates(name: str) -> bool:
    return hasattr(registered()[name], "generate")


def readers_of(known: Mapping[str, type]) -> dict[str, type]:
    """Registered classes that read files."""
    return {name: cls for name, cls in known.items() if hasattr(cls, "read")}


@lru_cache(maxsize=1)
def registered() -> Mapping[str, type]:
    """All generators and readers by name: the built-ins, then those that installed packages register."""
    found: dict[str, type] = {name: _import(target) for name, target in BUILT_IN.items()}
    for point in entry_points(group=GROUP):
        if point.name not in BUILT_IN:
            try:
                found[point.name] = cast(type, point.load())
            except Exception as error:  # a plug-in may fail in any way; the person who installed it needs its name
                raise InputError(
                    f"trace format {point.name!r} ({point.value}) cannot be loaded: {error!r}. "
                    "Repair or uninstall the package that registers it."
                ) from error
    return MappingProxyType(found)


def build_options(name: str, cls: type, options: Mapping[str, object]) -> object:
    """Build a generator or reader from options, converting text to the fields' types.

    Raises
    ------
    InputError : an option is unknown (with "did you mean") or has a wrong value.
    """
    allowed = [field.name for field in fields(cls)]
    for key in options:
        if key not in allowed:
            raise InputError(
                f"{name!r} has no option {key!r}.{closest(key, allowed)} Known: {', '.join(allowed) or 'none'}."
            )
    adapter: TypeAdapter[object] = TypeAdapter(cls)
    many = {field.name for field in fields(cls) if str(field.type).startswith("tuple[")}
    given = {
        key: [part.strip() for part in value.split(",") if part.strip()]
        if key in many and isinstance(value, str)
        else value
        for key, value in options.items()
    }
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        expected = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
        raise InputError(f"{name!r}: option {where!r} got {first['input']!r}, expected {expected}.") from None


def _import(target: str) -> type:
    module, _, attribute = target.partition(":")
    return cast(type, getattr(import_module(module), attribute))
