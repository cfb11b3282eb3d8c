"""Finish-time fairness without the auction: the app with the worst rho takes its whole demand.

What other projects' comparisons call Themis. There are no bids, so no app's gain is weighed against another's loss, and
no payments; against ``themis`` it shows what the auction of Themis (NSDI'20, §3.3) is worth. Worst first is the rule that
the paper itself starts from and improves on (§3.1.2 and its filter with f = 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from themis.fairness.filtering import worst_first
from themis.fairness.finish_time import FinishTime, Form
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.api import PACKING, Cadence, Granularity, Workbench
from themis.policies.placement.ordered import in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyFinishTime:
    """Worst finish-time fairness first.

    Attributes
    ----------
    rho : the form of finish-time fairness to sort by.
    """

    rho: Form = Form.PAPER

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free."""
        return PACKING

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer by rho at the GPUs held beyond this instant, ties by arrival and id."""
        s = snapshot
        return in_order(s, worst_first(FinishTime(s, self.rho).rho, s.app_arrival, s.app_id))
