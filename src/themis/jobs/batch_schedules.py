"""``dynamic:`` of a job file: how a job changes its batch size as it trains."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from themis import limits
from themis.faults import reads
from themis.jobs.file_errors import Findings, Written
from themis.model.dynamic import ACCORDION_REGIMES, Dynamic, Mode, climb
from themis.model.workload import Regime
from themis.sizes import Unreadable, Work

SCHEDULE = "epochs and batch sizes in order, such as '30@64 60@128'"
_STRETCH = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)@(\d{1,9})", re.ASCII)


def stretches(value: object) -> tuple[Regime, ...]:
    """``30@64 60@128``: 30 epochs at batch size 64, then 60 at 128."""
    parts = [_STRETCH.fullmatch(part) for part in value.split()] if isinstance(value, str) else []
    if not parts or len(parts) > limits.REGIMES.most:
        raise Unreadable(SCHEDULE)
    out = []
    for part in parts:
        if part is None or not limits.STEPS.holds(float(part[1])) or not limits.BATCH.holds(int(part[2]) or -1):
            raise Unreadable(SCHEDULE)
        out.append(Regime(steps=float(part[1]), batch=int(part[2])))
    return tuple(out)


class DynamicText(Written):
    """The value of ``dynamic``."""

    mode: Literal["gns", "accordion", "declared", "static"] = Field(
        description="`gns` doubles the batch size step by step, `accordion` alternates between the smallest and the "
        "largest, `declared` follows `schedule`, `static` never changes"
    )
    max_batch: Annotated[int, limits.BATCH] | None = Field(
        default=None, description="largest global batch size; required for `gns` and `accordion`"
    )
    regimes: Annotated[int, limits.DYNAMIC_REGIMES] = Field(
        default=ACCORDION_REGIMES,
        description="for `accordion`: maximum number of regimes, each with one batch size (6)",
    )
    schedule: Annotated[tuple[Regime, ...], reads(stretches)] | None = Field(
        default=None, description="for `declared`: epochs at each global batch size, `30@64 60@128`"
    )


def declared(
    text: DynamicText, batch: int, work: Work | None, steps_per_epoch: float, findings: Findings
) -> tuple[Dynamic | None, tuple[Regime, ...]]:
    """The dynamic behaviour that the job declares, and its regimes in epochs; (None, ()) for a static or faulty job.

    Parameters
    ----------
    batch, work, steps_per_epoch : values of the job; ``steps_per_epoch`` is the number of steps at ``batch``.
    """
    if text.mode == "static":
        return None, ()
    problem = _problem(text, batch, work, steps_per_epoch)
    if problem:
        findings.add(("dynamic",), f"key 'dynamic': {problem}")
        return None, ()
    assert work is not None
    if text.mode == "declared":
        assert text.schedule is not None
        sizes = tuple(sorted({regime.batch for regime in text.schedule}))
    else:
        largest = text.max_batch or batch
        sizes = climb(batch, largest) if text.mode == "gns" else tuple(sorted({batch, largest}))
    dynamic = Dynamic(
        mode=Mode(text.mode),
        epoch_steps=tuple((size, steps_per_epoch * batch / size) for size in sizes),
        regimes=text.regimes,
    )
    return dynamic, text.schedule or (Regime(steps=work.amount, batch=batch),)


def _problem(text: DynamicText, batch: int, work: Work | None, steps_per_epoch: float) -> str:
    if not batch:
        return "missing key 'batch', the job's first global batch size."
    if work is None or work.unit != "epoch" or not steps_per_epoch:
        return "the work must be in epochs; add 'work' and 'steps_per_epoch' (at 'batch')."
    if text.mode == "declared":
        if text.schedule is None:
            return f"mode 'declared' needs a 'schedule', {SCHEDULE}."
        if text.schedule[0].batch != batch:
            return f"the schedule begins at batch size {text.schedule[0].batch}, expected the job's batch of {batch}."
        total = sum(regime.steps for regime in text.schedule)
        if abs(total - work.amount) > 1e-6:
            return f"the schedule has {total:g} epochs, expected the job's work of {work.amount:g} epochs."
        return ""
    if text.schedule is not None:
        return f"'schedule' requires mode 'declared', got mode {text.mode!r}."
    if text.max_batch is None:
        return f"mode {text.mode!r} needs 'max_batch', the largest batch size."
    if text.max_batch < batch:
        return f"max_batch is {text.max_batch}, expected at least the job's batch of {batch}."
    return ""
