"""What every number of a report means: the one table that the HTML report, the tables and ``docs/metrics.md`` show.

Keys are the fields of ``RunMetrics`` and ``AppRow``; units are part of each definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

RHO_DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "rho_paper":
            "Finish-time fairness of an app over its whole life: its JCT, less what its user held it, divided by T_id, the time "
            "it would have taken on its own 1/N of the cluster, in the form of the Themis paper: T_id = work / min(GPUs "
            "of the cluster, most GPUs the app can use) x N_avg. Up to 1 the app was treated fairly. The form "
            "overstates T_id of apps that cannot use the whole cluster. Statistics are over completed apps.",
        "rho_exact":
            "The same with the exact T_id: the time on 1/N of the cluster's GPUs (fractional, best locality), "
            "phase by phase max(work / s, longest job / min(s, its most GPUs)), s = GPUs / N_avg. Mostly higher "
            "than rho_paper. Statistics are over completed apps.",
        "rho_static":
            "Finish-time fairness of a job as Shockwave's figures show it: its JCT, from its app's arrival, divided by "
            "isolated_s x max(1, jobs of the workload / GPUs of the cluster). Statistics are over completed jobs.",
        "rho_contention":
            "The same with the contention that the job met (Shockwave's appendix G): JCT / (isolated_s x max(1, mean jobs "
            "in the system over the job's life, itself included / GPUs in service)). Statistics are over completed jobs.",
        "isolated_s":
            "Seconds that a job's work takes alone on the most GPUs it can use, of the fastest type in service, placed "
            "best and never restarted; of a dynamic job, with the batch sizes that it turned out to use.",
        "rho_max": "The worst app's (or job's) rho.",
        "rho_mean": "Mean rho.",
        "rho_median": "Median rho.",
        "rho_p99": "99th percentile of rho, interpolated between ranks.",
        "rho_above_1": "Fraction of apps with rho above 1: those that would have been better off on their own 1/N.",
        "rho_above_1_05": "Fraction with rho above 1.05.",
        "rho_above_1_1": "Fraction with rho above 1.1.",
        "rho_jain":
            "Jain's index over rho, (sum rho)^2 / (n x sum rho^2), from 1/n to 1: 1 when all apps have the same "
            "rho. It says how even, not how good, the rhos are.",
    }
)  # fmt: skip
APP_DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "weight": (
            "The app's weight times its user's and its group's, as it was submitted; between users or groups it has a part of "
            "theirs."
        ),
        "arrival": "When the app arrived, seconds from the start.",
        "finish": "When its last job ended, seconds from the start.",
        "jct": "Job (here: app) completion time: finish - arrival, seconds.",
        "wait": "From arrival to the first grant, seconds.",
        "t_id_paper": "Isolated finish time in the paper's form, seconds.",
        "t_id_exact": "Isolated finish time in the exact form, seconds.",
        "contention":
            "N_avg: time-weighted mean over the app's life of the apps in the system, itself included, by "
            "weight.",
        "gpu_seconds": "GPUs x seconds leased to the app, from each grant to its revocation, restarts included.",
        "lost_seconds":
            "GPU-seconds of the app's leases that did no lasting work: restarts and work lost in crashes.",
        "placement": "Mean placement score of the app's leases, 1 / slowdown of the locality, weighted by GPU time.",
        "entitled":
            "GPU-seconds that the app was entitled to: under time shares gang x share x time, under round plans the "
            "planned rounds, under other policies the weighted equal share of the GPUs in service, water-filled under "
            "what each app can use.",
        "received":
            "Useful GPU-seconds of its leases: training that was kept, at the speed of its placement over the best one.",
        "missing":
            "entitled - received by cause, GPU-seconds: packing (slower placements; under shares and plans also what did "
            "not fit), restarts, rounding (what rounds cannot split, at most one of each job), faults (work lost in "
            "crashes), declined (while its user held it), policy (the rest; below 0: it had GPUs on top).",
        "outcome": "completed, cancelled, failed (a job of it was given up), or active if the log ends before.",
    }
)  # fmt: skip
PLAN_DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "told": "When the forecast was made: the first of a job that ended, the latest of one that did not.",
        "starts": "When the job was to start, or to go on.",
        "start_low": "10th percentile of its start, by how far off first forecasts were of jobs that had started by then.",
        "start_high": "90th percentile of its start, likewise.",
        "started": "When it was first granted GPUs.",
        "ends": "When it was to end.",
        "low": "10th percentile of its finish, by how far off first forecasts of jobs were that had ended by then.",
        "high": "90th percentile of its finish, likewise.",
        "ended": "When it ended.",
        "off": "Finish less forecast finish, over the time from the forecast to the finish.",
    }
)
USER_DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "apps": "Apps that the user submitted.",
        "completed": "Those of them that completed; rho and JCT are over these.",
        "rho_paper_worst": "The highest rho_paper of the user's apps.",
        "rho_paper_median": "The median rho_paper of the user's apps.",
        "rho_exact_worst": "The highest rho_exact of the user's apps.",
        "rho_exact_median": "The median rho_exact of the user's apps.",
        "jct_median": "The median JCT of the user's apps, seconds.",
        "gpu_seconds": "GPU-seconds leased to the user's apps, restarts included.",
        "share": "The user's GPU-seconds divided by those of all users.",
    }
)
DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        **RHO_DEFINITIONS,
        "makespan": "First arrival to last finish, seconds. If apps are still active, to the end of the log.",
        "jct_mean": "Mean JCT (finish - arrival) of completed apps, seconds.",
        "jct_median": "Median JCT of completed apps, seconds.",
        "jct_p99": "99th percentile of JCT of completed apps, seconds, interpolated between ranks.",
        "wait_mean":
            "Mean queueing delay: time from an app's arrival to its first grant, seconds. Apps never granted are left "
            "out.",
        "wait_median": "Median queueing delay, seconds.",
        "wait_p99": "99th percentile of the queueing delay, seconds, interpolated between ranks.",
        "wait_max": "Longest queueing delay, seconds.",
        "contention":
            "Demand divided by capacity, both integrated over the makespan. Demand: the most GPUs that the unfinished "
            "jobs of the apps in the system can use; a job that waits for the others of its rung wants none. "
            "Capacity: GPUs in service. It depends on the policy: a slow one has more apps waiting.",
        "contention_max": "Highest demand / capacity at any time.",
        "apps_mean": "Mean number of apps in the system over the makespan.",
        "apps_max": "Most apps in the system at any time.",
        "gpu_seconds":
            "GPU time: GPUs x seconds under lease, from each grant to its revocation. A GPU that two jobs share "
            "counts once.",
        "utilisation":
            "GPU time divided by in-service GPU time over the makespan. Failed machines are not in service.",
        "useful":
            "Share of leased time that did lasting work: 1 - (restart_seconds + crash_seconds) / leased "
            "GPU-seconds.",
        "placement":
            "Mean placement score of the leases, 1 / slowdown of the locality, weighted by GPU time; 1 is best.",
        "restarts": "Grants beyond a job's first: each pays for a checkpoint and a new container. Renewals are none.",
        "restart_seconds":
            "GPU-seconds from each grant until its gang trains (container, checkpoint), or until it is revoked.",
        "crash_seconds":
            "GPU-seconds of training lost when leases failed: time since the last checkpoint, taken every "
            "checkpoint_every_s of training.",
        "delivered_worst": "Least received / entitled of a completed app: useful GPU time over what it was entitled to.",
        "delivered_mean": "Mean received / entitled of completed apps.",
        "lost_seconds": "Lost GPU time: restart_seconds + crash_seconds.",
        "failures": "Leases that ended because their machine or gang failed.",
        "decisions": "Answers of the policy that were carried out.",
        "auctions": "Decisions made by an auction.",
        "bidders": "Mean number of apps that bid in an auction.",
        "offered": "Mean number of GPUs offered in an auction.",
        "payment": "Mean hidden payment of an auction's winners: the share 1 - c of what they won that they give up.",
        "leftover": "Mean number of GPUs an auction gave away as leftovers.",
        "gap": "Largest proven gap of a winner determination, nats of Nash welfare.",
        **{f"app_{name}": text for name, text in APP_DEFINITIONS.items()},
        **{f"user_{name}": text for name, text in USER_DEFINITIONS.items()},
    }
)  # fmt: skip
"""Definition by name; what is about one app begins with ``app_``, about one user with ``user_``."""
