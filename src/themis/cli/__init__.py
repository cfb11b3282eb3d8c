"""The ``themis`` command: thin, one function a verb; ``root.py`` puts them together."""

from __future__ import annotations

from themis.cli.root import app, main

__all__ = ["app", "main"]
