"""Errors of forecasts against what jobs then did, by progress (Shockwave §5, figure 5).

Three errors of the expected trajectory when a share of a job's epochs is done:

regimes : mean over regimes of the absolute error in a regime's share of all epochs, |f - f_true|; one that only the
    forecast or only the truth has counts too. The paper does not define its error in "the duration of each regime".
batches : share of the epochs, past and to come, for which the forecast has another batch size than the truth. Unlike
    the first it does not shrink when a forecast has many short regimes.
run_time : |P - P_true| / P_true of the job's seconds alone on its own gang; the paper's accuracy is 1 minus this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from themis.errors import InputError
from themis.fairness.forecasts.history import History, learn, prior
from themis.fairness.forecasts.rules import Rule, changes_ahead, expected, spread
from themis.model.dynamic import Dynamic
from themis.model.units import Bool, Float, Seconds
from themis.model.workload import Job

KINDS = ("regimes", "batches", "run_time")
RULES = tuple(Rule)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Regimes in order, each with its batch size and epochs."""

    batches: tuple[int, ...]
    epochs: tuple[float, ...]

    def seconds(self, pace: Callable[[int], Seconds]) -> Seconds:
        """Duration of the trajectory; ``pace`` gives seconds per epoch by batch size."""
        return sum(epochs * pace(batch) for batch, epochs in zip(self.batches, self.epochs))

    def until(self, done: float) -> Trajectory:
        """Part that an observer has seen after ``done`` epochs, the ongoing regime last; a change at that epoch has
        been seen.
        """
        begins = np.cumsum((0.0, *self.epochs[:-1]))
        seen = int((begins <= done + 1e-9).sum())
        return Trajectory(self.batches[:seen], (*self.epochs[: seen - 1], max(done - float(begins[seen - 1]), 0.0)))


def forecast(
    rule: Rule, dynamic: Dynamic, total: float, seen: Trajectory, history: History | None = None, model: str = ""
) -> Trajectory:
    """The posterior mean over all regimes of a job of ``total`` epochs, of which these were seen (Shockwave §5).

    By the standard update, finished regimes have their posterior mean like all others, not what was observed.

    Parameters
    ----------
    history, model : what finished jobs taught, and the job's model; for POSTERIOR.
    """
    *finished, ongoing = seen.epochs
    if rule is Rule.POSTERIOR:
        return _posterior(dynamic, total, seen, history or {}, model)
    later = dynamic.ahead(len(finished), seen.batches[-1]) if rule is not Rule.GREEDY else ()
    past = sum(finished)
    mean, each = expected(
        rule,
        np.array([total]),
        np.array([past]),
        np.array([ongoing]),
        np.array([len(finished)]),
        np.array([len(later)]),
    )
    if rule is Rule.BAYES:
        prior, scale = total / (len(seen.epochs) + len(later)), total / (total + past + ongoing)
        finished = [(prior + epochs) * scale for epochs in finished]
    return Trajectory((*seen.batches, *later), (*finished, float(mean[0]), *[float(each[0])] * len(later)))


def _posterior(dynamic: Dynamic, total: float, seen: Trajectory, history: History, model: str) -> Trajectory:
    later = dynamic.ahead(len(seen.epochs) - 1, seen.batches[-1])
    left = max(total - sum(seen.epochs), 0.0)
    *finished, ongoing = seen.epochs
    ahead = (left * spread(chances(dynamic, total, seen, history, model))[0]).tolist()
    return Trajectory((*seen.batches, *later), (*finished, ongoing + ahead[0], *ahead[1:]))


