"""``themis submit TRACE``: a trace or a generated workload as real jobs on the running service, at another scale of time."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from themis.cli.output import say, say_notes
from themis.errors import InputError, closest, counted

if TYPE_CHECKING:
    from themis.client.light import Service
    from themis.schema import messages as schema

JOB_FILES, TABLES = (".yaml", ".yml", ".sh"), (".csv", ".csv.gz")
LOOK_S = 1.0
"""Seconds between two looks at whether apps have ended."""


class Options(NamedTuple):
    """The options of ``themis submit`` that are for traces alone; see there."""

    scale: float = 1.0
    pace: float = 1.0
    command: str = ""
    name: str = ""
    wait: bool = False
    format: str = ""
    profiles: str = ""
    seed: int = 0

    def given(self) -> list[str]:
        """Names of the options that were given."""
        return [f"--{key}" for key, default in self._field_defaults.items() if getattr(self, key) != default]


def is_trace(file: Path, options: Options) -> bool:
    """True for a trace or a generator, and False for a job file or a script, which take none of the options."""
    found = not file.name.endswith(JOB_FILES) and (options.format != "" or file.is_dir() or _known(file))
    if not found and (wrong := options.given()):
        if not file.exists():
            from themis.traces.formats import registered

            near = closest(str(file).partition(":")[0], registered())
            raise InputError(f"{str(file)!r} is no file, and no workload has this name.{near}")
        raise InputError(f"{wrong[0]} is for a trace or a generator, and {file} is neither; drop it.")
    return found


def _known(file: Path) -> bool:
    from themis.traces.formats import recognise, registered

    if not file.exists():
        return str(file).partition(":")[0] in registered()
    if file.name.endswith(TABLES):
        return True
    with open(file, "rb") as opened:
        if opened.read(2) == b"#!":
            return False
    try:
        return bool(recognise(file))
    except InputError:
        return False


def play(trace: str, owner: str, options: Options, service: Service) -> None:
    """Submit each app when its time has come, in a process in the background unless ``--wait``, which also waits for their ends."""
    from dataclasses import replace
    from hashlib import sha256

    from themis.client.trace_requests import Play, requests_of
    from themis.sim.plan import split_parameters
    from themis.traces.formats import book_for, load_workload
    from themis.traces.profiles.library import load_book

    name, given = split_parameters(trace)
    if wrong := next((key for key in ("seed", "book", "format") if key in given), ""):
        raise InputError(
            f"{trace!r}: {wrong} is not one of its options; use --{'profiles' if wrong == 'book' else wrong}."
        )
    if options.seed < 0:
        raise InputError(f"--seed is {options.seed}, expected 0 or more.")
    book = load_book(options.profiles or book_for(name), service.home / "profiles")
    workload = load_workload(name, seed=options.seed, book=book, format=options.format, **given)
    info = service.client.info()
    how = Play(
        name=options.name or f"{workload.name}-{options.seed}",
        scale=options.scale,
        pace=options.pace,
        command=options.command,
        python=sys.executable if info.engine == "local" else "python",
        folder=str(Path.cwd()),
        owner=owner or ("" if info.admin else info.user),
    )
    planned = requests_of(workload, service.client.nodes(), book, how)
    content = repr((replace(workload, source=""), how.scale, how.pace, how.command, how.owner, options.profiles))
    digest, path = sha256(content.encode()).hexdigest(), service.home / "plays" / f"{how.name}.sha256"
    path.parent.mkdir(exist_ok=True)
    if path.exists() and path.read_text() != digest:
        raise InputError(
            f"--name is {path.stem!r}, which another trace or other options had before; give another name."
        )
    # The first app is refused here, not in a log: most often its user has no account.
    made = _submit(service, planned[:1], [])
    path.write_text(digest)
    if not options.wait:
        _in_background(service.home, how.name, planned)
        return
    say_notes(workload.notes)
    _end(service, _submit(service, planned, made))


def _in_background(home: Path, name: str, planned: list[tuple[float, schema.SubmitRequest]]) -> None:
    import shlex
    import subprocess

    path = home / "plays" / f"{name}.log"
    words = [sys.executable, "-m", "themis.cli", *sys.argv[1:], "--wait"]
    with open(path, "ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    say(
        f"{counted(len(planned), 'app')} to submit within {planned[-1][0]:.0f} s by process {process.pid}, which writes to {path}. "
        f"If it is stopped, the same command goes on: themis {shlex.join(sys.argv[1:])}"
    )


def _submit(
    service: Service, planned: list[tuple[float, schema.SubmitRequest]], made: list[schema.SubmitReply]
) -> list[schema.SubmitReply]:
    """All apps after those that were ``made``, at their times after the first one's submission.

    Those that were submitted by an earlier command are found by their keys.
    """
    client = service.client
    client.patience_s = None
    for arrival, request in planned[len(made) :]:
        if made:
            time.sleep(max(client.show(made[0].app).app.submitted + arrival - time.time(), 0.0))
        made.append(client.submit(request))
        print(f"{made[-1].app} {made[-1].name}", flush=True)
    return made


def _end(service: Service, made: list[schema.SubmitReply]) -> None:
    ended = [service.client.wait(reply.app, poll_s=LOOK_S) for reply in made]
    failed = [app for app in ended if app.state != "completed"]
    say(f"{len(ended) - len(failed)} of {len(ended)} apps completed.")
    for app in failed:
        say(f"App {app.id}, {app.name}, {app.state}: {app.reason or 'see its logs'}")
    if failed:
        raise SystemExit(1)
