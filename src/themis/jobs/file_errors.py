"""The faults of a file, by line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from themis.errors import InputError
from themis.faults import ended, faults_of, is_not, keys_of, place
from themis.yaml_text import Document, Path

M = TypeVar("M", bound=BaseModel)


class Written(BaseModel):
    """Base class of all models of YAML files."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; its text is the whole sentence."""

    source: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.source}{f', line {self.line}' if self.line else ''}: {self.problem}"


@dataclass(slots=True)
class Findings:
    """Collects the faults of one document."""

    source: str
    document: Document
    faults: list[Fault] = field(default_factory=list)

    def add(self, path: Path, problem: str) -> None:
        """Add a fault at the value with this path."""
        fault = Fault(self.source, self.document.line(path), problem)
        if fault not in self.faults:
            self.faults.append(fault)

    def expected(self, path: Path, value: object, expected: str) -> None:
        """Add a fault: a value that is not as expected."""
        self.add(path, ended(f"{place(path)} {is_not(value, expected)}"))

    def valid(self, model: type[M], data: object, path: Path = ()) -> M | None:
        """Validate the data; returns None and adds the faults if there are any."""
        if not isinstance(data, dict):
            self.expected(path, data, f"a mapping with keys from: {', '.join(keys_of(model))}")
            return None
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for where, sentence in faults_of(error, model, path):
                self.add(where, sentence)
            return None


def raise_first(faults: Iterable[Fault]) -> None:
    """Raise an InputError with the first fault and the number of others."""
    found = list(faults)
    if found:
        more = f" ({len(found) - 1} more; `themis check` lists all.)" if len(found) > 1 else ""
        raise InputError(f"{found[0]}{more}")
