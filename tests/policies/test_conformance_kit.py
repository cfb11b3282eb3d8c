"""The conformance kit must be able to fail: policies with one fault each are caught."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest

from themis.errors import InvariantBroken
from themis.model.answers import GpuGrant, Solved
from themis.model.snapshot import Snapshot
from themis.policies.api import ON_FREE_GPUS, Cadence, Granularity, Workbench
from themis.policies.drf import Drf
from themis.testing.policies import check_policy


@dataclass(frozen=True)
class Faulty:
    """DRF with a fault."""

    fault: str
    memory: list[int] = field(default_factory=list)

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        solved = Drf()(snapshot, bench)
        grant = solved.answer
        assert isinstance(grant, GpuGrant)
        self.memory.append(1)
        keep = np.ones(len(grant.app), dtype=bool)
        match self.fault:
            case "takes too much":
                return replace(solved, answer=replace(grant, gpus=grant.gpus + 1))
            case "leases too long":
                return replace(solved, answer=replace(grant, until=grant.until + 1e6))
            case "breaks gangs":
                return replace(solved, answer=replace(grant, gang=np.arange(len(grant.gang)), gpus=grant.gpus * 0 + 1))
            case "idles":
                keep = grant.gang < grant.gang.max(initial=0)
            case "remembers":
                keep = grant.gang != len(self.memory) % 2 if len(np.unique(grant.gang)) > 2 else keep
            case "hides state in the bench":
                bench.caches["calls"] = bench.caches.get("calls", 0) + 1
                keep = grant.gang != bench.caches["calls"] % 2 if len(np.unique(grant.gang)) > 2 else keep
            case "writes to the snapshot":
                snapshot.free[:] = 0
        columns = {n: getattr(grant, n)[keep] for n in ("app", "gang", "machine", "gpus", "until", "extend")}
        return replace(solved, answer=GpuGrant(**columns))


FAULTS = (
    "takes too much",
    "leases too long",
    "breaks gangs",
    "idles",
    "remembers",
    "hides state in the bench",
    "writes to the snapshot",
)


# Seed 1 alone does not find the policy that remembers, so test_conformance.py uses it only together with the others.
@pytest.mark.parametrize("seed", [0, 2] if os.environ.get("THEMIS_CONFORMANCE_SEEDS") == "3" else [0])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_seed_of_the_kit_catches_a_policy_that(fault: str, seed: int) -> None:
    with pytest.raises((AssertionError, ValueError, InvariantBroken)):
        check_policy(lambda: Faulty(fault), seeds=(seed,))


def test_kit_passes_the_same_policy_without_a_fault() -> None:
    check_policy(lambda: Faulty("none"), seeds=(0,))
