"""A systemd unit for the agent of a machine, so that it serves after every boot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from themis.errors import InputError
from themis.machines.agent.identity import load
from themis.machines.agent.system import UMASK

NAME = "themis-agent.service"
NOTICE_S, MARGIN_S = 30.0, 15.0
"""Seconds for jobs to save when the machine shuts down, and from then until systemd kills the agent."""
UNIT = """\
[Unit]
Description=Themis agent of machine {name}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={python} -m themis.machines.agent.remote --state {state} --notice-s {notice_s:g}
Restart=always
RestartSec=5
# Jobs outlive a restart of the agent; they end with the machine's lease. When the machine shuts down, they save first.
KillMode=process
RestartKillSignal=SIGINT
TimeoutStopSec={stop_s:g}
Delegate=yes

[Install]
WantedBy={target}
"""


def install(state: Path, python: str, notice_s: float = NOTICE_S) -> list[str]:
    """Write the unit and start it; returns what was done, in sentences.

    Raises
    ------
    InputError : the machine has not joined, or systemd does not run here, or it refuses.
    """
    machine, root = load(state), os.geteuid() == 0
    folder = Path("/etc/systemd/system") if root else Path.home() / ".config/systemd/user"
    systemctl = ["systemctl"] if root else ["systemctl", "--user"]
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        raise InputError(
            f"systemd does not run on this machine; start `themis agent run --state {state}` at boot in another way."
        )
    os.umask(UMASK)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    path.unlink(missing_ok=True)  # one of before may have another mode
    path.write_text(text(machine.name, state, python, notice_s, system=root))
    for words in (["daemon-reload"], ["enable", NAME], ["restart", NAME]):
        done = subprocess.run([*systemctl, *words], capture_output=True, text=True, timeout=60.0)
        if done.returncode:
            raise InputError(
                f"{path} was written, and `{' '.join([*systemctl, *words])}` failed: {done.stderr.strip()}"
            )
    out = [f"{path} starts the agent of {machine.name} at every boot; it runs now."]
    if not root and not lingers():
        out.append("Without `loginctl enable-linger` it starts when you log in, and ends when you log out.")
    return out


def lingers() -> bool:
    """Let the account's services start at boot and outlive its sessions; False where that is not allowed."""
    try:
        return subprocess.run(["loginctl", "enable-linger"], capture_output=True, timeout=20.0).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def uninstall() -> None:
    """Stop the unit and remove it, if there is one."""
    root = os.geteuid() == 0
    folder = Path("/etc/systemd/system") if root else Path.home() / ".config/systemd/user"
    if (folder / NAME).exists() and shutil.which("systemctl") is not None:
        systemctl = ["systemctl"] if root else ["systemctl", "--user"]
        subprocess.run([*systemctl, "disable", "--now", NAME], capture_output=True, timeout=60.0)
        (folder / NAME).unlink(missing_ok=True)


def text(name: str, state: Path, python: str, notice_s: float = NOTICE_S, *, system: bool) -> str:
    """The unit."""
    target = "multi-user.target" if system else "default.target"
    times = {"notice_s": notice_s, "stop_s": notice_s + MARGIN_S}
    return UNIT.format(name=name, state=state, python=python, target=target, **times)
