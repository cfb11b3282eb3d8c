"""``Settings`` and ``Set``: settings in force, time and author of their last change, and changes at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from themis.errors import InputError
from themis.schema import messages as schema
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config
from themis.service.engine.setting_changes import RESTART, values_of, words


@dataclass(frozen=True, slots=True)
class Door:
    """Writing of settings, which the service's operations implement.

    Attributes
    ----------
    read : the wanted settings, from those in force and what was written of each, by name.
    reload : the settings that the service would be started with now: its file, read again, and the options that it was given.
    back_up : copies a data directory to a folder that does not exist yet.
    """

    read: Callable[[Config, Mapping[str, str]], Config]
    reload: Callable[[], Config]
    back_up: Callable[[Path, Path], None] | None = None


def settings(arbiter: Arbiter) -> schema.SettingsReply:
    """All settings, by name."""
    out, changed = [], arbiter.state.changed
    values = values_of(arbiter.config)
    for name in sorted(values.keys() | RESTART.keys()):
        restart = name in RESTART
        value = getattr(arbiter.live.given, RESTART[name].field) if restart else values[name]
        row = schema.Setting(name=name, value=words(name, value), restart=restart)
        if name in changed:
            _, since, user = changed[name]
            row.since, row.user = arbiter.epoch + since, user
        out.append(row)
    return schema.SettingsReply(settings=out)


def change(arbiter: Arbiter, request: schema.SetRequest, door: Door | None, user: str) -> schema.SetReply:
    """Change settings, all or none; in the arbiter's thread."""
    if door is None:
        raise InputError("this service was not started by `themis up`, and does not read settings.")
    if request.reload and request.values:
        raise InputError("a call that reloads the settings file cannot set others; make two calls.")
    if request.reload:
        return schema.SetReply(changes=arbiter.live.reload(door.reload(), user, arbiter.instant))
    texts = dict(request.values)
    read = door.read
    return schema.SetReply(changes=arbiter.change(lambda config: read(config, texts), user))
