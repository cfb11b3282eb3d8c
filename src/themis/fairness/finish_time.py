"""Finish-time fairness (Themis §3.2, §4.3): rho = T_sh / T_id, for single jobs, bags and sweeps.

    T_sh(G) = elapsed + seconds left on G            T_id = T_cluster * N_avg         (eq. 1, 2)
    seconds left = sum over phases of max(work / E, longest / min(E, e_max))

E is what G is worth in reference GPUs (GPUs times type speed over slowdown), e_max what one gang can use of it. Two
forms of T_id: the paper's, and the exact one, the time on a fractional share s = R_C / N_avg of the cluster:

    T_id = sum over phases of max(work_i / s, longest_i / min(s, gpus_max))

with gpus_max that of the job. Where the jobs of an app differ in it, longest_i is whose work over its own gpus_max is most.

Hyperband's brackets are such sums of phases side by side on the same GPUs. They take at least as long as the
longest of them does alone, and as all their work does on all GPUs; the larger of the two is what counts. One bracket is
successive halving. More than one can take longer than this bound where some bracket's late rungs leave GPUs idle that
no other bracket can fill, but less than twice as long if no GPU idles that a bracket could use.

An app under curve stopping is a bag whose budget is what its jobs did and are forecast to do: a job that still runs is
taken at its most optimistic curve, which is to run to its end (Themis §4.3.2).

Differs from the paper: T_cluster * N_avg overstates T_id by up to min(N_avg, R_C / gpus_max) whenever gpus_max < R_C,
which is why the exact form exists. Work is in reference GPU-seconds throughout. Bidding is left to ``themis.policies.tuning``.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from themis.model.snapshot import Kind, Snapshot
from themis.model.units import Float, Int, Locality, Seconds

LEAST_T_ID = 1e-9
"""Seconds; for apps whose work turned out to be zero."""
BAG = int(Kind.BAG)
"""A plain integer: numpy takes ten times as long to compare with an enumeration member."""


class Form(StrEnum):
    """The T_id that a rho is measured against."""

    PAPER = "paper"
    EXACT = "exact"


def phase_seconds(work: Float, longest: Float, effective: Float, gang: Float) -> Float:
    """Seconds of a phase whose jobs share ``effective`` reference GPUs freely (spec §2).

    On fewer GPUs than a gang can use the longest job takes no longer than all the work, so the two terms are enough.

    Parameters
    ----------
    work : reference GPU-seconds of all jobs. ``longest`` : of the one that takes longest at its most GPUs, times ``gang``
        over what that job can use: jobs of a phase may differ in that.
    effective : reference GPUs shared by the phase; ``gang`` : the most that any job of the app can use.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # without a GPU in service it takes for ever, if there is work
        shared = np.where(work > 0, work / effective, 0.0)
    out: Float = np.maximum(shared, longest / gang)
    return out


def t_id_paper(budget: Float, longest_s: Float, demand: Float, capacity: Float, contention: Float) -> Float:
    """T_cluster * N_avg with T_cluster = max(B / min(R_C, demand), longest job) (eq. 1, 2; the longest job: bags only).

    Parameters
    ----------
    budget : reference GPU-seconds. longest_s : seconds of the longest job at its most GPUs (bags), else 0.
    demand : app_demand_max, GPUs. capacity : R_C. contention : N_avg.
    """
    out: Float = np.maximum(budget / np.minimum(capacity, demand), longest_s) * contention
    return out


def t_id_exact(
    work: Float, longest: Float, gang_max: Float, capacity: Float, contention: Float, bracket: Int | None = None
) -> Float:
    """Seconds on a private, fractional 1/N_avg of the cluster.

    Parameters
    ----------
    work, longest : [A, P]; ``bracket`` : [A, P], the bracket that each phase belongs to, None if no app has several.
    """
    share = capacity / contention
    seconds = phase_seconds(work, longest, share[:, None], gang_max[:, None])
    if bracket is None or not bracket.any():
        out: Float = seconds.sum(axis=1)
        return out
    return side_by_side(per_bracket(seconds, bracket, int(bracket.max()) + 1), work.sum(axis=1) / share)


def per_bracket(seconds: Float, bracket: Int, brackets: int) -> Float:
    """Seconds of each bracket, [..., brackets], from those of its phases, [..., P]."""
    return np.stack([np.where(bracket == b, seconds, 0.0).sum(axis=-1) for b in range(brackets)], axis=-1)


