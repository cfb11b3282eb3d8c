"""Fit of ``model.goodput.StepTimes`` to measured iterations: L-BFGS-B on logarithms with an analytic gradient (Pollux §4.1).

    RMSLE(T_grad) + RMSLE(T_iter) + 1e-3 (g - 1)^2 + 1e-2 ((b_n / a_n)^2 + (b_r / a_r)^2)

Bounds: 1e-8 s and above, 1 <= g <= 10. Parameters that no measurement shows are held at 1e-8 s, or come from a prior: another
job of the model, or another model on the cluster. What each further GPU costs (b) shows between two gang sizes. Between machines a
gang costs at least 1.1 times what it costs within one (a); the artifact bounds b likewise (decision 126).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from themis.model.goodput import StepTimes
from themis.model.units import Bool, Float

LEAST = 1e-8
MOST = 1e5
PRIOR = 0.02
"""Weight of the squared logarithm of parameter over prior, divided by the number of measurements."""
DEARER = 1.1
"""Cost of the network over that within a machine, at least."""
_G = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterations:
    """[P] each: GPUs, machines, local batch size, seconds to compute a gradient, and of an iteration without accumulation."""

    gpus: Float
    machines: Float
    local: Float
    grad_s: Float
    iteration_s: Float

    def of(self, rows: Float) -> Iterations:
        """Some of the measurements."""
        at = np.asarray(rows)
        return Iterations(
            gpus=self.gpus[at],
            machines=self.machines[at],
            local=self.local[at],
            grad_s=self.grad_s[at],
            iteration_s=self.iteration_s[at],
        )


def fit(seen: Iterations, prior: StepTimes | None = None) -> StepTimes:
    """Parameters that fit the measurements best, of at least one."""
    several, wide = seen.gpus > 1, seen.machines > 1
    free = np.array(
        [
            True,
            len(np.unique(seen.local)) > 1,
            bool(wide.any()),
            len(np.unique(seen.gpus[wide])) > 1,
            bool((several & ~wide).any()),
            len(np.unique(seen.gpus[several & ~wide])) > 1,
            bool(several.any()),
        ]
    )
    if prior is None:
        begin = _start(seen)
        held = np.where(free, begin, LEAST)
        held[_G] = begin[_G]
        if not free[1]:
            # One local batch size: half of its time is taken to grow with it.
            held[1] = begin[1]
    else:
        held = np.clip(prior.array(), LEAST, None)
    x, centre = np.log(held), np.log(held)
    low, high = np.log([*[LEAST] * 6, 1.0]), np.log([*[MOST] * 6, 10.0])

    def loss(part: Float) -> tuple[float, Float]:
        full = x.copy()
        full[free] = part
        value, slope = _loss(full, seen, free)
        if prior is not None:
            off = (full - centre) * free
            weight = PRIOR / len(seen.local)
            value, slope = value + weight * float(off @ off), slope + 2.0 * weight * off
        return value, slope[free]

    found = minimize(
        loss, x[free], jac=True, method="L-BFGS-B", bounds=list(zip(low[free], high[free])), options={"maxiter": 300}
    )
    x[free] = found.x
    p = np.exp(x)
    if prior is None:
        p[2] = max(p[2], DEARER * p[4])
    return StepTimes(
        grad_s=p[0],
        grad_example_s=p[1],
        network_s=p[2],
        network_gpu_s=p[3],
        machine_s=p[4],
        machine_gpu_s=p[5],
        overlap=p[_G],
    )


def _start(seen: Iterations) -> Float:
    grad = float(np.mean(seen.grad_s))
    sync = max(float(np.mean(seen.iteration_s - seen.grad_s)), 0.05 * grad)
    return np.array([0.5 * grad, 0.5 * grad / float(np.mean(seen.local)), sync, 0.01 * sync, sync, 0.01 * sync, 1.5])


def _loss(x: Float, seen: Iterations, free: Bool) -> tuple[float, Float]:
    """Value and gradient over the logarithms of the parameters."""
    p = np.exp(x)
    g = p[_G]
    several, wide = seen.gpus > 1, seen.machines > 1
    more = np.maximum(seen.gpus - 2.0, 0.0)
    grad = p[0] + p[1] * seen.local
    sync = np.where(several, np.where(wide, p[2] + p[3] * more, p[4] + p[5] * more), 0.0)
    tiny = np.maximum(sync, 1e-30)
    # Logarithm of (T_grad^g + T_sync^g)^(1/g), by way of the larger: powers of seconds underflow.
    la, lb = np.log(grad), np.log(tiny)
    log_sum = np.logaddexp(g * la, g * lb)
    log_iter = log_sum / g
    wa, wb = np.exp(g * la - log_sum), np.exp(g * lb - log_sum)  # shares of the two, adding up to 1
    off_grad, off_iter = la - np.log(seen.grad_s), log_iter - np.log(seen.iteration_s)
    e_grad, e_iter = float(np.sqrt(np.mean(off_grad**2))), float(np.sqrt(np.mean(off_iter**2)))
    d_grad = off_grad / (len(off_grad) * max(e_grad, 1e-12))
    d_iter = off_iter / (len(off_iter) * max(e_iter, 1e-12))
    to_grad = (d_grad + d_iter * wa) / grad
    to_sync = np.where(several, d_iter * wb / tiny, 0.0)
    slope = np.array(
        [
            to_grad.sum(),
            (to_grad * seen.local).sum(),
            to_sync[wide].sum(),
            (to_sync * more)[wide].sum(),
            to_sync[~wide].sum(),
            (to_sync * more)[~wide].sum(),
            float((d_iter * ((wa * la + wb * lb) / g - log_sum / g**2)).sum()),
        ]
    )
    value = e_grad + e_iter + 1e-3 * (g - 1.0) ** 2
    slope[_G] += 2e-3 * (g - 1.0)
    for a, b in ((2, 3), (4, 5)):
        if free[b]:
            ratio = p[b] / p[a]
            value += 1e-2 * ratio**2
            slope[b] += 2e-2 * ratio / p[a]
            slope[a] -= 2e-2 * ratio**2 / p[a]
    return value, slope * p
