"""Functions by name: what a job needs to find a function of the script or module that submitted it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from themis.errors import InputError

MAIN = "__themis_main__"
"""Module name that a submitting script has in its jobs, so that its ``if __name__ == "__main__"`` does not run
there."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A function: ``name`` in a module that is found in ``folder``, or in the script ``file``."""

    module: str
    name: str
    folder: str
    file: str = ""

    def load(self) -> Callable[..., Any]:
        """The function, in another process.

        Raises
        ------
        InputError : it is not there.
        """
        sys.path.insert(0, self.folder)
        found: Any = _script(self.file) if self.file else importlib.import_module(self.module)
        for part in self.name.split("."):
            if not hasattr(found, part):
                raise InputError(f"{self.file or self.module} has no {self.name!r}; define it at the top of the file.")
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]


def reference(function: Callable[..., Any]) -> Reference:
    """Reference by which a job can import this function.

    Raises
    ------
    InputError : it cannot: a lambda, a function within a function, one of an interactive session.
    """
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    where = sys.modules.get(module)
    file = getattr(where, "__file__", None)
    if not name or "<" in name or file is None:
        raise InputError(
            f"a job cannot find {name or function!r}; give a function that is defined at the top of a script or module."
        )
    path = Path(file).resolve()
    if module in ("__main__", MAIN):
        return Reference(module, name, str(path.parent), str(path))
    package = module.count(".") + (path.name == "__init__.py")
    return Reference(module, name, str(path.parents[package]))


def _script(file: str) -> Any:
    if MAIN not in sys.modules:
        spec = importlib.util.spec_from_file_location(MAIN, file)
        if spec is None or spec.loader is None:
            raise InputError(f"{file} is not a Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[MAIN] = module
        spec.loader.exec_module(module)
    return sys.modules[MAIN]
