"""How an app's scheduler splits what it was granted among its jobs: running jobs go on, then the longest waits least.

This is list scheduling, longest first, on the gangs that the app has; bids (``tuning.agent``) price exactly this.
"""

from __future__ import annotations

import numpy as np

from themis.model.units import NONE, Bool, Float, Int


def choose_job(job_id: Int, left: Float, warm: Bool, fits: Bool) -> int:
    """The job that should get a gang, or -1 if none can use it.

    Parameters
    ----------
    job_id, left, warm, fits : one app's jobs: id, work left, whether its lease is just ending, whether it can use the gang.

    Returns
    -------
    Warm jobs first, then the most work left, then the lower id.
    """
    rows = np.flatnonzero(fits)
    if not len(rows):
        return NONE
    order = np.lexsort((job_id[rows], -left[rows], ~warm[rows]))
    return int(job_id[rows[order[0]]])
