"""The tables of docs/settings.md and docs/sign-in.md, from the settings: ``python website/settings_tables.py`` writes them."""

from __future__ import annotations

import re
from dataclasses import MISSING
from pathlib import Path

from themis.service.engine.config import Config, UserSettings
from themis.setting import Setting, settings_of
from themis.trust.oidc.provider_settings import OidcSettings

DOCS = Path(__file__).parents[1] / "docs"
TABLES = {
    ("settings.md", "Config"): Config,
    ("settings.md", "UserSettings"): UserSettings,
    ("sign-in.md", "OidcSettings"): OidcSettings,
}


def table(cls: type[object]) -> str:
    """Each setting: key, meaning with default, when it changes."""
    rows = settings_of(cls)
    live = any(found.live for found in rows.values())
    head = ("key", "meaning (default)", *(["changes"] if live else []))
    lines = [
        head,
        ("---",) * len(head),
        *((f"`{key}`", _meaning(found), *([_changes(found)] if live else [])) for key, found in rows.items()),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _meaning(found: Setting) -> str:
    text = f"{found.help} (required)" if found.default is MISSING else found.meaning
    return text.replace("|", "\\|")


def _changes(found: Setting) -> str:
    return "while the service runs" if found.live else "at a start"


def page(name: str) -> str:
    """A page with its tables as they should be: each stands between two comments with the name of its class."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for (where, mark), cls in TABLES.items():
        if where == name:
            text = re.sub(
                rf"(<!-- {mark} -->\n).*?(\n<!-- / -->)", lambda m, c=cls: m[1] + table(c) + m[2], text, flags=re.DOTALL
            )
    return text


if __name__ == "__main__":
    for name in sorted({name for name, _ in TABLES}):
        (DOCS / name).write_text(page(name), encoding="utf-8")
