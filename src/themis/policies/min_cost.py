"""Throughput per cost of the GPUs used, for clusters rented by the hour (Gavel §4.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from themis.errors import InputError, UnknownName
from themis.gavel.problem import Problem, Shares
from themis.gavel.total import cost_adjusted, cost_ratio
from themis.model.snapshot import Snapshot
from themis.model.units import Float
from themis.policies.shares import SharePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class MinCost(SharePolicy):
    """Maximise throughput relative to the fastest type, divided by the type's cost.

    Attributes
    ----------
    cost : of a GPU of each type for an hour, as ``V100=2.48/K80=0.45``; 1 for types that are not listed.
    printed : the ratio of sums as the paper prints it, which is best with the one cheapest job alone.
    spare : here off by default: a GPU that no share claims costs nothing as long as it idles.
    """

    cost: str = ""
    printed: bool = False
    spare: bool = False
    prices: dict[str, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prices", dict(map(_price, filter(None, self.cost.split("/")))))

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One linear program, or a few for the ratio."""
        return self.cheapest(snapshot, problem, None)

    def cheapest(self, snapshot: Snapshot, problem: Problem, least: Float | None) -> Shares:
        """The policy's objective with throughputs that must be met."""
        for name in self.prices:
            if name not in snapshot.gpu_types:
                raise UnknownName("GPU type in cost", name, snapshot.gpu_types)
        cost = np.array([self.prices.get(name, 1.0) for name in snapshot.gpu_types])
        return cost_ratio(problem, cost, least) if self.printed else cost_adjusted(problem, cost, least)


def _price(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        price = float(value)
    except ValueError:
        price = -1.0
    if not 0.0 < price < float("inf"):
        raise InputError(f"cost of a GPU type is {text!r}, expected TYPE=number above 0, as in V100=2.48/K80=0.45.")
    return name.strip(), price
