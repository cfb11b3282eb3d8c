"""How names with parameters, seeds and settings are read."""

from __future__ import annotations

import pytest

from themis.errors import InputError
from themis.sim.plan import Plan, make_settings, parse_seeds, split_parameters, split_policies


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["themis,drf"], ["themis", "drf"]),
        (["themis", "drf,fifo"], ["themis", "drf", "fifo"]),
        (["themis:f=0.7,payment=floor,drf"], ["themis:f=0.7,payment=floor", "drf"]),
        (["drf, themis:f=0.7, payment=floor"], ["drf", "themis:f=0.7,payment=floor"]),
        (["themis:f=0.7,themis:f=0.8"], ["themis:f=0.7", "themis:f=0.8"]),
        (["drf,drf", "drf"], ["drf"]),
    ],
)
def test_a_part_with_an_equals_sign_belongs_to_the_policy_before_it(texts: list[str], expected: list[str]) -> None:
    assert split_policies(texts) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("demo", ("demo", {})),
        ("themis1:apps=100,load=1.4", ("themis1", {"apps": "100", "load": "1.4"})),
        ("themis1:models=VGG16:3,ResNet50:1,apps=9", ("themis1", {"models": "VGG16:3,ResNet50:1", "apps": "9"})),
        ("data/jobs.csv:vc=a b", ("data/jobs.csv", {"vc": "a b"})),
        ("odd:name.csv", ("odd:name.csv", {})),
    ],
)
def test_a_workload_takes_its_options_after_a_colon(text: str, expected: tuple[str, dict[str, str]]) -> None:
    assert split_parameters(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("0", [0]), ("0-3", [0, 1, 2, 3]), ("7,1-2", [7, 1, 2]), (" 1 , 1-2 ", [1, 2])]
)
def test_seeds_are_numbers_and_ranges_each_once(text: str, expected: list[int]) -> None:
    assert parse_seeds(text) == expected


def test_settings_take_their_kind_from_the_default() -> None:
    settings = make_settings({"lease_s": "300", "validate": "yes"}, seed=4)
    assert (settings.lease_s, settings.validate, settings.seed) == (300.0, True, 4)


def test_every_policy_of_a_plan_sees_the_same_apps_and_failures() -> None:
    runs = Plan(policies=("drf", "fifo"), seeds=(0, 1), mtbf=200_000.0).runs()
    by = {(r.simulation.policy_name, r.simulation.settings.seed): r.simulation for r in runs}
    assert list(by) == [("drf", 0), ("drf", 1), ("fifo", 0), ("fifo", 1)]
    for seed in (0, 1):
        assert by["drf", seed].workload == by["fifo", seed].workload
        assert by["drf", seed].outages == by["fifo", seed].outages != ()
    assert by["drf", 0].workload != by["drf", 1].workload


def test_a_plan_complains_before_anything_runs() -> None:
    with pytest.raises(InputError, match="mtbf"):
        Plan(mtbf=float("nan")).runs()


def test_a_parameter_of_a_workload_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="hours is there twice"):
        split_parameters("demo:hours=1,hours=2")
    assert split_parameters("themis1:arrivals=0,60,apps=3") == ("themis1", {"arrivals": "0,60", "apps": "3"})
