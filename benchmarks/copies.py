"""Processor time of the service for copies: ``python benchmarks/copies.py FOLDER [--mib 256]``.

A job on one machine writes a checkpoint of random bytes and is preempted; it goes on on another machine, which has none of its
files. Both machines are here, each with an agent and folders of its own, and this process does what the service does. Prints the
seconds of processor time of this process alone, for the way to the service and for the way from it.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import resource
import time
from pathlib import Path

from themis.machines.agent.messages import THROUGH_SERVICE
from themis.machines.engines.copies import Copies
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.machines.engines.program import Program
from themis.model.cluster import Machine
from themis.model.events import Grant, JobStopped
from themis.testing.builders import app, job


def cpu_s() -> float:
    """Processor time of this process, user and system, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mib", type=int, default=256)
    given = parser.parse_args()
    line = (
        f"if [ $THEMIS_ATTEMPT = 1 ]; then head -c {given.mib}M /dev/urandom > $THEMIS_CHECKPOINT_DIR/x; else "
        "test -s $THEMIS_CHECKPOINT_DIR/x; fi; exit 75"
    )
    program = Program(argv=("sh", "-c", line), grace_s=5.0, checkpoint_url=THROUGH_SERVICE)
    heard: queue.SimpleQueue[object] = queue.SimpleQueue()
    kept = Copies(given.folder / "copies", 1 << 40, 1 << 40)
    executor = LocalExecutor(
        given.folder / "run",
        [Host(machine=Machine(name=f"m{n}", gpus=1)) for n in range(2)],
        lambda app, index: program,
        heard.put,
        heard.put,
        settings=NodeSettings(lease_s=60.0, renew_s=10.0),
        allow_root=os.geteuid() == 0,
        copies=kept,
    )
    executor.admit(0, app("a", [job(1e6, (1, 8), name="j")]))

    def run(attempt: int) -> None:
        grant = Grant(
            app=0, job=0, attempt=attempt, gpus=(attempt - 1,), seat=0, until=1e9, locality=1, target=1e6, score=1.0
        )
        executor.submit(grant)
        while not isinstance(heard.get(), JobStopped):
            pass
        executor.recorded(0, attempt)

    def stored() -> bool:
        return bool(kept.of_app(0)) and kept.of_app(0)[0].bytes > given.mib << 20

    with executor:
        began, at = cpu_s(), time.monotonic()
        run(1)
        while not stored():
            time.sleep(0.1)
        there, there_at = cpu_s(), time.monotonic()
        run(2)
        back, back_at = cpu_s(), time.monotonic()
    gib = given.mib / 1024
    print(
        json.dumps(
            {
                "mib": given.mib,
                "cpu_s": [round(there - began, 2), round(back - there, 2)],
                "to_service_cpu_s_per_gib": round((there - began) / gib, 2),
                "from_service_cpu_s_per_gib": round((back - there) / gib, 2),
                "wall_s": [round(there_at - at, 1), round(back_at - there_at, 1)],
            }
        )
    )
    kept.close()


if __name__ == "__main__":
    main()
