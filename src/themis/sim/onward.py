"""Forecast of an app's next GPUs: short simulations from a dumped state on, without further arrivals (``themis why``).

Each simulation draws how wrong the believed speed of every app is, uniformly within +-20 % (the errors of Themis §6.3,
figure 17); the start times that come out give the estimate and its range. They stop with the app's first gang, after
this much simulated time, or when the time allowed is over.

As a program: a dump on standard input, the app's number and the seconds allowed as arguments, JSON on standard output.
"""

from __future__ import annotations

import json
import sys
from time import monotonic

import numpy as np

from themis.model.events import Command, Grant
from themis.model.units import Seconds
from themis.policies.api import Policy, make_policy
from themis.sim.dump import Dump, parse
from themis.sim.from_state import FromState

ERROR = 0.2
"""Error of estimated speeds, as a share."""
RUNS = 9
HORIZON_S = 14 * 86400.0


def starts(
    dump: Dump, app: int, *, runs: int = RUNS, allowed_s: Seconds = 5.0, horizon_s: Seconds = HORIZON_S
) -> list[Seconds]:
    """Seconds from the dump until the app's next gang starts, one for each simulation that got there; rising.

    The first simulation believes what the scheduler does. Simulations that the app never starts in within ``horizon_s``
    give infinity; those for which there was no time are missing.
    """
    policy, end = make_policy(dump.policy), monotonic() + allowed_s
    out: list[Seconds] = []
    for run in range(runs):
        found = _Onward(dump, policy, seed=run).until_started(app, horizon_s, end)
        if found is None:
            break
        out.append(found)
    return sorted(out)


class _Onward(FromState):
    """One simulation from a state on, which knows which apps got a gang."""

    def __init__(self, dump: Dump, policy: Policy, seed: int) -> None:
        rng = np.random.default_rng(seed)
        core = dump.core(policy)
        errors = rng.uniform(1 - ERROR, 1 + ERROR, core.state.apps.size) if seed else np.ones(core.state.apps.size)
        super().__init__(core, policy, lambda app: float(errors[app]))
        self.granted: set[int] = set()
        """Apps that got a gang."""

    def until_started(self, app: int, horizon_s: Seconds, end: float) -> Seconds | None:
        """Seconds until the app gets a gang; infinity if not within the horizon, None if there was no time to see."""
        while app not in self.granted:
            if monotonic() > end:
                return None
            event = self.kernel.pop()
            if event is None or self.kernel.now > self.began + horizon_s or not self.core.state.apps.active[app]:
                return float("inf")
            self.feed(event, self.kernel.now)
        return self.kernel.now - self.began

    def carry_out(self, command: Command, now: Seconds) -> None:
        if isinstance(command, Grant):
            self.granted.add(command.app)
        super().carry_out(command, now)


def main() -> None:
    """Estimate for one app."""
    app, allowed_s = int(sys.argv[1]), float(sys.argv[2])
    found = starts(parse(sys.stdin.buffer.read()), app, allowed_s=allowed_s)
    print(json.dumps([time if time < float("inf") else None for time in found]))


if __name__ == "__main__":
    main()
