"""What a submission asks for that no machine can do, or that this machine cannot: faults and warnings before it is submitted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping

from themis.errors import closest
from themis.jobs.faults import Findings
from themis.jobs.spec import Submission

MOST_TEXT = (128 << 10) - 1
"""Bytes of one argument or variable; Linux starts no program with more."""
MOST_TEXTS = 1 << 20
"""Bytes of a job's arguments and variables together, 9 more for each: half of what Linux takes, an eighth of an agent's line."""
OF_A_SHELL = ("|", "||", "&&", "&", ";", ">", ">>", "<", "<<", "2>", "2>&1", "&>")
"""Words that mean something to a shell alone."""


def check_texts(command: tuple[str, ...], env: Mapping[str, str], findings: Findings) -> None:
    """Note arguments and variables with which no program can be started."""
    words = [("command", word) for word in command] + [("env", f"{name}={value}") for name, value in env.items()]
    for key, text in words:
        if (size := len(text.encode(errors="surrogatepass"))) > MOST_TEXT:
            what = "an argument" if key == "command" else f"the variable {text.partition('=')[0][:60]!r}"
            findings.add(
                (key,), f"key {key!r}: {what} has {size} bytes, expected at most {MOST_TEXT}; write it to a file."
            )
    together = sum(len(text.encode(errors="surrogatepass")) + 9 for _, text in words)
    if together > MOST_TEXTS:
        findings.add((), f"arguments and variables have {together} bytes together, expected at most {MOST_TEXTS}; write them "
                     "to a file.")  # fmt: skip


def check_shell(written: object, command: tuple[str, ...], findings: Findings) -> None:
    """Note a line of shell: no shell runs a command. A list of words may hold what it likes."""
    found = next((word for word in command if word in OF_A_SHELL or (word.endswith(";") and word != "\\;")), None)
    if isinstance(written, str) and found is not None:
        findings.add(("command",), f"key 'command' has {found!r}, which a shell would read, and no shell runs it; write "
                     "command: [sh, -c, \"...\"], or a list of words if the program should get it.")  # fmt: skip


def doubts(spec: Submission, gpu_types: Collection[str] = (), *, here: bool = True) -> Iterator[str]:
    """What is likely to go wrong with a submission that has no faults: a sentence each.

    Parameters
    ----------
    gpu_types : of the service's machines; empty if they are not known.
    here : jobs run on this machine, or on ones that have the same files.
    """
    parameters = dict.fromkeys(name for trial in spec.trials for name in trial.parameters)
    texts = (*spec.command, *spec.env.values())
    unused = [name for name in parameters if not any(f"{{{name}}}" in text for text in texts)]
    if unused:
        says = ", ".join(unused)
        yield (
            f"app {spec.name!r}: no place of the command has the sweep's {says}, so all trials run alike unless the program reads "
            f"THEMIS_PARAMS; add for example --{unused[0]} {{{unused[0]}}}."
        )
    if gpu_types and spec.gpu_types and not set(spec.gpu_types) & set(gpu_types):
        yield (
            f"app {spec.name!r}: no machine has a GPU of type {' or '.join(spec.gpu_types)}."
            f"{closest(spec.gpu_types[0], gpu_types)} The machines have {', '.join(sorted(gpu_types))}."
        )
    if here:
        yield from _absent(spec)


def _absent(spec: Submission) -> Iterator[str]:
    """What the job names and this machine lacks."""
    if not os.path.isdir(spec.workdir):
        yield f"app {spec.name!r}: its folder {spec.workdir!r} is not on this machine; make it, or name another (workdir)."
        return
    program = spec.command[0]
    if "{" in program:
        return
    where = program if os.path.dirname(program) else None
    path = spec.env.get("PATH")
    found = os.path.join(spec.workdir, where) if where else shutil.which(program, path=path)
    if found is None:
        yield f"app {spec.name!r}: program {program!r} is not on PATH here; install it, or name it by its path."
    elif where and not (os.path.isfile(found) and os.access(found, os.X_OK)):
        why = "may not be executed; chmod +x allows that" if os.path.isfile(found) else "is not there"
        yield f"app {spec.name!r}: program {found!r} {why}."
