"""Entry point of the command: help, and lines that are plainly right, need no typer; it says what is wrong with others.

Exit codes: 2 for wrong input, 1 for a run that failed or a replay that differs, 70 for a bug in Themis, 130 after Ctrl-C.
``THEMIS_DEBUG=1`` shows tracebacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Never

from themis.cli.output import debugging, painted, say, say_red
from themis.cli.table import GROUPS, name_of, verb_of
from themis.errors import InvariantBroken, ThemisError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


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
        if type(error).__module__ == "typer.exceptions":  # Exit, or Abort at a question
            raise SystemExit(getattr(error, "exit_code", 1)) from None
        _fail(error, f"This is a bug in Themis, please report it: {type(error).__name__}: {error}", 70)


def _answer(words: Sequence[str]) -> bool:
    """Print help, or run a verb whose line is plainly right; returns whether the line was one of these."""
    if "_THEMIS_COMPLETE" in os.environ:
        return False
    if words in (["--version"], ["-V"]):
        from themis.version import sentence

        print(sentence())
        return True
    if words in ([], ["--help"], ["-h"]):
        from themis.cli import overview_verb

        print("\n".join(overview_verb.lines()))
        raise SystemExit(0 if words else 2)
    name = name_of(words)
    if words[-1] in ("--help", "-h") and " ".join(words[:-1]) in {name, *GROUPS}:
        from themis.cli import verb_help

        print("\n".join(verb_help.lines(" ".join(words[:-1]))))
        return True
    if not name:
        return False
    from themis.cli.parse import arguments

    verb = verb_of(name)
    values = arguments(verb, words[len(name.split()) :])
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
