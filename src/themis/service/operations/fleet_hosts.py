"""Machines by ssh: hosts of a list become machines of the service, and their agents stay there.

    hosts (machines.yaml, ``themis fleet add``) -> probe -> package -> join -> agent -> heard by the gateway

Each step is done again only if it is needed, so every command may be repeated. What is wrong with a host is one word and one
sentence (``Report``). Machines dial the service themselves; ssh serves to begin, to replace the agent's version, and to start
an agent that is silent.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from themis.client.home import owner_of
from themis.errors import InputError, ThemisError, counted
from themis.machines.agent import hosted
from themis.machines.agent.identity import make_token, write
from themis.machines.engines.members import LEAVING, LISTEN, REMOVED, Member, Members, authority_folder, members_file
from themis.service.operations.hosting import Found, ask, probe, send
from themis.service.operations.payload import payload
from themis.service.operations.ssh import Ssh, SshFault
from themis.service.operations.ssh_hosts import Host
from themis.trust.authority.contexts import fingerprint_of

TOGETHER = 16
"""Hosts that are worked on at the same time."""
HEARD_S = 30.0
"""Seconds for an agent to be heard after its start."""
SILENT_S = 30.0
"""Seconds of silence after which the service restarts an agent."""
TOKEN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """State of a host.

    Attributes
    ----------
    state : joined (its agent is heard); ready (it can join); silent, outdated, no-way-back, no-gpus, no-python, disk-full, taken,
        unresolved, unreachable, refused, denied, key-unknown, key-changed, failed, leaving, removed.
    sentence : what that means here, and what to do. ``version`` : of the agent that runs there. ``seconds`` : that this took.
    """

    host: str
    machine: str
    state: str
    sentence: str
    gpus: int = 0
    gpu_type: str = ""
    version: str = ""
    boot: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Fleet:
    """The hosts of a data directory.

    Raises
    ------
    InputError : no service with machines that join ran with it.
    """

    home: Path
    _file: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if not members_file(self.home).exists():
            raise InputError(
                f"{self.home} is not the data directory of a service with machines that join; start it with "
                "`themis up --engine fleet --host 0.0.0.0`, or name its directory with --data-dir."
            )

    # ---- the list ------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The file of the hosts."""
        return members_file(self.home).parent / "hosts.json"

    def hosts(self) -> list[Host]:
        """The hosts, by the names of their machines.

        Raises
        ------
        InputError : the file is damaged.
        """
        try:
            return [Host.of(given) for given in json.loads(self.path.read_text())]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:
            raise InputError(f"{self.path} cannot be read ({error}); remove it, and add the hosts again.") from None

    def keep(self, hosts: Sequence[Host]) -> None:
        """Add hosts to the list; those of the same machine are replaced."""
        with self._file:
            known = {host.name: host for host in self.hosts()} | {host.name: host for host in hosts}
            write(self.path, json.dumps([asdict(known[name]) for name in sorted(known)], indent=1))

    def drop(self, name: str) -> None:
        """Remove a host from the list."""
        with self._file:
            write(self.path, json.dumps([asdict(host) for host in self.hosts() if host.name != name], indent=1))

    def members(self) -> dict[str, Member]:
        """The machines that joined and were not removed, by name."""
        with self._members() as members:
            return {member.name: member for member in members.all() if member.state != REMOVED}

    def member(self, name: str) -> Member | None:
        """The member with this name; None if the machine never joined or was removed."""
        return self.members().get(name)

    # ---- one host ------------------------------------------------------------------------------------------------

    def check(self, host: Host) -> Report:
        """Check a host; nothing changes there except that a missing package is sent."""
        return self._reported(host, lambda: self._checked(host)[0])

    def bring(self, host: Host) -> Report:
        """Make a host a machine that serves, with the agent of this version."""
        return self._reported(host, lambda: self._brought(host))

    def end(self, host: Host, wait_s: float) -> Report:
        """Remove a host: its jobs save and continue elsewhere, its token is no longer valid, its agent and files are removed."""
        return self._reported(host, lambda: self._ended(host, wait_s))

    def each(self, work: Callable[[Host], Report], hosts: Sequence[Host]) -> list[Report]:
        """Do this for each host, ``TOGETHER`` at a time; reports in the order of the hosts."""
        with ThreadPoolExecutor(TOGETHER, thread_name_prefix="themis-fleet") as pool:
            return list(pool.map(work, hosts))

    def listed(self) -> list[Report]:
        """Reports on the hosts from the state of the service, without contacting the hosts."""
        out, members = [], self.members()
        for host in self.hosts():
            member = members.get(host.name)
            if member is None:
                out.append(
                    _report(host, "not-joined", f"it has not joined; `themis fleet check {host.name}` says why.")
                )
            elif not recent(member):
                out.append(
                    _report(
                        host,
                        "silent",
                        f"not heard {_since(member)}; `themis fleet check {host.name}` says why.",
                        member,
                    )
                )
            else:
                out.append(
                    _report(
                        host,
                        "joined" if member.state != LEAVING else LEAVING,
                        f"{host.host}: {_serves(member)}",
                        member,
                    )
                )
        return out

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _reported(self, host: Host, work: Callable[[], Report]) -> Report:
        began = time.monotonic()
        try:
            report = work()
        except SshFault as error:
            report = _report(host, error.state, str(error))
        except ThemisError as error:
            report = _report(host, "failed", f"{host.host}: {error}")
        return replace(report, seconds=round(time.monotonic() - began, 1))

    def _checked(self, host: Host) -> tuple[Report, hosted.Request, Found, hosted.Seen]:
        ssh = Ssh(host.host, host.ssh_config)
        found = probe(ssh, host)
        version = payload().version(found.python)
        if version not in found.versions:
            send(ssh, found, version)
        request = self._request(host, found, version)
        seen = ask(ssh, request, "look")
        return self._judged(host, request, seen), request, found, seen

    def _judged(self, host: Host, request: hosted.Request, seen: hosted.Seen) -> Report:
        """The first fault in a machine's answer."""
        member, at = self.member(host.name), host.host

        def wrong(state: str, sentence: str) -> Report:
            return _report(host, state, f"{at}: {sentence}", member, seen)

        if seen.joined and seen.owner != request.owner:
            return wrong(
                "taken", f"it serves another service, at {seen.address}, as {seen.joined}; remove it there first."
            )
        if member is not None and not seen.joined:
            return wrong(
                "taken",
                f"a machine named {host.name} has joined already, and its token is not on this host; give another name, or "
                f"`themis fleet remove {host.name}` first.",
            )
        if not seen.gpus:
            return wrong(
                "no-gpus", f"no GPUs were found there: {seen.gpu_error.replace('Say --gpus N', 'Set gpus: N')}"
            )
        if not seen.reach:
            return wrong(
                "no-way-back",
                f"the service cannot be reached from there ({seen.reach_error}); open the port, listen on another address "
                "than loopback (setting host), or name a reachable one with address.",
            )
        if member is None:
            return wrong("ready", f"it can join with {counted(seen.gpus, 'GPU')} of type {seen.gpu_type}.")
        if not seen.running:
            return wrong("silent", f"its agent does not run; `themis fleet add {host.name}` starts it.")
        if seen.version != request.version:
            return wrong("outdated", f"its agent is of another version; `themis fleet add {host.name}` replaces it.")
        if not recent(member):
            return wrong("silent", f"its agent runs there, and was not heard {_since(member)}.")
        return wrong("joined", _serves(member))

    def _brought(self, host: Host) -> Report:
        report, request, found, seen = self._checked(host)
        if report.state in ("no-way-back", "no-gpus", "taken"):
            return report
        if report.state == "joined" and not _moved(seen, request):
            return report
        if report.state == "ready":
            request = replace(request, token=self._token(host))
        began = time.time()
        seen = ask(Ssh(host.host, host.ssh_config), request, "bring")
        while (member := self.member(host.name)) is None or (member.heard or 0.0) < began:
            if time.time() > began + HEARD_S:
                return _report(
                    host,
                    "silent",
                    f"{host.host}: its agent was started, and was not heard within {HEARD_S:.0f} s; "
                    f"{found.folder}/{host.name}/agent.log there says why.",
                    member,
                    seen,
                )
            time.sleep(0.2)
        did = {"outdated": "its agent was replaced; gangs ran on. "}.get(report.state, "")
        return _report(host, "joined", f"{host.host}: {did}{_serves(member)}", member, seen)

    def _ended(self, host: Host, wait_s: float) -> Report:
        if self.member(host.name) is not None:
            with self._members() as members:
                members.leave(host.name)
        until = time.monotonic() + wait_s
        while self.member(host.name) is not None:
            if time.monotonic() > until:
                return _report(
                    host,
                    "leaving",
                    f"{host.host}: its jobs have not ended within {wait_s:.0f} s, or no service runs; it is removed "
                    f"when they have. Then `themis fleet remove {host.name}` again removes its files.",
                )
            time.sleep(0.2)
        self.drop(host.name)
        try:
            ssh = Ssh(host.host, host.ssh_config)
            found = probe(ssh, host)
            version = payload().version(found.python)
            if version not in found.versions:
                send(ssh, found, version)
            ask(ssh, self._request(host, found, version), "end")
        except SshFault as error:
            return _report(host, "removed", f"{error} The machine is removed; its files are still there.")
        return _report(host, "removed", f"{host.host}: {host.name} is removed, its agent and its files too.")

    def _request(self, host: Host, found: Found, version: str) -> hosted.Request:
        listen, port = self._listen()
        near = [listen] if listen not in ("0.0.0.0", "::") else [found.origin, socket.getfqdn()]
        return hosted.Request(
            name=host.name,
            folder=found.folder,
            version=version,
            owner=owner_of(self.home),
            addresses=(host.address,) if host.address else tuple(dict.fromkeys(filter(None, near))),
            port=port,
            fingerprint=fingerprint_of((authority_folder(self.home) / "ca.pem").read_text()),
            gpus=host.gpus,
            labels=host.labels,
            tasks=host.tasks,
        )

    def _listen(self) -> tuple[str, int]:
        with self._members() as members:
            listen = members.fact(LISTEN)
        if not listen:
            raise InputError(
                f"no service with machines runs with {self.home}; start it with `themis up --engine fleet --host 0.0.0.0`."
            )
        host, _, port = listen.rpartition(":")
        return host.strip("[]"), int(port)

    def _token(self, host: Host) -> str:
        text, secret = make_token(fingerprint_of((authority_folder(self.home) / "ca.pem").read_text()))
        with self._members() as members:
            members.add_token(secret, TOKEN_S, host.rack)
        return text

    @contextmanager
    def _members(self) -> Iterator[Members]:
        with closing(Members(members_file(self.home))) as members:
            yield members


# ---- words -----------------------------------------------------------------------------------------------------------


def _report(
    host: Host, state: str, sentence: str, member: Member | None = None, seen: hosted.Seen | None = None
) -> Report:
    return Report(
        host=host.host,
        machine=host.name,
        state=state,
        sentence=sentence,
        gpus=member.gpus if member else seen.gpus if seen else 0,
        gpu_type=member.gpu_type if member else seen.gpu_type if seen else "",
        version=seen.version if seen else "",
        boot=seen.boot if seen else "",
    )


def recent(member: Member) -> bool:
    """True if its agent was heard within ``SILENT_S``."""
    return member.heard is not None and time.time() - member.heard < SILENT_S


def _since(member: Member) -> str:
    return f"for {time.time() - member.heard:.0f} s" if member.heard else "yet"


def _serves(member: Member) -> str:
    return f"it serves with {counted(member.gpus, 'GPU')} of type {member.gpu_type}, in {member.rack}."


def _moved(seen: hosted.Seen, request: hosted.Request) -> bool:
    return seen.address.rpartition(":")[2] != str(request.port)
