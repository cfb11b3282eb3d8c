"""Forecasts of each job's training: its future regimes, one expected trajectory a job (Shockwave §5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from themis.model.snapshot_columns import ONE, ROW, Column, S
from themis.model.units import Float, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Stretches of training at one speed, grouped by job in order: the ongoing regime first, then those expected."""

    ptr: Annotated[Int, Column("B", ROW, "job row `j` owns the stretches `ptr[j]:ptr[j + 1]`, at least one")]
    share: Annotated[
        Float, Column("R", ONE, "part of the job's epochs left in it, >= 0; with `progress` a job's add up to 1")
    ]
    seconds: Annotated[Float, Column("R", S, "what it takes alone on the job's own gang, above 0 where `share` is")]
    progress: Annotated[Float, Column("J", ONE, "epochs done over all epochs, in [0, 1] (F / E)")]
    isolated_s: Annotated[Float, Column("J", S, "forecast of the whole job alone on its own gang, above 0 (P)")]
    contention: Annotated[
        Float, Column("J", ONE, "N_avg: mean over its life of active jobs / GPUs in service, at least 1")
    ]
    late_s: Annotated[Float | None, Column("J", S, "left at the quantile that risk is taken at, 0 without doubt")] = (
        None
    )

    @property
    def risk_s(self) -> Float:
        """Seconds left of each job if it turns out long, never less than ``left_s``: what the makespan must reckon with."""
        out: Float = self.left_s if self.late_s is None else np.maximum(self.late_s, self.left_s)
        return out

    @property
    def left_s(self) -> Float:
        """Seconds left of each job alone on its own gang (R)."""
        out: Float = np.add.reduceat(self.seconds, self.ptr[:-1]) if len(self.progress) else np.zeros(0)
        return out

    def of(self, rows: Int) -> Ahead:
        """The forecast of these rows, in this order."""
        at = [np.arange(self.ptr[j], self.ptr[j + 1]) for j in rows.tolist()]
        flat = np.concatenate([*at, np.zeros(0, dtype=np.int64)]).astype(np.int64)
        return Ahead(
            ptr=np.concatenate([[0], np.cumsum([len(a) for a in at], dtype=np.int64)]).astype(np.int64),
            share=self.share[flat],
            seconds=self.seconds[flat],
            progress=self.progress[rows],
            isolated_s=self.isolated_s[rows],
            contention=self.contention[rows],
            late_s=None if self.late_s is None else self.late_s[rows],
        )
