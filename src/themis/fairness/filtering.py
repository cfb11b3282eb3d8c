"""Round-by-round filtering (Themis §3.3.2): only the apps farthest from fairness take part in a round's auction."""

from __future__ import annotations

import math

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int


def worst_first(rho: Float, arrival: Float, app_id: Int, served: Int | None = None) -> Int:
    """Positions in order of falling rho; ties go to the earlier arrival, then to the lower id.

    Parameters
    ----------
    served : [n], from ``service_rank`` where an app without GPUs counts as unbounded: lower ranks come before all higher ones.
    """
    keys = (-rho,) if served is None else (-rho, served)
    # Sorting is stable, and a snapshot's apps stand in order of arrival and id already.
    if (arrival[1:] < arrival[:-1]).any() or (app_id[1:] < app_id[:-1]).any():
        keys = (app_id, arrival, *keys)
    out: Int = np.lexsort(keys)
    return out


def service_rank(s: Snapshot) -> Int:
    """[A], 0: the app waits without GPUs and is behind its share; 1: it holds none beyond this instant; 2: it holds some.

    rho of an app that lost all its leases is unbounded (§3.3.2); that of an app whose leases end now was finite until now. Without
    the distinction, where all leases end together, apps that wait would be compared with those that had everything until now.
    An app is behind its share if it received less than its weighted share of its life so far.
    """
    expiring = np.bincount(s.job_app, weights=s.job_expiring, minlength=s.apps)
    with np.errstate(divide="ignore", invalid="ignore"):
        behind = s.app_attained < s.app_elapsed * s.app_capacity / s.app_contention
    out: Int = np.where(s.app_held > 0, 2, np.where((expiring > 0) | ~behind, 1, 0))
    return out


def fraction(apps: int, f: float) -> int:
    """Number of the worst-off apps that bid when weights are equal: max(1, ceil((1 - f) n)).

    The paper's pseudocode 1 takes the top 1 - f; "a fraction f" in its §4.2.2 is a slip.
    """
    return max(1, math.ceil((1 - f) * apps - 1e-9))


def bidder_count(weight: Float, f: float) -> int:
    """Number of the worst-off apps that bid: the fewest with the fraction 1 - f of the weight, at least one.

    An app of weight w has w shares, so it counts as w apps.

    Parameters
    ----------
    weight : [n], weights of the apps from the worst on, > 0. ``f`` : fairness knob in [0, 1].
    """
    if not len(weight) or (weight == weight[0]).all():
        return fraction(len(weight), f)
    total = (weight / float(weight.max())).cumsum()
    enough = (1 - f) * float(total[-1]) - 1e-9
    return min(int(np.searchsorted(total, enough)) + 1, len(total))
