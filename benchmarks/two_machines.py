"""From two bare Debian machines to a gang on both: runs the commands of docs/fleet.md, and says how long each took.

    python benchmarks/two_machines.py ROOT [--mirror http://deb.debian.org/debian]

A machine is a root file system that debootstrap makes below ROOT (Debian's minimal one, with python3, python3-venv and
openssh-server, and nothing of Themis), a network namespace with an address of its own, and its own sshd in it. GPUs are virtual.
Needs root, debootstrap and iproute2; the file systems stay in ROOT for the next run, and are not part of the time. Kernel, clock
and processors are this machine's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

NETWORK, BRIDGE, PORT = "10.203.79", "themis2m", 7435
NAMES = ("bare1", "bare2")
PACKAGES = "python3,python3-venv,openssh-server,iproute2"
THEMIS = [sys.executable, "-m", "themis.cli"]
SSHD = "/usr/sbin/sshd -D -e -o PermitRootLogin=yes -o UsePAM=no -o ListenAddress={address}"
LIST = """\
ssh_config: {config}
machines:
- {{host: bare1, gpus: 1}}
- {{host: bare2, gpus: 1}}
"""
CLIENT = """\
Host bare1
  HostName {network}.2
Host bare2
  HostName {network}.3
Host *
  User root
  IdentityFile {keys}/user
  IdentitiesOnly yes
  UserKnownHostsFile {keys}/known_hosts
  GlobalKnownHostsFile /dev/null
"""
LINE = "echo rank $RANK of $WORLD_SIZE, master $MASTER_ADDR"
PATIENCE_S = 900.0


def run(*words: str | Path, check: bool = True, cwd: Path | None = None) -> str:
    """Run a command to its end; returns what it printed."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd
    )
    if check and done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def bare(root: Path, mirror: str) -> None:
    """The file systems of the machines, made once: one by debootstrap, the other a copy of it."""
    first = root / NAMES[0]
    if not (root / "whole").exists():
        shutil.rmtree(first, ignore_errors=True)
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", first, mirror)
        (root / "whole").touch()
    for name in NAMES[1:]:
        shutil.rmtree(root / name, ignore_errors=True)
        run("cp", "-a", first, root / name)


def boot(root: Path, keys: Path) -> list[subprocess.Popen[bytes]]:
    """Networks, keys and the machines' sshd."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "user")
    (keys / "config").write_text(CLIENT.format(network=NETWORK, keys=keys))
    known, servers = [], []
    for i, name in enumerate(NAMES):
        space, address, disk = f"{BRIDGE}-{name}", f"{NETWORK}.{i + 2}", root / name
        run("ip", "netns", "add", space)
        run("ip", "link", "add", f"{BRIDGE}{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "link", "set", f"{BRIDGE}{i}", "master", BRIDGE, "up")
        run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", space, "link", "set", device, "up")
        for path in ("opt/themis-agent", "var/tmp/themis-agent", "root/.ssh"):
            shutil.rmtree(disk / path, ignore_errors=True)
        (disk / "root/.ssh").mkdir(mode=0o700)
        shutil.copy(keys / "user.pub", disk / "root/.ssh/authorized_keys")
        (disk / "run/sshd").mkdir(exist_ok=True)
        host_key = (disk / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        known.append(f"{address} {host_key[0]} {host_key[1]}\n")
        mounts = f"mount -t proc proc {disk}/proc; mount --rbind /dev {disk}/dev"
        inside = f"{mounts}; exec chroot {disk} {SSHD.format(address=address)}"
        with open(keys / f"{name}.log", "ab") as log:
            servers.append(
                subprocess.Popen(
                    [
                        "ip",
                        "netns",
                        "exec",
                        space,
                        "unshare",
                        "--mount",
                        "--pid",
                        "--fork",
                        "--kill-child",
                        "sh",
                        "-c",
                        inside,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
    (keys / "known_hosts").write_text("".join(known))
    return servers


def halt(servers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Switch the machines off; their file systems stay."""
    for server in servers:
        server.send_signal(signal.SIGKILL)
        server.wait()
    for i, name in enumerate(NAMES):
        run("ip", "netns", "del", f"{BRIDGE}-{name}", check=False)
        run("ip", "link", "del", f"{BRIDGE}{i}", check=False)
    run("ip", "link", "del", BRIDGE, check=False)


def until_up(log: Path) -> None:
    """Wait until ``themis nodes`` shows both machines."""
    end = time.monotonic() + PATIENCE_S
    while run(*THEMIS, "nodes", check=False).count(" up ") < len(NAMES):
        if time.monotonic() > end:
            raise SystemExit(f"the machines did not join within {PATIENCE_S:g} s\n{log.read_text()}")
        time.sleep(0.5)


def main() -> None:
    """Measure, and print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--mirror", default="http://deb.debian.org/debian")
    given = parser.parse_args()
    given.root.mkdir(parents=True, exist_ok=True)
    bare(given.root.resolve(), given.mirror)
    keys = Path(tempfile.mkdtemp(prefix="themis-two-"))
    os.environ["THEMIS_DATA_DIR"] = str(keys / "home")
    (keys / "machines.yaml").write_text(LIST.format(config=keys / "config"))
    servers, service, work = [], None, keys / "work"
    work.mkdir()
    try:
        servers = boot(given.root.resolve(), keys)
        time.sleep(2.0)
        start = time.monotonic()
        with open(keys / "up.log", "wb") as log:
            words = ["up", "--fleet", str(keys / "machines.yaml"), "--listen", f"{NETWORK}.1:{PORT}", "--allow-root"]
            service = subprocess.Popen([*THEMIS, *words, "--port", "0"], stdout=log, stderr=log, cwd=keys)
        until_up(keys / "up.log")
        joined = time.monotonic() - start
        print(f"both machines serve: {joined:.0f} s after `themis up --fleet machines.yaml`", flush=True)
        said = run(*THEMIS, "run", "--gpus", "2", "--", "sh", "-c", LINE, cwd=work)
        print(said.strip(), flush=True)
        done = time.monotonic() - start
        load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors"
        print(f"the gang has run on both: {done:.0f} s ({done / 60:.1f} minutes); {load}")
        print(run(*THEMIS, "show", "0"))
    finally:
        if service is not None:
            service.terminate()
            service.wait(60)
        halt(servers)
        shutil.rmtree(keys, ignore_errors=True)


if __name__ == "__main__":
    main()
