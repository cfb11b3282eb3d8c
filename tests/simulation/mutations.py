"""Faults that were mended, and others that could be made, put back into the running code: the simulation has to find each.

``python -m simulation.mutations`` says after how many seeds each is found; ``NAMES`` after it chooses some.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from simulation import disk, service
from simulation.world import History, run
from themis.core.scheduler import Scheduler
from themis.core.validate import validate
from themis.machines.agent.keeper import Supervisor
from themis.machines.agent.node_agent import NodeAgent
from themis.machines.agent.tasks import Task
from themis.machines.engines import gang_lifecycle
from themis.machines.engines.gangs import Gangs
from themis.machines.engines.local import LocalExecutor
from themis.model.events import JobStopped, MachineResized, Revoke
from themis.report.accounts import fold
from themis.service.engine import integrity
from themis.service.engine.books import Books
from themis.service.engine.housekeeping import Housekeeping
from themis.service.engine.journal import Journal
from themis.service.engine.live_settings import LiveSettings
from themis.service.engine.pending_calls import Call
from themis.service.engine.records import Records

Mutation = Callable[[], AbstractContextManager[Any]]
FAILING = gang_lifecycle.GangState.FAILING


def replaced(owner: Any, name: str, by: Any) -> Mutation:
    """A mutation that puts something else in the place of an attribute."""
    return lambda: mock.patch.object(owner, name, by)


# ---- faults that were mended --------------------------------------------------------------------------------------------


def _every_step_moves_the_clock(self: Scheduler, event: Any, now: float) -> Any:
    """Decision 17, 1: before, a step that no record holds moved the state's clock, and the journal refused itself after a crash."""
    self.out = self.leases.out = []
    self.state.advance(now)
    self._handle(event)
    if self.settings.validate:
        validate(self.state)
    return self.out


@contextmanager
def _journals_without_trace() -> Iterator[None]:
    """Decision 17, 4: before, SQLite dropped the end of a damaged log in silence, and acknowledged submissions with it."""
    with (
        mock.patch.object(integrity, "leave_trace", return_value=None),
        mock.patch.object(integrity, "trace_of_a_journal", return_value=""),
    ):
        yield


@contextmanager
def _gangs_found_by_their_environment() -> Iterator[None]:
    """Decision 26, 3: before, what outlived a killed supervisor was found by its environment alone."""
    with (
        mock.patch.object(NodeAgent, "_orphans", return_value=set()),
        mock.patch.object(Task, "_recorded", return_value=[]),
    ):
        yield


def _words_in_order(self: Supervisor) -> None:
    """Found by this simulation: a go that came with a late lease was dropped, and the gang held its GPUs for ever."""
    self.buffer += os.read(self.control, 65536)
    *lines, self.buffer = self.buffer.split(b"\n")
    for line in filter(None, lines):
        order = json.loads(line)
        if "lease" in order:
            self.deadline = float(order["lease"])
        elif "go" in order and self.system.clock() < self.deadline:
            self.go(order["go"])
        elif "stop" in order:
            self._over()
            self.stop(order["stop"], float(order["grace_s"]))


def _accounts_without_growth() -> AbstractContextManager[Any]:
    """Found by this simulation: accounts did not know GPUs of machines that grew; their first lease ended the arbiter."""
    without = {kind: handle for kind, handle in fold._HANDLERS.items() if kind is not MachineResized}
    return mock.patch.object(fold, "_HANDLERS", without)


# ---- others ---------------------------------------------------------------------------------------------------------------


def _answer_before_the_commit(self: Call, changes: Any) -> Any:
    try:
        self.reply.set_result(self.do())
    except Exception as error:
        self.reply.set_exception(error)
    return lambda: None


def _sync_less(real: Any, self: disk.Connection, sql: str, given: Any = ()) -> Any:
    return real(self, sql.replace("synchronous = FULL", "synchronous = NORMAL"), given)


def _no_grace(real: Any, self: Supervisor, cause: str, grace_s: float, message: str = "") -> None:
    real(self, cause, 0.0, message)


