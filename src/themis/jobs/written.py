"""The keys of job files. ``docs/jobs.md`` has the same tables; a test keeps them equal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from themis import limits, sizes
from themis.faults import reads
from themis.jobs import readers
from themis.jobs.file_errors import Written
from themis.jobs.search_space import Domain, domain
from themis.jobs.spec import After
from themis.sizes import Array, Work

Name = Annotated[str, reads(readers.name)]
AppName = Annotated[str, reads(readers.app_name)]
Duration = Annotated[float, reads(sizes.duration)]
WorkText = Annotated[Work, reads(sizes.work)]


class JobText(Written):
    """A document: one app."""

    name: AppName = Field(description="name of the app; if another app has the same name, the service adds `-2`")
    command: Annotated[tuple[str, ...], reads(readers.command)] = Field(
        description="program and arguments, as a line or a list of words; no shell runs them"
    )
    shell: bool = Field(
        default=False, description="the command is one line for a shell (`sh -c`), with pipes and redirections (no)"
    )
    gpus: Annotated[tuple[int, int], reads(sizes.gpus)] = Field(
        default=(1, 1), description="GPUs of each job: `4`, or `2..8` for any number from 2 to 8 (1)"
    )
    gpu_types: Annotated[tuple[str, ...], reads(readers.gpu_types)] = Field(
        default=(),
        description="a GPU type, or a list of acceptable ones: `[V100, A100]`, or `{any_of: [V100, A100]}`; all GPUs of a job have "
        "one type (any)",
    )
    cpus: Annotated[float, limits.CPUS] = Field(
        default=0.0,
        description="CPU cores per GPU; also the job's limit, where the machine supports limits (no request)",
    )
    memory: Annotated[int, reads(sizes.memory)] = Field(
        default=0,
        description="memory per GPU: `16 GiB`, `500 MB`; also the job's limit, where the machine supports limits: a job "
        "that exceeds it is killed (no request)",
    )
    workdir: Annotated[str, reads(readers.folder)] | None = Field(
        default=None, description="working directory, relative to the folder of the submission (that folder)"
    )
    env: Annotated[dict[str, str], reads(readers.variables)] = Field(
        default={}, description="environment variables; names that begin with `THEMIS_` or `SLURM_` are rejected (none)"
    )
    walltime_s: Duration | None = Field(
        default=None,
        alias="walltime",
        description="maximum run time of one job, over all its attempts: `2h30m` (no limit)",
    )
    retries: Annotated[int, limits.RETRIES] | None = Field(
        default=None,
        description="maximum number of attempts after failures of a job (the service's setting: 2)",
    )
    after: Annotated[tuple[After, ...], reads(readers.after)] = Field(
        default=(),
        description="dependencies on your other apps: a name, a list, or `{name: any}` with `ok`, `any` or `failed` (none)",
    )
    array: Annotated[Array, reads(sizes.array)] | None = Field(
        default=None,
        description="one job per index: `0-9`, `1,4,7`, `0-20:5`; `0-9%4` runs at most 4 concurrently (one job)",
    )
    sweep: Any = Field(default=None, description="hyper-parameter search, see below (none)")
    launch: Annotated[str, reads(readers.launch)] = Field(
        default="once",
        description="`once` starts one process that has all GPUs, on one machine; `gpu` a rank on each GPU, `machine` a process on "
        "each machine, for torchrun on several (once)",
    )
    grace_s: Annotated[float, reads(readers.zero_or_more)] = Field(
        default=60.0, alias="grace", description="time between the stop signal and SIGKILL, to save a checkpoint (60s)"
    )
    stop_signal: Annotated[str, reads(readers.stop_signal)] = Field(
        default="SIGTERM", description="signal that stops the job (SIGTERM)"
    )
    checkpoint_dir: Annotated[str, reads(readers.folder_or_url)] | None = Field(
        default=None,
        description="folder for checkpoints, accessible from all machines; or the URL that they are copied to, such "
        "as `s3://bucket/run`; `themis://` copies them through the service, see [travel.md](travel.md#checkpoints) "
        "(chosen by the service)",
    )
    send: Annotated[str, reads(readers.sent_folder)] | None = Field(
        default=None,
        description="folder whose files are sent to the job's machines: `.`; the job runs in the copy, see [travel.md](travel.md) "
        "(none: all machines have the workdir)",
    )
    outputs: Annotated[tuple[str, ...], reads(readers.outputs)] = Field(
        default=(),
        description="files and folders, relative to the workdir, that the service keeps and that the next attempt finds again: "
        "`results`; only with `send`, see [travel.md](travel.md#outputs) (none)",
    )
    packages: Annotated[str, reads(readers.packages)] | None = Field(
        default=None,
        description="packages to prepare on each machine: `uv.lock`, `requirements.txt` or `environment.yml`, relative to the "
        "workdir (none)",
    )
    modules: Annotated[tuple[str, ...], reads(readers.modules)] = Field(
        default=(), description="environment modules to load: `[cuda/12.4]` (none)"
    )
    launcher: Annotated[str, reads(readers.launcher)] | None = Field(
        default=None,
        description="wraps the command: `bwrap`, `apptainer:IMAGE` or `docker:IMAGE`, see [travel.md](travel.md#launchers) (none)",
    )
    work: WorkText | None = Field(
        default=None,
        description="work of one job: `90000` or `90000 steps`, `90 epochs`, `40 gpu-hours` (estimated, see below)",
    )
    steps_per_epoch: Annotated[float, limits.EPOCH_STEPS] | None = Field(
        default=None, description="steps per epoch; required if the work is in epochs"
    )
    model: Annotated[str, reads(readers.text)] | None = Field(
        default=None, description="model with a measured speed, such as `ResNet50` (unknown)"
    )
    batch: Annotated[int, limits.BATCH] = Field(
        default=0, description="batch size, if the speed depends on it (the profile's)"
    )
    dynamic: Any = Field(default=None, description="how the batch size changes, see below (it does not)")
    speed: Annotated[dict[str, dict[int, float]], reads(readers.speed)] | None = Field(
        default=None,
        description="steps/s instead of `model`: `2.5` on one GPU, `{V100: 2.5, A100: 5}`, `{A100: {1: 5, 4: 18}}` (unknown)",
    )
    slowdown: Annotated[tuple[float, float, float, float], reads(readers.slowdown)] | None = Field(
        default=None,
        description="with `speed`: divisors of the speed within a slot, a machine, a rack, and across racks ([1, 1, 1.1, 1.3])",
    )
    checkpoint_s: Annotated[float, reads(readers.zero_or_more)] | None = Field(
        default=None, alias="checkpoint_time", description="with `speed`: time to write and read a checkpoint (7.5s)"
    )
    deadline_s: Duration | None = Field(
        default=None,
        alias="deadline",
        description="deadline, counted from the submission; used by policies with deadlines (none)",
    )


class SweepText(Written):
    """The value of ``sweep``."""

    parameters: dict[Annotated[str, reads(readers.parameter_name)], Annotated[Domain, reads(domain)]] = Field(
        min_length=1, description="search space: values by parameter name, see below"
    )
    budget: WorkText = Field(description="work of a trial that is never stopped: `81 epochs`, `90000 steps`")
    trials: Annotated[int, limits.TRIALS] | None = Field(
        default=None,
        description="number of trials (all combinations of a grid; with Hyperband: the sum over its brackets)",
    )
    sampler: Literal["random", "grid"] = Field(
        default="random", description="`random` samples each trial, `grid` runs all combinations (random)"
    )
    seed: Annotated[int, limits.SEED] = Field(default=0, description="random seed of the sampler (0)")
    tuner: Any = Field(default=None, description="how trials are stopped early, see below (`batch`: they are not)")


class BatchText(Written):
    """``tuner: {kind: batch}``."""

    kind: Literal["batch"] = Field(description="all trials run to the end")


class RungText(Written):
    """One of ``rungs``."""

    trials: Annotated[int, limits.TRIALS] = Field(description="number of trials that reach this rung")
    work: WorkText = Field(description="work of each trial in this rung")


class HalvingText(Written):
    """``tuner: {kind: halving}``."""

    kind: Literal["halving"] = Field(description="successive halving")
    eta: Annotated[int, limits.ETA] = Field(
        default=3, description="one in `eta` trials of a rung is promoted to the next (3)"
    )
    min_work: WorkText | None = Field(
        default=None,
        description="minimum work of a trial (such that the last rung has fewer than `eta` trials)",
    )
    rungs: Annotated[list[RungText], Field(min_length=1), limits.RUNGS] | None = Field(
        default=None,
        description="explicit rungs instead of `eta` and `min_work`: `trials` and `work` of each; the work must add up to `budget`",
    )


class HyperbandText(Written):
    """``tuner: {kind: hyperband}``."""

    kind: Literal["hyperband"] = Field(description="brackets of successive halving that run in parallel")
    min_work: WorkText = Field(description="minimum work of a trial")
    eta: Annotated[int, limits.ETA] = Field(
        default=3, description="one in `eta` trials of a rung is promoted to the next (3)"
    )


class CurveText(Written):
    """``tuner: {kind: curve}``."""

    kind: Literal["curve"] = Field(description="curve stopping: trials end early by their extrapolated learning curves")
    check: WorkText = Field(description="work between two evaluations of the reported losses")
    keep: Annotated[int, limits.KEEP] = Field(
        default=1,
        description="number of trials with the best forecasts, and with the lowest reported losses, that are never stopped (1)",
    )
    confidence: Annotated[float, limits.CONFIDENCE] = Field(
        default=0.95,
        description="required probability that a trial will not be among the best `keep` before it is stopped (0.95)",
    )
    warmup: Annotated[int, limits.WARMUP] = Field(default=4, description="evaluations before the first forecast (4)")
    floor: Annotated[float, limits.FLOOR] | None = Field(
        default=None,
        description="a loss that no trial ends below (0; once a loss below 0 is reported, estimated from the range of the losses)",
    )


TUNERS: dict[str, type[Written]] = {
    "batch": BatchText,
    "halving": HalvingText,
    "hyperband": HyperbandText,
    "curve": CurveText,
}
