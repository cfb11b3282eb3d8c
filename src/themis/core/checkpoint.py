"""The whole core as plain data that JSON can hold, and back: ``load(save(core), fresh)`` continues exactly as ``core`` would.

Columns are saved by name, as raw bytes, so nothing is rounded; a column or attribute that a later version adds begins
with its default, one that it dropped is passed over. What follows from the rest is left out: speeds are tabulated again
from the profile book with what was measured, machines' columns from the machines. The decision under way is left out
too: after a state is loaded, the decision is made again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from themis.core.learning import Measured
from themis.core.packed import pack, unpack
from themis.core.retire import is_pruned, pruned
from themis.core.scheduler import Scheduler
from themis.core.state import State
from themis.core.tables import Table
from themis.core.validate import validate
from themis.errors import InputError, InvariantBroken
from themis.model import cluster, workload
from themis.model.specs import read_app, to_fields
from themis.model.speed import compile_speeds

FORMAT = 5
"""Version of the checkpoint format; raise it whenever a part changes its meaning."""

_SAVED = tuple(f.name for f in dataclasses.fields(State) if f.metadata.get("saved", True))
"""Fields of the state that are saved under their names: all that it does not declare as ``derived``."""
_FILLED = ("machine_up", "gpu_machine", "gpu_slot", "gpu_job", "gpu_occupant")
"""Columns of the machines that do not follow from them; they are filled where ``restore_machines`` made room."""
_LEASES = ("held_back", "held", "awaited", "stopping")
_STORED: Mapping[str, str] = MappingProxyType({"entitled": "promised", "received": "dealt"})
"""Attributes of the rounds that are stored under another name: the one that they had when the format was written down."""


def save(core: Scheduler) -> dict[str, Any]:
    """The complete state of the core, except the decision under way."""
    s = core.state
    changed = {j: known for j, (known, job) in enumerate(zip(s.regimes, s.job_specs)) if known != job.regimes}
    return {
        "format": FORMAT,
        "gpu_types": list(s.gpu_types),
        "machines": [to_fields(machine) for machine in s.machines],
        "speeds": {
            "units": pack(dict(zip(s.speeds.index, s.speeds.serial.tolist()))),
            "largest": s.speeds.scale.shape[2] - 1,
            "measured": pack(s.measured.rates),
            "profiles": pack(
                [s.book.get(model) for model in sorted({key[0] for key in s.measured.rates} | s.reprofiled)]
            ),
        },
        "app_specs": [_app_fields(app) for app in s.app_specs],
        "apps": _table(s.apps),
        "jobs": _table(s.jobs),
        "regimes": pack(changed),
        "curves": pack(dict(vars(s.curves))),
        "rounds": pack({_STORED.get(f.name, f.name): getattr(s.rounds, f.name) for f in dataclasses.fields(s.rounds)}),
        "state": {name: pack(getattr(s, name)) for name in _SAVED},
        "leases": pack({name: getattr(core.leases, name) for name in _LEASES}),
        "scheduler": pack({"wakes": core.wakes}),
    }


def _app_fields(app: workload.App) -> Any:
    if is_pruned(app):
        return [app.name, app.user, app.arrival, [job.name for job in app.jobs]]
    return to_fields(app)


def load(saved: Mapping[str, Any], core: Scheduler) -> Scheduler:
    """Bring a fresh core to where another was when it was saved; returns it.

    Parameters
    ----------
    core : with the settings and the pace of the one that was saved, and its profiles, or more.

    Raises
    ------
    InputError : no saved core, one of another version, or one that contradicts itself.
    """
    if saved.get("format") != FORMAT:
        raise InputError(
            f"the saved state has format {saved.get('format')}, this Themis reads {FORMAT}; use the version that wrote it."
        )
    try:
        _fill(core, saved)
        validate(core.state)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(f"the saved state is damaged ({type(error).__name__}: {error}).") from None
    except InvariantBroken as error:
        raise InputError(f"the saved state contradicts itself: {error}") from None
    return core


def _fill(core: Scheduler, saved: Mapping[str, Any]) -> None:
    s = core.state
    for gpu_type in saved.get("gpu_types", ()):
        s.add_type(gpu_type)
    machines = [cluster.Machine(**machine) for machine in saved["machines"]]
    s.restore_machines(machines, unpack(saved["state"]["gpu_machine"]))
    speeds = {name: unpack(value) for name, value in saved["speeds"].items()}
    s.measured = Measured(speeds["measured"])
    s.book = s.book.with_profiles(speeds["profiles"])
    units = speeds["units"]
    s.speeds = compile_speeds(s.book, units, tuple(s.gpu_types), speeds["largest"], units)
    s.app_specs = [pruned(*app) if isinstance(app, list) else read_app(app) for app in saved["app_specs"]]
    s.job_specs = [job for app in s.app_specs for job in app.jobs]
    changed = unpack(saved["regimes"])
    s.regimes = [changed.get(j, job.regimes) for j, job in enumerate(s.job_specs)]
    for table, name in ((s.apps, "apps"), (s.jobs, "jobs")):
        _fill_table(table, saved[name])
    for owner, part in ((s.curves, "curves"), (s.rounds, "rounds"), (core.leases, "leases"), (core, "scheduler")):
        renamed = {old: new for new, old in _STORED.items()} if owner is s.rounds else {}
        for attribute, value in unpack(saved[part]).items():
            name = renamed.get(attribute, attribute)
            if hasattr(owner, name):
                setattr(owner, name, value)
    for name, packed in saved["state"].items():
        value = unpack(packed)
        if name in _FILLED:
            getattr(s, name)[:] = value
        elif name in _SAVED:
            setattr(s, name, value)
    for n in sorted(s.removed):
        s._set_size(n, 0)
    for j in s.goodput:
        s.fill_goodput(j)
    s.drop_caches()
    core.settings = s.settings = replace(s.settings, **s.core_settings)
    s.jobs_in_system = s.count_jobs()
    # States of before there were units of fairness: all between apps.
    old = s.apps.given[: s.apps.size] == 0
    s.apps.given[: s.apps.size][old] = s.apps.weight[: s.apps.size][old]
    s.apps.own[: s.apps.size][old] = [
        1.0 if is_pruned(s.app_specs[a]) else s.app_specs[a].weight for a in np.flatnonzero(old)
    ]


def _table(table: Table) -> dict[str, Any]:
    columns = (*table.floats, *table.ints)
    return {"rows": table.size, "columns": {n: pack(getattr(table, n)[: table.size]) for n in columns}}


def _fill_table(table: Table, saved: Mapping[str, Any]) -> None:
    table.extend(saved["rows"])
    known = {*table.floats, *table.ints}
    for name, column in saved["columns"].items():
        if name in known:
            getattr(table, name)[: table.size] = unpack(column)
