"""What is forecast of each job's training: the regimes ahead, one expected trajectory a job (Shockwave §5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.units import Float, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Stretches of training at one speed, grouped by job in order: the ongoing regime first, then those expected.

    Attributes
    ----------
    ptr : Int[J+1]; job row ``j`` owns the stretches ``ptr[j]:ptr[j + 1]``, at least one.
    share : Float[S], share of the job's whole work in epochs that is left of the stretch, >= 0; a job's add up to
        1 - ``progress``.
    seconds : Float[S], what the stretch takes alone on the job's own gang, above 0 where ``share`` is.
    progress : Float[J], epochs done over all epochs, in [0, 1] (F / E).
    isolated_s : Float[J], forecast seconds of the whole job alone on its own gang, above 0 (P).
    contention : Float[J], N_avg: mean over the job's life of active jobs / GPUs in service, at least 1.
    late_s : Float[J], seconds left at the quantile that risk is taken at, or 0 of a job without doubt; None: of no job.
    """

    ptr: Int
    share: Float
    seconds: Float
    progress: Float
    isolated_s: Float
    contention: Float
    late_s: Float | None = None

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
        """The same of these rows, in this order."""
        at = [np.arange(self.ptr[j], self.ptr[j + 1]) for j in rows.tolist()]
        flat = np.concatenate([*at, np.zeros(0, dtype=np.int64)]).astype(np.int64)
        return Ahead(
            ptr=np.concatenate([[0], np.cumsum([len(a) for a in at], dtype=np.int64)]).astype(np.int64),
            share=self.share[flat], seconds=self.seconds[flat], progress=self.progress[rows],
            isolated_s=self.isolated_s[rows], contention=self.contention[rows],
            late_s=None if self.late_s is None else self.late_s[rows],
        )  # fmt: skip
