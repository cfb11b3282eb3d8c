"""The service's settings: file, variables, options, and what they mean for weights and quotas."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from themis.errors import InputError, UnknownName
from themis.jobs import ServiceSettings, check, load_service_settings
from themis.jobs.settings import VARIABLES, ServiceText, settings_faults
from themis.model.settings import Settings

ROOT = Path(__file__).parents[2]


def load(tmp_path: Path, text: str = "", env: dict[str, str] | None = None, **flags: object) -> ServiceSettings:
    """Settings of a file with this text."""
    path = tmp_path / "service.yaml"
    path.write_text(text)
    return load_service_settings(path, env, flags)


def test_an_empty_file_or_none_gives_the_defaults_of_the_core(tmp_path: Path) -> None:
    found = load_service_settings(None)
    assert found == load(tmp_path)
    assert found.settings == Settings()
    assert (found.policy, found.cluster, found.weight("ada"), found.room("ada", {})) == ("themis", None, 1.0, None)


def test_options_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    text, env = (
        "lease: 10m\ntick: 60s\npolicy: fifo\n",
        {"THEMIS_LEASE": "5m", "THEMIS_TICK": "30s", "THEMIS_POLICY": ""},
    )
    found = load(tmp_path, text, env, tick="20s", lease=None)
    assert (found.policy, found.settings.lease_s, found.settings.tick_s) == ("fifo", 300.0, 20.0)


def test_the_example_is_read() -> None:
    found = load_service_settings(ROOT / "examples" / "service.yaml")
    assert found.cluster is not None
    assert (found.policy, found.cluster.gpus, found.cluster.gpu_types) == ("themis:f=0.8", 24, ("V100", "A100"))
    assert [found.weight(user) for user in ("ada", "alan", "grace", "nobody")] == [2.0, 1.0, 1.0, 1.0]


def test_a_quota_leaves_room_by_user_group_or_neither() -> None:
    found = load_service_settings(ROOT / "examples" / "service.yaml")
    assert found.room("ada", {}) == 12
    assert found.room("ada", {"ada": 3, "alan": 8}) == 5
    assert found.room("alan", {"ada": 12, "alan": 9, "grace": 50}) == 0
    assert found.room("grace", {"grace": 50}) is None
    assert found.room("nobody", {"nobody": 1}) == 3


def test_machines_may_be_a_preset_a_shorthand_or_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("machines: [{gpus: 3}]")
    clusters = [load(tmp_path, f"machines: {name}").cluster for name in ("demo-32", "8x4", "lab.yaml")]
    assert [cluster.gpus if cluster else 0 for cluster in clusters] == [32, 32, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("polcy: fifo", "line 1: unknown key 'polcy'. Did you mean 'policy'?"),
        ("policy: fifa", "line 1: unknown policy 'fifa'. Did you mean 'fifo'?"),
        ("lease: 0", "line 1: key 'lease': got 0, expected a time"),
        ("tick: 1h", "key 'lease' is 600 s, shorter than tick, 3600 s"),
        (
            "users: {a: {wight: 2}}",
            "unknown key 'wight' in users.a. Did you mean 'weight'? Known: gpus, group, weight.",
        ),
        ("users:\n  a: {weight: 0}", "line 2: key 'weight' in users.a: got 0, expected a number above 0."),
        ("users: {a: {group: b}}\ngroups: {bb: {}}", "key 'group' in users.a: unknown group 'b'. Did you mean 'bb'?"),
        ("others: {gpus: many}", "key 'gpus' in others: got 'many', expected a whole number."),
        ("machines: demo-23", "unknown cluster 'demo-23'. Did you mean"),
        ("machines: [{gpu: 4}]", "unknown key 'gpu' in machines[0]. Did you mean 'gpus'?"),
        ("machines:\n - {gpus: 1, name: a}\n - {gpus: 1, name: a}", "names machine 'a' twice"),
        ("machines: []", "expected a preset such as"),
        ("a\n---\nb", "a second document begins here"),
        ("[", "not valid YAML"),
        ("{1: 2}", "unknown key 1"),
    ],
)
def test_every_fault_is_told_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    told = [str(fault) for fault in settings_faults(text, tmp_path / "service.yaml")]
    assert expected in " ".join(told)
    with pytest.raises(InputError):
        load(tmp_path, text)


def test_a_fault_of_a_variable_or_an_option_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^variable THEMIS_LEASE: key 'lease': got '5x'"):
        load(tmp_path, env={"THEMIS_LEASE": "5x"})
    with pytest.raises(InputError, match=r"^option --unknown-work: key 'unknown_work': got 0"):
        load(tmp_path, unknown_work="0")
    with pytest.raises(UnknownName, match=r"unknown setting 'polcy'. Did you mean 'policy'?"):
        load(tmp_path, polcy="fifo")


def test_check_tells_settings_from_jobs_and_lists_all_faults(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("users: {a: {group: b}}\nlease: 0\nmachines: [{gpu: 4}]\n")
    assert len(check([path])) == 3
    assert check([ROOT / "examples" / "service.yaml"]) == []


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.sampled_from(["10m", "8x4", "a"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["a", "weight", "gpus", "group", "count", "name", "\x85"]), inner, max_size=3),
    ),
    max_leaves=5,
)


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=100)
@given(
    st.dictionaries(st.sampled_from([*ServiceText.model_fields, "x"]), VALUES, max_size=4),
    st.sampled_from(VARIABLES),
    VALUES,
)
def test_whatever_is_written_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object], key: str, value: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_text(yaml.safe_dump(data))
    faults = [str(fault) for fault in settings_faults(path.read_text(), path)]
    assert not any("\n" in fault for fault in faults)
    try:
        load_service_settings(path, {}, {key: value})
        refused = ""
    except InputError as error:
        refused = str(error)
    assert "\n" not in refused
    assert refused or not faults
