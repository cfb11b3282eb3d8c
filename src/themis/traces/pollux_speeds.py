"""Duration of a Pollux job, from the measurements that come with its workloads (OSDI'21, on T4 GPUs).

    seconds = iterations(batch) * (step + accumulations * (step - sync))

Iterations are those of a whole training run at that batch size (``validation-BATCH.csv``), between measured batch
sizes on a straight line; step and sync times those of the GPUs spread over machines of four (``placements.csv``,
beyond four machines ``scalability.csv``), between local batch sizes on a straight line. One GPU beyond the smallest batch
size of the validation runs takes its batch in at least two parts, as Pollux' simulator has it (its gradient statistics need two).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from themis.errors import InputError
from themis.model.units import Seconds
from themis.traces.bundle import is_bundle, members, texts
from themis.traces.csv_table import TableRow, rows_of

MACHINE = 4
"""GPUs of a machine in Pollux' testbed."""

_LOCAL_LIMIT = {"yolov3": 8}
"""Largest local batch size, where it is not the largest measured (Pollux' simulator)."""

_VALIDATION = re.compile(r"validation-(\d+)\.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Measurements of one application.

    Attributes
    ----------
    iterations : by global batch size, to the end of training.
    times : (local batch size, step seconds, sync seconds) by placement (GPUs on each machine, sorted) in the order
        of the local batch size.
    local_limit : largest local batch size; beyond it, gradients are accumulated.
    """

    iterations: dict[int, float]
    times: dict[tuple[int, ...], list[tuple[float, float, float]]]
    local_limit: int

    def seconds(self, gpus: int, batch: int) -> Seconds | None:
        """Duration of a run, or None where this number of GPUs or this batch was not measured."""
        sizes = sorted(self.iterations)
        full, rest = divmod(gpus, MACHINE)
        placement = tuple(sorted((MACHINE,) * full + ((rest,) if rest else ())))
        if placement not in self.times or not sizes[0] <= batch <= sizes[-1]:
            return None
        iterations = float(np.interp(batch, sizes, [self.iterations[size] for size in sizes]))
        return iterations * self.iteration_s(placement, batch)

    def iteration_s(self, placement: tuple[int, ...], batch: float) -> Seconds:
        """Seconds of an iteration on a placement that was measured."""
        _, accumulations, grad_s, step_s = self.parts(placement, batch)
        return step_s + accumulations * grad_s

    def parts(self, placement: tuple[int, ...], batch: float) -> tuple[int, int, Seconds, Seconds]:
        """Local batch size and accumulations of an iteration, and its seconds to compute a gradient and without accumulation."""
        gpus = sum(placement)
        local = math.ceil(batch / gpus)
        accumulations = math.ceil(local / self.local_limit) - 1
        if gpus == 1 and batch > min(self.iterations):
            accumulations = max(1, accumulations)
        x, step, sync = np.array(self.times[placement]).T
        at = math.ceil(local / (accumulations + 1))
        step_s, sync_s = float(np.interp(at, x, step)), float(np.interp(at, x, sync))
        return at, accumulations, step_s - sync_s, step_s


@lru_cache(maxsize=4)
def applications(path: Path) -> dict[str, Application]:
    """Read the measurements in Pollux' archive or a folder of it, by application.

    Raises
    ------
    InputError : there are none, or a file of them cannot be read.
    TraceError : a cell is wrong.
    """
    if not is_bundle(path):
        raise InputError(f"profiles {str(path)!r} is neither a folder nor an archive; name pollux-osdi21.tar.gz.")
    names = {name.split("/")[-2] for name in members(path) if name.endswith("/placements.csv")}
    if not names:
        raise InputError(f"profiles {str(path)!r} has no placements.csv; name pollux-osdi21.tar.gz or its folder.")
    times: dict[str, dict[tuple[int, ...], list[tuple[float, float, float]]]] = {name: {} for name in names}
    iterations: dict[str, dict[int, float]] = {name: {} for name in names}
    for file, lines in texts(path, "*.csv"):
        folder, _, base = file.replace("\\", "/").rpartition("/")
        app = folder.rpartition("/")[2]
        if app not in names:
            continue
        match = _VALIDATION.fullmatch(base)
        if match:
            rows = rows_of(lines, file, required=("iteration",))
            iterations[app][int(match[1])] = max(
                row.number("iteration", "iterations, 0 or more", low=0) for row in rows
            )
        elif base in ("placements.csv", "scalability.csv"):
            for key, measured in _measured(rows_of(lines, file, required=("local_bsz", "step_time", "sync_time"))):
                times[app].setdefault(key, []).append(measured)
    return {name: _application(name, iterations[name], times[name]) for name in names if iterations[name]}


def _application(
    name: str, iterations: dict[int, float], times: dict[tuple[int, ...], list[tuple[float, float, float]]]
) -> Application:
    largest = int(max(local for points in times.values() for local, _, _ in points))
    ordered = {placement: sorted(points) for placement, points in times.items()}
    return Application(iterations=iterations, times=ordered, local_limit=_LOCAL_LIMIT.get(name, largest))


def _measured(rows: Iterator[TableRow]) -> Iterator[tuple[tuple[int, ...], tuple[float, float, float]]]:
    for row in rows:
        if "placement" in row.cells:
            key = tuple(sorted(int(digit) for digit in str(row.whole("placement", "GPUs on each machine", low=1))))
        else:
            machines = row.whole("num_nodes", "a number of machines", low=1)
            full = row.whole("num_replicas", "a number of GPUs", low=1) == machines * MACHINE
            key = (MACHINE,) * machines if full else ()
        local = row.number("local_bsz", "a batch size", low=1.0)
        step = row.number("step_time", "seconds above 0", low=0.0, above=True)
        if key:
            yield key, (local, step, row.number("sync_time", "seconds, 0 or more", low=0.0))
