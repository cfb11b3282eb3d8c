"""Logs of finished runs -> metrics, checked to be comparable: the same workload, cluster and settings under every policy.

What is compared is what the logs say was run: the header's names and settings, and fingerprints of the machines, of each
seed's apps and of the machine failures, so that two files of one name are not taken for one another.
"""

from __future__ import annotations

import difflib
import multiprocessing
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from themis.errors import InputError, ThemisError
from themis.report.metrics import metrics_of
from themis.report.result import RunMetrics

ENDINGS = (".jsonl", ".jsonl.gz")
MOST_SAID = 3
SMALL = 4_000_000
"""Bytes of logs below which reading is faster than starting processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A run and the log that it was read from."""

    path: Path
    run: RunMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Runs that may be compared, and what was passed over with ``--anyway``, a sentence each."""

    runs: tuple[RunMetrics, ...]
    doubts: tuple[str, ...]


def gather(
    paths: Sequence[Path],
    *,
    anyway: bool = False,
    processes: int = 1,
    watch: Callable[[Path, int, int], None] = lambda p, i, n: None,
) -> Gathered:
    """Read logs, and all logs of folders, and check that they can be compared.

    Parameters
    ----------
    anyway : pass over what differs; differing settings become part of a policy's label.
    processes : that read logs concurrently; small logs are read in this one.
    watch : called after each log is read: its path, how many are read, how many there are.

    Raises
    ------
    InputError : a path is missing or holds no logs, a log cannot be read or was cut off, or the runs differ in more
        than policy and seed; says in what, and between which logs.
    """
    logs = find_logs(paths)
    logged = []
    for path, run in _read(logs, processes):
        logged.append(Logged(path=path, run=run))
        watch(path, len(logged), len(logs))
    doubts = [*_unfinished(logged), *_differences(logged), *_twice(logged)]
    if doubts and not anyway:
        more = f" There are {len(doubts) - 1} more such differences." if len(doubts) > 1 else ""
        raise InputError(f"{doubts[0]}{more} Give --anyway to compare all the same.")
    return Gathered(runs=tuple(_told_apart(logged)), doubts=tuple(doubts))


def _read(logs: Sequence[Path], processes: int) -> Iterator[tuple[Path, RunMetrics]]:
    """Each log's metrics, in order."""
    if min(processes, len(logs)) < 2 or sum(path.stat().st_size for path in logs) < SMALL:
        yield from ((path, metrics_of(path)) for path in logs)
        return
    # Nothing is inherited from this process; an interrupt reaches all, and ends the others without a word.
    die = (signal.SIGINT, signal.SIG_DFL)
    pool = ProcessPoolExecutor(
        min(processes, len(logs)), multiprocessing.get_context("spawn"), initializer=signal.signal, initargs=die
    )
    try:
        yield from zip(logs, pool.map(metrics_of, logs))
    except BrokenProcessPool:
        raise ThemisError("a process that read logs died, it may have run out of memory; try --jobs 1.") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def find_logs(paths: Sequence[Path]) -> list[Path]:
    """All logs among these files and folders, each once, in order of name within a folder."""
    if not paths:
        raise InputError("nothing to compare; name a folder written by themis simulate --out, or logs.")
    found: dict[Path, Path] = {}
    for path in paths:
        for log in _logs_of(path):
            found.setdefault(log.resolve(), log)
    return list(found.values())


def _logs_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(
            f"{path} is not there{_close(path)}; name a folder written by themis simulate --out, or a log."
        )
    logs = sorted(p for p in path.iterdir() if p.name.endswith(ENDINGS))
    if not logs:
        below = sorted({str(p.parent) for p in path.glob("*/*") if p.name.endswith(ENDINGS)})
        hint = f"; there are some in {', '.join(below[:MOST_SAID])}" if below else ""
        raise InputError(f"{path} holds no logs, expected files that end in {' or '.join(ENDINGS)}{hint}.")
    return logs


