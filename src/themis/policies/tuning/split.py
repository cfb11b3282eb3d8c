"""Split of an app's grant among its jobs: running jobs continue, then the longest job waits least.

An app whose own agent named an order of its jobs gets that instead (Themis §4.2.2, step 5).

This is list scheduling, longest first, on the gangs that the app has; bids (``policies.tuning.app_agent``) price exactly this.
"""

from __future__ import annotations

import numpy as np

from themis.model.units import NONE, Bool, Float, Int


def choose_job(job_id: Int, left: Float, warm: Bool, fits: Bool, order: Int | None = None) -> int:
    """The job that should get a gang, or -1 if none can use it.

    Parameters
    ----------
    job_id, left, warm, fits : one app's jobs: id, work left, whether its lease is just ending, whether it can use the gang.
    order : below 0 where the app's own scheduler said so; 0 or None: it did not.

    Returns
    -------
    The lowest ``order`` first, then warm jobs, then the most work left, then the lower id.
    """
    rows = np.flatnonzero(fits)
    if not len(rows):
        return NONE
    wish = np.zeros(len(rows), dtype=np.int64) if order is None else order[rows]
    return int(job_id[rows[in_order(job_id[rows], left[rows], warm[rows], wish)[0]]])


def in_order(job_id: Int, left: Float, warm: Bool, order: Int, app: Int | None = None) -> Int:
    """``choose_job``'s order, as positions; of several apps' jobs one app's after another's."""
    keys = (job_id, -left, ~warm, order)
    out: Int = np.lexsort(keys if app is None else (*keys, app))
    return out
