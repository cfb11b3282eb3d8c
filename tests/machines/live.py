"""A cluster of one or two small machines with real processes, that leaves nothing behind."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from processes import PATIENCE_S, end_all
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.program import Program
from themis.model.cluster import Machine
from themis.model.events import Grant, Revoke
from themis.model.workload import App
from themis.testing.builders import app, job

PROGRAMS = Path(__file__).parent / "programs"
SHORT = NodeSettings(lease_s=2.0, renew_s=0.5, margin_s=1.0, progress_s=0.0)
LONG = NodeSettings(lease_s=60.0, renew_s=2.0, margin_s=5.0, progress_s=0.0)
"""Where leases are not the matter: a machine may be busy for seconds."""
T = TypeVar("T")


def script(name: str, *arguments: object, **more: object) -> Program:
    """One of the programs beside this file."""
    given = {"grace_s": 20.0, **more}
    return Program(argv=(sys.executable, str(PROGRAMS / name), *map(str, arguments)), **given)  # type: ignore[arg-type]


def shell(text: str, **more: object) -> Program:
    """A line of shell."""
    given = {"grace_s": 1.0, **more}
    return Program(argv=("sh", "-c", text), **given)  # type: ignore[arg-type]


def grant(attempt: int, gpus: tuple[int, ...], *, job: int = 0, target: float = 1e6) -> Grant:
    """GPUs for a job of app 0."""
    return Grant(app=0, job=job, attempt=attempt, gpus=gpus, seat=0, until=1e9, locality=1, target=target, score=1.0)


def revoke(attempt: int, cause: str = "expired", *, job: int = 0) -> Revoke:
    """The end of that."""
    return Revoke(app=0, job=job, attempt=attempt, cause=cause)


@dataclass
class Live:
    """An executor and what it said."""

    root: Path
    executor: LocalExecutor
    queue: queue.SimpleQueue[object]
    heard: list[object] = field(default_factory=list)

    def until(self, kind: type[T], ready: Callable[[T], bool] = lambda item: True) -> T:
        """The next event or note of this kind for which ``ready`` holds."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                item = self.queue.get(timeout=1.0)
            except queue.Empty:
                continue
            self.heard.append(item)
            if isinstance(item, kind) and ready(item):
                return item
        raise AssertionError(f"no {kind.__name__} came; heard {self.heard}\n{self.logs()}")

    def checkpoint(self, name: str, job: int = 0) -> Path:
        """A file of a job's checkpoint folder."""
        return self.root / "checkpoints" / "app0" / f"job{job}" / name

    def logs(self) -> str:
        """All that ranks wrote."""
        return "\n".join(f"== {p}\n{p.read_text()}" for p in sorted(self.root.glob("nodes/*/logs/*/*")))

    def status(self, machine: str = "m0", attempt: int = 1) -> str:
        """Text of a task's status file."""
        return (self.root / "nodes" / machine / "tasks" / f"job0-attempt{attempt}" / "status.json").read_text()


@contextmanager
def live(
    root: Path,
    programs: Program | Mapping[int, Program],
    *gpus: int,
    settings: NodeSettings = SHORT,
    spec: App | None = None,
    restored: Sequence[tuple[Grant, float]] = (),
    sweep: bool = True,
    devices: Sequence[str] = (),
    **more: object,
) -> Iterator[Live]:
    """Machines m0, m1, ... with so many GPUs and an app of as many jobs as there are programs, admitted."""
    by_job = {0: programs} if isinstance(programs, Program) else dict(programs)
    events: queue.SimpleQueue[object] = queue.SimpleQueue()
    executor = LocalExecutor(
        root,
        [Host(machine=Machine(name=f"m{n}", gpus=g), devices=tuple(devices)) for n, g in enumerate(gpus or (4,))],
        lambda app, index: by_job[index],
        events.put,
        events.put,
        settings=settings,
        allow_root=os.geteuid() == 0,
        **more,  # type: ignore[arg-type]
    )
    executor.admit(0, spec or app("a", [job(1e6, (1, 8), name=f"j{i}") for i in by_job]))
    for old, steps in restored:
        executor.restore(old, steps)
    world = Live(root=root, executor=executor, queue=events)
    try:
        with executor:
            yield world
    finally:
        if sweep:
            end_all(root)
