"""YAML 1.2 with the line of every value: ``no`` is text, ``1e-5`` a number, ``1:30:00`` text.

Any text gives documents or one ``BadYaml``: depth and size are bounded while the text is scanned, aliases when they are
replaced, duplicate keys are rejected, and tags create no objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from themis.limits import DEEPEST, LONGEST_FILE, MOST_DOCUMENTS, MOST_VALUES

Path: TypeAlias = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"


class BadYaml(Exception):
    """Text that is not accepted as YAML, and the line (from 1; 0: unknown)."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


@dataclass(slots=True, kw_only=True)
class Document:
    """One document as plain data.

    Attributes
    ----------
    lines : line of each value, by the keys that lead to it; the document itself is ``()``.
    texts : each scalar as it was written: ``1.10`` is the number 1.1, but in a command it should stay what it was.
    """

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    texts: dict[Path, str] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """The line of a value, or of the nearest one around it."""
        while path not in self.lines:
            if not path:
                return 0
            path = path[:-1]
        return self.lines[path]


def documents(text: str, most: int = MOST_VALUES) -> Iterator[Document]:
    """The documents of a text, empty ones left out; raises BadYaml.

    ``most`` : values of all documents together. An alias counts wherever it is used: a few lines of them can stand for billions.
    """
    if len(text) > LONGEST_FILE:
        raise BadYaml(f"it has {len(text)} characters, expected at most {LONGEST_FILE}")
    try:
        loader, count = _Loader(text, most), 0
        while loader.check_node():
            count += 1
            if count > MOST_DOCUMENTS:
                raise BadYaml(f"it has more than {MOST_DOCUMENTS} documents", loader.line + 1)
            node = loader.get_node()
            if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"):
                continue
            document = Document()
            document.data = _Builder(document, most).build(node, (), 0)
            yield document
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "no parser accepts it"
        raise BadYaml(f"it is not valid YAML ({problem})", mark.line + 1 if mark else 0) from None


def one_document(text: str) -> Document:
    """The one document of a text, None if it is empty; raises BadYaml, also for several documents."""
    found = list(documents(text))
    if len(found) > 1:
        raise BadYaml("a second document begins here, expected one", found[1].line(()))
    return found[0] if found else Document()


class _Loader(yaml.SafeLoader):
    """Composes nodes only; scalars are typed by YAML 1.2's core schema, its tagged integers left out.

    The scanner refuses a token that leads too deep, or is one too many, before anything is made of it.
    """

    def __init__(self, text: str, most: int) -> None:
        super().__init__(text)
        # Each value has at most four tokens: its key's mark, its own, and the begin and the end of a block.
        self.left = 4 * most + 100
        self.most = most

    def fetch_more_tokens(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise BadYaml(f"it has more than {self.most} values", self.line + 1)
        super().fetch_more_tokens()
        if self.flow_level + len(self.indents) > DEEPEST + 1:
            raise BadYaml(f"it is nested deeper than {DEEPEST} levels", self.line + 1)


_Loader.yaml_implicit_resolvers = {}
for _kind, _form, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
):
    _starts = ["" if c == "\0" else c for c in _first]
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_form})\\Z"), _starts)


class _Builder:
    def __init__(self, document: Document, most: int) -> None:
        self.document, self.most = document, most
        self.values = 0

    def build(self, node: yaml.Node, path: Path, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.values += 1
        if self.values > self.most:
            raise BadYaml(f"it stands for more than {self.most} values", line)
        if depth > DEEPEST:
            raise BadYaml(f"it is nested deeper than {DEEPEST} levels, or within itself", line)
        self.document.lines.setdefault(path, line)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in (_TAG + "map", _TAG + "seq"):
            raise BadYaml(f"it has the tag {node.tag.removeprefix(_TAG)!r}; expected plain values", line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, i), depth + 1) for i, child in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        self.document.texts[path] = node.value
        return _scalar(node, line)

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str | int, Any]:
        out: dict[str | int, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _TAG + "merge":
                several = isinstance(value_node, yaml.SequenceNode)
                merged += value_node.value if several else [value_node]
                continue
            key = _scalar(key_node, line) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise BadYaml("it has a key that is neither text nor a whole number", line)
            if key in out:
                raise BadYaml(f"duplicate key {key!r}", line)
            self.document.lines[(*path, key)] = line
            out[key] = self.build(value_node, (*path, key), depth + 1)
        for other in merged:
            if not isinstance(other, yaml.MappingNode):
                raise BadYaml("'<<' must merge a mapping", other.start_mark.line + 1)
            for key, value in self.build(other, (*path, "<<"), depth + 1).items():
                if key not in out:
                    out[key] = value
                    self._stands_at((*path, "<<", key), (*path, key))
        return out

    def _stands_at(self, there: Path, here: Path) -> None:
        """A merged value has its line and text where it was written."""
        self.document.lines[here] = self.document.lines[there]
        if there in self.document.texts:
            self.document.texts[here] = self.document.texts[there]


def _scalar(node: yaml.ScalarNode, line: int) -> Any:
    kind, text = node.tag.removeprefix(_TAG), node.value
    try:
        match kind:
            case "str" | "merge":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text)
            case "float":
                return float(
                    text.replace(".inf", "inf").replace(".nan", "nan").replace(".Inf", "inf").replace(".NaN", "nan")
                )
    except ValueError:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise BadYaml(f"it has {shown!r} where a number was expected", line) from None
    raise BadYaml(f"it has the tag {node.tag!r}; expected plain values", line)
