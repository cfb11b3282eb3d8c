"""The one speed model: how many steps per second a job makes, by model, batch, GPU type, gang size and locality.

Simulation, rho, bids, shares and plans all read it here and nowhere else. A ``Profile`` is what is known of one
model; a ``ProfileBook`` holds many; ``Speeds`` is its array form for the hot paths.

    rate = curve[gpu_type, batch](gpus) / slowdown[locality] * beside[partner]

Linear scaling with a slowdown (Themis eq. 1) is a curve with one point; measured tables are curves with many.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from themis.errors import InputError, UnknownName
from themis.model.units import Bool, Float, Int, Locality, Seconds

DEFAULT_SLOWDOWN = (1.0, 1.0, 1.1, 1.3)
"""Slot, machine, rack (cross-machine), cross-rack, for unprofiled models (Themis footnote 3)."""

ASSUMPTION = "assumption"
"""Prefix of the source of a profile with unmeasured figures."""

ANY_TYPE = "*"
"""GPU type of a curve that serves all types without a curve of their own."""
GUESSED = "guessed"
"""In place of a model whose speeds stand in: the speed is a guess from the time that the job may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Measured steps/s of a gang with its best locality.

    Attributes
    ----------
    gpus, rate : same length, ``gpus`` rising. Between points the rate is interpolated on logarithmic axes; below the
        first and beyond the last it is continued linearly in GPUs. One point is linear scaling.
    barred : GPU counts that were measured as 0 (the model does not fit). A count that was not measured is 0 where the
        nearest measured one below or above it is.
    """

    gpus: tuple[int, ...]
    rate: tuple[float, ...]
    barred: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.gpus or len(self.gpus) != len(self.rate):
            raise InputError(
                f"a speed curve has {len(self.gpus)} GPU counts and {len(self.rate)} rates, expected equally many, at least 1."
            )
        if any(b <= a for a, b in zip(self.gpus, self.gpus[1:], strict=False)) or self.gpus[0] < 1:
            raise InputError(f"a speed curve's GPU counts are {self.gpus}, expected rising whole numbers from 1.")
        if any(r <= 0 for r in self.rate):
            raise InputError(f"a speed curve's rates are {self.rate}, expected steps per second above 0.")

    def at(self, gpus: Float | Int) -> Float:
        """Steps/s with this many GPUs, elementwise."""
        count = np.asarray(gpus, dtype=np.float64)
        known, rate = np.asarray(self.gpus, dtype=np.float64), np.asarray(self.rate, dtype=np.float64)
        inside = np.exp(np.interp(np.log(np.maximum(count, 1e-9)), np.log(known), np.log(rate)))
        out = np.where(count < known[0], rate[0] * count / known[0], inside)
        out = np.where(count > known[-1], rate[-1] * count / known[-1], out)
        return np.where(self._barred(count), 0.0, out) if self.barred else out

    @property
    def unit(self) -> float:
        """Steps/s of one GPU by the smallest gang that was measured."""
        return self.rate[0] / self.gpus[0]

    def times(self, factor: float) -> Curve:
        """The curve with its rates times a factor above 0."""
        return self if factor == 1.0 else replace(self, rate=tuple(rate * factor for rate in self.rate))

    def measured(self, gpus: int) -> bool:
        """True if the count lies within those that were measured."""
        return self.gpus[0] <= gpus <= self.gpus[-1] and gpus not in self.barred

    def _barred(self, count: Float) -> Bool:
        """True if the nearest measured count below or above is one of those that were measured as 0."""
        known = np.array(sorted({*self.gpus, *self.barred}), dtype=np.float64)
        zero = np.isin(known, np.array(self.barred, dtype=np.float64))
        below = np.clip(np.searchsorted(known, count, side="right") - 1, 0, len(known) - 1)
        above = np.clip(np.searchsorted(known, count, side="left"), 0, len(known) - 1)
        out: Bool = zero[below] | zero[above]
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Known speeds of one model.

    Attributes
    ----------
    curves : (GPU type or ``ANY_TYPE``, batch size or 0 for any) -> curve.
    slowdown : divisor of the rate at each of the four localities, rising, the first usually 1.
    checkpoint_s : seconds to write and read a checkpoint.
    beside : share of its rate that a job keeps while another job shares its GPUs (Gavel §3.1): by GPU type or
        ``ANY_TYPE``, own batch or 0 for any, the other's model, and its batch or 0. Missing or 0: the two cannot share.
    source : where the figures come from; assumptions begin with that word.
    barred : (GPU type, batch size) that was measured as 0 on every gang: the model does not fit.
    iterations : what an adaptive job of the model measures, for simulated gangs alone: by batch size, GPUs and machines (2: more)
        local batch size, seconds to compute a gradient, and of an iteration without accumulation.
    like : (GPU type, batch size) whose curve is another model's, scaled, until a job measures it -> that model; or ``GUESSED``.
    """

    name: str
    curves: Mapping[tuple[str, int], Curve]
    slowdown: tuple[float, float, float, float] = DEFAULT_SLOWDOWN
    checkpoint_s: Seconds = 7.5
    category: str = ""
    source: str = ""
    beside: Mapping[tuple[str, int, str, int], float] = field(default_factory=dict)
    barred: frozenset[tuple[str, int]] = field(default=frozenset(), repr=False)
    iterations: Mapping[tuple[int, int, int], tuple[float, float, float]] = field(default_factory=dict, repr=False)
    like: Mapping[tuple[str, int], str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.curves:
            raise InputError(f"profile {self.name!r} has no speed curve, expected at least one.")
        if any(b < a for a, b in zip(self.slowdown, self.slowdown[1:], strict=False)) or self.slowdown[0] < 1:
            raise InputError(
                f"profile {self.name!r} has slowdowns {self.slowdown}, expected four numbers that rise from 1 or more."
            )
        if any(share < 0 for share in self.beside.values()):
            raise InputError(
                f"profile {self.name!r} keeps a negative share of its speed on a shared GPU, expected 0 or more."
            )

    def share_beside(self, gpu_type: str, batch: int, partner: tuple[str, int]) -> float:
        """Share of its rate kept with a partner (model, batch), by the most specific entry; 0 where sharing fails."""
        model, other = partner
        for key in ((k, b, model, o) for k in (gpu_type, ANY_TYPE) for b in (batch, 0) for o in (other, 0)):
            if key in self.beside:
                return self.beside[key]
        return 0.0

    def curve(self, gpu_type: str, batch: int) -> Curve | None:
        """The most specific curve, or None where the model cannot run on the type.

        A batch size that was not measured on the type takes its speed from the nearest one that was (on a logarithmic
        axis; the larger of two): as many steps/s, or as many examples/s where that is slower. So it is never believed
        to be faster than what was measured. Profiles that serve any type have one speed for any batch size.
        """
        if (gpu_type, batch) in self.barred:
            return None
        if (gpu_type, batch) in self.curves:
            return self.curves[gpu_type, batch]
        if batch and not self._serves_any(batch):
            near = self.nearest(gpu_type, batch)
            if near:
                return self.curves[gpu_type, near].times(min(1.0, near / batch))
        for key in ((gpu_type, 0), (ANY_TYPE, batch), (ANY_TYPE, 0)):
            if key in self.curves:
                return self.curves[key]
        return None

    def nearest(self, gpu_type: str, batch: int) -> int:
        """The measured batch size on the type that is nearest to this one; 0: none was measured."""
        sizes = [size for kind, size in self.curves if kind == gpu_type and size]
        return min(sizes, key=lambda size: (abs(math.log(size / batch)), -size), default=0)

    def is_assumed(self, gpu_type: str, batch: int, gpus: int) -> bool:
        """True if the speed is unmeasured: an assumption, or for a batch size or a gang beyond the measurements.

        A speed of 0 is never assumed. A profile that serves any type is taken to scale linearly.
        """
        curve = self.curve(gpu_type, batch)
        if curve is None or not float(curve.at(np.array(gpus))) > 0:
            return False
        if (gpu_type, batch) in self.like or (gpu_type, 0) in self.like:
            return True
        if (gpu_type, batch) not in self.curves:
            if self.source.startswith(ASSUMPTION):
                return True
            if self._serves_any(batch):
                return False
            if batch and self.nearest(gpu_type, batch):
                return True
        return not self._serves_any(batch) and not curve.measured(gpus)

    def _serves_any(self, batch: int) -> bool:
        return (ANY_TYPE, batch) in self.curves or (ANY_TYPE, 0) in self.curves


def linear(
    name: str,
    serial_s: Seconds,
    *,
    slowdown: tuple[float, float, float, float] = DEFAULT_SLOWDOWN,
    type_speed: Mapping[str, float] | None = None,
    checkpoint_s: Seconds = 7.5,
    category: str = "",
    source: str = "",
) -> Profile:
    """A model that scales linearly with a slowdown (Themis eq. 1): ``iter_time = serial * S / GPUs``.

    Parameters
    ----------
    serial_s : seconds per step on one reference GPU.
    type_speed : speed of GPU types relative to the reference; types that are not listed run at 1.
    """
    curves = {(ANY_TYPE, 0): Curve(gpus=(1,), rate=(1.0 / serial_s,))}
    for gpu_type, factor in (type_speed or {}).items():
        curves[gpu_type, 0] = Curve(gpus=(1,), rate=(factor / serial_s,))
    return Profile(
        name=name, curves=curves, slowdown=slowdown, checkpoint_s=checkpoint_s, category=category, source=source
    )


@dataclass(frozen=True, slots=True)
class ProfileBook:
    """Profiles by name."""

    profiles: Mapping[str, Profile]

    @classmethod
    def of(cls, profiles: Iterable[Profile]) -> ProfileBook:
        """Collect profiles; a later one replaces an earlier one of the same name."""
        return cls({p.name: p for p in profiles})

    def with_profiles(self, profiles: Iterable[Profile]) -> ProfileBook:
        """This book with more profiles, or replacements."""
        return ProfileBook({**self.profiles, **{p.name: p for p in profiles}})

    @property
    def fingerprint(self) -> str:
        """Equal for books that say the same of the same models."""
        text = repr(sorted(self.profiles.items()))
        # What bars nothing has the fingerprint that it had before profiles could.
        barred = {
            name: (sorted(p.barred), sorted((*key, c.barred) for key, c in p.curves.items() if c.barred))
            for name, p in sorted(self.profiles.items())
            if p.barred or any(c.barred for c in p.curves.values())
        }
        text += repr(barred) if barred else ""
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def get(self, model: str) -> Profile:
        """The profile of a model, or UnknownName."""
        if model not in self.profiles:
            # Tables of single apps, USER/APP, belong to one app each and may be thousands.
            raise UnknownName("model", model, [name for name in self.profiles if "/" not in name])
        return self.profiles[model]

    def rate(
        self,
        model: str,
        batch: int,
        gpu_type: str,
        gpus: int,
        locality: Locality,
        partner: tuple[str, int] | None = None,
    ) -> float:
        """Steps/s of one gang, with a partner (model, batch) if given; 0 where the model cannot run on the type."""
        profile = self.get(model)
        curve = profile.curve(gpu_type, batch)
        if curve is None or gpus < 1:
            return 0.0
        kept = profile.share_beside(gpu_type, batch, partner) if partner else 1.0
        return float(curve.at(np.array(gpus))) / profile.slowdown[locality] * kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Array form of a book for M (model, batch) configurations, K GPU types and gangs of up to S GPUs.

    Attributes
    ----------
    serial : Float[M], seconds per step on one GPU of the reference type (the first type that the model runs on).
    scale : Float[M, K, S+1], speed of a gang relative to one reference GPU, best locality; column 0 is 0.
        Linear scaling on one type is the identity 0, 1, 2, ...
    slowdown : Float[M, 4].
    checkpoint_s : Float[M].
    beside : (configuration, partner's configuration, GPU type) -> share of its rate kept; missing: they cannot share.
    """

    index: Mapping[tuple[str, int], int]
    serial: Float
    scale: Float
    slowdown: Float
    checkpoint_s: Float = field(repr=False)
    beside: Mapping[tuple[int, int, int], float] = field(default_factory=dict, repr=False)

    def effective(self, config: Int, gpu_type: Int, gpus: Int, locality: Int) -> Float:
        """Reference GPUs that a gang is worth: ``scale / slowdown``, elementwise."""
        out: Float = self.scale[config, gpu_type, gpus] / self.slowdown[config, locality]
        return out

    def rate(self, config: Int, gpu_type: Int, gpus: Int, locality: Int) -> Float:
        """Steps/s, elementwise (before a job's own ``step_scale``)."""
        out: Float = self.effective(config, gpu_type, gpus, locality) / self.serial[config]
        return out


def compile_speeds(
    book: ProfileBook,
    configs: Iterable[tuple[str, int]],
    gpu_types: tuple[str, ...],
    largest: int,
    units: Mapping[tuple[str, int], float] | None = None,
) -> Speeds:
    """Tabulate a book for these (model, batch) configurations, GPU types and gangs of up to ``largest`` GPUs.

    ``units`` : seconds per step that one reference GPU is taken to need, for configurations whose work is counted in it.

    Raises
    ------
    UnknownName : a model is not in the book.
    InputError : a model runs on none of the types.
    """
    wanted = list(dict.fromkeys(configs))
    gpus = np.arange(largest + 1, dtype=np.float64)
    serial = np.ones(len(wanted))
    scale = np.zeros((len(wanted), len(gpu_types), largest + 1))
    for m, (model, batch) in enumerate(wanted):
        curves = [book.get(model).curve(t, batch) for t in gpu_types]
        reference = next((c for c in curves if c is not None), None)
        if reference is None:
            raise InputError(_no_speed(book.get(model), batch, gpu_types))
        serial[m] = (units or {}).get((model, batch)) or 1.0 / reference.unit
        for k, curve in enumerate(curves):
            if curve is not None:
                scale[m, k] = curve.at(gpus) * serial[m]
    scale[:, :, 0] = 0.0
    return Speeds(
        index={config: m for m, config in enumerate(wanted)},
        serial=serial,
        scale=scale,
        slowdown=np.array([book.get(model).slowdown for model, _ in wanted], dtype=np.float64).reshape(-1, 4),
        checkpoint_s=np.array([book.get(model).checkpoint_s for model, _ in wanted]),
        beside=_beside(book, wanted, gpu_types),
    )


def _no_speed(profile: Profile, batch: int, gpu_types: tuple[str, ...]) -> str:
    types = ", ".join(gpu_types)
    if any((kind, batch) in profile.barred for kind in gpu_types):
        return (
            f"model {profile.name!r} at batch size {batch} has no speed for any of the GPU types {types}: it was measured as 0, so "
            "it does not fit. Choose another batch size or GPU type."
        )
    return f"model {profile.name!r} has no speed for any of the GPU types {types}; add a profile for one of them."


def relearned(speeds: Speeds, book: ProfileBook, model: str, gpu_types: tuple[str, ...]) -> Speeds:
    """The table after a model's profile changed: its rows are recomputed in the units of before."""
    rows = {config: m for config, m in speeds.index.items() if config[0] == model}
    if not rows:
        return speeds
    profile, gpus = book.get(model), np.arange(speeds.scale.shape[2], dtype=np.float64)
    scale, slowdown, beside = speeds.scale.copy(), speeds.slowdown.copy(), dict(speeds.beside)
    for (_, batch), m in rows.items():
        slowdown[m] = profile.slowdown
        for k, gpu_type in enumerate(gpu_types):
            curve = profile.curve(gpu_type, batch)
            if curve is not None:
                scale[m, k] = curve.at(gpus) * speeds.serial[m]
            for partner, other in speeds.index.items():
                share = profile.share_beside(gpu_type, batch, partner) if profile.beside else 0.0
                beside.pop((m, other, k), None)
                if share > 0:
                    beside[m, other, k] = share
    scale[:, :, 0] = 0.0
    return replace(speeds, scale=scale, slowdown=slowdown, beside=beside)


def _beside(
    book: ProfileBook, configs: list[tuple[str, int]], gpu_types: tuple[str, ...]
) -> dict[tuple[int, int, int], float]:
    shares = {
        (m, other, k): book.get(model).share_beside(gpu_type, batch, partner)
        for m, (model, batch) in enumerate(configs)
        if book.get(model).beside
        for other, partner in enumerate(configs)
        for k, gpu_type in enumerate(gpu_types)
    }
    return {key: share for key, share in shares.items() if share > 0}
