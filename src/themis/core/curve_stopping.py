"""Reports of jobs under curve stopping, and the jobs that are to stop: the state behind ``policies.tuning.curves``."""

from __future__ import annotations

import numpy as np

from themis.core.tables import Jobs, Status
from themis.model.units import Int
from themis.model.workload import CurveStopping
from themis.policies.tuning.curves import DONE, Verdict, forecast, poor_jobs


class Curves:
    """Reports and forecasts by job id, of unfinished apps under curve stopping."""

    def __init__(self) -> None:
        self.reports: dict[int, tuple[list[float], list[float]]] = {}
        """(steps, losses) of each job."""
        self.forecasts: dict[int, tuple[float, float, int]] = {}
        """Mean and deviation of each job's final loss, and the reports behind it; stopped jobs have none."""

    def report(self, jobs: Jobs, rows: Int, tuner: CurveStopping, j: int, loss: float) -> list[Verdict]:
        """Take in a job's loss at the steps that it has done; returns its app's jobs that are to stop now.

        What was reported before a crash is known and not counted again. ``rows`` : the app's jobs.
        """
        done, total = float(jobs.done[j]), float(jobs.total[j])
        steps, losses = self.reports.setdefault(j, ([], []))
        if done >= total - 1e-6:
            self.forecasts[j] = loss, 0.0, DONE
        elif not steps or done > steps[-1] + 1e-6:
            steps.append(done)
            losses.append(loss)
            if len(steps) < tuner.warmup:
                return []
            mean, deviation = forecast(np.array(steps), np.array([losses]), total)
            self.forecasts[j] = float(mean[0]), float(deviation[0]), len(steps)
        return self._poor(jobs, rows, tuner)

    def forget_job(self, j: int) -> None:
        """A stopped job sets no standard for the others."""
        self.forecasts.pop(j, None)

    def forget_app(self, jobs: list[int]) -> None:
        """The app has finished."""
        for j in jobs:
            self.reports.pop(j, None)
            self.forecasts.pop(j, None)

    def _poor(self, jobs: Jobs, rows: Int, tuner: CurveStopping) -> list[Verdict]:
        known = [self.forecasts.get(j, (np.nan, 0.0, 0)) for j in rows.tolist()]
        mean, deviation, reports = (np.array(column) for column in zip(*known))
        return poor_jobs(mean, deviation, reports, jobs.status[rows] != Status.ENDED, tuner)
