"""The quick form of benchmarks/bench_core.py: it runs for every policy of its table, and asserts no seconds."""

from __future__ import annotations

import runpy
from pathlib import Path

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "bench_core.py"))


def test_the_benchmark_of_decisions_has_a_row_for_every_policy_and_size() -> None:
    lines = list(BENCH["rows"]((8, 16), BENCH["POLICIES"], times=1))
    named = [line.split("|")[1].strip() for line in lines[2:]]
    for policy in BENCH["POLICIES"]:
        assert named.count(policy) == 2
    assert len(named) == 2 * (len(BENCH["POLICIES"]) + 1)


def test_a_decision_of_the_benchmark_leases_the_gpus_on_offer() -> None:
    state = BENCH["busy_state"](40)
    free = int(BENCH["FreeGpus"](state=state, by=state.now).free.sum())
    for policy in BENCH["POLICIES"]:
        placed = BENCH["one_decision"](state, policy)
        gpus = [g for p in placed for g in p.gpus]
        assert len(gpus) == len(set(gpus)) <= free
        assert free - len(gpus) < 8, policy
