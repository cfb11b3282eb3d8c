"""A stand-in for a training script: it trains nothing, and takes the time that a table of speeds says.

``python -m themis.train.paced JSON``, with the keys of ``Pace``. It finds its GPUs' type and its gang's locality in the
environment, reports steps, epochs, batch size and loss, saves when it is preempted and resumes there. Its steps take what the
table says of its GPUs, counted from its start, so that no delay adds up. Jobs that share a GPU do not slow each other.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from themis.train.run import Run

REPORT_S = 0.5
"""Seconds between two reports, and about those between two looks at the clock for fast steps."""
LOOK_S = 0.1
"""Most seconds until a request to stop is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The work of a job, and its true speeds.

    Attributes
    ----------
    regimes : (amount, batch size, steps in one unit, factor by which a unit takes longer than the table says): the amount is in
        steps, or in epochs where ``epochs`` is set.
    rates : GPU type -> batch size -> GPUs -> units/s on the best place.
    slowdown : divisors of these rates within a slot, a machine, a rack, and across racks.
    loss : a, b, c of the loss ``a / (b x + 1) + c`` after x units.
    resume_s : seconds that loading a checkpoint takes.
    """

    regimes: Sequence[tuple[float, int, float, float]]
    rates: Mapping[str, Mapping[str, Mapping[str, float]]]
    slowdown: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    loss: Sequence[float] = (1.0, 0.0, 0.0)
    epochs: bool = False
    resume_s: float = 0.0

    def rate(self, gpu_type: str, gpus: int, locality: int, batch: int) -> float:
        """Units/s of a gang.

        Raises
        ------
        ValueError : the table has no speed for it.
        """
        found = self.rates.get(gpu_type, {}).get(str(batch), {}).get(str(gpus), 0.0)
        if not found > 0:
            raise ValueError(
                f"the table has no speed for {gpus} GPUs of type {gpu_type!r} at batch size {batch}; it has the types "
                f"{', '.join(self.rates)}."
            )
        return found / self.slowdown[locality]


@dataclass(slots=True)
class Training:
    """One attempt: ``done`` units of work over all attempts, ``steps`` of the program.

    ``gang`` : GPU type, GPUs and locality. ``clock``, ``sleep`` : of the process.
    """

    pace: Pace
    run: Run
    gang: tuple[str, int, int]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    done: float = 0.0
    steps: float = field(default=0.0)

    def train(self) -> None:
        """Resume, and train to the target of this attempt or until the run is preempted."""
        if self._resumed():
            self.sleep(self.pace.resume_s)
        due, end = self.clock(), 0.0
        for amount, batch, per_unit, longer in self.pace.regimes:
            end += amount
            upto = min(end, self._target())
            while self.done < upto:
                rate = self.pace.rate(*self.gang, batch) / longer
                begun, before = due, self.done
                count = max(1, math.floor(REPORT_S * rate * per_unit))
                after = min(before + count / per_unit, upto)
                due += (after - before) / rate
                if not self._until(due):
                    trained = min(max(self.clock() - begun, 0.0) * rate, after - before)
                    self._advance(before + trained, per_unit, batch)
                    self._save()
                    self.run.exit()
                self._advance(after, per_unit, batch)
        self.run.step = math.ceil(self.steps)
        self._save()
        self.run.reached()

    def _target(self) -> float:
        return math.inf if self.pace.epochs else self.run.world.target

    def _until(self, due: float) -> bool:
        """Wait; False if the run is to stop first."""
        while True:
            if self.run.should_preempt():
                return False
            left = due - self.clock()
            if left <= 0:
                return True
            self.sleep(min(left, LOOK_S))

    def _advance(self, done: float, per_unit: float, batch: int) -> None:
        self.steps += (done - self.done) * per_unit
        self.done = done
        a, b, c = self.pace.loss
        epochs = done if self.pace.epochs else 0.0
        # Sums of fractions may lie a little below the whole step that they make.
        self.run.observe(math.floor(self.steps + 1e-6), a / (b * done + 1.0) + c, epochs=epochs, batch_size=batch)

    def _resumed(self) -> bool:
        latest = self.run.checkpoints.latest() if self.run.checkpoints else None
        if latest is None:
            return False
        self.done, self.steps = float(latest[1]["done"]), float(latest[1]["steps"])
        self.run.step = math.floor(self.steps + 1e-6)
        return True

    def _save(self) -> None:
        if self.run.checkpoints is not None and self.run.world.rank == 0:
            position: dict[str, Any] = {"done": self.done, "steps": self.steps}
            self.run.checkpoints.write(self.run.step, lambda path: path.write_text("state"), position)
        self.run.saved()


def main(text: str) -> None:
    """Train as the text says, on the GPUs that the environment names."""
    pace = Pace(**json.loads(text))
    run = Run(report_every_s=REPORT_S)
    where = os.environ.get("THEMIS_GPU_TYPE", next(iter(pace.rates))), run.world.gpus
    Training(pace, run, (*where, int(os.environ.get("THEMIS_LOCALITY", 0)))).train()


if __name__ == "__main__":
    main(sys.argv[1])