def _free_at_once(real: Any, self: Gangs, revoke: Revoke) -> None:
    gang = self.gangs.get(revoke.job)
    real(self, revoke)
    if gang is not None and not gang.ended and gang.grant.attempt == revoke.attempt:
        self.out.append(JobStopped(job=revoke.job, attempt=revoke.attempt, steps=0.0))


def _without_the_last(real: Any, self: Records, after: int = 0) -> Iterator[Any]:
    rows = list(real(self, after))
    yield from rows[:-1]


def _deadline_forgotten(real: Any, self: Supervisor, woken: int) -> bool:
    self.deadline = math.inf
    return bool(real(self, woken))


def _nothing(*given: Any, **more: Any) -> None:
    pass


def _stray_orphans(self: Gangs, machine: int, state: Any, *, recorded: bool) -> None:
    """A task that this arbiter does not know is left alone."""


def _forgets_keys(real: Any, self: Journal, where: str = "1", *values: object, **more: Any) -> Any:
    return [] if where == "key = ?" else real(self, where, *values, **more)


def _as_given(real: Any, self: LiveSettings, start: Any) -> Any:
    real(self, start)
    self.config = start.config
    return start.config


def _heard_all(real: Any, self: Gangs, machine: int, renew: Any, now: float) -> None:
    self.nodes[machine].awaited = None
    real(self, machine, renew, now)


@contextmanager
def _back_at_once() -> Iterator[None]:
    """Before, a machine that was removed and came back was in service at once: what its agent finds there was reported too late."""
    reachable, change, changing = Housekeeping.reachable, LiveSettings.change, [False]

    def changed(self: LiveSettings, *given: Any) -> Any:
        changing[0] = True
        try:
            return change(self, *given)
        finally:
            changing[0] = False

    def passed(self: Housekeeping, event: Any, now: float) -> None:
        if not changing[0]:
            reachable(self, event, now)

    with mock.patch.object(LiveSettings, "change", changed), mock.patch.object(Housekeeping, "reachable", passed):
        yield


def _forgets_without_a_word(self: NodeAgent) -> None:
    """Before, an agent that was told to forget a task of which it reported no end dropped it; its arbiter waited for that."""
    for name in [name for name in self.forgotten if not self.tasks[name].left]:
        self.forgotten.remove(name)
        self.tasks.pop(name).remove()
        self.runs_sent.pop(name, None)
        self.reported.pop(name, None)


@contextmanager
def _ends_well_without_supervisor() -> Iterator[None]:
    """Before, a gang whose supervisor was killed between a rank's failure and the end of the others counted as finished.

    Where the scheduler had asked for its end already, it waited permanently for another ``Revoke``.
    """
    state = Task.state

    def without_code(self: Task) -> Any:
        found, raw = state(self), self._status()
        if found.phase == "ended" and raw.get("phase") != "ended":
            found = dataclasses.replace(found, cause=raw.get("cause") or "lost", first=None)
        return found

    table = {
        **gang_lifecycle.TRANSITIONS,
        (FAILING, gang_lifecycle.GangEvent.STOP_ASKED): gang_lifecycle.Transition(FAILING),
    }
    with mock.patch.object(Task, "state", without_code), mock.patch.object(gang_lifecycle, "TRANSITIONS", table):
        yield


def _without_ends(real: Any, self: Books, lease: Any) -> None:
    if lease.ended != lease.ended or lease.cause != "failed":
        real(self, lease)


def _ended_where_removed(real: Any, self: Gangs) -> Any:
    for gang in [*self.gangs.values()]:
        if not gang.ended and any(self.nodes[n].leaving for n in gang.parts):
            self.out.append(JobStopped(job=gang.grant.job, attempt=gang.grant.attempt, steps=0.0))
    return real(self)


_DONE = Gangs._done
_EXECUTE, _STOP, _REVOKE = disk.Connection.execute, Supervisor.stop, Gangs._revoke
_NUMBERED, _TURN, _APPS = Records.numbered, Supervisor.turn, Journal.apps

