"""Monitors of gradients by which a PyTorch script may choose its batch size: noise scale (GNS) and norm (Accordion).

    noise = adaptive.NoiseScale(model.parameters())
    @run.each_epoch
    def adapt(epoch): run.batch_size = noise.advise(run.batch_size, limit=512)
    for batch in run.batches(make_loader, epochs=90):
        ...backward...
        noise.step(run.batch_size)  # before optimizer.step()

They advise; whether to follow, and how to scale the learning rate, is the script's. Gradients are read after the ranks
have averaged them, so every rank has the same advice. Both can be saved with ``pytorch.state(..., noise=noise)``.

Sources: McCandlish et al., An Empirical Model of Large-Batch Training (2018), appendix A; Agarwal et al., Accordion
(MLSys'21), algorithm 1; Shockwave §2.3, §5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def noise_and_signal(small_sq: float, small: float, big_sq: float, big: float) -> tuple[float, float]:
    """Unbiased estimates of tr(Sigma) and |G|^2 from squared gradient norms at two batch sizes.

    E|G_B|^2 = |G|^2 + tr(Sigma) / B. Source: McCandlish et al., appendix A.1.
    """
    signal = (big * big_sq - small * small_sq) / (big - small)
    noise = (small_sq - big_sq) / (1.0 / small - 1.0 / big)
    return noise, signal


class NoiseScale:
    """The simple gradient noise scale, tr(Sigma) / |G|^2: below it, larger batches lose little.

    Two steps in a row are two batches, and both together one twice as large. That the parameters moved in between is
    passed over, as with a small learning rate it may be; with gradient clipping, call ``step`` before it.

    Parameters
    ----------
    parameters : those whose gradients count.
    smooth : in [0, 1), weight of the past in the running means of noise and signal. A single estimate says little.
    growth : above 1; ``advise`` doubles once the noise scale has grown by this factor. Shockwave §5 has a "relative
        threshold" and no figure; 2 is an assumption.
    warmup : estimates before any advice, and again after each change.
    """

    def __init__(
        self, parameters: Iterable[Tensor], *, smooth: float = 0.98, growth: float = 2.0, warmup: int = 50
    ) -> None:
        _check("smooth", smooth, 0 <= smooth < 1, "a share from 0 to below 1")
        _check("growth", growth, growth > 1, "a factor above 1")
        _check("warmup", warmup, warmup >= 1, "1 or more estimates")
        self.parameters = [p for p in parameters if p.requires_grad]
        self.smooth, self.growth, self.warmup = smooth, growth, warmup
        self._before: Tensor | None = None
        self._size = 0
        self._noise = self._signal = self._weight = 0.0
        self._since = 0
        self._reference = math.nan

    def step(self, batch_size: int) -> None:
        """After backward, before the optimizer's step: take in a gradient, the mean over a batch of this global size."""
        _check("batch_size", batch_size, batch_size >= 1, "1 or more examples")
        now = _flat(self.parameters)
        if self._before is None or batch_size != self._size:
            self._before, self._size = now, batch_size
            return
        small_sq = float((self._before.square().sum() + now.square().sum()) / 2)
        big_sq = float(((self._before + now) / 2).square().sum())
        self._before = None  # pairs do not overlap: estimates are independent
        noise, signal = noise_and_signal(small_sq, batch_size, big_sq, 2 * batch_size)
        if math.isfinite(noise) and math.isfinite(signal):
            self._noise = self.smooth * self._noise + (1 - self.smooth) * noise
            self._signal = self.smooth * self._signal + (1 - self.smooth) * signal
            self._weight = self.smooth * self._weight + (1 - self.smooth)
            self._since += 1

    @property
    def value(self) -> float:
        """The noise scale in examples, NaN while there is no estimate; inf where the mean gradient is lost in noise."""
        if not self._weight:
            return math.nan
        if self._signal <= 0:
            return math.inf
        return max(self._noise, 0.0) / self._signal

    def advise(self, batch_size: int, limit: int) -> int:
        """The batch size to go on with: doubled, up to the limit, where the noise scale has grown enough since the last change.

        Never smaller: GNS does not scale down (Shockwave §5).
        """
        value = self.value
        if self._since < self.warmup or not math.isfinite(value) or value <= 0:
            return batch_size
        if math.isnan(self._reference):
            self._reference = value
        if value < self.growth * self._reference or batch_size >= limit:
            return batch_size
        self._reference, self._since = value, 0
        return min(2 * batch_size, limit)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint; a gradient that waits for its pair is left out."""
        return {
            "noise": self._noise,
            "signal": self._signal,
            "weight": self._weight,
            "since": self._since,
            "reference": self._reference,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's up."""
        self._noise, self._signal, self._weight = state["noise"], state["signal"], state["weight"]
        self._since, self._reference, self._before = state["since"], state["reference"], None


