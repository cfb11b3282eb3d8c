"""Every policy that is installed goes through the shipped conformance kit."""

import pytest

from themis.policies.api import make_policy, policy_names
from themis.testing.policies import check_policy


@pytest.mark.parametrize("name", policy_names())
def test_policy_conforms(name: str) -> None:
    check_policy(lambda: make_policy(name))


@pytest.mark.parametrize("payment", ["floor", "randomised", "lottery"])
@pytest.mark.parametrize("rho", ["paper", "exact"])
def test_themis_conforms_in_all_its_forms(payment: str, rho: str) -> None:
    check_policy(lambda: make_policy(f"themis:payment={payment},rho={rho},f=0.5"), seeds=(3,))
