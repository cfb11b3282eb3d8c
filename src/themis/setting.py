"""A setting: a field of a frozen dataclass with its kind of value, default, meaning, and whether it changes while the service runs.

A setting is written once, as such a field. The settings file, variables, options of ``themis up``, ``themis set``, the records of
changes, the documentation's tables and the console's form derive from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from themis import limits, sizes
from themis.limits import Number
from themis.sizes import Unreadable, duration_words

PlainWords = Callable[[Any], str]


def plain_words(value: Any) -> str:
    """A value in words: ``true``, ``0.5``, ``none``."""
    match value:
        case None | "":
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case dict():
            return ", ".join(f"{key}: {plain_words(item)}" for key, item in value.items()) or "none"
        case list() | tuple():
            return f"[{', '.join(map(plain_words, value))}]" if value else "none"
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of values.

    Attributes
    ----------
    read : converts a value as written (YAML); raises ``Unreadable``. ``words`` : the value as people write it.
    shape : ``value``; several of the kind ``of``, as a ``list`` (tuple) or a ``map`` with keys of the kind ``key``; or an
        ``entry`` with the settings of the dataclass ``entry``.
    number : range of a number. ``choices`` : the only values. ``pattern`` : of HTML, for the text of a value, with a ``hint``.
    """

    read: Callable[[Any], Any] = lambda value: value
    words: PlainWords = plain_words
    shape: Literal["value", "list", "map", "entry"] = "value"
    of: Kind | None = None
    key: Kind | None = None
    entry: Any = None
    number: Number | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    hint: str = ""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The settings of an entry, by key; of a map, those of its entries."""
        found = self.of if self.shape == "map" else self
        return settings_of(found.entry) if found and found.entry else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting as it is written once.

    Attributes
    ----------
    key : its name in files. ``field`` : of the dataclass, with the unit.
    fresh : makes the value if it is not given; MISSING stands for one that must be given. ``shown`` : words for such a value that
        stands for something.
    help : its meaning. ``live`` : it may change while the service runs.
    option : names of an option of ``themis up``, such as ``--policy -p``; empty: ``--set`` alone.
    """

    key: str
    field: str
    kind: Kind
    fresh: Callable[[], Any]
    help: str
    live: bool
    shown: str
    option: str

    @property
    def default(self) -> Any:
        """Value if it is not given."""
        return self.fresh()

    @property
    def nullable(self) -> bool:
        """True if none is a value, which stands for the default."""
        return bool(self.shown) or self.default in (None, "")

    @property
    def meaning(self) -> str:
        """Meaning and default, for people."""
        if self.shown:
            return f"{self.help} ({self.shown})"
        default = self.default
        return self.help if default is MISSING or is_dataclass(default) else f"{self.help} ({self.kind.words(default)})"


def setting(
    default: Any,
    kind: Kind,
    help: str,
    *,
    live: bool = False,
    shown: str = "",
    option: str = "",
    key: str = "",
    factory: Callable[[], Any] | None = None,
    secret: bool = False,
) -> Any:
    """A field of a settings dataclass; parameters as ``Setting`` has them.

    ``factory`` : makes the default. ``secret`` : left out of ``repr``.
    """
    about = {"setting": (kind, help, live, shown, option, key)}
    made: dict[str, Any] = {"default": default} if factory is None else {"default_factory": factory}
    return field(**made, metadata=about, repr=not secret)


def _same(value: Any) -> Any:
    return value


@cache
def settings_of(cls: Any) -> Mapping[str, Setting]:
    """The settings of a dataclass, by key: the field's name without its unit."""
    out: dict[str, Setting] = {}
    for found in fields(cls):
        kind, text, live, shown, option, key = found.metadata["setting"]
        key = key or found.name.removesuffix("_s").removesuffix("_bytes")
        fresh = partial(_same, found.default) if found.default_factory is MISSING else found.default_factory
        out[key] = Setting(
            key=key,
            field=found.name,
            kind=kind,
            fresh=fresh,
            help=text,
            live=live,
            shown=shown,
            option=option,
        )
    return out


# ---- kinds ---------------------------------------------------------------------------------------------------------------


def number(limit: Number) -> Kind:
    """Numbers in a range."""

    def read(value: Any) -> Any:
        if not limit.holds(value):
            raise Unreadable(limit.expected)
        return value if limit.whole else float(value)

    return Kind(read=read, number=limit)


def whole(least: int, most: int) -> Kind:
    """Whole numbers in a range, both ends included."""
    return number(Number(name="", what="", least=least, most=most, whole=True))


def choice(*names: str) -> Kind:
    """One of these names."""

    def read(value: Any) -> str:
        if value not in names:
            raise Unreadable(f"one of {', '.join(map(repr, names))}")
        return str(value)

    return Kind(read=read, choices=names)


def listed(of: Kind) -> Kind:
    """Lists; as tuples."""
    return Kind(shape="list", of=of)


def each(of: Kind, key: Kind) -> Kind:
    """Mappings of names."""
    return Kind(shape="map", of=of, key=key)


def entry(cls: Any) -> Kind:
    """Mappings with the settings of this dataclass as keys."""
    return Kind(shape="entry", entry=cls)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unreadable("true or false")
    return value


def text(value: Any) -> str:
    """Non-empty text that can be passed to a process."""
    if not isinstance(value, str) or not value.strip() or limits.CONTROL.search(value):
        raise Unreadable("a non-empty text")
    return value


