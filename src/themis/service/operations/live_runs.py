"""A live run's journal as an event log, and as a simulation of the same apps on the same machines.

Stand-ins (``themis.train.paced``) name in their commands what a simulation must know and the scheduler must not: true speeds, batch
sizes, losses. Of other programs the simulation believes what the service believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from themis.errors import InputError
from themis.model.cluster import Cluster, Machine
from themis.model.events import AppCancelled, AppFinished, AppHeld, AppResumed, AppSubmitted, Header, MachineJoined
from themis.model.log import LogWriter
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.model.workload import App, CurveStopping, Job, LossCurve, Regime, Workload
from themis.policies.api import make_policy
from themis.schema import messages as schema
from themis.service.engine.journal import Entry, export
from themis.service.engine.kept_copies import journal_of
from themis.service.engine.recovery import kept_book
from themis.service.engine.speed_estimator import read_profile
from themis.sim.runner import Change, Simulation
from themis.traces.profiles.models import DEFAULT_BOOK

PATIENCE = 2.0
"""Longest simulation of a live run, over how long that one took."""


def write_log(home: Path, log: Path) -> None:
    """Write the journal of a data directory as an event log."""
    with journal_of(home) as journal:
        export(journal.path, log)


def simulate(home: Path, log: Path) -> None:
    """Simulate a live run's apps under its policy and settings, each at the instant at which the service took it in.

    Users cancel, hold and resume them when they did; an app that failed leaves when it did. It ends when the apps have, or after
    ``PATIENCE`` times as long as the live run: what that one did not end may take years.

    Raises
    ------
    InputError : the journal has no apps, or no machines.
    """
    with LogWriter(log) as writer:
        simulation, lasted_s = _read(home)
        simulation.run(writer, until=PATIENCE * lasted_s)


def simulation_of(home: Path) -> Simulation:
    """The simulation of ``simulate``; a start costs what the policy believes."""
    return _read(home)[0]


def _read(home: Path) -> tuple[Simulation, Seconds]:
    """The simulation, and how long the live run took from its first app to its last record."""
    header, apps, machines, last = None, list[AppSubmitted](), dict[str, Machine](), 0.0
    done = list[tuple[Seconds, Change]]()
    with journal_of(home) as journal:
        for last, record in journal.records():  # the last one is used below
            match record:
                case Header():
                    header = record
                case AppSubmitted():
                    apps.append(record)
                case AppCancelled() | AppHeld() | AppResumed():
                    done.append((last, record))
                case AppFinished() if record.outcome == "failed":
                    done.append((last, AppCancelled(app=record.app)))
                case MachineJoined():
                    machines[record.machine.name] = record.machine
        entries = journal.apps()
        book = (kept_book(journal, "book") or DEFAULT_BOOK).with_profiles(
            read_profile(name, schema.Profile.model_validate_json(message)) for name, message in journal.profiles()
        )
    if header is None or not apps or not machines:
        raise InputError(
            f"{home} has no run to simulate: its journal names {len(apps)} apps on {len(machines)} machines."
        )
    # Leases end on ticks: moved by whole ones, apps come as long before one as they did.
    tick_s = header.settings["tick_s"]
    truth = {entry.app: [_stand_in(entry, i) for i in range(len(entry.programs))] for entry in entries}
    first = apps[0].app.arrival // tick_s * tick_s
    simulation = Simulation(
        workload=Workload(
            name=home.name,
            source=f"the journal of {home.name}",
            apps=tuple(_true(a.app, a.weight, truth.get(n, []), first) for n, a in enumerate(apps)),
        ),
        cluster=Cluster(name=header.cluster, machines=tuple(machines.values())),
        book=_with_resumes(book, apps, truth),
        estimated=book,
        policy_name=header.policy,
        policy=make_policy(header.policy.partition(":")[0], header.params),
        settings=Settings(**header.settings, seed=header.seed),
        changes=tuple((time - first, change) for time, change in done),
    )
    return simulation, last - first


def _stand_in(entry: Entry, job: int) -> Mapping[str, Any]:
    """Work and true speeds by a stand-in's command; empty for other programs."""
    argv: Sequence[str] = entry.programs[job].argv
    return json.loads(argv[-1]) if tuple(argv[1:3]) == ("-m", "themis.train.paced") else {}


def _true(app: App, weight: float, truth: Sequence[Mapping[str, Any]], first: float) -> App:
    jobs = tuple(_true_job(job, said) if said else job for job, said in zip(app.jobs, truth or [{}] * len(app.jobs)))
    # Stand-ins report losses as they are.
    tuner = replace(app.tuner, noise=0.0) if isinstance(app.tuner, CurveStopping) and any(truth) else app.tuner
    deadline = None if app.deadline is None else app.deadline - first
    return replace(app, arrival=app.arrival - first, weight=weight, jobs=jobs, tuner=tuner, deadline=deadline)


def _true_job(job: Job, said: Mapping[str, Any]) -> Job:
    a, b, c = said["loss"]
    regimes = tuple(Regime(steps=steps, batch=batch, pace=pace) for steps, batch, _, pace in said["regimes"])
    return replace(job, regimes=regimes, loss=LossCurve(a=a, b=b, c=c))


def _with_resumes(
    book: ProfileBook, apps: Sequence[AppSubmitted], truth: Mapping[int, Sequence[Mapping[str, Any]]]
) -> ProfileBook:
    """The book with the time that stand-ins take to load a checkpoint, the same for all jobs of a model."""
    found = {
        job.model: said["resume_s"]
        for n, one in enumerate(apps)
        for job, said in zip(one.app.jobs, truth.get(n, []))
        if said
    }
    return book.with_profiles(replace(book.get(model), checkpoint_s=seconds) for model, seconds in found.items())
