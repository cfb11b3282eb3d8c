"""Sweeps: a search space, a budget and a tuner -> trials and one of the core's tuners."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from themis.errors import InputError
from themis.faults import did_you_mean
from themis.jobs.file_errors import Findings, Written
from themis.jobs.search_space import points, sample
from themis.jobs.spec import Trial
from themis.jobs.written import TUNERS, CurveText, HalvingText, HyperbandText, SweepText
from themis.limits import shown
from themis.model.workload import Bag, CurveStopping, Halving, Hyperband, Rung, Tuner, brackets_of
from themis.policies.tuning.halving import hyperband
from themis.sizes import MOST_JOBS, Unreadable, Work
from themis.yaml_text import Path

AT: Path = ("sweep",)


def sweep(text: SweepText, steps_per_epoch: float, findings: Findings) -> tuple[tuple[Trial, ...], Tuner] | None:
    """Trials and tuner of a sweep, or None after noting what is wrong."""
    written = tuner_text(text.tuner, findings)
    names = [name.upper() for name in text.parameters]
    if len(set(names)) < len(names):
        findings.add(
            (*AT, "parameters"),
            "two parameter names differ only in case, expected names that also differ as "
            "environment variables THEMIS_PARAM_NAME.",
        )
    if written is None or not _units_fit(text, written, findings):
        return None
    steps = text.budget.steps(steps_per_epoch)
    grid = text.sampler == "grid"
    try:
        count = points(text.parameters, grid=grid)
    except Unreadable as error:
        findings.add((*AT, "parameters"), f"key 'parameters' in sweep: expected {error}.")
        return None
    trials = text.trials
    enumerated = grid or count > 1
    if trials is None and enumerated and not isinstance(written, HyperbandText):
        trials = count
    try:
        tuner = _tuner(written, trials, steps, lambda work: work.steps(steps_per_epoch))
    except InputError as error:
        findings.add((*AT, "tuner"), f"key 'tuner' in sweep: {error}")
        return None
    first = [bracket.rungs[0].jobs for bracket in brackets_of(tuner)]
    needed = sum(first) or trials
    if needed is None:
        findings.add(AT, "missing key 'trials' in sweep: the number of trials to sample.")
    elif trials is not None and needed != trials:
        findings.add(
            (*AT, "trials"),
            f"key 'trials' in sweep: got {trials}, expected {needed}, the number of trials in the "
            "tuner's first rungs; remove the key or change the tuner.",
        )
    elif needed > MOST_JOBS:
        findings.add(
            AT, f"the sweep has {needed} trials, expected at most {MOST_JOBS}. Increase min_work, or use fewer values."
        )
    elif grid and needed > count:
        findings.add(
            AT,
            f"the sweep has {needed} trials, expected at most {count}, the number of combinations of its grid. "
            "Use sampler: random, or more values.",
        )
    else:
        return sample(text.parameters, needed, seed=text.seed, grid=grid), tuner
    return None


def tuner_text(given: Any, findings: Findings) -> Written | None:
    """The value of ``tuner`` as one of ``TUNERS``, or None after noting its faults."""
    if given is None:
        given = {"kind": "batch"}
    if isinstance(given, str):
        given = {"kind": given}
    where: Path = (*AT, "tuner")
    kind = given.get("kind") if isinstance(given, dict) else None
    if not isinstance(kind, str) or kind not in TUNERS:
        hint = did_you_mean(kind, TUNERS) if isinstance(kind, str) else ""
        findings.add(
            where,
            f"sweep.tuner.kind is {shown(kind)}, expected one of {', '.join(TUNERS)}, such as "
            f"{{kind: halving, eta: 3}}.{hint}",
        )
        return None
    return findings.valid(TUNERS[kind], given, where)


def _units_fit(text: SweepText, written: Written, findings: Findings) -> bool:
    """Rungs and checks are in steps or epochs, so that a trial knows when to stop."""
    work = {name: value for name in ("min_work", "check") if isinstance(value := getattr(written, name, None), Work)}
    rungs = (written.rungs or []) if isinstance(written, HalvingText) else []
    in_gpu_time = [name for name, value in work.items() if value.unit == "gpu-second"]
    in_gpu_time += ["rungs"] if any(rung.work.unit == "gpu-second" for rung in rungs) else []
    for name in in_gpu_time:
        findings.add((*AT, "tuner", name), f"key {name!r} in sweep.tuner is in GPU time, expected steps or epochs.")
    if text.budget.unit == "gpu-second" and type(written) is not TUNERS["batch"]:
        findings.add(
            (*AT, "budget"), "key 'budget' in sweep is in GPU time, expected steps or epochs, as the tuner needs."
        )
        return False
    return not in_gpu_time


def _tuner(written: Written, trials: int | None, steps: float, count: Callable[[Work], float]) -> Tuner:
    match written:
        case HyperbandText():
            return _within_reason(hyperband(steps, written.eta, count(written.min_work)))
        case HalvingText(rungs=None):
            if trials is None:
                raise InputError("missing key 'trials' in sweep: the number of trials of the first rung.")
            return halving(trials, steps, written.eta, count(written.min_work) if written.min_work else None)
        case HalvingText(rungs=list(rungs)):
            total = sum(count(rung.work) for rung in rungs)
            if not math.isclose(total, steps, rel_tol=1e-6):
                raise InputError(f"the rungs have {total:g} steps in total, expected the budget of {steps:g} steps.")
            return Halving(rungs=tuple(Rung(jobs=rung.trials, steps=count(rung.work)) for rung in rungs))
        case CurveText():
            check = count(written.check)
            if not check < steps:
                raise InputError(f"check is {check:g} steps, expected less than the budget of {steps:g}.")
            return CurveStopping(
                check_steps=check,
                keep=written.keep,
                confidence=written.confidence,
                warmup=written.warmup,
                floor=written.floor,
            )
        case _:
            return Bag()


def halving(trials: int, steps: float, eta: int = 3, min_steps: float | None = None) -> Halving:
    """Successive halving of ``trials`` trials, in the geometry of a Hyperband bracket (``policies.tuning.halving``).

        rung i, 0 <= i <= s: floor(n / eta^i) trials up to step R / eta^(s - i)
        s = floor(log_eta(n)), or floor(log_eta(R / min_steps)) if that is less

    Parameters
    ----------
    trials : n. ``steps`` : R, of a trial that survives every rung. ``min_steps`` : the fewest steps of any trial.

    Raises
    ------
    InputError : min_steps is above steps.
    """
    if min_steps is not None and not 0 < min_steps <= steps:
        raise InputError(f"min_work is {min_steps:g} steps, expected at most the budget of {steps:g}.")
    s = 0
    while trials // eta ** (s + 1) >= 1 and (min_steps is None or steps / eta ** (s + 1) >= min_steps * (1 - 1e-9)):
        s += 1
    upto = [0.0, *(steps / eta ** (s - i) for i in range(s + 1))]
    return Halving(rungs=tuple(Rung(jobs=trials // eta**i, steps=upto[i + 1] - upto[i]) for i in range(s + 1)))


def _within_reason(tuner: Hyperband) -> Hyperband:
    jobs = sum(bracket.rungs[0].jobs for bracket in tuner.brackets)
    if jobs > MOST_JOBS:
        raise InputError(f"its brackets need {jobs:,} trials, expected at most {MOST_JOBS}. Increase min_work.")
    return tuner
