"""Reports of jobs under curve stopping, and the jobs that are to stop: the state behind ``policies.tuning.curves``."""

from __future__ import annotations

import math

import numpy as np

from themis.core.tables import Jobs, Status
from themis.model.units import Int
from themis.model.workload import CurveStopping
from themis.policies.tuning.curves import DONE, Verdict, floor_of, forecast, poor_jobs


class Curves:
    """Reports and forecasts by job id, of unfinished apps under curve stopping."""

    def __init__(self) -> None:
        self.reports: dict[int, tuple[list[float], list[float]]] = {}
        """(steps, losses) of each job."""
        self.forecasts: dict[int, tuple[float, float, int]] = {}
        """Mean and deviation of each job's final loss, and the reports behind it; stopped jobs have none."""
        self.lowest: dict[int, float] = {}
        """Lowest loss that each job reported."""
        self.ranges: dict[int, tuple[float, float]] = {}
        """Lowest and highest finite loss that was reported of an app, by its first job."""

    def report(self, jobs: Jobs, rows: Int, tuner: CurveStopping, j: int, loss: float) -> list[Verdict]:
        """Take in a job's loss at the steps that it has done; returns its app's jobs that are to stop now.

        What was reported before a crash is known and not counted again. ``rows`` : the app's jobs.
        """
        done, total = float(jobs.done[j]), float(jobs.total[j])
        steps, losses = self.reports.setdefault(j, ([], []))
        self.lowest[j] = min(loss, self.lowest.get(j, math.inf))
        moved = self._widen(int(rows[0]), loss, tuner)
        if done >= total - 1e-6:
            self.forecasts[j] = loss, 0.0, DONE
        elif not steps or done > steps[-1] + 1e-6:
            steps.append(done)
            losses.append(loss)
            if len(steps) < tuner.warmup:
                return []
            self._fit(jobs, rows, tuner, j)
        for other in rows.tolist() if moved else ():
            if self.forecasts.get(other, (0.0, 0.0, DONE))[2] < DONE:
                self._fit(jobs, rows, tuner, other)
        return self._poor(jobs, rows, tuner)

    def _widen(self, app: int, loss: float, tuner: CurveStopping) -> bool:
        """Take a loss into its app's range; whether the floor of the app's losses moved."""
        low, high = before = self.ranges.get(app, (math.inf, -math.inf))
        if math.isfinite(loss):
            self.ranges[app] = low, high = min(low, loss), max(high, loss)
        return math.isfinite(before[0]) and floor_of(low, high, tuner.floor) != floor_of(*before, tuner.floor)

    def _fit(self, jobs: Jobs, rows: Int, tuner: CurveStopping, j: int) -> None:
        steps, losses = self.reports[j]
        floor = floor_of(*self.ranges[int(rows[0])], tuner.floor)
        mean, deviation = forecast(np.array(steps), np.array([losses]), float(jobs.total[j]), floor)
        self.forecasts[j] = float(mean[0]), float(deviation[0]), len(steps)

    def forget_job(self, j: int) -> None:
        """A stopped job sets no standard for the others."""
        self.forecasts.pop(j, None)

    def forget_app(self, jobs: list[int]) -> None:
        """The app has finished."""
        for j in jobs:
            for known in (self.reports, self.forecasts, self.lowest, self.ranges):
                known.pop(j, None)

    def _poor(self, jobs: Jobs, rows: Int, tuner: CurveStopping) -> list[Verdict]:
        known = [self.forecasts.get(j, (np.nan, 0.0, 0)) for j in rows.tolist()]
        mean, deviation, reports = (np.array(column) for column in zip(*known))
        observed = np.array([self.lowest.get(j, np.inf) for j in rows.tolist()])
        return poor_jobs(mean, deviation, reports, observed, jobs.status[rows] != Status.ENDED, tuner)
