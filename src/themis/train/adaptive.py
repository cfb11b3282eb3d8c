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
from functools import partial
from typing import Any

import torch
from torch import Tensor

from themis.train.agree import process_group

ROOM = 8
"""Noise scale over batch from which a doubled batch loses at most a tenth: (phi + M) / (phi + 2 M) is 9 / 10 at phi = 8 M."""


def noise_and_signal(small_sq: float, small: float, big_sq: float, big: float) -> tuple[float, float]:
    """Unbiased estimates of tr(Sigma) and |G|^2 from squared gradient norms at two batch sizes.

    E|G_B|^2 = |G|^2 + tr(Sigma) / B. Source: McCandlish et al., appendix A.1.
    """
    signal = (big * big_sq - small * small_sq) / (big - small)
    noise = (small_sq - big_sq) / (1.0 / small - 1.0 / big)
    return noise, signal


class NoiseScale:
    """The simple gradient noise scale, tr(Sigma) / |G|^2: below it, larger batches lose little.

    Where a step has several parts, the ranks of PyTorch's process group or the backward passes of an accumulation, their mean
    squared norm and the squared norm of their mean are two batch sizes at the same parameters, which give an unbiased estimate
    (McCandlish et al., A.1). A step of one part is compared with the one before. In both cases the gradient is also predicted from
    how far the parameters are from their averages and from the gradient before: what that explains is signal, since
    the past knows nothing of the step's noise. Its product with the average gradient of about the last ten steps is a second lower
    bound: |G|^2 where parameters drift, -|G|^2 where they wander. Averages are over about the last third of the steps
    (decision 83).

    Gradients of parts are read by hooks on the parameters, from where this object is made. Call ``step`` before
    gradients are clipped or unscaled. Four copies of the parameters are kept.

    Parameters
    ----------
    parameters : those whose gradients count.
    smooth : in [0, 1), largest weight of the past in the running means.
    growth : above 1; ``advise`` doubles once the noise scale has grown by this factor. Shockwave §5 has a "relative
        threshold" and no figure; 2 is an assumption.
    warmup : estimates before any advice, and again after each change.
    """

    def __init__(
        self, parameters: Iterable[Tensor], *, smooth: float = 0.9995, growth: float = 2.0, warmup: int = 50
    ) -> None:
        _check("smooth", smooth, 0 <= smooth < 1, "a share from 0 to below 1")
        _check("growth", growth, growth > 1, "a factor above 1")
        _check("warmup", warmup, warmup >= 1, "1 or more estimates")
        self.parameters = [p for p in parameters if p.requires_grad]
        self.smooth, self.growth, self.warmup = smooth, growth, warmup
        self._parts = [0] * len(self.parameters)
        self._squares: Tensor | None = None
        for i, parameter in enumerate(self.parameters):
            parameter.register_hook(partial(self._part, i))
        self._before: Tensor | None = None
        self._recent: Tensor | None = None
        """Average gradient of about ten steps."""
        self._size = 0
        self._averages: list[Tensor] = []
        """Averages of the parameters: over about ten steps, and over the last third."""
        self._steps = self._since = 0
        self._means = torch.zeros(_KEPT, dtype=torch.float64)
        self._evenness = 0.0
        """Sum of the squared weights of the steps in the means; 1 / it steps of equal weight would have as much noise."""
        self._reference = math.nan

    def _part(self, number: int, gradient: Tensor) -> None:
        """Count the gradient of one backward pass of this rank, before ranks and passes are added up."""
        square = gradient.detach().float().square().sum()
        self._squares = square if self._squares is None else self._squares + square.to(self._squares.device)
        self._parts[number] += 1

    def step(self, batch_size: int) -> None:
        """Take in a gradient, the mean over a batch of this global size; call it after backward, before the optimizer's step.

        Every rank calls it; ranks add two numbers up.
        """
        _check("batch_size", batch_size, batch_size >= 1, "1 or more examples")
        now, here = _flat(self.parameters), _flat(self.parameters, gradients=False)
        parts, small = self._of_parts()
        before, averages = self._before, self._averages or [here, here]
        if before is not None and batch_size == self._size:
            square = float(now.square().sum())
            past = torch.stack([before, *(here - average for average in averages)])
            seen = (past @ now).double().cpu()
            if parts > 1 and small > 0:
                noise, direct = noise_and_signal(small, batch_size / parts, square, batch_size)
            else:
                noise, direct = float((now - before).square().sum()) * batch_size / 2, float(seen[0])
            row = [torch.tensor([noise, direct, direct**2, float(parts > 1)], dtype=torch.float64)]
            row += [seen, seen.square(), (past @ past.T).double().cpu().reshape(-1)]
            recent = (before if self._recent is None else self._recent) @ now
            row += [torch.stack([recent, recent.square()]).double().cpu()]
            self._take(torch.cat(row))
        rates = (0.1, _rate(self._steps + 1, self.smooth))
        self._averages = [average + rate * (here - average) for average, rate in zip(averages, rates)]
        self._recent = now if self._recent is None else self._recent + 0.1 * (now - self._recent)
        self._before, self._size = now, batch_size

    def _of_parts(self) -> tuple[int, float]:
        """Number of parts of the last step over all ranks, and the mean squared norm of their gradients."""
        passes, squares = max(self._parts, default=0), self._squares
        self._parts, self._squares = [0] * len(self.parameters), None
        dist, device = process_group(), self.parameters[0].device
        total = torch.stack([torch.zeros((), device=device) if squares is None else squares.to(device)]).double()
        total = torch.cat([total, torch.tensor([float(passes)], dtype=torch.float64, device=device)])
        if dist is not None:
            dist.all_reduce(total)
        square, parts = total.tolist()
        ranks = dist.get_world_size() if dist is not None else 1
        # An accumulated gradient is the sum of its passes': each counts as many times more as there are.
        return round(parts), square * (parts / ranks) ** 2 / parts if parts else 0.0

    def _take(self, row: Tensor) -> None:
        if not bool(torch.isfinite(row).all()):
            return
        self._steps += 1
        self._since += 1
        rate = _rate(self._steps, self.smooth)
        self._means += rate * (row - self._means)
        self._evenness = (1 - rate) ** 2 * self._evenness + rate**2

    @property
    def value(self) -> float:
        """The noise scale in examples, NaN while there is no estimate; inf only without any gradient."""
        if not self._steps:
            return math.nan
        noise, signal = max(float(self._means[0]), 0.0), self._signal()
        return noise / signal if signal > 0 else math.inf

    def _signal(self) -> float:
        """|G|^2: the larger of two lower bounds, moved to the direct estimate by as much as its error allows."""
        direct, squared, parts = self._means[1:4].tolist()
        seen, past = self._means[4:7], self._means[10:19].reshape(3, 3)
        scale = past.diagonal().clamp_min(1e-300).rsqrt()
        explained = (
            seen * scale @ torch.linalg.pinv(past * scale[:, None] * scale, rtol=1e-6, hermitian=True) @ (scale * seen)
        )
        # Products with past gradients are -|G|^2 where parameters wander, |G|^2 where they stand, in between less.
        recent, its_square = self._means[19:].tolist()
        bound = max(float(explained), self._shrunk(abs(recent), recent, its_square))
        apart = max((direct if parts > 0.5 else abs(direct)) - bound, 0.0)
        return bound + self._shrunk(apart, direct, squared)

    def _shrunk(self, size: float, mean: float, square: float) -> float:
        """``size`` times its square over that and the squared error of the mean that it comes from."""
        error = max(square - mean**2, 0.0) * self._evenness
        return size**3 / (size**2 + error) if size else 0.0

    @property
    def significant(self) -> bool:
        """True if any of the four estimates of the signal is three standard errors from 0."""
        mean = torch.cat([self._means[1:2], self._means[4:7]])
        square = torch.cat([self._means[2:3], self._means[7:10]])
        return bool((mean.square() > 9 * self._evenness * (square - mean.square()).clamp_min(0)).any())

    def advise(self, batch_size: int, limit: int) -> int:
        """The batch size to continue with: doubled, up to the limit, if one of three conditions holds after warm-up.

        The noise scale has grown by ``growth`` since the last change (Shockwave §5); it is ``ROOM`` times the batch, so that
        each example of a doubled batch counts for nine tenths of one now; or the signal is not significant, which means a scale far
        above the batch. Never smaller: GNS does not scale down (Shockwave §5).
        """
        if self._since < self.warmup:
            return batch_size
        value = self.value
        if math.isnan(self._reference):
            self._reference = value
        large = value >= min(self.growth * self._reference, ROOM * batch_size) or not self.significant
        if not large or batch_size >= limit:
            return batch_size
        self._reference, self._since = value, 0
        return min(2 * batch_size, limit)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint; averages of parameters and gradients are left out."""
        return {
            "means": self._means.clone(),
            "evenness": self._evenness,
            "steps": self._steps,
            "since": self._since,
            "reference": self._reference,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's up."""
        self._means, self._evenness, self._steps = state["means"].clone(), state["evenness"], state["steps"]
        self._since, self._reference = state["since"], state["reference"]
        self._before, self._recent, self._averages = None, None, []


_KEPT = 4 + 3 + 3 + 9 + 2
"""Running means: noise, direct signal, its square, whether from parts; the gradient times each of three predictions, the
squares of that; the predictions times each other; the gradient times its recent average, the square of that."""


def _rate(steps: int, smooth: float) -> float:
    """Weight of the latest of this many steps: 1 for the first, later three times an equal part."""
    return max(3.0 / (steps + 2), 1 - smooth)


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
        """Add a gradient to its epoch's; call it after backward, before the optimizer's step."""
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


def _flat(parameters: list[Tensor], *, gradients: bool = True) -> Tensor:
    """All gradients, or the parameters themselves, as one vector; parameters that have no gradient count as 0.

    Raises
    ------
    RuntimeError : no parameter has a gradient.
    """
    if not any(p.grad is not None for p in parameters):
        raise RuntimeError("no parameter has a gradient; call this after backward and before zero_grad.")
    device = parameters[0].device
    chosen = [(torch.zeros_like(p) if p.grad is None else p.grad) if gradients else p for p in parameters]
    parts = [part.detach().reshape(-1) for part in chosen]
    return torch.cat([part.to(device=device, dtype=torch.float32) for part in parts])


def _check(name: str, value: float, good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"{name} is {value}, expected {expected}.")
