"""Training task of the demo: a small network that learns a landscape, height by place, by gradient descent.

The data are the elevations around Jacksboro, Tennessee, which come with matplotlib. Training is real; the pace is not:
each step waits for its batch as if from a slow disk, shared among the GPUs, so that eight virtual GPUs are worth their number
on a machine of two cores.

    python terrain.py --width 32 --rate 0.01 --steps 500 --pace 0.1
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Matrices this small gain nothing from threads, and those would take the time of the other jobs. Before numpy is loaded.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from themis import train  # noqa: E402

BATCH = 256
WAVES = 24
"""Random waves (Fourier features) through which the network sees a place."""


def landscape() -> tuple[np.ndarray, np.ndarray]:
    """Places ([n, 2], in [-1, 1]) and their heights ([n], mean 0, deviation 1)."""
    found = find_spec("matplotlib")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the demo's data come with matplotlib, which is not installed.")
    file = Path(found.submodule_search_locations[0]) / "mpl-data/sample_data/jacksboro_fault_dem.npz"
    with np.load(file) as data:
        height = data["elevation"].astype(np.float64)
    rows, columns = (np.linspace(-1, 1, n) for n in height.shape)
    places = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
    return places, ((height - height.mean()) / height.std()).ravel()


class Net:
    """Two layers on waves; Adam."""

    def __init__(self, width: int, rate: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.waves = rng.normal(scale=3.0, size=(2, WAVES))
        sizes = [2 * WAVES, width, width, 1]
        self.weights = [rng.normal(scale=(2 / a) ** 0.5, size=(a + 1, b)) for a, b in itertools.pairwise(sizes)]
        self.moments = [(np.zeros_like(w), np.zeros_like(w)) for w in self.weights]
        self.rate, self.count = rate, 0
        self.loss = float("nan")
        """Smoothed over the last 20 steps or so."""

    def step(self, places: np.ndarray, heights: np.ndarray) -> None:
        """One step of gradient descent on the mean squared error."""
        angles = places @ self.waves
        layers = [_with_one(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))]
        for weights in self.weights[:-1]:
            layers.append(_with_one(np.maximum(layers[-1] @ weights, 0.0)))
        error = (layers[-1] @ self.weights[-1])[:, 0] - heights
        back = 2 * error[:, None] / len(error)
        self.count += 1
        for i in reversed(range(len(self.weights))):
            slope = layers[i].T @ back
            if i:
                back = (back @ self.weights[i][:-1].T) * (layers[i][:, :-1] > 0)
            first, second = self.moments[i]
            first += 0.1 * (slope - first)
            second += 0.001 * (slope**2 - second)
            size = self.rate * (1 - 0.999**self.count) ** 0.5 / (1 - 0.9**self.count)
            self.weights[i] -= size * first / (np.sqrt(second) + 1e-8)
        loss = float(np.mean(error**2))
        self.loss = loss if self.loss != self.loss else 0.95 * self.loss + 0.05 * loss

    def save(self, path: Path) -> None:
        """The whole state."""
        flat: dict[str, Any] = {f"w{i}": w for i, w in enumerate(self.weights)}
        flat |= {f"m{i}{k}": m for i, pair in enumerate(self.moments) for k, m in enumerate(pair)}
        with open(path, "wb") as file:
            np.savez(file, count=self.count, loss=self.loss, waves=self.waves, **flat)

    def load(self, path: Path) -> None:
        """The inverse of ``save``."""
        with np.load(path) as data:
            self.count, self.loss, self.waves = int(data["count"]), float(data["loss"]), data["waves"]
            self.weights = [data[f"w{i}"] for i in range(len(self.weights))]
            self.moments = [(data[f"m{i}0"], data[f"m{i}1"]) for i in range(len(self.weights))]


def _with_one(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def main() -> None:
    """Train, as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds of a step on one GPU")
    given = parser.parse_args()
    places, heights = landscape()
    net = Net(given.width, given.rate, given.seed)
    pace = given.pace / int(os.environ.get("THEMIS_GPUS", "1"))
    run = train.Run(save=net.save, load=net.load, check_every_s=0.2, report_every_s=0.5)
    for step in run.steps(given.steps):
        began = time.monotonic()
        # The batch depends on the step alone, so a preempted run ends like an uninterrupted one.
        batch = np.random.default_rng((given.seed, step)).integers(len(heights), size=BATCH)
        net.step(places[batch], heights[batch])
        run.report(loss=net.loss)
        time.sleep(max(pace - (time.monotonic() - began), 0.0))
    print(f"mean squared error {net.loss:.3f} of the landscape's variance after {run.step} steps")


if __name__ == "__main__":
    main()
