"""One line per seed: number and digest of the records of the journal that a history of `tests/simulation` leaves.

Equal lines before and after a change: equal journals, byte for byte, without the header, which names a folder.

    PYTHONPATH=src:tests python benchmarks/same_journals.py 0 301 --drop DiskUse > after.txt; diff before.txt after.txt

The simulation draws from one generator, so one more message would move all that follows. Here each process and each kind of
message on a wire has a stream of its own. ``--drop``: kinds of messages that one of the sides does not have.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any

from simulation import network, world


class Streams:
    """A generator in place of ``World.rng``; the caller and ``key`` name the stream that a number comes from."""

    def __init__(self, seed: int) -> None:
        self.seed, self.key, self.drawn = seed, "", Counter[str]()

    def random(self) -> float:
        """Uniform in [0, 1)."""
        frame = next(f for f in (sys._getframe(n) for n in range(1, 9)) if f.f_code.co_filename != __file__)
        key = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}:{self.key}"
        if (process := frame.f_locals.get("process")) is not None and frame.f_back is not None:
            key += f"{process.name} {process.task} {frame.f_back.f_locals['self'].name}"
        digest = blake2b(f"{self.seed}|{key}|{self.drawn[key]}".encode(), digest_size=8).digest()
        self.drawn[key] += 1
        return int.from_bytes(digest, "big") / 2**64

    def uniform(self, low: float, high: float) -> float:
        """Uniform in [low, high)."""
        return low + (high - low) * self.random()

    def exponential(self, mean: float = 1.0) -> float:
        """Exponential."""
        return -mean * math.log1p(-self.random())

    def integers(self, below: int, high: int = 0) -> int:
        """An integer in [0, below), or in [below, high)."""
        low, high = (below, high) if high else (0, below)
        return low + int(self.random() * (high - low))


def main() -> None:
    """Run the histories, print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--drop", nargs="*", default=[], help="kinds of messages")
    given = parser.parse_args()
    made, send, streams = world.World.__init__, network.End.send, [Streams(0)]

    def begun(self: world.World, plan: Any, root: Path) -> None:
        made(self, plan, root)
        streams[0] = Streams(plan.seed)
        for part in (self, self.disk, *self.wires):
            part.rng = streams[0]  # type: ignore[assignment]
        for n, wire in enumerate(self.wires):
            vars(wire)["number"] = n

    def sent(self: network.End, message: Any) -> None:
        kind = type(message).__name__
        if kind in given.drop and not self.cut:
            return
        streams[0].key = f"{vars(self.wire)['number']} {kind}"
        try:
            send(self, message)
        finally:
            streams[0].key = ""

    world.World.__init__, network.End.send = begun, sent  # type: ignore[method-assign]
    logging.disable(logging.ERROR)
    for seed in range(given.first, given.first + given.count):
        found = world.run(seed)
        print(seed, found.turns, found.wrong or found.story[-1].partition(": ")[2], flush=True)


if __name__ == "__main__":
    main()
