"""The ``themis`` command: thin, one function a verb. ``start`` reads the line; ``root`` puts the verbs together for typer."""

from __future__ import annotations

from themis.cli.start import main

__all__ = ["main"]