def chances(dynamic: Dynamic, total: float, seen: Trajectory, history: History, model: str) -> Float:
    """[1, C], probability of 0, 1, ... changes still to come, as the scheduler believes it."""
    changes = len(seen.epochs) - 1
    most = changes + len(dynamic.ahead(changes, seen.batches[-1]))
    known = prior(history, str(dynamic.mode), model, seen.batches[0], most)
    found = changes_ahead(np.array([known]), np.array([total]), np.array([sum(seen.epochs)]), np.array([changes]))
    out: Float = found[:, : most - changes + 1]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of every rule, job and point.

    Attributes
    ----------
    progress : Float[P], shares of epochs done. ``jobs`` : their names.
    changes : Bool[J], the job does change its batch size.
    error : Float[rules, kinds, J, P], in the order of ``RULES`` and ``KINDS``.
    change_expected : Bool[rules, J, P], true if a further change is estimated to be likelier than none.
    """

    progress: Float
    jobs: tuple[str, ...]
    changes: Bool
    error: Float
    change_expected: Bool

    def wrongly_believed(self, rule: Rule) -> float:
        """Share of jobs that never change among those forecast on arrival to change; NaN without any."""
        some = self.change_expected[RULES.index(rule), :, 0]
        return float((~self.changes[some]).mean()) if some.any() else math.nan

    def mean(self, rule: Rule, kind: str, *, changing: bool = False) -> float:
        """Mean over jobs and progress, of all dynamic jobs or of those that do change."""
        return float(self.curve(rule, kind, changing=changing).mean())

    def curve(self, rule: Rule, kind: str, *, changing: bool = False) -> Float:
        """[P], mean over jobs at each progress."""
        some = self.changes if changing else np.ones(len(self.jobs), dtype=bool)
        out: Float = self.error[RULES.index(rule), KINDS.index(kind)][some].mean(axis=0)
        return out


def evaluate(
    jobs: Sequence[tuple[Job, Callable[[int], Seconds]]], points: int = 20, *, learning: bool = True
) -> Errors:
    """Forecast every dynamic job at ``points`` moments of its training, by every rule.

    Parameters
    ----------
    jobs : each with its seconds per epoch alone on its gang, by batch size; static jobs and declared schedules are
        ignored.
    learning : POSTERIOR's prior is learned from the jobs before, in the order given.

    Raises
    ------
    InputError : no such job is left, or points is below 1.
    """
    if points < 1:
        raise InputError(f"points is {points}, expected at least 1.")
    dynamic = [(job, pace) for job, pace in jobs if job.dynamic and job.dynamic.hidden]
    if not dynamic:
        raise InputError("the workload has no dynamic job whose batch sizes are to be forecast; choose one that has.")
    progress = np.arange(points) / points
    history: History = {}
    errors, change_expected = [], []
    for job, pace in dynamic:
        off, changes = _errors(job, pace, progress, history)
        errors.append(off)
        change_expected.append(changes)
        if learning:
            remember(history, job, len(job.regimes) - 1)
    return Errors(
        progress=progress,
        jobs=tuple(job.name for job, _ in dynamic),
        changes=np.array([len(job.regimes) > 1 for job, _ in dynamic]),
        error=np.stack(errors, axis=2),
        change_expected=np.stack(change_expected, axis=1),
    )


def remember(history: History, job: Job, changes: int) -> None:
    """Record a finished job's number of changes; jobs that declare one batch size teach nothing."""
    if job.dynamic is not None and job.dynamic.hidden and len(job.dynamic.batches) > 1:
        learn(history, str(job.dynamic.mode), job.model, job.regimes[0].batch, changes)


def _errors(job: Job, pace: Callable[[int], Seconds], progress: Float, history: History) -> tuple[Float, Bool]:
    """[rules, kinds, P], and true if a change is forecast [rules, P]."""
    assert job.dynamic is not None
    truth = Trajectory(tuple(r.batch for r in job.regimes), tuple(r.steps for r in job.regimes))
    total, seconds = job.steps, truth.seconds(pace)
    out = np.zeros((len(RULES), len(KINDS), len(progress)))
    change_expected = np.zeros((len(RULES), len(progress)), dtype=bool)
    for p, share in enumerate(progress.tolist()):
        seen = truth.until(np.floor(share * total))  # epochs are observed when they end
        for r, rule in enumerate(RULES):
            guess = forecast(rule, job.dynamic, total, seen, history, job.model)
            out[r, :, p] = (
                regime_error(truth, guess),
                batch_error(truth, guess),
                abs(guess.seconds(pace) / seconds - 1.0),
            )
            more = len(guess.epochs) > len(seen.epochs)
            if more and rule is Rule.POSTERIOR:
                more = bool(chances(job.dynamic, total, seen, history, job.model)[0, 0] < 0.5)
            change_expected[r, p] = more
    return out, change_expected


def regime_error(truth: Trajectory, guess: Trajectory) -> float:
    """Mean over regimes of |f - f_true|, shares of all epochs."""
    longest = max(len(truth.epochs), len(guess.epochs))
    one, other = (np.pad(np.array(t.epochs), (0, longest - len(t.epochs))) for t in (truth, guess))
    return float(np.abs(one - other).mean() / one.sum())


def batch_error(truth: Trajectory, guess: Trajectory) -> float:
    """Share of the epochs at which the two have different batch sizes."""
    ends = [np.cumsum(t.epochs) for t in (truth, guess)]
    cuts = np.unique(np.concatenate([[0.0], *ends]))
    middle = (cuts[1:] + cuts[:-1]) / 2
    one, other = (
        np.array(t.batches)[np.minimum(np.searchsorted(end, middle), len(end) - 1)]
        for t, end in zip((truth, guess), ends)
    )
    return float(np.diff(cuts)[one != other].sum() / cuts[-1])
