"""Many simulations, each in a separate process: one that fails, or dies, affects no other.

Results depend on the simulations alone, not on how many run together or which ends first. A run's records are folded
where they arise (and written to its log file), so that only the fold's result travels between processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Generic, Protocol, TypeVar

from themis.errors import InputError, InvariantBroken, ThemisError
from themis.model.log import LogWriter
from themis.model.units import Seconds
from themis.sim.runner import Record, Simulation

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RecordFold(Protocol[T_co]):
    """Fold over a run's records; a new one is made for each run."""

    def add(self, time: Seconds, record: Record) -> None:
        """Take one record in."""
        ...

    def result(self) -> T_co:
        """The outcome, sent back to the caller: it must pickle."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun:
    """One simulation, and the file that its log goes to."""

    simulation: Simulation
    log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason why a run has no result.

    Attributes
    ----------
    message : one sentence. ``bug`` : our mistake. ``input`` : the user's.
    story : the traceback.
    """

    message: str
    bug: bool = False
    input: bool = False
    story: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Generic[T]):
    """A run that ended: its result, or its failure; ``cpu_s`` is processor time, not part of any result."""

    run: SimulationRun
    result: T | None = None
    failure: Failure | None = None
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run: ``index`` into the runs, apps finished, simulated seconds; ``ended`` comes last."""

    index: int
    finished: int = 0
    now: Seconds = 0.0
    ended: bool = False


Watch = Callable[[Progress], None]


def run_many(
    runs: Sequence[SimulationRun],
    fold: Callable[[], RecordFold[T]],
    *,
    processes: int | None = None,
    watch: Watch = lambda progress: None,
) -> list[Done[T]]:
    """Run all simulations and return their outcomes in the order given.

    Parameters
    ----------
    fold : a class or function that child processes can import.
    processes : in parallel; None takes as many as there are cores, 1 runs everything in this process.
    watch : called when a run begins, when one of its apps finishes, and when it ends.

    An interrupt (Ctrl-C) stops all of them and is passed on.
    """
    processes = processes or os.cpu_count() or 1
    if processes == 1 or len(runs) == 1:
        return [_here(run, fold, index, watch) for index, run in enumerate(runs)]
    return _Processes(runs, fold, watch).run(processes)


def _here(run: SimulationRun, fold: Callable[[], RecordFold[T]], index: int, watch: Watch) -> Done[T]:
    watch(Progress(index=index))
    done = _simulate(run, fold, lambda finished, now: watch(Progress(index=index, finished=finished, now=now)))
    watch(Progress(index=index, ended=True))
    return done


def _simulate(
    run: SimulationRun, fold: Callable[[], RecordFold[T]], progress: Callable[[int, Seconds], None]
) -> Done[T]:
    """One run in this process; every error becomes its outcome."""
    began = time.process_time()
    try:
        folded = fold()
        with ExitStack() as stack:
            writer = stack.enter_context(LogWriter(run.log)) if run.log else None

            def sink(at: Seconds, record: Record) -> None:
                folded.add(at, record)
                if writer:
                    writer(at, record)

            run.simulation.run(sink, progress)
        return Done(run=run, result=folded.result(), cpu_s=time.process_time() - began)
    except Exception as error:  # an error in a policy or plug-in ends its own run; the other runs continue
        return Done(run=run, failure=_failure(error), cpu_s=time.process_time() - began)


def _failure(error: Exception) -> Failure:
    where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    expected = isinstance(error, ThemisError | OSError) and not isinstance(error, InvariantBroken)
    sentence = str(error) if isinstance(error, ThemisError) else f"{type(error).__name__}: {error}"
    return Failure(
        message=f"{sentence}{where}",
        bug=not expected,
        input=isinstance(error, InputError),
        story="".join(traceback.format_exception(error)),
    )


# ---- processes -----------------------------------------------------------------------------------------------------


class _Processes(Generic[T]):
    """A process for each run, some at a time, each with a pipe for progress and outcome."""

    def __init__(self, runs: Sequence[SimulationRun], fold: Callable[[], RecordFold[T]], watch: Watch) -> None:
        self.runs, self.fold, self.watch = runs, fold, watch
        self.context = _context()
        self.active: dict[Connection, tuple[int, BaseProcess]] = {}
        self.done: dict[int, Done[T]] = {}

    def run(self, processes: int) -> list[Done[T]]:
        waiting = list(enumerate(self.runs))[::-1]
        try:
            while waiting or self.active:
                while waiting and len(self.active) < processes:
                    self._start(*waiting.pop())
                for pipe in wait(list(self.active)):
                    assert isinstance(pipe, Connection)
                    self._receive(pipe)
        finally:
            for _, process in self.active.values():
                process.terminate()
                process.join()
        return [self.done[i] for i in range(len(self.runs))]

    def _start(self, index: int, run: SimulationRun) -> None:
        receive, send = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_child, args=(send, index, run, self.fold), daemon=True)  # type: ignore[attr-defined]
        with _no_main():
            process.start()
        send.close()
        self.active[receive] = (index, process)
        self.watch(Progress(index=index))

    def _receive(self, pipe: Connection) -> None:
        index, process = self.active[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            sentence = f"its process died (exit code {process.exitcode}); it may have run out of memory."
            message = Done(run=self.runs[index], failure=Failure(message=sentence))
        if isinstance(message, Progress):
            self.watch(message)
            return
        del self.active[pipe]
        process.join()
        pipe.close()
        self.done[index] = message
        self.watch(Progress(index=index, ended=True))


def _context() -> BaseContext:
    """Processes that inherit nothing from this one; where it exists, a fork server saves each the imports."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextmanager
def _no_main() -> Iterator[None]:
    """Keep children from importing the caller's script again, which they do not need: it might begin these runs itself."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _child(send: Connection, index: int, run: SimulationRun, fold: Callable[[], RecordFold[T]]) -> None:
    # An interrupt reaches the whole process group; only the parent acts on it, and ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    done = _simulate(run, fold, lambda finished, now: send.send(Progress(index=index, finished=finished, now=now)))
    send.send(done)
    send.close()


def _end_with_parent() -> None:
    """End where the parent is gone, however it ended: no process waits for the results."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
