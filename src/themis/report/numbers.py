"""The metrics of a run: one field each, with its unit, definition, fold and column. **Add a metric here, and nowhere else.**

JSON, CSV, Parquet, the tables, the HTML page, the list of definitions and the reference page follow. The order of the
fields is the order of the columns in files; what a fold may use is ``measures.Folded``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from themis.model.units import GpuSeconds, Seconds
from themis.report.columns import HOUR, MINUTE, PER_CENT, ComparisonColumn
from themis.report.measures import Folded, form, forms_of, known, mean, metric, metrics_of, quantile, ratio
from themis.report.promise import PROMISE, holds
from themis.report.rho import STATISTICS, RhoStats, rho_stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All metrics of one run. NaN where there is nothing to measure."""

    rho_reference: RhoStats = form(
        "Finish-time fairness against a share that no policy can influence: an app's JCT, less what its user held it, divided by "
        "the time it takes in the reference, where at each instant the GPUs in service are divided by weight among the apps that "
        "it has not finished, as far as each can use them; an app of one elastic job trains there at its measured speed. Up to 1 "
        "the app finished no later than on its own share of the cluster. Of apps that stop their own jobs, the work that they did "
        "counts. Statistics are over completed apps.",
        label="reference",
        values=lambda f: known(np.array([app.rho_reference for app in f.done])),
        per_app="rho_reference",
        digits=0,
        columns={"max": "short", "median": "short", "mean": "all", "p99": "compare", "above_1_1": "short"},
    )
    rho_attainable: RhoStats = form(
        "The same, divided by the longer of the time in the reference and the time on the idle cluster, its starts included: the "
        "part of rho_reference that a scheduler can do something about. Statistics are over completed apps.",
        label="attainable",
        values=lambda f: known(np.array([app.rho_attainable for app in f.done])),
        per_app="rho_attainable",
        digits=0,
        columns={"max": "compare", "median": "all", "mean": "all", "p99": "compare", "above_1_1": "compare"},
    )
    promise_kept: float = metric(
        f"Fraction of completed apps that took {PROMISE}; alone on the idle cluster, if an app takes longer there.",
        unit="fraction",
        fold=lambda f: mean(
            [
                float(holds(app.rho_reference * app.t_reference, max(app.t_reference, app.t_alone)))
                for app in f.done
                if not math.isnan(app.rho_reference)
            ]
        ),
        column=ComparisonColumn(title="promise\nkept", scale=PER_CENT, digits=0, better="high", shown="compare"),
    )
    late_alone: float = metric(
        "Fraction of completed apps that take more than 1.1 times their time in the reference alone on the idle cluster: gangs "
        "wider than a machine, starts and uneven rungs make them late by rho_reference under every policy.",
        unit="fraction",
        fold=lambda f: mean([float(app.t_alone > 1.1 * app.t_reference) for app in f.done]),
        column=ComparisonColumn(title="late\nalone", scale=PER_CENT, digits=0, shown="short"),
    )
    rho_paper: RhoStats = form(
        "Finish-time fairness of an app over its whole life: its JCT, less what its user held it, divided by T_id, the time "
        "it would have taken on its own 1/N of the cluster, in the form of the Themis paper: T_id = work / min(GPUs "
        "of the cluster, most GPUs the app can use) x N_avg. Up to 1 the app was treated fairly. The form "
        "overstates T_id of apps that cannot use the whole cluster. Statistics are over completed apps.",
        label="paper",
        values=lambda f: [app.rho_paper for app in f.done],
        per_app="rho_paper",
        digits=0,
        columns={
            "max": "short",
            "median": "compare",
            "mean": "all",
            "p99": "compare",
            "above_1": "compare",
            "jain": "all",
        },
    )
    rho_exact: RhoStats = form(
        "The same with the exact T_id: the time on 1/N of the cluster's GPUs (fractional, best locality), "
        "phase by phase max(work / s, longest job / min(s, its most GPUs)), s = GPUs / N_avg. Mostly higher "
        "than rho_paper. Statistics are over completed apps.",
        label="exact",
        values=lambda f: [app.rho_exact for app in f.done],
        per_app="rho_exact",
        digits=0,
        columns={
            "max": "short",
            "median": "compare",
            "mean": "all",
            "p99": "compare",
            "above_1": "compare",
            "jain": "compare",
        },
    )
    rho_static: RhoStats = form(
        "Finish-time fairness of a job as Shockwave's figures show it: its JCT, from its app's arrival, divided by "
        "isolated_s x max(1, jobs of the workload / GPUs of the cluster). Statistics are over completed jobs.",
        label="static",
        values=lambda f: known(f.jobs.rho_static),
        columns={"max": "all", "mean": "all", "above_1": "all", "above_1_05": "all", "above_1_1": "all"},
    )
    rho_contention: RhoStats = form(
        "The same with the contention that the job met (Shockwave's appendix G): JCT / (isolated_s x max(1, mean jobs "
        "in the system over the job's life, itself included / GPUs in service)). Statistics are over completed jobs.",
        label="contention",
        values=lambda f: known(f.jobs.rho_contention),
        columns={"max": "all", "mean": "all", "above_1": "all", "above_1_05": "all", "above_1_1": "all"},
    )

    makespan: Seconds = metric(
        "First arrival to last finish, seconds. If apps are still active, to the end of the log.",
        unit="s",
        fold=lambda f: f.time.makespan,
        column=ComparisonColumn(title="make-\nspan h", scale=HOUR, digits=1, shown="short"),
    )
    jct_mean: Seconds = metric(
        "Mean JCT (finish - arrival) of completed apps, seconds.",
        unit="s",
        fold=lambda f: mean(f.jct),
        column=ComparisonColumn(title="JCT\nmean h", scale=HOUR, digits=1, shown="short"),
    )
    jct_median: Seconds = metric(
        "Median JCT of completed apps, seconds.",
        unit="s",
        fold=lambda f: quantile(f.jct, 0.5),
        column=ComparisonColumn(title="JCT\nmed h", scale=HOUR, digits=1, shown="compare"),
    )
    jct_p99: Seconds = metric(
        "99th percentile of JCT of completed apps, seconds, interpolated between ranks.",
        unit="s",
        fold=lambda f: quantile(f.jct, 0.99),
        column=ComparisonColumn(title="JCT\np99 h", scale=HOUR, digits=1, shown="short", per_app="jct"),
    )
    wait_mean: Seconds = metric(
        "Mean queueing delay: time from an app's arrival to its first grant, seconds. Apps never granted are left out.",
        unit="s",
        fold=lambda f: mean(f.wait),
        column=ComparisonColumn(title="queueing\nmean min", scale=MINUTE, digits=1, shown="compare"),
    )
    wait_median: Seconds = metric(
        "Median queueing delay, seconds.",
        unit="s",
        fold=lambda f: quantile(f.wait, 0.5),
        column=ComparisonColumn(title="queueing\nmed min", scale=MINUTE, digits=1, shown="all"),
    )
    wait_p99: Seconds = metric(
        "99th percentile of the queueing delay, seconds, interpolated between ranks.",
        unit="s",
        fold=lambda f: quantile(f.wait, 0.99),
        column=ComparisonColumn(title="queueing\np99 min", scale=MINUTE, digits=1, shown="compare", per_app="wait"),
    )
    wait_max: Seconds = metric(
        "Longest queueing delay, seconds.",
        unit="s",
        fold=lambda f: quantile(f.wait, 1.0),
        column=ComparisonColumn(title="queueing\nmax min", scale=MINUTE, digits=1, shown="all"),
    )

    contention: float = metric(
        "Demand divided by capacity, both integrated over the makespan. Demand: the maximum number of GPUs that the "
        "unfinished jobs of the apps in the system can use; a job that waits for the others of its rung wants none. "
        "Capacity: GPUs in service. It depends on the policy: a slow one has more apps waiting.",
        unit="ratio",
        fold=lambda f: ratio(f.time.wanted, f.time.service),
        column=ComparisonColumn(title="demand /\ncapacity", better="", shown="compare"),
    )
    contention_max: float = metric(
        "Highest demand / capacity at any time.",
        unit="ratio",
        fold=lambda f: f.time.highest,
        column=ComparisonColumn(title="peak dem.\n/ capacity", better="", shown="all"),
    )
    apps_mean: float = metric(
        "Mean number of apps in the system over the makespan.",
        unit="apps",
        fold=lambda f: ratio(f.time.active, f.time.makespan),
        column=ComparisonColumn(title="apps\nmean", digits=1, better="", shown="all"),
    )
    apps_max: int = metric(
        "Most apps in the system at any time.",
        unit="apps",
        fold=lambda f: f.time.most_apps,
        column=ComparisonColumn(title="apps\nmost", digits=0, better="", shown="all"),
    )

    gpu_seconds: GpuSeconds = metric(
        "GPU time: GPUs x seconds under lease, from each grant to its revocation. A GPU that two jobs share counts once.",
        unit="GPU s",
        fold=lambda f: f.time.used,
        column=ComparisonColumn(title="GPU\ntime h", scale=HOUR, digits=0, shown="short"),
    )
    utilisation: float = metric(
        "GPU time divided by in-service GPU time over the makespan. Failed machines are not in service.",
        unit="ratio",
        fold=lambda f: ratio(f.time.used, f.time.service),
        column=ComparisonColumn(title="util.\n%", scale=PER_CENT, digits=1, better="high", shown="short"),
    )
    useful: float = metric(
        "Share of leased time that did lasting work: 1 - (restart_seconds + crash_seconds) / leased GPU-seconds.",
        unit="ratio",
        fold=lambda f: 1.0 - ratio(f.lost, f.ledger.leased),
        column=ComparisonColumn(title="useful\n%", scale=PER_CENT, digits=1, better="high", shown="short"),
    )
    placement: float = metric(
        "Mean placement score of the leases, 1 / slowdown of the locality, weighted by GPU time; 1 is best.",
        unit="score",
        fold=lambda f: ratio(f.ledger.placement, f.ledger.leased),
        column=ComparisonColumn(title="place-\nment", digits=3, better="high", shown="short"),
    )
    restarts: int = metric(
        "Grants beyond a job's first: each pays for a checkpoint and a new container. Renewals are none.",
        unit="grants",
        fold=lambda f: sum(app.restarts for app in f.apps),
        column=ComparisonColumn(title="restarts\n", digits=0, shown="compare"),
    )
    restart_seconds: GpuSeconds = metric(
        "GPU-seconds from each grant until its gang trains (container, checkpoint), or until it is revoked.",
        unit="GPU s",
        fold=lambda f: f.ledger.restart,
        column=ComparisonColumn(title="restart\nGPU h", scale=HOUR, digits=1, shown="all"),
    )
    crash_seconds: GpuSeconds = metric(
        "GPU-seconds of training lost when leases failed: time since the last checkpoint, taken every "
        "checkpoint_every_s of training.",
        unit="GPU s",
        fold=lambda f: f.ledger.crash,
        column=ComparisonColumn(title="crash\nGPU h", scale=HOUR, digits=1, shown="all"),
    )
    lost_seconds: GpuSeconds = metric(
        "Lost GPU time: restart_seconds + crash_seconds.",
        unit="GPU s",
        fold=lambda f: f.lost,
        column=ComparisonColumn(title="lost\nGPU h", scale=HOUR, digits=1, shown="compare"),
    )
    failures: int = metric(
        "Leases that ended because their machine or gang failed.",
        unit="leases",
        fold=lambda f: f.ledger.failures,
        column=ComparisonColumn(title="failed\nleases", digits=0, shown="compare"),
    )
    delivered_worst: float = metric(
        "Least received / entitled of a completed app: useful GPU time over what it was entitled to.",
        unit="ratio",
        fold=lambda f: float(f.delivered.min()) if len(f.delivered) else math.nan,
        column=ComparisonColumn(title="worst\ndelivered", better="high", shown="compare"),
    )
    delivered_mean: float = metric(
        "Mean received / entitled of completed apps.",
        unit="ratio",
        fold=lambda f: mean(f.delivered),
        column=ComparisonColumn(title="mean\ndelivered", better="high", shown="compare"),
    )

    decisions: int = metric(
        "Answers of the policy that were carried out.",
        unit="answers",
        fold=lambda f: f.rounds.decisions,
        column=ComparisonColumn(title="deci-\nsions", digits=0, better="", shown="all"),
    )
    auctions: int = metric(
        "Decisions made by an auction.",
        unit="answers",
        fold=lambda f: f.rounds.auctions,
        column=ComparisonColumn(title="auc-\ntions", digits=0, better="", shown="all"),
    )
    bidders: float = metric(
        "Mean number of apps that bid in an auction.",
        unit="apps",
        fold=lambda f: ratio(f.rounds.bidders, f.rounds.auctions),
        column=ComparisonColumn(title="mean\nbidders", digits=1, better="", shown="all"),
    )
    offered: float = metric(
        "Mean number of GPUs offered in an auction.",
        unit="GPUs",
        fold=lambda f: ratio(f.rounds.offered, f.rounds.auctions),
        column=ComparisonColumn(title="GPUs\noffered", digits=1, better="", shown="all"),
    )
    payment: float = metric(
        "Mean hidden payment of an auction's winners: the share 1 - c of what they won that they give up.",
        unit="ratio",
        fold=lambda f: ratio(f.rounds.paid, f.rounds.winners),
        column=ComparisonColumn(title="hidden\npayment %", scale=PER_CENT, digits=1, better="", shown="all"),
    )
    leftover: float = metric(
        "Mean number of GPUs an auction gave away as leftovers.",
        unit="GPUs",
        fold=lambda f: ratio(f.rounds.leftover, f.rounds.auctions),
        column=ComparisonColumn(title="GPUs\nleft over", digits=1, better="", shown="all"),
    )
    gap: float = metric(
        "Largest proven gap of a winner determination, nats of Nash welfare.",
        unit="nats",
        fold=lambda f: f.rounds.gap if f.rounds.auctions else math.nan,
    )


METRICS = metrics_of(Numbers)
"""Those that are one number, in the order of files."""
FORMS = forms_of(Numbers)
"""Forms of finish-time fairness; the first two are of apps, the others of jobs."""
SCALARS = tuple(m.name for m in METRICS)
RHO_FORMS = tuple(f.name for f in FORMS)
RHO_STATS = tuple(s.name for s in STATISTICS)
RHOS = tuple(f"{form}_{stat}" for form in RHO_FORMS for stat in RHO_STATS)
COUNTS = frozenset(m.name for m in METRICS if m.count)
"""Metrics that are whole numbers."""
COLUMNS = (
    *(f.column(s) for f in FORMS for s in STATISTICS if s.name in f.columns),
    *(m.column for m in METRICS if m.column),
)
"""Numbers that comparisons of runs show."""


def measure(folded: Folded) -> dict[str, float | RhoStats]:
    """All metrics by name: the arguments of ``Numbers``."""
    return {
        **{f.name: rho_stats(f.values(folded)) for f in FORMS},
        **{m.name: m.fold(folded) for m in METRICS},
    }
