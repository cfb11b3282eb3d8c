"""Conversion of time of job classes to time of jobs and pairs: each job gets its part, with few pairs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from themis.model.units import NONE, Float, Int

_THIN = 1e-12


def allocate(
    members: tuple[Int, ...], masses: Iterable[tuple[int, int, Float]], types: int, part: Float | None = None
) -> tuple[Int, Float]:
    """Allocate the time of classes, and of pairs of classes, to their jobs.

    The jobs of two classes are laid side by side on [0, 1], each as wide as its part, and those that overlap are pairs:
    fewer than there are jobs. A class is paired with itself shifted by a half.

    Parameters
    ----------
    members : rows of jobs of each class. ``masses`` : (class, other class or -1, time [K] in all).
    part : [J], in what proportion a class gets it; equally by default. A job that would be its own partner, being wider
        than a half, loses that time.

    Returns
    -------
    Combos [C, 2], the second -1 for a job alone, and their time x [C, K].
    """
    combos: list[Int] = []
    x: list[Float] = []
    for a, b, mass in masses:
        if len(members[a]) == 1 and (b == NONE or (a != b and len(members[b]) == 1)):
            combos.append(np.array([[members[a][0], NONE if b == NONE else members[b][0]]]))
            x.append(mass[None, :])
            continue
        mine, width = members[a], _widths(members[a], part)
        if b == NONE:
            i, share = np.arange(len(mine)), width
            pairs = np.stack([mine[i], np.full(len(i), NONE)], axis=1)
        elif a == b:
            i, j, share = _overlaps(width, width, 0.5)
            pairs = np.stack([mine[i], mine[j]], axis=1)
        else:
            i, j, share = _overlaps(width, _widths(members[b], part), 0.0)
            pairs = np.stack([mine[i], members[b][j]], axis=1)
        combos.append(pairs)
        x.append(share[:, None] * mass[None, :])
    if not combos:
        return np.zeros((0, 2), dtype=np.int64), np.zeros((0, types))
    return np.concatenate(combos), np.minimum(np.concatenate(x), 1.0)


def _widths(jobs: Int, part: Float | None) -> Float:
    given = np.ones(len(jobs)) if part is None else part[jobs]
    out: Float = given / given.sum()
    return out


def _overlaps(first: Float, second: Float, shift: float) -> tuple[Int, Int, Float]:
    """Overlapping intervals (i, j, width); a shift by a half walks half of the line, so that each pair appears once."""
    here, there = np.cumsum(first), np.cumsum(second) - shift
    end = 1.0 - shift
    edges = np.unique(np.clip(np.concatenate([[0.0, end], here, there]), 0.0, end))
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / end
    i = np.minimum(np.searchsorted(here, middle), len(first) - 1)
    j = np.minimum(np.searchsorted(there, middle), len(second) - 1)
    wide = (width > _THIN) & ((i != j) | (shift == 0.0))
    return i[wide], j[wide], width[wide]
