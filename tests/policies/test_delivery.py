"""No gang is stopped for GPUs that then idle, and no GPU idles while a waiting job fits: every policy but two that idle on purpose.

The conformance kit checks one random instance of each policy; ``THEMIS_DELIVERY_SEEDS=100`` tries so many more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from themis.policies.api import make_policy, policy_names
from themis.testing.builders import uneven_simulation
from themis.testing.policies import check_delivered, check_delivery

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("THEMIS_DELIVERY_SEEDS", "0"))


def test_only_policies_that_save_costs_idle_on_purpose() -> None:
    assert {name for name in policy_names() if not make_policy(name).pace.spare} == {"min_cost", "min_cost_slo"}
    assert not make_policy("max_min_fairness:spare=false").pace.spare
    assert not make_policy("isolated:spare=false").pace.spare


@pytest.mark.skipif(
    not SEEDS, reason="set THEMIS_DELIVERY_SEEDS to try more random instances than the conformance kit does"
)
@pytest.mark.parametrize("name", [name for name in policy_names() if make_policy(name).pace.spare])
def test_no_gpu_idles_while_a_waiting_job_fits(name: str) -> None:
    for seed in range(100, 100 + SEEDS):
        check_delivery(lambda: make_policy(name), seed)


@pytest.mark.parametrize("step_s", [30.0, 120.0])
@pytest.mark.parametrize("name", ["themis", "drf", "gandiva", "srtf"])
def test_nor_where_leases_end_together_at_steps_of_the_settings(name: str, step_s: float) -> None:
    simulation = uneven_simulation(make_policy(name), 11)
    check_delivered(replace(simulation, settings=replace(simulation.settings, step_s=step_s)))


@pytest.mark.parametrize("name", ["themis", "round_robin", "shockwave", "drf", "ossp"])
def test_without_the_rule_they_did(name: str) -> None:
    simulation = uneven_simulation(make_policy(name), 0)
    before = replace(simulation, settings=replace(simulation.settings, renew_idle=False))
    with pytest.raises(AssertionError, match="GPUs idle although jobs wait that fit by count"):
        check_delivered(before)


def test_the_table_of_the_page_is_printed_in_its_quick_form() -> None:
    command = [sys.executable, str(ROOT / "reproduction" / "delivered_idle.py"), "--quick", "--policies", "drf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in done.stdout.splitlines() if line[:1] == "|"]
    idle = next(row for row in cells if row[:2] == ["themis2", "drf"])
    assert float(idle[3]) <= 1.0
