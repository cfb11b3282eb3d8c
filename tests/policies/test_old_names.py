"""Plug-ins that were written for the version before still load: old names of classes work with a warning."""

import pytest

from themis.policies import api


@pytest.mark.parametrize(("old", "new"), [("Pace", api.Cadence), ("Level", api.Granularity)])
def test_an_old_name_is_the_new_class_and_warns(old: str, new: type) -> None:
    with pytest.warns(DeprecationWarning, match=f"api.{old} is deprecated; import {new.__name__} instead"):
        assert getattr(api, old) is new


def test_a_policy_that_imports_the_old_names_runs() -> None:
    source = "from themis.policies.api import Level, Pace\nlevel, pace = Level.JOB, Pace(round_s=60.0)\n"
    names: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        exec(source, names)
    assert names["level"] is api.Granularity.JOB
    assert names["pace"] == api.Cadence(round_s=60.0)


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Tempo'"):
        _ = api.Tempo
