"""Estimated throughputs: completion by brute force, the nearest reference, and what a scheduler comes to believe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.errors import InputError
from themis.fairness.forecasts.believed import Estimation, believed_book, measured_configs
from themis.fairness.forecasts.throughput import References, complete, entries_of, estimate, share_entries
from themis.model.units import Locality
from themis.traces.profiles.measured import gavel_book

TYPES = ("V100", "P100", "K80")


def loss(value: np.ndarray, known: np.ndarray, u: np.ndarray, v: np.ndarray, ridge: float) -> float:
    return float((known * (value - u @ v.T) ** 2).sum() + ridge * ((u**2).sum() + (v**2).sum()))


def test_a_matrix_of_low_rank_is_recovered_from_some_of_its_entries() -> None:
    """Rank 2, six in ten known, no noise (Gavel §6: "sparse low rank matrices ... reconstructed with low error")."""
    rng = np.random.default_rng(0)
    truth = rng.random((30, 2)) @ rng.random((2, 20))
    known = rng.random(truth.shape) < 0.6
    found = complete(np.where(known, truth, 7.0), known, rank=3, ridge=1e-8)
    assert np.abs(found - truth).max() < 1e-3


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_a_completed_row_is_the_best_for_the_columns_factor(seed: int) -> None:
    """Each factor is a ridge regression on the other: no small change of the answer's factors lowers the loss."""
    rng = np.random.default_rng(seed)
    value, known = rng.random((6, 5)), rng.random((6, 5)) < 0.7
    known[0], known[:, 0] = True, True
    ridge = 0.05
    found = complete(value, known, rank=2, ridge=ridge)
    mean = (value * known).sum(axis=0) / known.sum(axis=0)
    left, size, right = np.linalg.svd(found - mean, full_matrices=False)
    u, v = left[:, :2] * np.sqrt(size[:2]), right[:2].T * np.sqrt(size[:2])
    assert size[2:] == pytest.approx(0, abs=1e-9)
    best = loss(value - mean, known, u, v, ridge)
    for _ in range(20):
        du, dv = rng.normal(size=u.shape) * 1e-3, rng.normal(size=v.shape) * 1e-3
        assert loss(value - mean, known, u + du, v + dv, ridge) >= best - 1e-6


def test_what_cannot_be_completed_is_refused() -> None:
    for known, rank, ridge in (
        (np.zeros((2, 2), bool), 1, 0.1),
        (np.ones((2, 2), bool), 0, 0.1),
        (np.ones((2, 2), bool), 1, 0),
    ):
        with pytest.raises(InputError, match="cannot be completed"):
            complete(np.ones((2, 2)), known, rank=rank, ridge=ridge)


def test_an_entry_is_a_share_of_the_measured_table() -> None:
    book, refs = gavel_book(), (("A3C", 0), ("LM", 5))
    entries = entries_of(book, ("ResNet-50", 64), refs, TYPES)
    speed, mine, theirs = share_entries(References.of(book, refs, TYPES), entries)
    assert speed == pytest.approx([1.0, 2.619 / 4.395, 0.619 / 4.395])
    assert mine[0, 0] == pytest.approx(book.get("ResNet-50").beside["V100", 64, "A3C", 0])
    assert theirs[2, 1] == pytest.approx(book.get("LM").beside["K80", 5, "ResNet-50", 64])


def test_a_job_like_a_reference_is_taken_for_it_and_measured_entries_stay() -> None:
    book = gavel_book()
    configs = measured_configs(book, TYPES)
    references = References.of(book, configs, TYPES)
    rng = np.random.default_rng(1)
    hits = 0
    for r in range(len(configs)):
        truth = references.entries[r]
        known = rng.random(len(truth)) < 0.3
        found = estimate(references, np.where(known, truth, np.nan), known)
        hits += found.nearest == r
        assert found.entries[known] == pytest.approx(truth[known])
        apart = ((references.entries - found.fingerprint) ** 2).mean(axis=1)
        assert found.nearest == int(np.argmin(apart))
        assert found.distance == pytest.approx(apart.min() ** 0.5)
    assert hits >= 24, "of 26"


def test_estimates_are_nearer_to_the_truth_than_the_mean_job() -> None:
    """Half the models are references, the others estimated from a fifth of their entries."""
    book, rng = gavel_book(), np.random.default_rng(2)
    pool = measured_configs(book, TYPES)
    order = rng.permutation(len(pool)).tolist()
    references = References.of(book, [pool[i] for i in order[:13]], TYPES)
    off, mean = [], []
    for i in order[13:]:
        truth = entries_of(book, pool[i], references.configs, TYPES)
        known = rng.random(len(truth)) < 0.2
        found = estimate(references, truth, known)
        off.append(np.abs(found.entries - truth)[~known].mean())
        mean.append(np.abs(references.entries.mean(axis=0) - truth)[~known].mean())
    assert np.mean(off) < 0.9 * np.mean(mean)


def test_all_probes_without_noise_leave_pairs_with_references_true() -> None:
    book = gavel_book()
    pool = measured_configs(book, TYPES)
    found = believed_book(book, pool, TYPES, Estimation(references=13, probes=1.0, noise=0.0), seed=3)
    kept = {c for c in pool if found.get(c[0]).beside == book.get(c[0]).beside}
    for model, batch in pool:
        for kind in TYPES:
            for gpus in (1, 2, 4):
                truth = book.rate(model, batch, kind, gpus, Locality.SLOT)
                here = found.rate(model, batch, kind, gpus, Locality.SLOT)
                assert here == pytest.approx(truth, rel=1e-9) if gpus == 1 else here > 0 or truth == 0
    assert len(kept) < len(pool)


def test_references_are_believed_as_measured_and_the_seed_decides() -> None:
    book, how = gavel_book(), Estimation(references=26)
    pool = measured_configs(book, TYPES)
    assert believed_book(book, pool, TYPES, how, seed=0).fingerprint == book.fingerprint
    one, same, other = (believed_book(book, pool, TYPES, Estimation(), seed=s).fingerprint for s in (1, 1, 2))
    assert one == same != other
    assert believed_book(book, pool, ("T4",), how, seed=0) is book, "nobody measured on that type"


@pytest.mark.parametrize("wrong", [{"references": 0}, {"probes": 1.5}, {"noise": -1.0}])
def test_wrong_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"estimate: {next(iter(wrong))} is"):
        Estimation(**wrong)  # type: ignore[arg-type]
