"""Faults and warnings about a submission that cannot run, or not on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping

from themis.errors import closest
from themis.jobs.file_errors import Findings
from themis.jobs.spec import Submission

MOST_TEXT = (128 << 10) - 1
"""Bytes of one argument or variable; Linux starts no program with more."""
MOST_TEXTS = 1 << 20
"""Maximum bytes of a job's arguments and variables, plus 9 for each: half of Linux's, an eighth of an agent line's."""
OF_A_SHELL = ("|", "||", "&&", "&", ";", ">", ">>", "<", "<<", "2>", "2>&1", "&>")
"""Words with a meaning only in a shell."""


def check_texts(command: tuple[str, ...], env: Mapping[str, str], findings: Findings) -> None:
    """Add faults for arguments and variables that are too large to start a program with."""
    words = [("command", word) for word in command] + [("env", f"{name}={value}") for name, value in env.items()]
    for key, text in words:
        if (size := len(text.encode(errors="surrogatepass"))) > MOST_TEXT:
            what = "an argument" if key == "command" else f"the variable {text.partition('=')[0][:60]!r}"
            findings.add(
                (key,), f"key {key!r}: {what} has {size} bytes, expected at most {MOST_TEXT}; use a file instead."
            )
    together = sum(len(text.encode(errors="surrogatepass")) + 9 for _, text in words)
    if together > MOST_TEXTS:
        findings.add(
            (),
            f"arguments and variables have {together} bytes in total, expected at most {MOST_TEXTS}; use a file "
            "instead.",
        )


def check_shell(written: object, command: tuple[str, ...], findings: Findings) -> None:
    """Add a fault for shell syntax in a line: no shell runs a command. A list of words may have any words."""
    found = next((word for word in command if word in OF_A_SHELL or (word.endswith(";") and word != "\\;")), None)
    if isinstance(written, str) and found is not None:
        findings.add(
            ("command",),
            f"key 'command' has {found!r}, but no shell runs the command; add shell: true, or write a list of words if it "
            "is an argument of the program.",
        )


def shell_words(spec: Submission) -> Iterator[str]:
    """Warn about shell syntax in a list of words: it may be an argument of the program, but hardly ever is."""
    found = next((word for word in spec.command if word in OF_A_SHELL and word != ";"), None)
    if found is not None:
        yield (
            f"app {spec.name!r}: the command has the word {found!r}, but no shell runs the command; write it as one line, "
            "with shell: true."
        )


def doubts(spec: Submission, gpu_types: Collection[str] = (), *, here: bool = True) -> Iterator[str]:
    """Warnings about a valid submission: a sentence each.

    Parameters
    ----------
    gpu_types : GPU types of the service's machines; empty if unknown.
    here : jobs run on this machine, or on machines with the same files.
    """
    parameters = dict.fromkeys(name for trial in spec.trials for name in trial.parameters)
    texts = (*spec.command, *spec.env.values())
    unused = [name for name in parameters if not any(f"{{{name}}}" in text for text in texts)]
    if unused:
        listed = ", ".join(unused)
        yield (
            f"app {spec.name!r}: the command does not use the sweep's {listed}, so all trials are equal unless the program reads "
            f"THEMIS_PARAMS; add for example --{unused[0]} {{{unused[0]}}}."
        )
    yield from shell_words(spec)
    if gpu_types and spec.gpu_types and not set(spec.gpu_types) & set(gpu_types):
        yield (
            f"app {spec.name!r}: no machine has a GPU of type {' or '.join(spec.gpu_types)}."
            f"{closest(spec.gpu_types[0], gpu_types)} The machines have {', '.join(sorted(gpu_types))}."
        )
    if here:
        yield from _absent(spec)


def _absent(spec: Submission) -> Iterator[str]:
    """Warn about a folder or program that is missing on this machine."""
    if not os.path.isdir(spec.workdir):
        yield f"app {spec.name!r}: the workdir {spec.workdir!r} does not exist on this machine; create it, or choose another."
        return
    program = spec.command[0]
    if "{" in program:
        return
    where = program if os.path.dirname(program) else None
    path = spec.env.get("PATH")
    found = os.path.join(spec.workdir, where) if where else shutil.which(program, path=path)
    if found is None:
        yield f"app {spec.name!r}: program {program!r} is not on this machine's PATH; install it, or give its path."
    elif where and not (os.path.isfile(found) and os.access(found, os.X_OK)):
        why = "is not executable; run chmod +x" if os.path.isfile(found) else "does not exist"
        yield f"app {spec.name!r}: program {found!r} {why}."
