"""Entry point of the command: verbs that must start fast are parsed and called here; typer handles all others and help.

Exit codes: 2 for wrong input, 1 for a run that failed or a replay that differs, 70 for a bug in Themis, 130 after Ctrl-C.
``THEMIS_DEBUG=1`` shows tracebacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Never

from themis.cli.output import debugging, painted, say, say_red
from themis.errors import InvariantBroken, ThemisError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
LIGHT: Mapping[str, str] = {
    "queue": "ask",
    "show": "ask",
    "best": "ask",
    "nodes": "ask",
    "share": "ask",
    "submit": "act",
    "run": "act",
    "cancel": "act",
    "hold": "act",
    "resume": "act",
    "drain": "act",
    "undrain": "act",
    "agent join": "agent_verbs",
    "agent run": "agent_verbs",
    "agent token": "agent_verbs",
    "agent remove": "agent_verbs",
}
"""Verbs whose modules load quickly: no typer, rich, httpx, pydantic or numpy until they are needed."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; prints every expected error as one sentence on stderr."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if not _answer(words):
            from themis.cli.root import run

            run(words)
    except InvariantBroken as error:
        _fail(error, f"This is a bug in Themis, please report it: {error}", 70)
    except BrokenPipeError:
        # The reader, such as head, has enough. Python would report the pipe again when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (ThemisError, OSError) as error:
        _fail(error, _sentence(error), 2)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer prints nothing
            say(painted("Interrupted.", "31"))
        raise
    except KeyboardInterrupt:
        say(painted("Interrupted.", "31"))
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:  # users see a traceback only with THEMIS_DEBUG=1
        _fail(error, f"This is a bug in Themis, please report it: {type(error).__name__}: {error}", 70)


def _answer(words: Sequence[str]) -> bool:
    """Run a light verb; returns whether the line was one, and plainly right."""
    if words in (["--version"], ["-V"]):
        from themis.version import sentence

        print(sentence())
        return True
    count = 2 if len(words) > 1 and " ".join(words[:2]) in LIGHT else 1
    name = " ".join(words[:count])
    if name not in LIGHT or "_THEMIS_COMPLETE" in os.environ:
        return False
    from themis.cli.parse import arguments

    verb = getattr(import_module(f"themis.cli.{LIGHT[name]}"), words[count - 1])
    values = arguments(verb, words[count:])
    if values is None:
        return False
    verb(**values)
    return True


def _fail(error: Exception, sentence: str, code: int) -> Never:
    if debugging():
        raise error
    say_red(sentence)
    raise SystemExit(code) from None


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return str(error)