_RENEWED = Gangs._renewed
_RESUME, _SAVE = LiveSettings.resume, Books.save

MUTATIONS: dict[str, Mutation] = {
    "unrecorded steps move the clock": replaced(Scheduler, "step", _every_step_moves_the_clock),
    "journals leave no trace outside": _journals_without_trace,
    "strays are found by their environment alone": _gangs_found_by_their_environment,
    "a supervisor takes words in order": replaced(Supervisor, "_obey", _words_in_order),
    "what is left is not written down": replaced(Task, "_record_left", lambda task: None),
    "answers go out before the commit": replaced(Call, "run", _answer_before_the_commit),
    "commits are not synced": replaced(disk.Connection, "execute", lambda *a: _sync_less(_EXECUTE, *a)),
    "the grace is forgotten": replaced(Supervisor, "stop", lambda *a: _no_grace(_STOP, *a)),
    "GPUs are free before JobStopped": replaced(Gangs, "_revoke", lambda *a: _free_at_once(_REVOKE, *a)),
    "a fold drops the last record": replaced(Records, "numbered", lambda *a: _without_the_last(_NUMBERED, *a)),
    "supervisors forget the machine's lease": replaced(Supervisor, "turn", lambda *a: _deadline_forgotten(_TURN, *a)),
    "gangs are not restored after a start": replaced(LocalExecutor, "restore", _nothing),
    "unknown gangs are left alone": replaced(Gangs, "_orphan", _stray_orphans),
    "a silent machine's GPUs are free immediately": replaced(
        service, "NODE", service.replace(service.NODE, margin_s=-60.0)
    ),
    "repeated submissions are new apps": replaced(Journal, "apps", lambda *a, **m: _forgets_keys(_APPS, *a, **m)),
    "accounts do not know GPUs that came": _accounts_without_growth,
    "a start takes its settings as given": replaced(LiveSettings, "resume", lambda *a: _as_given(_RESUME, *a)),
    "leases that fail are not written to the accounts": replaced(Books, "save", lambda *a: _without_ends(_SAVE, *a)),
    "a removed machine's gangs are taken for ended": replaced(
        Gangs, "_done", lambda *a: _ended_where_removed(_DONE, *a)
    ),
    "a machine that is back serves before its agent speaks": _back_at_once,
    "renewals that were on the way count as new": replaced(Gangs, "_renewed", lambda *a: _heard_all(_RENEWED, *a)),
    "agents forget without a word": replaced(NodeAgent, "_drop", _forgets_without_a_word),
    "a gang whose supervisor was killed as it failed ends well": _ends_well_without_supervisor,
}
BY_HAND = (
    "what is left is not written down",
    "supervisors forget the machine's lease",
    "unknown gangs are left alone",
    "a silent machine's GPUs are free immediately",
    "repeated submissions are new apps",
    "a removed machine's gangs are taken for ended",
    "a machine that is back serves before its agent speaks",
    "renewals that were on the way count as new",
    "agents forget without a word",
    "a gang whose supervisor was killed as it failed ends well",
)
"""Mutations whose histories are too rare for random seeds: ``test_found`` tells one for each."""


def find(name: str, most: int, first: int = 0) -> tuple[int, History] | None:
    """The first seed that finds a mutation, with its history; None if none of so many does."""
    with MUTATIONS[name]():
        for seed in range(first, first + most):
            history = run(seed)
            if history.wrong:
                return seed, history
    return None


def main() -> None:
    """Print a line for each mutation."""
    parser = argparse.ArgumentParser(prog="python -m simulation.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="some of them; all where there is none")
    parser.add_argument("--most", type=int, default=300, help="seeds for each (300)")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    for name in given.names or MUTATIONS:
        found = find(name, given.most)
        what = f"after {found[0] + 1} seeds: {found[1].wrong[:150]}" if found else f"NOT within {given.most} seeds"
        print(f"{name}: {what}", flush=True)


if __name__ == "__main__":
    main()
