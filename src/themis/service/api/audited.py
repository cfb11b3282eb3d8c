"""Methods of the API that change something: each call of them is an entry of the audit log, also a refused one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

from themis.errors import ThemisError
from themis.service.api.access import Caller
from themis.service.api.audit import Audit

T = TypeVar("T")
NAMED = ("app", "node", "user", "name")
"""Fields of requests that say what is changed."""


class Audited(Protocol):
    """Object with audited methods: its caller, and the audit log."""

    caller: Caller
    audit: Audit


def audited(method: Callable[[Any, Any], T]) -> Callable[[Any, Any], T]:
    """The method, with its entry."""

    @wraps(method)
    def call(self: Audited, request: Any) -> T:
        try:
            done = method(self, request)
        except ThemisError as error:
            self.audit.add(self.caller, method.__name__, target_of(request), refused=str(error))
            raise
        self.audit.add(self.caller, method.__name__, target_of(request))
        return done

    return call


def target_of(request: Any) -> str:
    """Short description of the target of a request, without programs and values that may be secret."""
    fields = type(request).model_fields
    if "values" in fields:  # of settings, which all users may see anyway
        values = dict(request.values)
        return ", ".join(f"{name}={value}" for name, value in sorted(values.items())) or "the settings file"
    return next((str(getattr(request, name)) for name in NAMED if name in fields and getattr(request, name)), "")