class GradientNorm:
    """Accordion's detector of critical phases: while the norm of an epoch's gradient changes fast, batches stay small.

    |norm now - norm before| / norm before >= threshold is critical, and so are the first epochs and those after
    ``decayed`` (Accordion, algorithm 1: it watches the learning rate too).

    Parameters
    ----------
    small, large : the two global batch sizes.
    threshold : eta, above 0; Accordion uses 0.5. ``every`` : epochs between two looks; Accordion uses 10.
    """

    def __init__(
        self, parameters: Iterable[Tensor], *, small: int, large: int, threshold: float = 0.5, every: int = 10
    ) -> None:
        _check("small", small, 1 <= small <= large, f"1 or more and at most large, which is {large}")
        _check("threshold", threshold, threshold > 0, "a number above 0")
        _check("every", every, every >= 1, "1 or more epochs")
        self.parameters = [p for p in parameters if p.requires_grad]
        self.small, self.large, self.threshold, self.every = small, large, threshold, every
        self.norms: list[float] = []
        """Norm of each epoch's mean gradient."""
        self._sum: Tensor | None = None
        self._steps = 0
        self._size = small
        self._looked = 0

    def step(self) -> None:
        """After backward, before the optimizer's step: add a gradient to its epoch's."""
        now = _flat(self.parameters)
        self._sum = now if self._sum is None else self._sum + now
        self._steps += 1

    def epoch_ended(self) -> int:
        """Close an epoch; returns the batch size of the next one."""
        if self._sum is not None:
            self.norms.append(float((self._sum / self._steps).norm()))
            self._sum, self._steps = None, 0
        if len(self.norms) - self._looked >= self.every:
            before = self.norms[self._looked - 1] if self._looked else math.inf
            now = self.norms[-1]
            critical = not self._looked or abs(now - before) >= self.threshold * before
            self._size, self._looked = (self.small if critical else self.large), len(self.norms)
        return self._size

    def decayed(self) -> None:
        """The learning rate was cut: what follows is critical until the next look."""
        self._size, self._looked = self.small, len(self.norms)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, including the gradient of an interrupted epoch."""
        return {
            "norms": list(self.norms),
            "size": self._size,
            "looked": self._looked,
            "steps": self._steps,
            "sum": self._sum,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's up."""
        self.norms, self._size, self._looked = list(state["norms"]), state["size"], state["looked"]
        self._steps, self._sum = state["steps"], state["sum"]
        if self._sum is not None and self.parameters:
            self._sum = self._sum.to(self.parameters[0].device)


def _flat(parameters: list[Tensor]) -> Tensor:
    """All gradients as one vector; parameters that have none count as 0.

    Raises
    ------
    RuntimeError : no parameter has a gradient.
    """
    if not any(p.grad is not None for p in parameters):
        raise RuntimeError("no parameter has a gradient; call this after backward and before zero_grad.")
    device = parameters[0].device
    parts = [(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in parameters]
    return torch.cat([part.to(device=device, dtype=torch.float32) for part in parts])


def _check(name: str, value: float, good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"{name} is {value}, expected {expected}.")
