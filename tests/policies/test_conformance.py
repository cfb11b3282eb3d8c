"""Every policy that is installed goes through the shipped conformance kit.

Policies take turns with two of the kit's three random seeds, each of which finds every known fault by itself.
``THEMIS_CONFORMANCE_SEEDS=3`` tries all three on every policy, as plug-ins do by default; ``make soak`` does.
"""

import os

import pytest

from themis.policies.api import make_policy, policy_names
from themis.testing.policies import check_policy

ALL = os.environ.get("THEMIS_CONFORMANCE_SEEDS") == "3"


@pytest.mark.slow
@pytest.mark.parametrize(("turn", "name"), list(enumerate(policy_names())), ids=policy_names())
def test_policy_conforms(turn: int, name: str) -> None:
    check_policy(lambda: make_policy(name), seeds=(0, 1, 2) if ALL else (turn % 2 * 2,))


@pytest.mark.parametrize(
    ("payment", "rho"),
    [(payment, rho) for payment in ("floor", "randomised", "lottery") for rho in ("paper", "exact")]
    if ALL
    else [("floor", "exact"), ("randomised", "paper"), ("lottery", "exact")],
)
def test_themis_conforms_in_all_its_forms(payment: str, rho: str) -> None:
    """What is paid and how rho is estimated are apart in the code, so each value is tried once; ``make soak`` tries all pairs."""
    check_policy(lambda: make_policy(f"themis:payment={payment},rho={rho},f=0.5"), seeds=(3,))
