"""Calls to one host by ssh: what is there, the package, and the machine's side (``machines.agent.hosted``)."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from themis.machines.agent import hosted, landing
from themis.machines.agent.messages import build, parsed
from themis.service.operations.payload import payload
from themis.service.operations.ssh import MARK, Ssh, SshFault
from themis.service.operations.ssh_hosts import Host

CALL_S, SEND_S = 60.0, 300.0
"""Time limits of a call, and of one that sends the package or replaces an agent."""
OLDEST = (3, 11)
FULL = 28
"""errno of a full disk."""
PROBE = """
code='import sys; print("%s %d.%d" % (sys.executable, sys.version_info[0], sys.version_info[1]))'
here() {{ v=$("$1" -c "$code" 2>/dev/null) && [ -n "$v" ] && echo "{mark}python $v"; }}
for p in {pythons}; do here "$p"; done
if [ "$(id -u)" = 0 ]; then f=/opt/themis-agent; else f=~/.local/share/themis-agent; fi
f={folder}
echo "{mark}folder $f"
echo "{mark}from ${{SSH_CONNECTION%% *}}"
for v in "$f"/versions/*/whole; do [ -e "$v" ] && echo "{mark}have $(basename "$(dirname "$v")")"; done
exit 0
"""
UV = "python find --no-python-downloads 2>/dev/null"
PYTHONS = (
    *("python3", "python3.14", "python3.13", "python3.12", "python3.11"),
    *("~/.local/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3"),
    f'"$(uv {UV} || ~/.local/bin/uv {UV})"',
)


@dataclass(frozen=True, slots=True)
class Found:
    """Result of probing a host. ``python`` : interpreter, version. ``origin`` : address of this machine as seen from
    there."""

    python: str
    folder: str
    origin: str
    versions: frozenset[str]


def probe(ssh: Ssh, host: Host) -> Found:
    """Find the host's Python, and what was sent before.

    Raises
    ------
    SshFault : no connection, or no Python that is new enough.
    """
    pythons = shlex.quote(host.python) if host.python else " ".join(PYTHONS)
    script = PROBE.format(mark=MARK, pythons=pythons, folder=shlex.quote(host.folder) if host.folder else '"$f"')
    lines = [line.split(" ", 1) for line in ssh.call(["sh", "-s"], script.encode(), CALL_S)]
    facts = {key: value for key, value in lines if key in ("folder", "from")}
    pythons_there = [value.rpartition(" ") for key, value in lines if key == "python"]
    good = [f"{path} {version}" for path, _, version in pythons_there if _version(version) >= OLDEST]
    if not good:
        oldest = ".".join(map(str, OLDEST))
        there = ", ".join(f"{path} is {version}" for path, _, version in pythons_there) or "none was found"
        where = f"{host.python} is not one" if host.python and not pythons_there else there
        raise SshFault(
            "no-python",
            f"{host.host}: it needs Python {oldest} or later ({where}); install python{oldest}, or name one with python.",
        )
    versions = frozenset(value for key, value in lines if key == "have")
    return Found(good[0], facts["folder"], facts.get("from", ""), versions)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def send(ssh: Ssh, found: Found, version: str) -> None:
    """Send the package.

    Raises
    ------
    SshFault : it cannot be written there.
    """
    python = found.python.rpartition(" ")[0]
    code = Path(landing.__file__).read_text(encoding="utf-8")
    answer = ssh.call([python, "-c", code, found.folder, version], payload().archive, SEND_S)[-1]
    number, _, words = answer.partition(" ")
    if number == str(FULL):
        raise SshFault(
            "disk-full",
            f"{ssh.host}: the disk of {found.folder} is full; the package needs about 10 MB. Free space, or set folder.",
        )
    if number != "0":
        raise SshFault("failed", f"{ssh.host}: the package cannot be written: {words}.")


def ask(ssh: Ssh, request: hosted.Request, verb: str) -> hosted.Seen:
    """Ask the machine's side.

    Raises
    ------
    SshFault : it cannot do it.
    """
    python = f"{request.folder}/versions/{request.version}/bin/python"
    given = json.dumps(asdict(request)).encode()
    answer = ssh.call(
        [python, "-m", "themis.machines.agent.hosted", verb], given, CALL_S if verb == "look" else SEND_S
    )[-1]
    seen: hosted.Seen = build(hosted.Seen, parsed(answer.encode()))
    if seen.error:
        raise SshFault("disk-full" if "No space left" in seen.error else "failed", f"{ssh.host}: {seen.error}")
    return seen
