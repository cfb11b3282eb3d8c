"""Throughput per cost of the GPUs used, for clusters rented by the hour (Gavel §4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from themis.errors import InputError, UnknownName
from themis.model.snapshot import Snapshot
from themis.model.units import Float
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.pair_totals import cost_ratio_paired
from themis.policies.gavel.total import cost_adjusted, cost_ratio
from themis.policies.sharing import PairPolicy, pair_rates, shared_total


@dataclass(frozen=True, slots=True, kw_only=True)
class MinCost(PairPolicy):
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

    chooses_types: ClassVar[bool] = False  # costs are of GPU types

    def __post_init__(self) -> None:
        PairPolicy.__post_init__(self)
        object.__setattr__(self, "prices", read_prices(self.cost))

    def check_types(self, gpu_types: Sequence[str]) -> None:
        """Check that every price is of a type in the cluster."""
        check_prices(self.prices, gpu_types)

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One linear program, or a few for the ratio."""
        cost = costs(self.prices, snapshot)
        return cost_ratio(problem, cost) if self.printed else cost_adjusted(problem, cost)

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """The same over jobs and pairs."""
        cost = costs(self.prices, snapshot)
        if not self.printed:
            return shared_total(snapshot, problem, np.ones(problem.jobs), cost)
        found, ratio = cost_ratio_paired(problem, pair_rates(snapshot, problem), cost)
        return found, ratio, ratio


def costs(prices: Mapping[str, float], snapshot: Snapshot) -> Float:
    """[K], cost of a GPU of each type; 1 by default. Prices of types that are not in the cluster count for nothing."""
    return np.array([prices.get(name, 1.0) for name in snapshot.gpu_types])


def check_prices(prices: Mapping[str, float], gpu_types: Sequence[str]) -> None:
    """UnknownName where a price is of a type that a cluster lacks."""
    for name in prices:
        if name not in gpu_types:
            raise UnknownName("GPU type in cost", name, gpu_types)


def read_prices(text: str) -> dict[str, float]:
    """Prices by GPU type, as in ``V100=2.48/K80=0.45``; InputError where one is no price, or a type has two."""
    out: dict[str, float] = {}
    for name, price in map(_price, filter(None, text.split("/"))):
        if name in out:
            raise InputError(f"cost of GPU type {name!r} is there twice, expected once.")
        out[name] = price
    return out


def _price(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        price = float(value)
    except ValueError:
        price = -1.0
    if not 0.0 < price < float("inf"):
        raise InputError(f"cost of a GPU type is {text!r}, expected TYPE=number above 0, as in V100=2.48/K80=0.45.")
    return name.strip(), price
