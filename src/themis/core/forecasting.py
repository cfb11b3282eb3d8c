"""The column ``forecast_jobs`` of a snapshot: what is forecast of each job, for policies that plan (Shockwave §5, §6).

A job whose regimes are known, static jobs among them, is taken as declared. Of one whose program decides, finished regimes are as
observed and the rest is the mean of the posterior (``fairness.forecasts.rules``), at the batch sizes that its mode and range allow
(``model.dynamic``), with what finished jobs taught (``fairness.forecasts.history``). No part of this module knows what it
truly does next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.core.regimes import rows_alone
from themis.core.state import State
from themis.fairness.forecasts import rules
from themis.fairness.forecasts.history import prior
from themis.fairness.forecasts.rules import Rule, changes_ahead, late_pace, spread
from themis.model.forecast import Ahead
from themis.model.units import Bool, Float, Int
from themis.model.workload import Job, Regime

LEAST_FACTOR = 0.05
"""Lower limit of the noise factor, so that no job is forecast to take no time."""


@dataclass(frozen=True, slots=True)
class JobForecast:
    """A job's regimes as they are expected, in order, before anything is said about how long they last.

    Attributes
    ----------
    known : the regimes that it was made of. ``rows`` : of the speed table. ``scale`` : the model's steps in one of the job's.
    steps : of regimes that are known, 0 of those expected. ``hidden`` : the job's program decides; ``later`` : how many
        regimes are expected after the last known one, or by POSTERIOR at most.
    group : mode, model and first batch size of a job whose program decides; None of others.
    """

    known: tuple[Regime, ...]
    rows: Int
    scale: Float
    steps: Float
    hidden: bool
    later: int
    group: tuple[str, str, int] | None


def forecast_jobs(state: State, job_id: Int, done: Float, kept: dict[int, JobForecast] | None = None) -> Ahead:
    """The regimes ahead of these jobs, of which ``done`` steps (epochs, of dynamic ones) are done, [J].

    ``kept`` : outlines by job, of earlier calls for the same state; renewed here.
    """
    rule = state.forecaster.rule
    kept = {} if kept is None else kept
    forecasts = [_forecast(state, j, rule, kept) for j in job_id.tolist()]
    if len(kept) > 2 * len(job_id) + 64:
        for j in kept.keys() - set(job_id.tolist()):
            del kept[j]
    counts = np.array([len(o.rows) for o in forecasts], dtype=np.int64)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    owner = np.repeat(np.arange(len(job_id)), counts)
    total = state.jobs.total[job_id]
    steps, chance = _expected_steps(state, forecasts, ptr, owner, total, done, rule)

    end = _sums_within(steps, ptr, owner)
    begin = end - steps
    left = np.clip(np.minimum(end, total[owner]) - np.maximum(begin, done[owner]), 0.0, None)
    past = np.clip(np.minimum(end, done[owner]) - begin, 0.0, None)
    pace = _seconds_per_step(state, forecasts, job_id, owner)
    noise = noise_factors(state, job_id)
    seconds = left * pace * noise[owner]

    # Finished stretches are not ahead; the ongoing one, even with nothing left, is.
    ongoing = np.minimum(np.array([len(o.known) - 1 for o in forecasts], dtype=np.int64), counts - 1)
    ongoing = np.where([o.hidden for o in forecasts], ongoing, np.minimum(state.jobs.regime[job_id], counts - 1))
    isolated_s: Float = np.bincount(owner, weights=past * pace + seconds, minlength=len(job_id)).astype(np.float64)
    kept = np.arange(len(owner)) - ptr[owner] >= ongoing[owner]
    return Ahead(
        ptr=np.concatenate([[0], np.cumsum(counts - ongoing)]),
        share=(left / total[owner])[kept],
        seconds=seconds[kept],
        progress=np.clip(done / total, 0.0, 1.0),
        isolated_s=isolated_s,
        contention=state.job_contention(job_id),
        late_s=_late_seconds(chance, forecasts, ptr, pace, np.maximum(total - done, 0.0) * noise),
    )


def noise_factors(state: State, job_id: Int) -> Float:
    """Noise factor of each job's forecast times: 1 without noise, else one for life, by the seed (Shockwave §8.10)."""
    noise = state.forecaster.noise
    if noise == 0 or not len(job_id):
        return np.ones(len(job_id))
    draws = np.random.default_rng([state.settings.seed, 0x5EED]).uniform(-1.0, 1.0, size=int(job_id.max()) + 1)
    return np.maximum(1.0 + noise * draws[job_id], LEAST_FACTOR)


def _forecast(state: State, j: int, rule: Rule, kept: dict[int, JobForecast]) -> JobForecast:
    """Remembered until the job changes its batch size: what is expected depends on nothing else but its epochs."""
    known = state.regimes[j]
    made = kept.get(j)
    if made is None or made.known is not known:
        made = kept[j] = _made(state, state.job_specs[j], known, rule)
    return made