def side_by_side(alone: Float, together: Float) -> Float:
    """Seconds of brackets that share GPUs: at least the longest one's alone, [..., brackets], and their work's together.

    Parameters
    ----------
    alone : seconds of each bracket if it had all the GPUs. ``together`` : all their work over all the GPUs.
    """
    out: Float = np.maximum(alone.max(axis=-1), together)
    return out


def list_schedule(free_at: Sequence[tuple[Seconds, float]], works: Sequence[float]) -> Seconds:
    """Makespan when each free gang takes the next job in order (Graham's list scheduling).

    Parameters
    ----------
    free_at : (seconds until the gang is free, its speed in reference GPUs), at least one.
    works : reference GPU-seconds in the order of start (longest first gives LPT).
    """
    heap = list(free_at)
    heapq.heapify(heap)
    end = max(time for time, _ in heap)
    for work in works:
        time, speed = heap[0]
        time += work / speed
        heapq.heapreplace(heap, (time, speed))
        end = max(end, time)
    return end


@dataclass(frozen=True)
class FinishTime:
    """The finish-time arithmetic of one snapshot, every figure an array over its apps.

    Not slotted: the parts are computed at most once, on first use.
    """

    snapshot: Snapshot
    form: Form = Form.PAPER

    @classmethod
    def of(cls, snapshot: Snapshot, form: Form = Form.PAPER) -> FinishTime:
        """The same one for all who ask of this snapshot."""
        return snapshot.once((cls, form), lambda columns: cls.with_current(columns, snapshot, form))

    @classmethod
    def with_current(cls, columns: Snapshot, kept: Snapshot, form: Form) -> FinishTime:
        """Finish times of these columns, reusing the work of the current phase that ``kept`` of the same columns has
        computed.

        That work does not depend on GPUs held, so that the seconds left on these (``left_held``) can share it.
        """
        out = cls(columns, form)
        out.__dict__.update(kept.once("work of the current phase", _current))
        return out

    @cached_property
    def current_work(self) -> Float:
        """Reference GPU-seconds left in the current phase, [A]."""
        return _per_app(np.add, self.snapshot, self.snapshot.job_left)

    @cached_property
    def _lasts(self) -> Float:
        """Reference GPU-seconds left of each job, were it to use the widest gang of its app in the same time, [J]."""
        s = self.snapshot
        return s.job_left * (s.app_gang_max[s.job_app] / s.job_gpus_max)

    @cached_property
    def current_longest(self) -> Float:
        """The longest job left in the current phase, as ``phase_seconds`` takes it, [A]."""
        return _per_app(np.maximum, self.snapshot, self._lasts)

    @cached_property
    def t_id(self) -> Float:
        """Seconds on the app's own 1/N_avg of the cluster, [A]."""
        s = self.snapshot
        if self.form is Form.PAPER:
            ideal = t_id_paper(
                s.app_budget, s.app_longest, s.app_demand.astype(float), s.app_capacity, s.app_contention
            )
        else:
            ideal = t_id_exact(
                s.phase_work,
                s.phase_longest,
                s.app_gang_max.astype(float),
                s.app_capacity,
                s.app_contention,
                s.phase_bracket,
            )
        with np.errstate(divide="ignore", invalid="ignore"):  # no GPU in service runs it
            return np.maximum(ideal / s.app_speed, LEAST_T_ID)

    def left_on(self, effective: Float, gang: Float, rows: Int | int | slice = slice(None)) -> Float:
        """Seconds left when the app's jobs share ``effective`` reference GPUs, at most ``gang`` to one job.

        Parameters
        ----------
        gang : of the app's widest job; those that can use fewer GPUs get as much less.
        rows : which apps; ``effective`` and ``gang`` have their length (or broadcast against it).
        """
        s = self.snapshot
        if self._brackets > 1:
            return self._left_in_brackets(np.asarray(effective), np.asarray(gang), rows)
        now = phase_seconds(self.current_work[rows], self.current_longest[rows], effective, gang)
        if not s.future_work.shape[1]:
            return now
        effective, gang = np.asarray(effective)[..., None], np.asarray(gang)[..., None]
        later: Float = phase_seconds(s.future_work[rows], s.future_longest[rows], effective, gang).sum(axis=-1)
        return now + later

    @cached_property
    def _brackets(self) -> int:
        """Most brackets that any app here has; 1 without Hyperband."""
        return int(self.snapshot.phase_bracket.max(initial=0)) + 1

    @cached_property
    def _current_in_brackets(self) -> tuple[Float, Float]:
        """Work and longest job left in each bracket's current rung, [A, brackets]."""
        s, shape = self.snapshot, (self.snapshot.apps, self._brackets)
        work, longest = np.zeros(shape), np.zeros(shape)
        np.add.at(work, (s.job_app, s.job_bracket), s.job_left)
        np.maximum.at(longest, (s.job_app, s.job_bracket), self._lasts)
        return work, longest

    def _left_in_brackets(self, effective: Float, gang: Float, rows: Int | int | slice) -> Float:
        s, (work, longest) = self.snapshot, self._current_in_brackets
        e, g = effective[..., None], gang[..., None]
        later = phase_seconds(s.future_work[rows], s.future_longest[rows], e, g)
        alone = phase_seconds(work[rows], longest[rows], e, g) + per_bracket(
            later, s.phase_bracket[rows], self._brackets
        )
        return side_by_side(alone, (work[rows].sum(axis=-1) + s.future_work[rows].sum(axis=-1)) / effective)

    @cached_property
    def left_worst(self) -> Float:
        """Seconds left on the worst useful grant: one smallest gang, spread as widely as can be, [A]."""
        s = self.snapshot
        config = s.job_config[s.job_ptr[:-1]]
        spread = np.where(s.app_gang_min > 1, int(Locality.CROSS_RACK), int(Locality.MACHINE))
        scale = s.speeds.scale[config, :, s.app_gang_min]
        slowest = np.where(scale > 0, scale, np.inf).min(axis=1)
        gang = slowest / s.speeds.slowdown[config, spread]
        out: Float = (self.current_work + s.future_work.sum(axis=1)) / gang
        return out

    @cached_property
    def left_waiting(self) -> Float:
        """Seconds left for an app that holds and wins nothing: one lease more of waiting, then its 1/N_avg share.

        Open point (b) of the specification: finite, and never better than the worst useful grant.
        """
        s = self.snapshot
        share = s.app_capacity / s.app_contention * s.app_speed
        return s.lease_s + np.maximum(self.left_on(share, s.app_gang_max * s.app_speed), self.left_worst)

    @cached_property
    def left(self) -> Float:
        """Seconds left at the GPUs held beyond this instant, [A]."""
        held = self.snapshot.app_left_held
        return np.where(np.isfinite(held), held, self.left_waiting)

    @cached_property
    def rho_by_weight(self) -> Float:
        """``rho``, an app of weight w being w apps of one share, [A]: the order of the filter. ``rho`` if weights are
        equal.

        An app without GPUs then waits for the worst useful grant of each of its shares, w of them, and not of one only: else its
        seconds left would not shrink with its weight as its T_id does, and it would seem ever worse off.
        """
        s = self.snapshot
        if not s.weighted:
            return self.rho
        share = s.app_capacity / s.app_contention * s.app_speed
        worst = self.left_worst * (s.app_weight.mean() / s.app_weight)
        waiting = s.lease_s + np.maximum(self.left_on(share, s.app_gang_max * s.app_speed), worst)
        return self.rho_of(np.where(np.isfinite(s.app_left_held), s.app_left_held, waiting))

    @cached_property
    def rho(self) -> Float:
        """Current finish-time fairness at the GPUs held beyond this instant, [A]: the sort key and rho_old."""
        return self.rho_of(self.left)

    def rho_of(self, left: Float, rows: Int | slice = slice(None)) -> Float:
        """rho if the rest takes ``left`` seconds."""
        return (self._elapsed[rows] + left) / self.t_id[rows]

    @cached_property
    def _elapsed(self) -> Float:
        return self.snapshot.app_elapsed


def left_held(snapshot: Snapshot, effective: Float, gang: Float) -> Float:
    """Seconds left at the GPUs held for all apps except bags, which need a schedule; inf without GPUs.

    Parameters
    ----------
    effective : Float[A], reference GPUs held. ``gang`` : Float[A], what the app's widest gang would be worth there.
    """
    finish = FinishTime.with_current(snapshot, snapshot, Form.PAPER)
    out = np.full(snapshot.apps, np.inf)
    rows = ((effective > 0) & ((snapshot.app_kind != BAG) | ~snapshot.app_rigid)).nonzero()[0]
    out[rows] = finish.left_on(effective[rows], gang[rows], rows)
    return out


def _current(snapshot: Snapshot) -> dict[str, Float]:
    finish = FinishTime(snapshot)
    return {"current_work": finish.current_work, "_lasts": finish._lasts, "current_longest": finish.current_longest}


def _per_app(reduce: np.ufunc, snapshot: Snapshot, of_jobs: Float) -> Float:
    if not snapshot.apps:
        return np.zeros(0)
    out: Float = reduce.reduceat(of_jobs, snapshot.job_ptr[:-1])
    return out
