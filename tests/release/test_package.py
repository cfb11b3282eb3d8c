"""Wheel and sdist: built here, installed into a virtual environment outside of the tree, and used there without network."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from processes import PATIENCE_S, end_all, running, wait_until
from themis import __version__
from themis.version import git_commit, sentence, whole_version

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "themis"


@dataclass(frozen=True)
class Built:
    """The files of one build."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel; its dependencies are those of this interpreter."""

    venv: Path
    folder: Path

    def run(self, *command: object) -> str:
        """Run a program of the environment in an empty folder; what it prints."""
        words = [str(self.venv / "bin" / str(command[0])), *map(str, command[1:])]
        done = subprocess.run(words, cwd=self.folder, env=self.environment(), capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        """A new user's environment."""
        path = f"{self.venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.folder), "THEMIS_DATA_DIR": str(self.folder / "data"), "COLUMNS": "120"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    root = tmp_path_factory.mktemp("installed")
    venv, folder = root / "venv", root / "work"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(built.wheel)], check=True, cwd=root)
    (site,) = venv.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("-packages")]
    (site / "zz_dependencies.pth").write_text("".join(f"{path}\n" for path in shared))
    return Installed(venv, folder)


@pytest.mark.slow
def test_wheel_and_sdist_hold_all_that_the_package_needs(built: Built) -> None:
    """Code, and data: templates, tables, apps of the demo, the mark that it is typed."""
    needed = {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in needed} >= {".py", ".j2", ".css", ".js", ".csv", ".yaml", ".typed"}
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    assert needed <= names
    beyond = {name for name in names - needed if ".dist-info/" not in name and "/share/themis/monitoring/" not in name}
    assert beyond <= {"themis/commit.txt"}
    with tarfile.open(built.sdist) as sdist:
        below = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in needed} <= below
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "hatch_build.py", "CITATION.cff"} <= below
    assert any(name.startswith("deploy/") for name in below)


@pytest.mark.slow
def test_an_index_would_take_the_files(built: Built) -> None:
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", str(built.wheel), str(built.sdist)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_wheel_says_which_version_it_is(installed: Installed) -> None:
    """With the commit, where the build knew it; outside of the tree, git is not asked."""
    known = git_commit(ROOT)
    expected = f"themis {__version__}{f'+{known}' if known else ''} (Python "
    assert installed.run("themis", "--version").startswith(expected)
    assert installed.run("python", "-m", "themis", "--version").startswith(expected)
    where = installed.run("python", "-c", "import themis; print(themis.__file__)")
    assert Path(where.strip()).is_relative_to(installed.venv)


@pytest.mark.slow
def test_its_dependencies_fit(installed: Installed) -> None:
    """``pip check`` has nothing to say about this package."""
    pip = [sys.executable, "-m", "pip", "--python", str(installed.venv / "bin" / "python"), "check"]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert "themis-scheduler" not in done.stdout, done.stdout


@dataclass(frozen=True)
class Service:
    """``themis up`` of the wheel, and the socket where it reports to systemd."""

    process: subprocess.Popen[bytes]
    door: socket.socket


@pytest.fixture
def service(installed: Installed) -> Iterator[Service]:
    """With two virtual GPUs."""
    root = ["--allow-root"] if os.geteuid() == 0 else []
    words = ["up", "--gpus", "2", "--port", "0", "--set", "lease=2", "--set", "tick=1", *root]
    with (installed.folder / "up.log").open("wb") as log:
        command = [str(installed.venv / "bin" / "themis"), *words]
        address = str(installed.venv.parent / "notify")
        env = {**installed.environment(), "NOTIFY_SOCKET": address}
        options = {"cwd": installed.folder, "env": env, "stdout": log, "stderr": log}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
                door.bind(address)
                door.settimeout(PATIENCE_S)
                with running(command, **options) as process:
                    said = installed.folder / "up.log"
                    wait_until(lambda: "Themis schedules 2 GPUs" in said.read_text(), said.read_text)
                    yield Service(process, door)
        finally:
            end_all(installed.folder / "data")


def health_check() -> list[str]:
    """The command by which a container's health is checked."""
    file = (ROOT / "deploy" / "container" / "Containerfile").read_text()
    (command,) = re.findall(r"HEALTHCHECK .*?\n\s+CMD (\[.*\])", file)
    words: list[str] = json.loads(command)
    return words


@pytest.mark.slow
def test_the_wheel_schedules_jobs(installed: Installed, service: Service) -> None:
    """Service up, two jobs, queue, health, shutdown, all reported to systemd; and the simulator with its presets and its page."""
    assert service.door.recv(100) == b"READY=1"
    say = ["--", "python", "-c", "from themis import train; print('world', train.Run().world.world_size)"]
    assert "world 2" in installed.run("themis", "run", "--gpus", "2", "--launch", "gpu", "--name", "first", *say)
    installed.run("themis", "run", "--detach", "--name", "second", "--", "sleep", "600")
    assert "second" in installed.run("themis", "queue")
    installed.run(*health_check())
    assert "cancelled" in installed.run("themis", "cancel", "second")
    assert "first" in installed.run("themis", "history")
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(PATIENCE_S) == 0
    assert service.door.recv(100) == b"STOPPING=1"
    simulate = ("simulate", "-w", "demo:hours=0.5", "-c", "demo-32", "-p", "fifo", "--out", "out", "--quiet")
    installed.run("themis", *simulate)
    assert (installed.folder / "out" / "report.html").stat().st_size > 0


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_version_of_a_checkout_names_its_commit() -> None:
    assert re.fullmatch(re.escape(__version__) + r"(\+g[0-9a-f]{7,}(\.dirty)?)?", whole_version())
    assert sentence() == f"themis {whole_version()} (Python {sys.version.split()[0]})"
    assert git_commit(ROOT / "src") == "", "a folder that is not a checkout of this project has no commit"
