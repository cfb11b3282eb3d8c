"""Clusters by name, by shorthand and from files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from themis.errors import ClusterError, InputError, UnknownName
from themis.traces.profiles.presets import PRESETS, load_cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCS = Path(__file__).parents[2] / "docs"

SHAPES = {
    "testbed-64": {2: 8, 4: 12},
    "sim-256": {8: 27, 4: 6, 1: 16},
    "sim-168": {8: 16, 4: 6, 1: 16},
    "sim-128": {8: 13, 4: 4, 1: 8},
    "sim-64": {8: 7, 4: 1, 1: 4},
    "truth-64": {8: 1, 2: 28},
    "gavel-108": {4: 27},
    "gavel-36": {4: 9},
    "gavel-48": {4: 12},
    "demo-32": {8: 2, 4: 3, 1: 4},
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_gpus_of_its_name_and_the_documented_machines(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.gpus == int(name.rsplit("-", 1)[1])
    assert Counter(m.gpus for m in cluster.machines) == SHAPES[name]
    assert cluster.name == name
    assert f"`{name}`" in (DOCS / "traces.md").read_text()


def test_machines_of_the_paper_have_four_slots_where_it_says_so_and_racks_of_eight() -> None:
    cluster = load_cluster("sim-256")
    assert {(m.gpus, m.slot) for m in cluster.machines} == {(8, 2), (4, 1), (1, 1)}
    assert max(Counter(m.rack for m in cluster.machines).values()) == 8


def test_an_unknown_preset_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'sim-256'"):
        load_cluster("sim256")


def test_the_shorthand_gives_groups_of_alike_machines_in_racks_of_eight() -> None:
    cluster = load_cluster("9x4/2@V100 + 1x1")
    assert cluster.gpus == 37
    assert (cluster.gpu_types, cluster.racks) == (("V100", "gpu"), ("rack0", "rack1"))
    assert load_cluster("8x4").gpus == 32


@pytest.mark.parametrize("text", ["8x4x2", "8x4+", "8x4+two", "0x4", "8x0", "2x4/8", "99999999x1"])
def test_a_wrong_shorthand_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ClusterError):
        load_cluster(text)


def test_the_shipped_example_is_read_as_documented() -> None:
    cluster = load_cluster(str(EXAMPLES / "cluster.yaml"))
    assert (cluster.name, cluster.gpus, cluster.gpu_types) == ("lab", 17, ("V100",))
    assert [(m.name, m.rack, m.slot) for m in cluster.machines] == [
        ("m000", "rack0", 2),
        ("m001", "rack0", 2),
        ("big", "rack1", 2),
        ("m003", "rack1", 1),
    ]
    body = (EXAMPLES / "cluster.yaml").read_text().split("machines:")[1]
    assert body in (DOCS / "traces.md").read_text()


def test_counted_machines_with_a_name_are_numbered_and_a_rack_of_their_own_does_not_fill_others(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("rack_size: 1\nmachines:\n- {gpus: 2, count: 2, name: n, rack: r}\n- {gpus: 1}\n- {gpus: 1}\n")
    cluster = load_cluster(str(path))
    assert [(m.name, m.rack) for m in cluster.machines] == [
        ("n-0", "r"),
        ("n-1", "r"),
        ("m002", "rack0"),
        ("m003", "rack1"),
    ]
    assert cluster.name == "c"


FAULTS = {
    "machines: [{gpu: 4}]": r"unknown key 'gpu' in machines\[0\]\. Did you mean 'gpus'\?",
    "machine: [{gpus: 4}]": r"unknown key 'machine'\. Did you mean 'machines'\?",
    "machines: [{gpus: 0}]": r"machines\[0\]\.gpus is 0, expected a number of at least 1",
    "machines: [{gpus: four}]": r"machines\[0\]\.gpus is 'four', expected a whole number",
    "machines: [{gpus: true}]": r"machines\[0\]\.gpus is true, expected a whole number",
    "machines: [{gpus: 4, gpu_type: 100}]": r"machines\[0\]\.gpu_type is 100, expected text",
    "machines: [{count: 2}]": r"missing key 'gpus' in machines\[0\]",
    "machines: []": r"machines is \[\], expected at least 1 entries",
    "machines: [8]": r"machines\[0\] is 8, expected a mapping",
    "machines: [{gpus: 2, gpus_per_slot: 4}]": "has 4 GPUs per slot",
    "machines: [{gpus: 2, name: a}, {gpus: 2, name: a}]": "names machine 'a' twice",
    "name: x": "missing key 'machines'",
    "- 8": "expected a mapping with the key machines",
    "": "expected a mapping",
    "machines: &m [*m]": "nested deeper than 40 levels, or within itself",
    "machines: [{gpus: 2}]\n---\nmachines: [{gpus: 4}]": "line [23]: a second document begins here, expected one",
    "machines: [": "line 2: it is not valid YAML",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_wrong_file_is_answered_with_file_key_value_and_expected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ClusterError, match=FAULTS[text]) as caught:
        load_cluster(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_cluster(str(tmp_path / "absent.yaml"))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        load_cluster(str(tmp_path / "bytes.yaml"))


GPUS = {
    "gavel-108": {"V100": 36, "P100": 36, "K80": 36},
    "gavel-36": {"V100": 12, "P100": 12, "K80": 12},
    "gavel-48": {"V100": 8, "P100": 16, "K80": 24},
}


def test_the_shipped_example_of_three_generations_is_read_as_documented() -> None:
    mixed = load_cluster(str(EXAMPLES / "mixed.yaml"))
    assert (mixed.name, Counter(m.gpu_type for m in mixed.machines)) == ("mixed", {"V100": 2, "P100": 2, "K80": 2})


@pytest.mark.parametrize("name", GPUS)
def test_a_preset_of_gavel_has_its_mixture_of_vintages(name: str) -> None:
    gpus: Counter[str] = Counter()
    for machine in load_cluster(name).machines:
        gpus[machine.gpu_type] += machine.gpus
    assert gpus == GPUS[name]


def test_openb_has_the_published_machines_and_types(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEMIS_DATA", str(shared_data))
    cluster = load_cluster("openb")
    assert (len(cluster.machines), cluster.gpus, len(cluster.gpu_types)) == (1213, 6212, 7)
    assert max(Counter(m.rack for m in cluster.machines).values()) == 8
    assert all(len({m.gpu_type for m in cluster.machines if m.rack == rack}) == 1 for rack in cluster.racks[:20])


def test_without_its_folder_openb_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THEMIS_DATA", raising=False)
    with pytest.raises(InputError, match="set THEMIS_DATA to it"):
        load_cluster("openb")


def test_a_node_list_leaves_out_machines_without_gpus(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,gpu,model\na,1,2,T4\nb,1,0,\nc,1,8,A10\n")
    cluster = load_cluster(str(path))
    assert [(m.name, m.gpus, m.gpu_type, m.rack) for m in cluster.machines] == [
        ("a", 2, "T4", "T4-0"),
        ("c", 8, "A10", "A10-0"),
    ]


NODE_FAULTS = {
    "sn,gpu\na,2\n": "column 'model' is missing",
    "sn,gpu,model\na,two,T4\n": "line 2, column 'gpu': got 'two', expected a whole number of GPUs",
    "sn,gpu,model\na,2,\n": "line 2, column 'model': got ''",
    "sn,gpu,model\na,0,T4\n": "no machine with GPUs",
    "sn,gpu,model\na,1,T4\na,1,T4\n": "names machine 'a' twice",
}


@pytest.mark.parametrize("text", NODE_FAULTS)
def test_a_wrong_node_list_is_answered_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=NODE_FAULTS[text]):
        load_cluster(str(path))