def _close(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""


# ---- what may not differ -------------------------------------------------------------------------------------------


def _unfinished(logged: Sequence[Logged]) -> list[str]:
    problems = []
    for one in logged:
        if not one.run.apps:
            problems.append(f"{one.path} ends before its first app arrives; the run was cut off, so run it again.")
        elif active := sum(app.outcome == "active" for app in one.run.apps):
            apps = f"{active} of its {len(one.run.apps)} apps"
            problems.append(f"{one.path} ends while {apps} are still active; the run was cut off, so run it again.")
    return problems


def _differences(logged: Sequence[Logged]) -> list[str]:
    """A sentence for each condition in which some run differs from the first one."""
    problems: dict[str, str] = {}
    first = logged[0]
    for other in logged[1:]:
        for name, a, b in _unlike(first.run, other.run):
            problems.setdefault(name, f"{first.path} and {other.path} differ in {name}{_values(a, b)}.")
    seeds: dict[int, Logged] = {}
    for one in logged:
        same = seeds.setdefault(one.run.seed, one)
        a, b = same.run, one.run
        if "workload" not in problems and a.inputs.apps != b.inputs.apps and a.workload == b.workload:
            sources = (a.source, b.source) if a.source != b.source else ("", "")
            problems.setdefault("apps", f"{same.path} and {one.path} differ in their apps{_values(*sources)}.")
        if _failures_differ(a, b):
            counts = [f"{len(run.inputs.outages)} failures" for run in (a, b)]
            problems.setdefault("failures", f"{same.path} and {one.path} differ in machine failures{_values(*counts)}.")
    return list(problems.values())


def _unlike(a: RunMetrics, b: RunMetrics) -> list[tuple[str, Any, Any]]:
    names = dict.fromkeys([*a.settings, *b.settings])
    pairs = [
        ("workload", _generated(a), _generated(b)),
        ("cluster", a.cluster, b.cluster),
        *((f"setting {name}", a.settings.get(name, "unset"), b.settings.get(name, "unset")) for name in names),
        ("kind", "simulated" if a.simulated else "measured", "simulated" if b.simulated else "measured"),
    ]
    if a.cluster == b.cluster and a.inputs.machines != b.inputs.machines:
        pairs.append(("machines", f"{a.gpus} GPUs on {a.machines}", f"{b.gpus} GPUs on {b.machines}, or others"))
    if a.inputs.profiles != b.inputs.profiles:
        pairs.append(("model profiles", a.inputs.profiles or "none", b.inputs.profiles or "none"))
    return [(name, x, y) for name, x, y in pairs if x != y]


def _generated(run: RunMetrics) -> str:
    """The workload with its options where a generator made it; a trace file is known by its apps."""
    made = run.source.startswith("generated: ")
    return re.sub(r", seed \d+$", "", run.source.removeprefix("generated: ")) if made else run.workload


def _failures_differ(a: RunMetrics, b: RunMetrics) -> bool:
    """Runs end at different times, so only the failures until the first of them ends can be compared."""
    until = min(run.gpus_in_use.end for run in (a, b))
    return [o for o in a.inputs.outages if o[0] < until] != [o for o in b.inputs.outages if o[0] < until]


def _values(a: object, b: object) -> str:
    texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in (a, b)]
    return f": {texts[0]} and {texts[1]}" if texts[0] != texts[1] else ""


def _twice(logged: Sequence[Logged]) -> list[str]:
    seen: dict[tuple[object, ...], Path] = {}
    problems = []
    for one in logged:
        same = seen.setdefault(_identity(one.run), one.path)
        if same is not one.path:
            problems.append(f"{same} and {one.path} are both {one.run.policy}, seed {one.run.seed}; a run counts once.")
    return problems


def _identity(run: RunMetrics) -> tuple[object, ...]:
    settings = tuple(sorted((name, str(value)) for name, value in run.settings.items()))
    params = tuple(sorted((name, str(value)) for name, value in run.params.items()))
    return run.policy, params, run.seed, run.workload, run.cluster, settings, run.inputs.apps, run.inputs.machines


def _told_apart(logged: Sequence[Logged]) -> list[RunMetrics]:
    """Runs with labels that tell them apart: not-replications that would share a row get their folder's or file's name."""
    by_row: dict[tuple[str, int, str, str, str], list[Logged]] = {}
    for one in logged:
        run = one.run
        settings = str(sorted((k, str(v)) for k, v in run.settings.items()))
        by_row.setdefault((run.policy, run.seed, run.workload, run.cluster, settings), []).append(one)
    clash = {one.path for group in by_row.values() if len(group) > 1 for one in group}
    if not clash:
        return [one.run for one in logged]
    several = len({path.parent for path in clash}) > 1
    return [
        replace(one.run, policy=f"{one.run.policy} ({one.path.parent.name if several else one.path.name})")
        for one in logged
    ]