def _made(state: State, job: Job, known: tuple[Regime, ...], rule: Rule) -> JobForecast:
    hidden = job.dynamic is not None and job.dynamic.hidden
    expects = hidden and rule is not Rule.GREEDY
    later = job.dynamic.ahead(len(known) - 1, known[-1].batch) if expects and job.dynamic else ()
    batches = [*(r.batch for r in known), *later]
    return JobForecast(
        known=known,
        rows=np.array([state.speeds.index[job.model, b] for b in batches], dtype=np.int64),
        scale=np.array([job.scale(b) for b in batches]),
        steps=np.array([*(r.steps for r in known), *(0.0 for _ in later)]),
        hidden=hidden,
        later=len(later),
        group=(str(job.dynamic.mode), job.model, known[0].batch) if hidden and job.dynamic else None,
    )


def _expected_steps(
    state: State, forecasts: list[JobForecast], ptr: Int, owner: Int, total: Float, done: Float, rule: Rule
) -> tuple[Float, Float | None]:
    """[S], steps of every regime: known, seen or expected; and by POSTERIOR, chances of changes to come, [J, C]."""
    steps = np.concatenate([*(o.steps for o in forecasts), np.zeros(0)])
    hidden: Bool = np.array([o.hidden for o in forecasts], dtype=bool)
    if not hidden.any():
        return steps, None
    finished = np.array([len(o.known) - 1 for o in forecasts], dtype=np.int64)
    later = np.array([o.later for o in forecasts], dtype=np.int64)
    past = np.array([sum(r.steps for r in o.known[:-1]) for o in forecasts])
    seen = np.maximum(done - past, 0.0)
    place = np.arange(len(owner)) - ptr[owner] - finished[owner]
    chance = None
    if rule is Rule.POSTERIOR:
        chance = _chances(state, forecasts, total, past + seen, finished, later)
        shares = np.maximum(total - past - seen, 0.0)[:, None] * spread(chance)
        at = np.clip(place, 0, chance.shape[1] - 1)
        expected = shares[owner, at] + np.where(place == 0, seen[owner], 0.0)
    else:
        ongoing, each = rules.ahead(rule, total, past, seen, finished, later)
        expected = np.where(place == 0, (seen + ongoing)[owner], each[owner])
    return np.where(hidden[owner] & (place >= 0), expected, steps), chance


def _chances(state: State, forecasts: list[JobForecast], total: Float, done: Float, finished: Int, later: Int) -> Float:
    """[J, C], probability of 0, 1, ... changes still to come; of jobs whose program does not decide, of none."""
    most = finished + later
    known = np.zeros((len(forecasts), int(most.max(initial=0)) + 1))
    found: dict[tuple[str, str, int, int], tuple[float, ...]] = {}
    for j, (job_forecast, changes) in enumerate(zip(forecasts, most.tolist())):
        if job_forecast.group is None:
            known[j, finished[j]] = 1.0
            continue
        key = (*job_forecast.group, changes)
        if key not in found:
            found[key] = prior(state.history, *key)
        known[j, : changes + 1] = found[key]
    chance = changes_ahead(known, total, np.minimum(done, total), finished)
    return chance[:, : int(later.max(initial=0)) + 1]


def _late_seconds(
    chance: Float | None, forecasts: list[JobForecast], ptr: Int, pace: Float, left: Float
) -> Float | None:
    """[J], remaining seconds alone at the risk quantile; None where nothing is uncertain.

    ``left`` : [J], epochs left, times the forecasts' noise.
    """
    if chance is None:
        return None
    hidden = np.array([o.hidden for o in forecasts], dtype=bool)
    first = ptr[:-1] + np.array([len(o.known) - 1 for o in forecasts], dtype=np.int64)
    at = np.minimum(first[:, None] + np.arange(chance.shape[1]), (ptr[1:] - 1)[:, None])
    out: Float = np.where(hidden, late_pace(chance, pace[at]) * left, 0.0)
    return out


def _seconds_per_step(state: State, forecasts: list[JobForecast], job_id: Int, owner: Int) -> Float:
    """[S], alone on the job's most GPUs with the best placement, of the fastest type in service that it may use."""
    rows = np.concatenate([*(o.rows for o in forecasts), np.zeros(0, dtype=np.int64)])
    scale = np.concatenate([*(o.scale for o in forecasts), np.zeros(0)])
    out: Float = state.speeds.serial[rows] * scale / rows_alone(state, rows, job_id[owner])
    return out


def _sums_within(values: Float, ptr: Int, owner: Int) -> Float:
    """Running sums that restart at each job."""
    sums = np.cumsum(values)
    before = np.concatenate([[0.0], sums])[ptr[:-1]]
    out: Float = sums - before[owner]
    return out
