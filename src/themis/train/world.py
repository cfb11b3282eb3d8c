"""Values that a job reads from its environment; every name has a default, so that a script also runs without Themis."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class World:
    """Rank, folders, and when to end."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    attempt: int = 1
    gpus: int = 1
    grace_s: float = 60.0
    target: float = math.inf
    """Steps after which this attempt ends: the whole job's, or those of a rung."""
    checkpoint_dir: Path | None = None
    run_dir: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> World:
        """Read from THEMIS_*, RANK and WORLD_SIZE."""
        env = os.environ if env is None else env
        checkpoint, run = env.get("THEMIS_CHECKPOINT_DIR"), env.get("THEMIS_RUN_DIR")
        return cls(
            rank=int(env.get("RANK", 0)),
            world_size=int(env.get("WORLD_SIZE", 1)),
            local_rank=int(env.get("LOCAL_RANK", 0)),
            attempt=int(env.get("THEMIS_ATTEMPT", 1)),
            gpus=int(env.get("THEMIS_GPUS", 1)),
            grace_s=float(env.get("THEMIS_GRACE_S", 60.0)),
            target=float(env.get("THEMIS_TARGET_STEPS", math.inf)),
            checkpoint_dir=Path(checkpoint) if checkpoint else None,
            run_dir=Path(run) if run else None,
            stop_signal=signal.Signals[env.get("THEMIS_STOP_SIGNAL", "SIGTERM")],
        )

    def told_to_stop(self) -> bool:
        """True if the node agent asked this gang to stop, even if its signal was lost."""
        return self.run_dir is not None and (self.run_dir / "stop").exists()

    def report(self, row: Mapping[str, float | bool | str | Mapping[str, float] | None]) -> None:
        """Report to the scheduler; rank 0 alone does. A report that cannot be written must not end the training."""
        if self.run_dir is None or self.rank != 0:
            return
        line = json.dumps({k: v for k, v in row.items() if v is not None}) + "\n"
        try:
            handle = os.open(self.run_dir / "reports" / "reports.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError:
            return
        try:
            os.write(handle, line.encode())
        except OSError:
            pass
        finally:
            os.close(handle)
