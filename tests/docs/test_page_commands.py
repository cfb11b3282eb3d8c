"""Every command in the shell blocks of the pages runs, or is listed here with the reason why it does not."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from processes import running, wait_until

ROOT = Path(__file__).parents[2]
TESTED = {
    "README.md": "tests/house/test_documents.py",
    "CONTRIBUTING.md": "make, and the release",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
    "docs/how-a-decision-is-made.md": "tests/docs/test_worked_example.py",
    "docs/deploy.md": "root, systemd, Podman and a released wheel; tests/release runs its units and the wheel",
    "docs/tls.md": "a second machine, and an address that is not the loopback; tests/trust runs both ends",
}
"""Pages that are not run here: the test that runs them, or what they need."""
NOT_RUN = {
    'curl -N -H "$token" http://127.0.0.1:7433/v1/apps/3/agent': "tests/service/test_agent_sdk.py",
    'curl -H "$token" -H "Content-Type: application/json" http://127.0.0.1:7433/v1/answers': "the same",
    "prometheus ": "Prometheus; tests/service/test_monitoring.py checks its file",
    "pip install": "a package index",
    "themis login": "a terminal and a provider of OpenID Connect; tests/service/test_oidc.py",
    "# ": "said by a command",
    "themis trace convert raw-traces.tar.gz": "the trace of Helios; tests/traces",
    "themis fetch sweep --job 3": "the page's sweep; tests/service/test_fetch.py",
    "themis submit trace.csv": "PyTorch; tests/service/test_play.py",
    "themis submit themis1:apps=30": "hours; tests/service/test_play.py",
}
"""Begin of a command: what it needs, or the test that runs it."""
ENDS = {"curl -N": 124}
"""Begin of a command that follows something without end: its exit code when its time is over."""
FILES = {
    "config.yaml": "lease_s: 60\n",
    "requirements.txt": "",
    "train.py": "import pathlib\npathlib.Path('results').mkdir(exist_ok=True)\npathlib.Path('results/r').write_text('x')\n",
    "lab.csv": "model,batch,gpu_type,gpus,steps_per_s\nlab-net,64,V100,1,4.39\nlab-net,64,V100,4,9.45\n",
    "lab.yaml": "machines:\n- {count: 2, gpus: 4, gpu_type: V100}\n",
    "jobs.csv": "app,submit_s,duration_s,gpus,user\na,0,600,1,ada\nb,60,1200,4,bob\n",
    "sacct.txt": "JobID|User|Submit|Elapsed|Start|End|State|AllocTRES|NNodes\n"
    "1|ada|2026-01-01T00:00:00|00:59:00|2026-01-01T00:01:00|2026-01-01T01:00:00|COMPLETED|gres/gpu=2|1\n",
}
MOST_S = 600


def documents() -> list[Path]:
    """The pages at the root and in ``docs``."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def typed(page: Path) -> Iterator[str]:
    """Lines as they are typed: continued ones joined, quotes and comments kept."""
    for block in re.findall(
        r"^```(?:sh|shell|bash)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        yield from (line for line in block.replace("\\\n", "").splitlines() if line.strip())


def pages() -> dict[str, list[str]]:
    """Commands of each page that is not tested elsewhere, without those that are not run."""
    found = {str(page.relative_to(ROOT)): list(typed(page)) for page in documents()}
    return {
        name: [line for line in lines if not line.startswith(tuple(NOT_RUN))]
        for name, lines in found.items()
        if lines and name not in TESTED
    }


def test_what_is_not_run_is_on_a_page() -> None:
    lines = [line for page in documents() for line in typed(page)]
    assert [begin for begin in NOT_RUN if not any(line.startswith(begin) for line in lines)] == []
    assert [page for page in TESTED if not (ROOT / page).is_file()] == []


class Shell:
    """A user's shell: a home and a folder of its own, the examples, and the files that the pages name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "HOME": str(folder), "PATH": path, "COLUMNS": "160"}
        self.env.pop("THEMIS_HOME", None)
        shutil.copytree(ROOT / "examples", folder / "examples")
        shutil.copy(ROOT / "examples" / "trace.csv", folder)
        shutil.copy(ROOT / "examples" / "entities.yaml", folder / "plan.yaml")
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "jobs.csv.gz").write_bytes(gzip.compress(FILES["jobs.csv"].encode()))

    def line(self, line: str) -> str:
        """A page's line with this shell's port and folders in place of the page's."""
        for old, new in {"7433": self.port, " /backups": " backups", " /var/lib": " var", "8@A100": "8@gpu"}.items():
            line = line.replace(old, new)
        return line

    def run(self, line: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Exit code and output of a line."""
        follows = next((begin for begin in ENDS if line.startswith(begin)), None)
        command = ["timeout", "3" if follows else str(MOST_S), "bash", "-c", self.line(line)]
        ran = subprocess.run(
            command, cwd=self.folder, env={**self.env, **(env or {})}, text=True, capture_output=True, check=False
        )
        return 0 if follows and ran.returncode == ENDS[follows] else ran.returncode, ran.stdout + ran.stderr

    def up(self, line: str, home: str) -> Iterator[None]:
        """A service, started as the line says, until the generator ends."""
        root = " --allow-root" if os.getuid() == 0 else ""
        log = self.folder / f"{home}.log"
        with (
            log.open("w") as out,
            running(["bash", "-c", f"exec {line}{root}"], cwd=self.folder, env=self.env, stdout=out, stderr=out) as up,
        ):
            wait_until(lambda: up.poll() is not None or "Themis schedules" in log.read_text(), f"{line} is up")
            assert up.poll() is None, f"{line}\n{log.read_text()}"
            yield


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.unfoldable  # a plan that a page names is a file of this folder
def test_every_command_of_the_pages_runs(tmp_path: Path) -> None:
    """Page by page, in their order, next to one service; a page's own service runs beside it for a moment."""
    shell, wrong, ran = Shell(tmp_path), list[str](), 0
    code, said = shell.run("themis simulate --workload demo:hours=14 -p themis --out out/demo -q")
    assert code == 0, said
    for _ in shell.up(f"themis up --gpus 8 --port {shell.port} --set tick=2s --set single_trust=true", ".themis"):
        for name in ("a", "sweep-1"):
            code, said = shell.run(f"themis run --gpus 1 --name {name} --detach -- sleep 600")
            assert code == 0, said
        code, said = shell.run("themis dump state.json.gz")
        assert code == 0, said
        for page, lines in sorted(pages().items()):
            token = ""
            for i, line in enumerate(lines):
                ran += 1
                if line.startswith("token="):
                    token = line
                elif line.startswith("themis up"):
                    own = re.sub(r"(--data-dir|--home) \S+", "", line.partition("#")[0]).strip()
                    own += "" if "--gpus" in own or "--machines" in own else " --gpus 8"
                    home = f"{page.replace('/', '-')}-{i}"
                    shutil.copytree(tmp_path / ".themis" / "profiles", tmp_path / home / "profiles")
                    try:
                        for _ in shell.up(f"{own} --port 0 --home {home}", home):
                            pass
                    except AssertionError as fault:
                        wrong.append(f"{page}: {fault}")
                else:
                    code, said = shell.run(f"{token}\n{line}" if token and not line.startswith(tuple(ENDS)) else line)
                    if code:
                        wrong.append(f"{page}: {line}\n    {code}: {said.strip()[-300:]}")
    assert not wrong, "\n".join(wrong)
    assert ran > 40
