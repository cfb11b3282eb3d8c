"""The promise that ``fair_finish`` makes to an app, in words, and whether it held: one rule for reports, commands and pages."""

from __future__ import annotations

from themis.model.units import Seconds

LONGER = 1.1
"""An app takes at most so many times its time on its own share, ..."""
MORE_S: Seconds = 300.0
"""... or so much more than that: a start, and a step's wait, which are most of a short app's time."""
PROMISE = "at most 1.1 times as long as on your own share, or five minutes more"
"""``holds`` in words."""


def holds(took: Seconds, own_share: Seconds) -> bool:
    """Whether an app that takes ``took`` from arrival to end keeps ``PROMISE``; False of NaN.

    Parameters
    ----------
    own_share : seconds of the app on its own share of the cluster; alone on the idle cluster, if it takes longer there.
    """
    return took <= max(LONGER * own_share, own_share + MORE_S) * (1.0 + 1e-9)
