"""Calls to machines through the system's ``ssh``: keys, ports and jump hosts are those of ``~/.ssh/config``.

``BatchMode`` : ssh asks nothing, so a machine that wants a password or shows an unknown key is a fault with a sentence.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from themis.errors import InputError, ThemisError

OPTIONS = (
    *("-T", "-a", "-x"),
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=4"),
)
MARK = "THEMIS:"
"""Begin of lines that are ours: a login shell may print others."""
HOST = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@:%-]{0,250}")
FAULTS: tuple[tuple[str, str, str], ...] = (
    (
        "could not resolve hostname",
        "unresolved",
        "its name cannot be resolved; check the spelling, DNS, or HostName in {config}",
    ),
    (
        "remote host identification has changed",
        "key-changed",
        "its host key is not the one in known_hosts: it was installed again, or another machine answers; if that is right, "
        "`ssh-keygen -R {host}`, then `ssh {host}` once",
    ),
    (
        "host key verification failed",
        "key-unknown",
        "its host key is not known here; run `ssh {host}` once as this user, and compare the key",
    ),
    (
        "permission denied",
        "denied",
        "it refuses the login; put this user's public key there with `ssh-copy-id {host}`, or name the key in {config}",
    ),
    (
        "too many authentication failures",
        "denied",
        "it refuses the login after too many keys; name one with IdentityFile in {config}",
    ),
    ("connection refused", "refused", "nothing listens on its ssh port; start sshd there, or set Port in {config}"),
    ("timed out", "unreachable", "it does not answer; check that it is on, and the firewall"),
    ("no route to host", "unreachable", "there is no route to it; check that it is on, and the network"),
    ("network is unreachable", "unreachable", "there is no route to it; check the network"),
)
"""(What ssh prints, state, sentence); the first that matches."""


class SshFault(ThemisError):
    """A machine cannot be used, and why. ``state`` : one word for it."""

    def __init__(self, state: str, sentence: str) -> None:
        super().__init__(sentence)
        self.state = state


@dataclass(frozen=True, slots=True)
class Ssh:
    """Connection settings of one machine. ``config`` : file for ``ssh -F``; empty for the user's own."""

    host: str
    config: str = ""

    def call(self, command: Sequence[str], given: bytes, timeout_s: float) -> list[str]:
        """Run a command there; returns its lines with ``MARK``, without it.

        Raises
        ------
        SshFault : no connection, or the command failed without such a line.
        """
        own = ["-F", self.config] if self.config else []
        words = [ssh_program(), *own, *OPTIONS, "--", self.host, shlex.join(command)]
        try:
            done = subprocess.run(words, input=given, capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise SshFault("unreachable", f"{self.host}: it gave no answer within {timeout_s:.0f} s.") from None
        said = done.stderr.decode(errors="replace")
        lines = [
            line[len(MARK) :] for line in done.stdout.decode(errors="replace").splitlines() if line.startswith(MARK)
        ]
        if done.returncode == 255 and not lines:
            raise self.fault(said)
        if not lines:
            raise SshFault(
                "failed", f"{self.host}: a command there failed: {_last(said) or f'exit code {done.returncode}'}."
            )
        return lines

    def fault(self, said: str) -> SshFault:
        """Reason why there is no connection, from ssh's output."""
        config = self.config or "~/.ssh/config"
        for words, state, sentence in FAULTS:
            if words in said.lower():
                return SshFault(state, f"{self.host}: {sentence.format(host=self.host, config=config)}.")
        return SshFault("failed", f"{self.host}: ssh failed: {_last(said) or 'without a message'}.")


def ssh_program() -> str:
    """The system's ssh.

    Raises
    ------
    InputError : there is none.
    """
    found = shutil.which("ssh")
    if found is None:
        raise InputError("the command ssh is not installed on this machine; install OpenSSH's client (openssh-client).")
    return found


def _last(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".")[:300] if lines else ""
