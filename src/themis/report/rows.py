"""Fields of a report for each app and job, each with its meaning and its display in the page (``columns.cell``)."""

from __future__ import annotations

from dataclasses import dataclass

from themis.model.units import Float, GpuSeconds, Int, Seconds
from themis.report.columns import HOUR, MINUTE, SOONER, cell
from themis.report.delivery import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class AppRow:
    """One app; NaN where it did not get so far. ``gpu_seconds`` counts each lease from grant to revocation."""

    app: int
    name: str = cell(title="app", scale=0)
    user: str = cell(title="user", scale=0)
    sooner_s: Seconds = cell(
        "Seconds that the app ended sooner than on its own share of the cluster (t_reference); below 0: later.",
        title="vs own share",
        scale=SOONER,
    )
    jobs: int = cell(title="jobs", scale=0)
    weight: float = cell(
        "The app's weight times its user's and its group's, as it was submitted; between users or groups it has a part of "
        "theirs.",
        title="weight",
    )
    arrival: Seconds = cell("When the app arrived, seconds from the start.", title="arrival h", scale=HOUR)
    finish: Seconds = cell("When its last job ended, seconds from the start.")
    jct: Seconds = cell("Job (here: app) completion time: finish - arrival, seconds.", title="JCT h", scale=HOUR)
    wait: Seconds = cell("From arrival to the first grant, seconds.", title="queueing min", scale=MINUTE)
    rho_reference: float = cell(title="× own share")
    rho_attainable: float = cell()
    t_reference: Seconds = cell(
        "Seconds that the app takes in the reference: the cluster divided by weight at each instant."
    )
    t_alone: Seconds = cell("Seconds that the app takes on an idle cluster, with one start.")
    rho_paper: float = cell()
    rho_exact: float = cell()
    t_id_paper: Seconds = cell("Isolated finish time in the paper's form, seconds.")
    t_id_exact: Seconds = cell("Isolated finish time in the exact form, seconds.")
    contention: float = cell(
        "N_avg: time-weighted mean over the app's life of the apps in the system, itself included, by weight.",
        title="N avg",
    )
    gpu_seconds: GpuSeconds = cell(
        "GPUs x seconds leased to the app, from each grant to its revocation, restarts included.",
        title="GPU h",
        scale=HOUR,
    )
    lost_seconds: GpuSeconds = cell(
        "GPU-seconds of the app's leases that did no lasting work: restarts and work lost in crashes.",
        title="lost GPU h",
        scale=HOUR,
    )
    restarts: int = cell(title="restarts", scale=0)
    placement: float = cell(
        "Mean placement score of the app's leases, 1 / slowdown of the locality, weighted by GPU time.",
        title="placement",
    )
    outcome: str = cell(
        "completed, cancelled, failed (a job of it was given up), or active if the log ends before.",
        title="outcome",
        scale=0,
    )
    entitled: GpuSeconds = cell(
        "GPU-seconds that the app was entitled to: under time shares gang x share x time, under round plans the "
        "planned rounds, under other policies the weighted equal share of the GPUs in service, water-filled under "
        "what each app can use.",
        title="entitled GPU h",
        scale=HOUR,
    )
    received: GpuSeconds = cell(
        "Useful GPU-seconds of its leases: training that was kept, at the speed of its placement over the best one.",
        title="received GPU h",
        scale=HOUR,
    )
    missing: Missing = cell(
        "entitled - received by cause, GPU-seconds: packing (slower placements; under shares and plans also what did "
        "not fit), restarts, rounding (what rounds cannot split, at most one of each job), faults (work lost in "
        "crashes), declined (while its user held it), policy (the rest; below 0: it had GPUs on top)."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """Jobs as columns of length J: there may be hundreds of thousands. NaN where a job did not get so far.

    Attributes
    ----------
    app : Int[J], the job's app. ``gpus_min``, ``gpus_max``, ``restarts`` : Int[J].
    first_grant, finish : Float[J], seconds. ``gpu_seconds``, ``lost_seconds`` : Float[J], as an app's.
    outcome : completed | stopped | cancelled | failed | active.
    isolated_s, rho_static, rho_contention : Float[J], of those that completed, as ``definitions`` says.
    """

    app: Int
    name: tuple[str, ...]
    model: tuple[str, ...]
    gpus_min: Int
    gpus_max: Int
    first_grant: Float
    finish: Float
    gpu_seconds: Float
    lost_seconds: Float
    restarts: Int
    outcome: tuple[str, ...]
    isolated_s: Float = cell(
        "Seconds that a job's work takes alone on the most GPUs it can use, of the fastest type in service, placed "
        "best and never restarted; of a dynamic job, with the batch sizes that it turned out to use."
    )
    rho_static: Float
    rho_contention: Float
