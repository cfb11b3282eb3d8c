"""Model of an app, where the trace names none: drawn from a mix by a hash that never changes.

The draw depends on (seed, app name) alone, so neither the order of the rows nor a window cut out of the trace
changes an app's model, and Python's own randomised ``hash`` plays no part.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from themis.errors import InputError, counted
from themis.model.speed import ANY_TYPE, ProfileBook
from themis.model.units import Locality
from themis.traces.profiles.models import is_network_intensive, table_4_mix


@dataclass(frozen=True, slots=True)
class ModelMix:
    """Models with cumulative probabilities, the last of them 1."""

    models: tuple[str, ...]
    upto: tuple[float, ...]

    def draw(self, seed: int, app: str) -> str:
        """The model of an app: the same for the same (seed, app), always."""
        return self.models[min(bisect_right(self.upto, unit_hash(seed, app)), len(self.models) - 1)]


def unit_hash(seed: int, text: str) -> float:
    """A number in [0, 1) that depends only on (seed, text), on every machine and Python version."""
    digest = hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def stream(seed: int, label: str) -> np.random.Generator:
    """A separate generator for each drawn quantity, so that one more draw of one leaves the others unchanged."""
    digest = hashlib.blake2b(label.encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])


def model_mix(book: ProfileBook, models: str = "", network_intensive: float | None = None) -> ModelMix:
    """Build the mix.

    Parameters
    ----------
    models : empty for Themis Table 4; else names with optional weights, ``"VGG16:3,Transformer:1"``.
    network_intensive : share in [0, 1] of apps whose model is network-intensive (``is_network_intensive``; Themis
        §6.3); the mix is kept within either kind. None leaves the mix as it is.

    Raises
    ------
    InputError : a weight or the share is out of range, or the mix lacks a kind that the share asks for.
    UnknownName : a model is not in the book.
    """
    weights = _parse(models) if models else table_4_mix()
    intensive = {name: is_network_intensive(book.get(name)) for name in weights}
    if network_intensive is not None:
        weights = _with_share(weights, intensive, network_intensive)
    total = sum(weights.values())
    kept = {name: weight for name, weight in weights.items() if weight > 0}
    return ModelMix(tuple(kept), tuple(accumulate(weight / total for weight in kept.values())))


class ReferenceRates:
    """Steps/s of gangs on reference GPUs, with the best placement where no other is given; remembered.

    The reference is any GPU type for linear profiles, else the first type that the profile lists and the batch size fits.
    Batch size 0 is the profile's own; one that was not measured there is as in ``Profile.curve``.
    """

    def __init__(self, book: ProfileBook) -> None:
        self._book = book
        self._known: dict[tuple[str, int, int, Locality], float] = {}

    def __call__(self, model: str, gpus: int = 1, batch: int = 0, spans: Locality = Locality.SLOT) -> float:
        """Steps/s of a gang that spans this locality, or UnknownName for a model that is not in the book."""
        key = (model, gpus, batch, spans)
        if key not in self._known:
            profile = self._book.get(model)
            types = dict.fromkeys((ANY_TYPE, *(kind for kind, _ in profile.curves)))
            curves = (profile.curve(kind, batch) for kind in types)
            rates = (float(curve.at(np.array(gpus))) for curve in curves if curve is not None)
            rate = next((rate for rate in rates if rate > 0), None)
            if rate is None:
                raise InputError(
                    f"model {model!r} at batch size {batch} on {counted(gpus, 'GPU')} was measured as 0 on every GPU type: it does "
                    "not fit. Choose another batch size or number of GPUs."
                )
            self._known[key] = rate / profile.slowdown[spans]
        return self._known[key]


def _parse(models: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in models.split(","):
        name, _, weight = part.strip().partition(":")
        try:
            weights[name] = float(weight or 1.0)
        except ValueError:
            raise InputError(f"models: got weight {weight!r} for {name!r}, expected a number, as in VGG16:3.") from None
        if not 0 <= weights[name] < float("inf"):
            raise InputError(f"models: got weight {weight} for {name!r}, expected 0 or more.")
    if not sum(weights.values()) > 0:
        raise InputError(f"models: all weights of {models!r} are 0, expected at least one above 0.")
    return weights


def _with_share(weights: Mapping[str, float], intensive: Mapping[str, bool], share: float) -> dict[str, float]:
    if not 0 <= share <= 1:
        raise InputError(f"network_intensive is {share}, expected a share from 0 to 1.")
    out: dict[str, float] = {}
    for kind, part in ((True, share), (False, 1.0 - share)):
        total = sum(w for name, w in weights.items() if intensive[name] is kind)
        if part > 0 and total <= 0:
            lacking = "network-intensive" if kind else "compute-intensive"
            raise InputError(f"network_intensive is {share}, but the mix has no {lacking} model; add one to 'models'.")
        out |= {name: w * part / total for name, w in weights.items() if intensive[name] is kind and total > 0}
    return out
