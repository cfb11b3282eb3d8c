"""Splits of GPUs into gangs for an app's waiting jobs: the candidates of a bid, thinned out where there are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from themis.model.units import Int

Split = tuple[tuple[int, int], ...]
"""((gang size, count), ...)."""


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """Candidates as columns.

    Attributes
    ----------
    rows : number of candidates. ``largest`` : the largest gang of any.
    gangs : Int[rows], sizes of gang in each. ``size``, ``count`` : Int[sum of gangs], rising by candidate.
    """

    rows: int
    largest: int
    gangs: Int
    size: Int
    count: Int

    @classmethod
    def of(cls, splits: Iterable[Split]) -> Splits:
        """Columns of candidates, in their order."""
        splits = list(splits)
        flat = np.array([gang for split in splits for gang in split], dtype=np.int64).reshape(-1, 2)
        gangs = np.array([len(split) for split in splits], dtype=np.int64)
        return cls(len(splits), int(flat[:, 0].max(initial=0)), gangs, flat[:, 0].copy(), flat[:, 1].copy())


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """All candidates of one app on one GPU type, those that have a gang of several GPUs, and those that have none."""

    every: Splits
    large: Splits
    small: Splits

    @classmethod
    def of(cls, splits: list[Split]) -> Candidates:
        """Values in their order, each once."""
        splits = list(dict.fromkeys(splits))
        large = [split for split in splits if max(split)[0] > 1]
        return cls(Splits.of(splits), Splits.of(large), Splits.of(x for x in splits if max(x)[0] == 1))


@lru_cache(maxsize=8192)
def alike(small: int, large: int, jobs: int, offered: int, rows: int) -> Candidates:
    """Row sizes for jobs that all take ``small`` to ``large`` GPUs: from the fewest to the most useful and offered.

    Parameters
    ----------
    offered : GPUs of the type; more than all jobs can use are as good as what they can use.
    rows : about how many candidates there may be at most.
    """
    most = min(offered // small, jobs)
    splits: list[Split] = [((small, count),) for count in ladder(most, rows // (3 if large > small else 1))]
    if large > small and most == jobs:
        for gpus in ladder(min(offered, jobs * large) - jobs * small, rows // 3):
            size, larger = divmod(jobs * small + gpus, jobs)
            splits.append(tuple(x for x in ((size, jobs - larger), (size + 1, larger)) if x[1]))
    if large > small and jobs > 1:
        splits += [((large, count),) for count in ladder(min(offered // large, jobs), rows // 3)]
    return Candidates.of(splits)


def mixed(low: list[int], offered: int, rows: int) -> Candidates:
    """Row sizes for jobs that differ: the first ones in the order of start, each at its fewest GPUs, ``low``."""
    fit = int((np.cumsum(low) <= offered).sum())
    return Candidates.of([tuple(sorted(Counter(low[:count]).items())) for count in ladder(fit, rows)])


def ladder(most: int, rungs: int) -> list[int]:
    """1, 2, ..., most, thinned geometrically to about this many."""
    fine = max(rungs // 2, 2)
    if most <= max(rungs, 2):
        return list(range(1, most + 1))
    steps = np.unique(np.round(np.geomspace(fine, most, fine)).astype(int)).tolist()
    return [*range(1, fine), *steps]