def _zero(read: Callable[[Any], int], expected: str) -> Callable[[Any], int]:
    """A reader that takes 0 too, for none."""

    def zero_or(value: Any) -> int:
        if value == 0 and not isinstance(value, bool):
            return 0
        try:
            return read(value)
        except Unreadable:
            raise Unreadable(expected) from None

    return zero_or


def absolute(value: Any) -> str:
    """A file or folder of the machine."""
    path = Path(text(value)).expanduser()
    if not path.is_absolute():
        raise Unreadable("an absolute path, such as /etc/ssl/themis.pem")
    return str(path)


def size_words(size: Any) -> str:
    """Bytes as ``sizes.memory`` reads them: ``64 MiB``."""
    if not size:
        return plain_words(size)
    unit, power = next(((u, p) for u, p in zip("TGMK", (40, 30, 20, 10), strict=True) if size % (1 << p) == 0), ("", 0))
    return f"{size >> power} {unit}iB" if unit else f"{size} B"


def _time_words(seconds: Any) -> str:
    return plain_words(seconds) if seconds is None else duration_words(seconds)


def _words_of(separator: str, pattern: Callable[[str], object], expected: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        words = value if isinstance(value, list) else str(value).replace(",", " ").split()
        if not all(isinstance(word, str) and pattern(word) for word in words):
            raise Unreadable(expected)
        return separator.join(words)

    return read


def words(separator: str, pattern: Callable[[str], object], expected: str) -> Kind:
    """Words as a list, or separated by commas or spaces; as one text with this separator."""
    return Kind(read=_words_of(separator, pattern, expected))


TEXT = Kind(read=text)
SWITCH = Kind(read=_switch, choices=("true", "false"))
ABSOLUTE = Kind(read=absolute)
DURATION = Kind(
    read=sizes.duration,
    words=_time_words,
    pattern=r"(\s*[0-9]*\.?[0-9]+\s*(ms|min|[wdhms]))+\s*|[0-9.]+|none|([0-9]+-)?[0-9]+:[0-9]{2}:[0-9]{2}",
    hint="a time such as 90s, 45m, 2h30m or 1d12h",
)
"""Seconds above 0."""
WAIT = replace(DURATION, read=lambda value: sizes.duration(value, zero=True))
"""Seconds, or 0."""
MEMORY = Kind(
    read=sizes.memory,
    words=size_words,
    pattern=r"\s*[0-9]+(\.[0-9]+)?\s*[kKmMgGtTpP]?i?[bB]?\s*",
    hint="memory such as 16 GiB",
)
"""Bytes above 0."""
ROOM = replace(MEMORY, read=_zero(sizes.memory, "0, or memory with its unit, such as 64 MiB"))
"""Bytes, or 0 for none."""


# ---- values by name ------------------------------------------------------------------------------------------------------


def kind_of(cls: Any, name: str) -> Kind | None:
    """The kind of a value by its name: ``lease``, ``users.ann.budget.hard``; None if there is none of that name."""
    first, _, rest = name.partition(".")
    found = settings_of(cls).get(first)
    if found is None or (found.kind.shape == "map" and not rest):
        return None
    kind: Kind | None = found.kind
    if found.kind.shape == "map":
        kind, rest = found.kind.of, member_of(found.kind, rest)[1]
    while kind is not None and rest:
        leaf, _, rest = rest.partition(".")
        kind = kind.settings[leaf].kind if leaf in kind.settings else None
    return kind if kind is not None and kind.shape == "value" else None


def leaves_of(kind: Kind) -> Iterator[str]:
    """Keys of an entry: ``weight``, ``budget.hard``."""
    for key, found in kind.settings.items():
        yield from (f"{key}.{leaf}" for leaf in leaves_of(found.kind)) if found.kind.shape == "entry" else [key]


def member_of(kind: Kind, rest: str) -> tuple[str, str]:
    """A member of a map and the rest: ``ann.weight`` is (ann, weight), ``a.b.budget.hard`` is (a.b, budget.hard).

    A name that ends in no key of the entries is (name, "").
    """
    for leaf in sorted({*leaves_of(kind), *kind.settings}, key=len, reverse=True):
        if rest.endswith(f".{leaf}"):
            return rest.removesuffix(f".{leaf}"), leaf
    return rest, ""


def flat(at: str, kind: Kind, value: Any) -> dict[str, Any]:
    """A value's parts by name: ``users.ann.weight``."""
    if kind.shape == "map" and kind.of:
        return {k: v for name, part in value.items() for k, v in flat(f"{at}.{name}", kind.of, part).items()}
    if kind.shape == "entry":
        parts = () if value is None else kind.settings.values()
        return {k: v for s in parts for k, v in flat(f"{at}.{s.key}", s.kind, getattr(value, s.field)).items()}
    return {at: value}


def built(at: str, kind: Kind, values: Mapping[str, Any], default: Any = None) -> Any:
    """The value that ``flat`` gave these parts; the default where none is given."""
    below = {name: value for name, value in values.items() if name.startswith(f"{at}.") and value is not None}
    if kind.shape == "map" and kind.of:
        names = sorted({member_of(kind, name.removeprefix(f"{at}."))[0] for name in below})
        return {name: built(f"{at}.{name}", kind.of, below) for name in names}
    if kind.shape == "entry" and kind.entry:
        if not below:
            return default
        parts = {s.field: built(f"{at}.{s.key}", s.kind, below, s.default) for s in kind.settings.values()}
        return kind.entry(**parts)
    found = values.get(at)
    return default if found is None else found
