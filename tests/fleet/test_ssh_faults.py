"""What is wrong with a host is one word and one sentence; hosts with nothing wrong join. Real sshd, real keys, real disks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon
from test_ray_life import node

from fleetmachines import free_port
from processes import PATIENCE_S, wait_until
from sshmachines import SshMachines, ssh_machines
from themis.errors import InputError
from themis.service.operations.ssh_hosts import read_hosts

# They share the addresses of their networks.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("netns")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SshMachines, Daemon]]:
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_machines(folder / "net", "m0", "m1", "m2") as hosts:
        options = ("--engine", "fleet", "--host", hosts.network.address, "--port", str(free_port()))
        # An agent that is replaced renews its machine's lease; on a busy machine that takes more than four seconds.
        settings = ["node_lease=15" if word.startswith("node_lease") else word for word in QUICK]
        with daemon(folder / "home", options=options, settings=settings) as service:
            yield hosts, service


def themis(service: Daemon, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """``themis fleet`` on the service's machine; ``path`` : before the installed package."""
    code = f"import sys; sys.path[:0] = {[path] if path else []!r}; from themis.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "fleet", *words, "--data-dir", str(service.home)],
        capture_output=True, text=True, timeout=2 * PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def states(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """State and sentence of each machine."""
    assert done.stdout, done.stderr
    return {row["machine"]: (row["state"], row["sentence"]) for row in json.loads(done.stdout)}


def test_each_fault_of_a_host_has_its_word_and_its_sentence(world: tuple[SshMachines, Daemon], tmp_path: Path) -> None:
    hosts, service = world
    at = hosts.network.at
    extra = (
        f"Host closed\n  HostName {at('m0')}\n  Port 9\n"
        f"Host stranger\n  HostName {at('m0')}\n  HostKeyAlias m0\n  User nosuch\n"
        f"Host unknown\n  HostName {at('m0')}\n  HostKeyAlias unknown\n"
        f"Host changed\n  HostName {at('m0')}\n  HostKeyAlias changed\n"
        f"Host away\n  HostName {at('m0').rpartition('.')[0]}.99\n"
        + "".join(
            f"Host {name}\n  HostName {at('m1')}\n  HostKeyAlias m1\n" for name in ("nopython", "old", "nogpu", "far")
        )
    )
    config = tmp_path / "config"
    config.write_text(extra + hosts.config.read_text())
    hosts.trust("changed", "m1")
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\necho "/usr/bin/python3.9 3.9"\n')
    old.chmod(0o755)
    hosts.off("m2")
    hosts.boot("m2", size="2m")
    common = f"folder: {hosts.own}/opt\nssh_config: {config}\npython: {sys.executable}\nmachines:\n"
    plain = ("nosuch.invalid", "closed", "stranger", "unknown", "changed", "away", "m2")
    listed = tmp_path / "machines.yaml"
    listed.write_text(
        common
        + "".join(f"- {{host: {name}, gpus: 1}}\n" for name in plain)
        + "- {host: nopython, gpus: 1, python: /no/python}\n"
        + f"- {{host: old, gpus: 1, python: {old}}}\n"
        + "- {host: nogpu}\n"
        + f"- {{host: far, gpus: 1, address: {at('m2')}}}\n"
    )
    done = themis(service, "add", "--file", str(listed), "--json")
    assert done.returncode == 1, done.stderr
    found = states(done)
    expected = {
        "nosuch.invalid": ("unresolved", "its name cannot be resolved"),
        "closed": ("refused", "nothing listens on its ssh port"),
        "stranger": ("denied", "ssh-copy-id stranger"),
        "unknown": ("key-unknown", "run `ssh unknown` once"),
        "changed": ("key-changed", "ssh-keygen -R changed"),
        "away": ("unreachable", "no route to it"),
        "m2": ("disk-full", "Free space"),
        "nopython": ("no-python", "/no/python is not one"),
        "old": ("no-python", "/usr/bin/python3.9 is 3.9"),
        "nogpu": ("no-gpus", "Set gpus: N"),
        "far": ("no-way-back", "the service cannot be reached from there"),
    }
    for name, (state, words) in expected.items():
        assert found[name][0] == state, found[name]
        assert words in found[name][1], found[name]
        assert found[name][1].startswith(f"{name}: ")
        assert "\n" not in found[name][1]
    assert not list(hosts.seen("m2", hosts.own).glob("opt/versions/*")), "nothing is left of what was not whole"
    assert all(state == "not-joined" for state, _ in states(themis(service, "list", "--json")).values())
    assert themis(service, "remove", *expected).returncode == 0
    assert json.loads(themis(service, "list", "--json").stdout) == []


def test_a_host_joins_once_and_an_agent_of_another_version_is_replaced_while_its_gang_runs(
    world: tuple[SshMachines, Daemon], tmp_path: Path
) -> None:
    hosts, service = world
    listed = hosts.listed(tmp_path / "machines.yaml", names=["m0", "m1"])
    assert states(themis(service, "add", "-f", str(listed), "--json")).keys() == {"m0", "m1"}
    wait_until(lambda: node(service, "m0") == node(service, "m1") == "up 0", "both serve")
    wait_until(lambda: len(hosts.agents("m0")) == 2, "both processes of its agent run")
    agents = hosts.agents("m0")
    again = themis(service, "add", "m0", "m1")
    assert again.returncode == 0, again.stdout
    assert hosts.agents("m0") == agents, "nothing was done again"
    with service.client() as client:
        app = client.run(
            ["sh", "-c", "echo $$ > $THEMIS_CHECKPOINT_DIR/pid; exec sleep 25"], gpus=2, hours=0.01, launch="gpu"
        ).app
        wait_until(lambda: node(service, "m0") == node(service, "m1") == "up 1", "the gang runs")
        newer = tmp_path / "newer"
        package = Path(sys.modules["themis"].__path__[0])
        shutil.copytree(package, newer / "themis", ignore=shutil.ignore_patterns("__pycache__"))
        (newer / "themis" / "commit.txt").write_text("gnewer\n")
        assert states(themis(service, "check", "--json", path=str(newer)))["m0"][0] == "outdated"
        done = states(themis(service, "add", "m0", "m1", "--json", path=str(newer)))
        assert done["m0"][0] == "joined"
        assert "its agent was replaced; gangs ran on" in done["m0"][1]
        assert not set(hosts.agents("m0")) & set(agents)
        assert client.wait(app, timeout_s=PATIENCE_S).state == "completed", service.said()
        assert len(client.show(app).jobs[0].attempts) == 1, "it ran on"
    assert themis(service, "remove", "m0", "m1").returncode == 0
    assert hosts.agents("m0") == []
    assert not hosts.seen("m0", hosts.own / "opt").exists(), "the package is removed with the last machine"
    assert not hosts.seen("m0", hosts.tasks("m0")).exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("machines: [gpu1, gpu1]", "line 1: two machines are named 'gpu1'"),
        ("machines:\n- host: gpu1\n  gpu: 2", "line 3: unknown key 'gpu'; expected one of host, gpus"),
        ("machines:\n- host: -oProxyCommand=id", "line 2: host is '-oProxyCommand=id', expected a name or an address"),
        ("machines:\n- host: gpu1\n  gpus: two", "line 3: gpus is 'two', expected a whole number"),
        ("machines: []", "expected the key machines with a list of hosts"),
        ("machines: [gpu1", "line "),
        ("- gpu1", "expected the key machines"),
        ("machines:\n- {host: gpu1, folder: here}", "line 2: host gpu1: folder is 'here', expected an absolute path"),
    ],
)
def test_a_list_of_hosts_that_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "machines.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        read_hosts(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_up_refuses_such_a_list_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "themis.cli", "up", "--fleet", str(tmp_path / "none"), "--data-dir", str(tmp_path / "home")],
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No such file" in done.stderr
