"""Two-queue Tiresias by hand."""

from __future__ import annotations

import pytest
from policy_cases import after, dealt

from themis.errors import InputError
from themis.policies.tiresias import Tiresias
from themis.policies.tiresias_2q import Tiresias2Q
from themis.testing.builders import app, job, machines, snapshot_of

THREE = snapshot_of(machines(1), [app(n, [job(9000.0)], float(i)) for i, n in enumerate("abc")], now=900.0)
"""One GPU, leases of 600 s: the first queue ends at 600 GPU-seconds."""


def test_within_a_queue_the_first_comes_first_whatever_it_has_had() -> None:
    s = after(THREE, app_attained=[600, 599, 10])
    assert dealt(Tiresias2Q(), s) == [0, 1, 0]
    assert dealt(Tiresias(), s) == [0, 0, 1]


def test_the_second_queue_is_first_in_first_out_too() -> None:
    assert dealt(Tiresias2Q(), after(THREE, app_attained=[9000, 700, 600])) == [1, 0, 0]


def test_weight_raises_what_an_app_may_have_in_the_first_queue() -> None:
    """The mean weight is 4/3, so an app of weight 2 may have 1.5 times 600 GPU-seconds."""
    for had, first in ((899, [1, 0, 0]), (900, [0, 1, 0])):
        assert dealt(Tiresias2Q(), after(THREE, app_attained=[had, 10, 10], app_weight=[2, 1, 1])) == first
    assert dealt(Tiresias2Q(threshold=0.5), after(THREE, app_attained=[450, 10, 10], app_weight=[2, 1, 1])) == [0, 1, 0]


@pytest.mark.parametrize("scale", [0.1, 2, 3, 1e6])
@pytest.mark.parametrize("weights", [(1, 1, 1), (0.5, 1, 3)])
def test_the_scale_of_weights_does_not_count(weights: tuple[float, ...], scale: float) -> None:
    """Weight 2 for all was twice the threshold."""
    for had in ([600, 10, 10], [599, 10, 10], [150, 1200, 600], [300, 700, 1300]):
        one = after(THREE, app_attained=had, app_weight=weights)
        other = after(THREE, app_attained=had, app_weight=[w * scale for w in weights])
        assert dealt(Tiresias2Q(), other) == dealt(Tiresias2Q(), one)


def test_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="threshold is 0"):
        Tiresias2Q(threshold=0)
