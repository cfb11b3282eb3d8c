"""The keys of job files, as people write them. ``docs/jobs.md`` shows the same table; a test keeps them equal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from themis.jobs import readers, sizes
from themis.jobs.faults import Written, reads
from themis.jobs.search import Domain, domain
from themis.jobs.sizes import MOST_JOBS, Array, Work
from themis.jobs.spec import After

Name = Annotated[str, reads(readers.name)]
Duration = Annotated[float, reads(sizes.duration)]
WorkText = Annotated[Work, reads(sizes.work)]


class JobText(Written):
    """A document: one app."""

    name: Name = Field(description="what you call it; where another app has the name, the service adds `-2`")
    command: Annotated[tuple[str, ...], reads(readers.command)] = Field(
        description="program and arguments, as a line or a list of words; no shell runs it"
    )
    gpus: Annotated[tuple[int, int], reads(sizes.gpus)] = Field(
        default=(1, 1), description="GPUs of each job: `4`, or `2..8` for any number from 2 to 8 (1)"
    )
    gpu_types: Annotated[tuple[str, ...], reads(readers.gpu_types)] = Field(
        default=(),
        description="a GPU type, or those that will do: `[V100, A100]`, or `{any_of: [V100, A100]}`; all GPUs of a job are of one "
        "type (any)",
    )
    cpus: Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)] = Field(
        default=0.0,
        description="CPU cores for each GPU, the job's limit where the machine can limit them (nothing is asked for)",
    )
    memory: Annotated[int, reads(sizes.memory)] = Field(
        default=0,
        description="memory for each GPU: `16 GiB`, `500 MB`; a job that exceeds it is killed where the machine can limit it "
        "(nothing is asked for)",
    )
    workdir: Annotated[str, reads(readers.folder)] | None = Field(
        default=None, description="folder to run in, relative to the folder it is submitted from (that folder)"
    )
    env: Annotated[dict[str, str], reads(readers.variables)] = Field(
        default={}, description="environment variables; names that begin with `THEMIS_` or `SLURM_` are refused (none)"
    )
    walltime: Duration | None = Field(
        default=None, description="most time that one job runs, over all its attempts: `2h30m` (no limit)"
    )
    retries: Annotated[int | None, Field(ge=0, le=1000)] = Field(
        default=None,
        description="failures of a job that are followed by another attempt (as many as the service says: 2)",
    )
    after: Annotated[tuple[After, ...], reads(readers.after)] = Field(
        default=(),
        description="apps of yours that must have ended: a name, a list, or `{name: any}` with `ok`, `any` or `failed` (none)",
    )
    array: Annotated[Array, reads(sizes.array)] | None = Field(
        default=None,
        description="a job for each index: `0-9`, `1,4,7`, `0-20:5`, `0-9%4` for at most 4 at once (one job)",
    )
    sweep: Any = Field(default=None, description="a hyper-parameter search, see below (none)")
    launch: Annotated[str, reads(readers.launch)] = Field(
        default="gpu", description="`gpu` starts a process for each GPU, `machine` one a machine, for torchrun (gpu)"
    )
    grace: Annotated[float, reads(readers.zero_or_more)] = Field(
        default=60.0, description="time from the stop signal to SIGKILL, to save in (60s)"
    )
    stop_signal: Annotated[str, reads(readers.stop_signal)] = Field(
        default="SIGTERM", description="the signal (SIGTERM)"
    )
    checkpoint_dir: Annotated[str, reads(readers.folder)] | None = Field(
        default=None, description="folder to save in, seen by all machines (one that the service chooses)"
    )
    work: WorkText | None = Field(
        default=None,
        description="training of one job: `90000` or `90000 steps`, `90 epochs`, `40 gpu-hours` (estimated, see below)",
    )
    steps_per_epoch: Annotated[float, Field(gt=0, le=1e12)] | None = Field(
        default=None, description="needed where work is in epochs"
    )
    model: Annotated[str, reads(readers.text)] | None = Field(
        default=None, description="a model that the service has measured, such as `ResNet50` (unknown)"
    )
    batch: Annotated[int, Field(ge=0, le=10**9)] = Field(
        default=0, description="its batch size, where speeds differ by it (the profile's own)"
    )
    dynamic: Any = Field(default=None, description="how the batch size may change, see below (it stays)")
    speed: Annotated[dict[str, dict[int, float]], reads(readers.speed)] | None = Field(
        default=None,
        description="steps/s instead of `model`: `2.5` on one GPU, `{V100: 2.5, A100: 5}`, `{A100: {1: 5, 4: 18}}` (unknown)",
    )
    slowdown: Annotated[tuple[float, float, float, float], reads(readers.slowdown)] | None = Field(
        default=None,
        description="beside `speed`: divisors within a slot, a machine, a rack, and across racks ([1, 1, 1.1, 1.3])",
    )
    checkpoint_time: Annotated[float, reads(readers.zero_or_more)] | None = Field(
        default=None, description="beside `speed`: time to write and read a checkpoint (7.5s)"
    )
    deadline: Duration | None = Field(
        default=None, description="wished end, from submission on; for policies that know deadlines (none)"
    )


class SweepText(Written):
    """The value of ``sweep``."""

    parameters: dict[Annotated[str, reads(readers.parameter_name)], Annotated[Domain, reads(domain)]] = Field(
        min_length=1, description="the search space: a parameter's name and its values, see below"
    )
    budget: WorkText = Field(description="work of a trial that is never stopped: `81 epochs`, `90000 steps`")
    trials: Annotated[int, Field(ge=1, le=MOST_JOBS)] | None = Field(
        default=None, description="how many (all combinations of a grid; what Hyperband's brackets need)"
    )
    sampler: Literal["random", "grid"] = Field(
        default="random", description="`random` draws each trial, `grid` tries all combinations (random)"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="of the random sampler: the same seed gives the same trials (0)"
    )
    tuner: Any = Field(default=None, description="who is stopped early, see below (nobody: all trials run to the end)")


class BagText(Written):
    """``tuner: {kind: bag}``."""

    kind: Literal["bag"] = Field(description="all trials run to the end")


class RungText(Written):
    """One of ``rungs``."""

    trials: Annotated[int, Field(ge=1, le=MOST_JOBS)] = Field(description="trials that reach this rung")
    work: WorkText = Field(description="work of each in this rung alone")


class HalvingText(Written):
    """``tuner: {kind: halving}``."""

    kind: Literal["halving"] = Field(description="successive halving")
    eta: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=3, description="of a rung's trials one in so many goes on (3)"
    )
    min_work: WorkText | None = Field(
        default=None,
        description="the least work of any trial (as little as makes the last rung one of fewer than `eta` trials)",
    )
    rungs: Annotated[list[RungText], Field(min_length=1)] | None = Field(
        default=None,
        description="instead of `eta` and `min_work`: each rung's `trials` and `work`; the work adds up to `budget`",
    )


class HyperbandText(Written):
    """``tuner: {kind: hyperband}``."""

    kind: Literal["hyperband"] = Field(description="brackets of successive halving beside each other")
    min_work: WorkText = Field(description="the least work of any trial")
    eta: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=3, description="of a rung's trials one in so many goes on (3)"
    )


class CurveText(Written):
    """``tuner: {kind: curve}``."""

    kind: Literal["curve"] = Field(description="curve stopping: trials end early by their extrapolated learning curves")
    check: WorkText = Field(description="work between two looks at the reported losses")
    keep: Annotated[int, Field(ge=1, le=MOST_JOBS)] = Field(
        default=1, description="so many trials, those forecast to end best, are never stopped (1)"
    )
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = Field(
        default=0.95, description="certainty that a trial will not be among them before it is stopped (0.95)"
    )
    warmup: Annotated[int, Field(ge=4, le=10_000)] = Field(default=4, description="looks before the first forecast (4)")


TUNERS: dict[str, type[Written]] = {
    "bag": BagText,
    "halving": HalvingText,
    "hyperband": HyperbandText,
    "curve": CurveText,
}
