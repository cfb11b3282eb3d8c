"""Entities within entities, each with its own rule: Gavel §4.3, by water filling, to any depth.

Without a file every user is an entity of weight 1 and shares fairly between its jobs by their weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from themis.gavel.hierarchy import hierarchical
from themis.gavel.hierarchy_file import Plan, by_user, jobs_of, read_plan
from themis.gavel.problem import Problem, Shares
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy, by_arrival, progress, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchical(SharePolicy):
    """Fill a tree of entities.

    Attributes
    ----------
    file : YAML that describes the tree; see ``themis.gavel.hierarchy_file``.
    """

    file: str = ""
    plan: Plan | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", read_plan(Path(self.file)) if self.file else None)

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """Jobs belong to the entity that lists their app's user."""
        users = [snapshot.users[u] for u in snapshot.app_user[snapshot.job_app].tolist()]
        plan = self.plan or by_user(sorted(set(users)))
        root = plan.entity(jobs_of(plan, users, by_arrival(snapshot, problem)))
        return hierarchical(problem, root, weights(snapshot), progress(snapshot, problem))
