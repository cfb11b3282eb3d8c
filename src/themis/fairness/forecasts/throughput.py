"""Throughputs of unprofiled jobs: a few measurements, matrix completion, the nearest reference (Gavel §3.3, §6).

Reference jobs were measured in full: how fast they are on each GPU type against one type, what they keep of their speed
beside each other reference, and what that keeps beside them. Of a new job a few of these entries are measured. A low-rank
completion over all rows fills in the others: the job's *fingerprint*. The reference nearest to it gives the first estimate of
every entry that was not measured; rates that are measured as jobs run replace estimates (``core.learning``).

The paper does not say how it completes or compares; here by alternating ridge regressions, and by the root mean square
distance of fingerprints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from themis.errors import InputError
from themis.model.speed import ProfileBook
from themis.model.units import Bool, Float, Locality

RANK = 8
"""Maximum rank of the completed matrix: 8 components explain 90 % of the variation of the shipped table (26 rows)."""

RIDGE = 0.1
"""Ridge penalty of the factors, in squares of entries, which are shares of speed; an assumption."""

_SWEEPS, _SETTLED = 1000, 1e-9

Config = tuple[str, int]
"""A model and its batch size."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class References:
    """Jobs that were measured in full.

    Attributes
    ----------
    configs : R of them. ``types`` : K GPU types, of which the first is that on which new jobs are measured alone.
    entries : Float[R, C], a row of ``entries_of`` each; C = K - 1 + 2 K R.
    """

    configs: tuple[Config, ...]
    types: tuple[str, ...]
    entries: Float

    @classmethod
    def of(cls, book: ProfileBook, configs: Sequence[Config], types: Sequence[str]) -> References:
        """References as a book knows them.

        Raises
        ------
        InputError : there are no references, or one does not run on the first type.
        """
        if not configs or not types:
            raise InputError(
                "throughputs are estimated from reference jobs on GPU types, but there are none of one of them."
            )
        known = tuple(configs)
        rows = [entries_of(book, config, known, types) for config in known]
        return cls(configs=known, types=tuple(types), entries=np.array(rows))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """Estimated speed of a new job.

    Attributes
    ----------
    nearest : row of the reference that it is taken for. ``distance`` : root mean square of their fingerprints' difference.
    fingerprint : [C], measured entries, and the others completed. ``entries`` : [C], measured ones, the others the reference's.
    """

    nearest: int
    distance: float
    fingerprint: Float
    entries: Float


def entries_of(book: ProfileBook, config: Config, references: Sequence[Config], types: Sequence[str]) -> Float:
    """[C], everything that could be measured of a job: speed on the other types, then shares by type and reference.

    Shares come in two halves: what the job keeps beside the reference, and what the reference keeps beside it; 0 where the
    two do not fit on one GPU.

    Raises
    ------
    InputError : the job does not run on the first type.
    """
    model, batch = config
    first = book.rate(model, batch, types[0], 1, Locality.SLOT)
    if first <= 0:
        raise InputError(
            f"model {model!r} (batch size {batch}) has no speed on one {types[0]}, on which jobs are measured first."
        )
    out = [book.rate(model, batch, kind, 1, Locality.SLOT) / first for kind in types[1:]]
    profile = book.get(model)
    for mine in (True, False):
        for kind in types:
            for other, size in references:
                share = (
                    profile.share_beside(kind, batch, (other, size))
                    if mine
                    else book.get(other).share_beside(kind, size, config)
                )
                out.append(share)
    return np.array(out)


def estimate(references: References, measured: Float, known: Bool) -> Estimate:
    """Estimate a new job from the entries that were measured.

    Parameters
    ----------
    measured : [C]; entries where ``known`` is False are not read.
    """
    rows = np.vstack([references.entries, np.where(known, measured, 0.0)])
    seen = np.vstack([np.ones_like(references.entries, dtype=bool), known])
    filled = complete(rows, seen)
    fingerprint = np.where(known, measured, filled[-1])
    apart = np.sqrt(((references.entries - fingerprint) ** 2).mean(axis=1))
    nearest = int(np.argmin(apart))
    return Estimate(
        nearest=nearest,
        distance=float(apart[nearest]),
        fingerprint=fingerprint,
        entries=np.where(known, measured, references.entries[nearest]),
    )


def complete(value: Float, known: Bool, *, rank: int = RANK, ridge: float = RIDGE) -> Float:
    """[N, C], a matrix of low rank near the entries that are known.

    Minimises ``sum over known (value - mean - U V')^2 + ridge (|U|^2 + |V|^2)``, ``mean`` being the column's, by alternating
    ridge regressions from the leading singular vectors of what is known. The problem is not convex: the answer is a
    stationary point, the same for the same input.

    Parameters
    ----------
    rank : of the part beside the mean, at least 1. ``ridge`` : above 0.

    Raises
    ------
    InputError : nothing is known, or a parameter is out of range.
    """
    if not known.any() or rank < 1 or not ridge > 0:
        raise InputError(
            f"a matrix with {int(known.sum())} known entries cannot be completed with rank {rank} and ridge {ridge}; "
            "expected at least 1, at least 1, and more than 0."
        )
    weight = known.astype(float)
    counts = weight.sum(axis=0)
    overall = float((value * weight).sum() / weight.sum())
    mean = np.divide((value * weight).sum(axis=0), counts, out=np.full(len(counts), overall), where=counts > 0)
    rest = np.where(known, value - mean, 0.0)
    left, size, right = np.linalg.svd(rest, full_matrices=False)
    rank = min(rank, len(size))
    u, v = left[:, :rank] * np.sqrt(size[:rank]), right[:rank].T * np.sqrt(size[:rank])
    before = np.inf
    for _ in range(_SWEEPS):
        u, v = _regress(rest, weight, v, ridge), v
        v = _regress(rest.T, weight.T, u, ridge)
        loss = float((weight * (rest - u @ v.T) ** 2).sum() + ridge * ((u**2).sum() + (v**2).sum()))
        if before - loss <= _SETTLED * max(loss, 1e-300):
            break
        before = loss
    out: Float = mean + u @ v.T
    return out


def _regress(rest: Float, weight: Float, other: Float, ridge: float) -> Float:
    """Best factors of the rows for given column factors ``other`` [C, r]: one ridge regression a row, batched."""
    gram = np.einsum("nc,ci,cj->nij", weight, other, other) + ridge * np.eye(other.shape[1])
    out: Float = np.linalg.solve(gram, ((weight * rest) @ other)[:, :, None])[:, :, 0]
    return out


def share_entries(references: References, entries: Float) -> tuple[Float, Float, Float]:
    """The parts of a row: speed on each type against the first [K], what it keeps [K, R], what references keep [K, R]."""
    kinds, count = len(references.types), len(references.configs)
    speed = np.concatenate([[1.0], entries[: kinds - 1]])
    mine, theirs = entries[kinds - 1 :].reshape(2, kinds, count)
    return speed, mine, theirs
