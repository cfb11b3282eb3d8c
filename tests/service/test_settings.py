"""The service's settings: file, variables, options, and what they mean for weights and quotas."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from themis.cli.demo_verb import demo
from themis.cli.live_demo import demo_run
from themis.errors import InputError
from themis.service.engine.config import SETTINGS, Config
from themis.service.operations.service_settings import check, keys, settings_faults
from themis.service.operations.service_settings import load as load_settings

ROOT = Path(__file__).parents[2]


def load(tmp_path: Path, text: str = "", env: dict[str, str] | None = None, **flags: object) -> Config:
    """Settings of a file with this text."""
    path = tmp_path / "service.yaml"
    path.write_text(text)
    return load_settings(path, flags, env or {})


def test_an_empty_file_or_none_gives_the_defaults(tmp_path: Path) -> None:
    assert load_settings(None, {}, {}) == load(tmp_path) == Config()


def test_every_key_of_the_file_arrives(tmp_path: Path) -> None:
    """Each setting is given a value that is not its default; nothing stays as it was."""
    text = """
        gpus: 3
        address: ray-head
        node_root: /srv/themis
        node_token: 3d
        cpus: 5
        memory: 6 GiB
        policy: drf
        between: groups
        profiles: gavel
        lease: 11m
        tick: 50s
        container: 1s
        checkpoint_every: 9m
        unknown_work: 1h
        seed: 4
        host: localhost
        port: 1
        tls: on
        tls_certificate: /etc/ssl/themis.pem
        tls_key: /etc/ssl/themis.key
        tls_names: [gpu.example.org]
        retries: 7
        backoff: 0
        backoff_most: 5m
        grace: 2s
        max_grace: 3s
        node_lease: 60s
        node_renew: 20s
        node_margin: 1s
        progress: 2s
        solve: 5s
        agent_wait: 1s
        agent_misses: 5
        max_agents: 9
        max_message: 1 MiB
        journal_keep: 5d
        audit_keep: 400d
        logs_keep: 6d
        checkpoints_keep: 7d
        max_jobs: 10
        max_apps: 11
        max_apps_per_user: 12
        max_submissions: 13
        allow_root: true
        containment: none
        max_processes: 100
        pass_variables: [HTTPS_PROXY]
        single_trust: true
        gather: 1s
        check_state: true
        max_bundle: 1 MiB
        bundles_quota: 2 MiB
        bundles_keep: 1d
        copy_checkpoints: false
        max_copy: 4 MiB
        copies_quota: 5 MiB
        copies_keep: 2d
        node_cache: 3 MiB
        journal_reserve: 1 MiB
        user_disk: 50%
        disk_reserve: 0
        setup: 1m
        notify: {admins: ["json://127.0.0.1:9"], users: {u: ["json://127.0.0.1:9"]}, events: [failed]}
        oidc: {issuer: "https://sso.example.org", client_id: themis}
        idle_warn: 10m
        idle_cancel: 20m
        price: {V100: 2}
        currency: EUR
        time_zone: Europe/Berlin
        groups: {g: {weight: 2, gpus: 5, budget: {hard: 5}}}
        users: {u: {group: g, gpus: 3, budget: {soft: 1, of: cost, per: day}}}
        others: {weight: 0.5, gpus: 1, budget: {hard: 0}}
    """
    found, default = load(tmp_path, text), Config()
    same = {key for key, of in SETTINGS.items() if getattr(found, of.field) == getattr(default, of.field)}
    assert same == set(SETTINGS) - set(yaml.safe_load(text))
    assert load(tmp_path, "machines: 2x4").cluster
    assert load(tmp_path, "engine: ray").engine == "ray"


def test_options_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    text, env = (
        "lease: 10m\ntick: 60s\npolicy: fifo\n",
        {"THEMIS_LEASE": "5m", "THEMIS_TICK": "30s", "THEMIS_POLICY": ""},
    )
    found = load(tmp_path, text, env, tick="20s", lease=None)
    assert (found.policy, found.lease_s, found.tick_s) == ("fifo", 300.0, 20.0)


def test_the_example_is_read() -> None:
    found = load_settings(ROOT / "examples" / "service.yaml", {}, {})
    assert found.cluster is not None
    assert (found.policy, found.cluster.gpus, found.cluster.gpu_types) == ("fair_finish", 24, ("V100", "A100"))
    assert [found.weight(user) for user in ("ada", "alan", "grace", "nobody")] == [2.0, 1.0, 1.0, 1.0]


def test_quotas_are_of_the_user_the_group_both_or_neither() -> None:
    found = load_settings(ROOT / "examples" / "service.yaml", {}, {})
    vision = frozenset({"ada", "alan"})
    assert found.quotas("ada") == {"user ada": (frozenset({"ada"}), 12), "group vision": (vision, 16)}
    assert found.quotas("alan") == {"group vision": (vision, 16)}
    assert found.quotas("grace") == {}
    assert found.quotas("nobody") == {"user nobody": (frozenset({"nobody"}), 4)}


def test_machines_may_be_a_preset_a_shorthand_or_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("machines: [{gpus: 3}]")
    clusters = [load(tmp_path, f"machines: {name}").cluster for name in ("demo-32", "8x4", "lab.yaml")]
    assert [cluster.gpus if cluster else 0 for cluster in clusters] == [32, 32, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("polcy: fifo", "line 1: unknown key 'polcy'. Did you mean 'policy'?"),
        ("policy: fifa", "line 1: unknown policy 'fifa'. Did you mean 'fifo'?"),
        (
            "policy: hierarchical:round_s=60,file=plan.yaml",
            "line 1: policy hierarchical: file is 'plan.yaml', expected an absolute path",
        ),
        ("lease: 0", "line 1: lease is 0, expected a time"),
        ("tick: 1h", "lease is 600 s, shorter than tick, 3600 s"),
        ("node_renew: 1m", "node_renew is 60 s, not below node_lease, 30 s"),
        ("engine: rya", "expected one of 'local', 'ray'"),
        ("engine: ray\ngpus: 2", "with the engine ray, the machines are Ray's nodes"),
        (
            "engine: fleet\ngpus: 2",
            "with the engine fleet, the machines are those that join with `themis agent join`",
        ),
        ("engine: ray\nnode_root: disk", "line 2: node_root is 'disk', expected an absolute path"),
        ("lease_s: 5", "unknown key 'lease_s'. Did you mean 'lease'?"),
        ("gpu: 1", "unknown key 'gpu'. Did you mean 'gpus'?"),
        ("port: 99999", "port is 99999, expected a whole number from 0 to 65535."),
        ("max_message: 4", "expected memory with its unit"),
        (
            "max_message: 1 KiB",
            "max_message is '1 KiB', expected memory with its unit, from 64 KiB to just below 2 GiB",
        ),
        ("max_message: 2 GiB", "from 64 KiB to just below 2 GiB"),
        (
            "users: {a: {wight: 2}}",
            "unknown key 'wight' in users.a. Did you mean 'weight'? Known: budget, gpus, group, weight.",
        ),
        (
            "users:\n  a: {weight: 0}",
            "line 2: users.a.weight is 0, expected a number from 1e-06 to 1000000.",
        ),
        ("users: {a: {group: b}}\ngroups: {bb: {}}", "key 'group' in users.a: unknown group 'b'. Did you mean 'bb'?"),
        ("others: {gpus: many}", "others.gpus is 'many', expected a whole number from 0 to 1000000000."),
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
    with pytest.raises(InputError, match=r"^variable THEMIS_LEASE: lease is '5x'"):
        load(tmp_path, env={"THEMIS_LEASE": "5x"})
    with pytest.raises(InputError, match=r"^option unknown_work: unknown_work is 0"):
        load(tmp_path, unknown_work="0")
    with pytest.raises(
        InputError, match=r"^option policy: policy hierarchical: file is './a.yaml', expected an absolute"
    ):
        load(tmp_path, policy="hierarchical:file=./a.yaml")
    assert load(tmp_path, policy="hierarchical:file=/a.yaml").policy == "hierarchical:file=/a.yaml"
    with pytest.raises(InputError, match=r"unknown setting 'polcy'. Did you mean 'policy'?"):
        load(tmp_path, polcy="fifo")
    with pytest.raises(InputError, match=r"unknown setting 'lease_s'. Did you mean 'lease'?"):
        load(tmp_path, lease_s="5")
    with pytest.raises(InputError, match="setting 'users' has nested keys"):
        load(tmp_path, users="{}")


def test_an_option_for_gpus_takes_the_place_of_the_machines_of_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, "machines: 2x4", gpus=3).gpus == 3
    assert load(tmp_path, "gpus: 3", machines="2x4").cluster is not None
    with pytest.raises(InputError, match="gpus and machines exclude each other"):
        load(tmp_path, "gpus: 3\nmachines: 2x4")


def test_gpu_types_have_other_names_only_where_they_are_found(tmp_path: Path) -> None:
    text = "gpu_names: {V100-SXM2-16GB: V100}"
    assert load(tmp_path, text).gpu_names == {"V100-SXM2-16GB": "V100"}
    assert load(tmp_path, text, gpus=3).gpus == 3
    with pytest.raises(InputError, match="line 2: gpu_names is for this machine's own GPUs"):
        load(tmp_path, f"engine: ray\n{text}")


def test_check_tells_settings_from_jobs_and_lists_all_faults(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("users: {a: {group: b}}\nlease: 0\nmachines: [{gpu: 4}]\n")
    assert [fault.partition(":")[0][-6:] for fault in check([path])] == ["line 2", "line 3"]
    assert check([ROOT / "examples" / "service.yaml"]) == []
    path.write_text("comand: python train.py\ngpus: 4\n")
    assert any("unknown key 'comand'. Did you mean 'command'?" in fault for fault in check([path]))
    path.write_text("gpus: 4\nname: x\n")
    assert any("missing key 'command'" in fault for fault in check([path]))
    path.write_text("gpus: 4\nportt: 1\n")
    assert any("Did you mean 'port'?" in fault for fault in check([path]))


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
    st.dictionaries(st.sampled_from([*SETTINGS, "x"]), VALUES, max_size=4),
    st.sampled_from(keys()),
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
        load_settings(path, {key: value}, {})
        refused = ""
    except InputError as error:
        refused = str(error)
    assert "\n" not in refused
    assert refused or not faults


def test_service_and_demonstration_have_one_default_policy() -> None:
    defaults = {signature(function).parameters["policy"].default for function in (demo, demo_run.run)}
    assert defaults == {Config().policy} == {"fair_finish"}
