"""The files of deploy/, and shell completion."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processes import PATIENCE_S
from themis.service.operations.service_settings import load

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").rglob("*.service"))
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
THEMIS = Path(sys.executable).with_name("themis")
KNOWN = {
    "ADD",
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "RUN",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
}


def unit(path: Path) -> configparser.SectionProxy:
    """The section Service of a unit."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser["Service"]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, comments dropped, continued lines joined."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.parent.name)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", path.read_text(), flags=re.MULTILINE)
    (tmp_path / "themis.service").write_text(text)
    user = ["--user"] if path.parent.name == "user" else []
    done = subprocess.run(
        ["systemd-analyze", *user, "verify", str(tmp_path / "themis.service")],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "notice"},
    )
    # A key of a later systemd is ignored with a warning.
    faults = [line for line in done.stderr.splitlines() if "DelegateSubgroup" not in line]
    assert (done.returncode, faults) == (0, [])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.parent.name)
def test_the_unit_lets_jobs_save_and_run_on(path: Path) -> None:
    service, settings = unit(path), load(None, {})
    assert service["Type"] == "notify"
    assert service["KillMode"] == "process"
    assert service["Delegate"] == "yes"
    assert service["OOMPolicy"] == "continue"
    minutes = re.fullmatch(r"(\d+)min", service["TimeoutStopSec"])
    assert minutes
    assert int(minutes[1]) * 60 > settings.max_grace_s
    assert float(service["RestartSec"]) < settings.node_lease_s
    # Each would hide GPUs, cgroups, namespaces or files from jobs.
    harmful = {
        "ProtectControlGroups",
        "PrivateDevices",
        "ProtectClock",
        "RestrictNamespaces",
        "ProtectHome",
        "PrivateTmp",
    }
    assert not harmful & set(service)


def test_the_container_is_built_in_two_stages_and_runs_without_root() -> None:
    found = instructions()
    assert {word for word, _ in found} <= KNOWN
    stages = [i for i, (word, _) in enumerate(found) if word == "FROM"]
    assert len(stages) == 2
    (name,) = re.findall(r" AS (\w+)$", found[stages[0]][1])
    final = found[stages[1] :]
    assert [rest for word, rest in final if word == "COPY"] == [f"--from={name} /opt/themis /opt/themis"]
    users = [rest for word, rest in final if word == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    words = [word for word, _ in final]
    assert words.index("HEALTHCHECK") < words.index("ENTRYPOINT") < words.index("CMD")
    assert all(rest.startswith("[") for word, rest in final if word in ("ENTRYPOINT", "CMD", "VOLUME"))


def complete(home: Path, line: str) -> list[str]:
    """What a new interactive bash completes at the end of a line."""
    words = line.split(" ")
    script = (
        f"COMP_WORDS=({' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words) - 1}; "
        '$(complete -p themis | sed "s/.*-F \\([^ ]*\\).*/\\1/") themis; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = bash(home, f". ~/.bashrc; {script}")
    return done.stdout.split()


def bash(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": f"{THEMIS.parent}:/usr/bin:/bin", "COLUMNS": "100"}
    return subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=True
    )


@pytest.mark.slow
def test_bash_completes_verbs_and_options(tmp_path: Path) -> None:
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    # A second command keeps bash as the parent process, by which the shell is found.
    assert "bash" in bash(tmp_path, "themis --install-completion; true").stdout
    assert complete(tmp_path, "themis qu") == ["queue"]
    assert {"cancel", "check", "clusters", "compare"} <= set(complete(tmp_path, "themis c"))
    assert "--watch" in complete(tmp_path, "themis queue --w")


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "check"), [("zsh", "zsh -n"), ("fish", "fish -n")])
def test_the_completion_of_other_shells_is_made(shell: str, check: str, tmp_path: Path) -> None:
    """Its syntax is checked where the shell is installed."""
    env = {"HOME": str(tmp_path), "PATH": f"{THEMIS.parent}:/usr/bin:/bin", "_THEMIS_COMPLETE": f"source_{shell}"}
    done = subprocess.run([str(THEMIS)], capture_output=True, text=True, env=env, check=True)
    assert "_THEMIS_COMPLETE" in done.stdout
    if shutil.which(shell):
        subprocess.run(check.split(), input=done.stdout, text=True, check=True)
