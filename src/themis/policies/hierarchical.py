"""Entities within entities, each with its own rule: Gavel §4.3, by water filling, to any depth.

Without a file every user is an entity and shares fairly between its jobs by their weights. Its weight is the mean of its
apps'; where fairness is between users or groups, their sum, which is then the user's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Float
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.hierarchy import Entity, hierarchical
from themis.policies.gavel.hierarchy_file import EntityPlan, by_user, jobs_of, read_plan
from themis.policies.gavel.pair_hierarchy import hierarchical_paired
from themis.policies.shares import by_arrival, progress, weights
from themis.policies.sharing import PairPolicy, pair_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchical(PairPolicy):
    """Fill a tree of entities.

    Attributes
    ----------
    file : YAML that describes the tree; see ``themis.policies.gavel.hierarchy_file``.
    """

    file: str = ""
    plan: EntityPlan | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        PairPolicy.__post_init__(self)
        object.__setattr__(self, "plan", read_plan(Path(self.file)) if self.file else None)

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """Level by level."""
        root = self._root(snapshot, problem)
        return hierarchical(problem, root, weights(snapshot), progress(snapshot, problem))

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """The same over jobs and pairs, also of jobs of different entities."""
        root, pairs = self._root(snapshot, problem), pair_rates(snapshot, problem)
        found, objective = hierarchical_paired(problem, pairs, root, weights(snapshot), progress(snapshot, problem))
        return found, objective, found.bound

    def _root(self, snapshot: Snapshot, problem: Problem) -> Entity:
        """Jobs belong to the entity that lists their app's user."""
        users = [snapshot.users[u] for u in snapshot.app_user[snapshot.job_app].tolist()]
        plan = self.plan or by_user(_user_weights(snapshot))
        return plan.entity(jobs_of(plan, users, by_arrival(snapshot, problem)))


def _user_weights(s: Snapshot) -> dict[str, float]:
    """The weight of each user who has apps here, by name."""
    weight: Float = np.bincount(s.app_user, weights=s.app_weight).astype(np.float64)
    if s.between == "apps":
        weight = weight / np.maximum(np.bincount(s.app_user), 1)
    return {s.users[u]: float(weight[u]) for u in np.unique(s.app_user).tolist()}
