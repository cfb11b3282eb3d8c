"""Gavel's published simulator on a trace: CPU seconds of the simulation and the mean JCT in hours, as JSON.

    python benchmarks/gavel_peer.py FOLDER TRACE POLICY FIRST LAST

``FOLDER`` : a checkout of stanford-futuredata/gavel (commit c4fa400). 12 GPUs of each type, rounds of six minutes. Modules that a
simulation imports and never calls are replaced by empty ones; where ECOS is not installed its programs go to Clarabel.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import warnings
from pathlib import Path
from unittest.mock import MagicMock


def main() -> None:
    """Simulate until the jobs FIRST to LAST - 1 are done."""
    folder, trace, policy, first, last = sys.argv[1:]
    root = Path(folder) / "scheduler"
    sys.path.insert(0, str(root))
    for unused in ("matrix_completion", "runtime", "runtime.rpc", "psutil"):
        sys.modules.setdefault(unused, MagicMock())
    warnings.simplefilter("ignore")
    import cvxpy
    import scheduler
    import utils
    from job_id_pair import JobIdPair

    solver = "ECOS" if "ECOS" in cvxpy.installed_solvers() else "CLARABEL"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        jobs, arrivals = utils.parse_trace(trace)
        peer = scheduler.Scheduler(
            utils.get_policy(policy, solver=solver, seed=0),
            throughputs_file=str(root / "simulation_throughputs.json"),
            simulate=True,
            seed=0,
            time_per_iteration=360,
        )
        measured = {JobIdPair(i, None) for i in range(int(first), int(last))}
        started = time.process_time()
        types = ("v100", "p100", "k80")
        peer.simulate(
            dict.fromkeys(types, 12),
            arrivals,
            jobs,
            num_gpus_per_server=dict.fromkeys(types, 1),
            jobs_to_complete=measured,
        )
        spent = time.process_time() - started
        jct = peer.get_average_jct(measured)
    print(json.dumps({"cpu_s": spent, "solver": solver, "mean_jct_h": None if jct is None else float(jct) / 3600}))


if __name__ == "__main__":
    main()
