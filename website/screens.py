"""Screens of the command, the console and a report, at two widths each, of a service of its own and a simulation.

python website/screens.py             # writes docs/terminal.md: tmux runs the command in terminals of 80 and 140 columns
python website/screens.py pictures    # writes docs/img/screen-*.png: Chromium at 1,600 and 390 pixels
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "terminal.md"
SIZES = ((80, 24), (140, 24))
SWEEP = """name: lr-search
command: [{python}, {script}, "{{lr}}"]
sweep:
  parameters:
    lr: {{loguniform: [1e-4, 1e-1]}}
    layers: [2, 4, 8]
  trials: 6
  seed: 1
  budget: 6000 steps
  tuner: {{kind: halving, eta: 2, min_work: 100 steps}}
"""
TRIAL = """
import sys, time
from themis import train

run = train.Run(check_every_s=0.1, report_every_s=0.1)
for step in run.steps(6000):
    time.sleep(0.01)
    run.report(loss=abs(float(sys.argv[1]) - 0.01) + 1 / (step + 1))
"""
SCREENS = (
    ("The queue", "themis queue"),
    ("The queue with all columns", "themis queue --verbose"),
    ("As squeue prints it", "themis queue -o '%.6i %.14j %.6u %.2t %.8M %.10l %R'"),
    ("A sweep", "themis show lr-search"),
    ("A job that failed", "themis show evaluate"),
    ("Why an app waits", "themis why language-model-pretraining"),
    ("Users and their shares", "themis share"),
    ("The live console", "themis top"),
)
PAGES = {
    "queue": "/console/apps",
    "app": "/console/apps/{sweep}",
    "fairness": "/console/fairness",
}
"""Pages of the console that have pictures, with their paths."""
WINDOWS = {1600: 1000, 390: 844}
"""Pixels: width and height of a window."""
REPORT = ("simulate", "-w", "demo:hours=6", "-c", "4x4", "-p", "fair_finish,gandiva", "--seeds", "0-2", "-q")
HEAD = """# The command in a terminal

Screens of a service with eight virtual GPUs, in terminals of 80 and of 140 columns. On a narrow terminal a table leaves
columns out, empty ones first, names the others in a line below, and shortens names with an ellipsis; in a file or a pipe it has all
columns and whole names.
`python website/screens.py` makes this page with tmux.
"""


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory(prefix="themis-") as folder, _service(Path(folder)) as env:
        _submit(Path(folder), env)
        text = HEAD
        for title, command in SCREENS:
            text += f"\n## {title}\n"
            for columns, rows in SIZES:
                screen = _screen(command, columns, rows, env, ends=command != "themis top")
                text += f"\n{columns} columns:\n\n```text\n$ {command}\n{screen}\n```\n"
    PAGE.write_text(text)
    print(PAGE)


def pictures() -> None:
    """Write pictures of the console's pages and of a report's first screen."""
    sys.path.insert(0, str(ROOT / "tests" / "web"))
    from chromium import chromium
    from photographs import reduce

    with tempfile.TemporaryDirectory(prefix="themis-") as name, chromium() as browser:
        folder = Path(name)
        with _service(folder) as env:
            _submit(folder, env)
            time.sleep(60)  # so that there is something to lend, and curves
            base = json.loads((folder / "data" / "endpoint.json").read_text())["http"]
            signed = {"token": (folder / "data" / "token").read_text().strip()}
            addresses = {page: base + path.format(sweep=1) for page, path in PAGES.items()}
            _shoot(browser, addresses, folder, base, signed)
        subprocess.run(["themis", *REPORT, "--out", "out"], env=env, check=True, cwd=folder)
        _shoot(browser, {"report": f"file://{folder}/out/report.html"}, folder)
        for shot in folder.glob("screen-*.png"):
            reduce(shot, ROOT / "docs" / "img" / shot.name)
            print(ROOT / "docs" / "img" / shot.name)


def _shoot(browser: Any, addresses: Mapping[str, str], folder: Path, base: str = "", signed: Any = None) -> None:
    """A picture of each page in each window, signed in where the pages want it."""
    for width, height in WINDOWS.items():
        context = browser.new_context(viewport={"width": width, "height": height})
        if signed:
            context.request.post(f"{base}/console/sign-in", form=signed)
        page = context.new_page()
        for name, address in addresses.items():
            page.goto(address)
            page.wait_for_timeout(4000)  # live parts and curves arrive after the page
            page.screenshot(path=folder / f"screen-{name}-{width}.png")
        context.close()


@contextmanager
def _service(folder: Path) -> Iterator[Mapping[str, str]]:
    """A service with jobs of three users; gives the environment of its callers."""
    bin_ = Path(sys.executable).parent
    env = {**os.environ, "THEMIS_DATA_DIR": str(folder / "data"), "PATH": f"{bin_}:{os.environ['PATH']}"}
    env |= {"LANG": "C.UTF-8", "TERM": "xterm-256color"}
    command = ["themis", "up", "--machines", "2x4", "--port", "0", "--allow-root"]
    settings = ["--set", "retries=0", "--set", "lease=20s", "--set", "tick=5s", "--set", "single_trust=true"]
    with (folder / "up.log").open("w") as log:
        up = subprocess.Popen([*command, *settings], env=env, stdout=log, stderr=log)
        try:
            for _ in range(600):
                if (folder / "data" / "endpoint.json").exists():
                    break
                if up.poll() is not None:
                    raise SystemExit((folder / "up.log").read_text())
                time.sleep(0.1)
            yield env
        finally:
            up.terminate()
            up.wait()


def _submit(folder: Path, env: Mapping[str, str]) -> None:
    """A sweep, jobs that run, wait and failed."""

    def themis(*words: str) -> None:
        subprocess.run(["themis", *words], env=env, check=True, cwd=folder, stdout=subprocess.DEVNULL)

    (folder / "trial.py").write_text(TRIAL)
    (folder / "sweep.yaml").write_text(SWEEP.format(python=sys.executable, script=folder / "trial.py"))
    (folder / "evaluate.sh").write_text(
        "#!/bin/sh\n#SBATCH --job-name=evaluate --time=30\n"
        "for i in 1 2 3 4 5 6 7 8 9 10 11; do echo batch $i of 40; done\n"
        "echo 'FileNotFoundError: /data/labels.csv'\nexit 1\n"
    )
    (folder / "train.sh").write_text("#!/bin/sh\n#SBATCH --job-name=finetune --gres=gpu:2 --time=2:00:00\nsleep 1000\n")
    themis("submit", "--user", "carol", "evaluate.sh")
    themis("submit", "--user", "ada", "sweep.yaml")
    time.sleep(15)
    themis("submit", "--user", "bob", "train.sh")
    themis("run", "-d", "--user", "bob", "-g", "4", "--name", "resnet-large", "--", "sleep", "1000")
    large = ("-g", "8", "--launch", "machine", "--name", "language-model-pretraining")
    themis("run", "-d", "--user", "carol", *large, "--", "sleep", "1000")
    time.sleep(5)


def _screen(command: str, columns: int, rows: int, env: Mapping[str, str], *, ends: bool) -> str:
    """What a terminal of this size shows."""

    socket = f"themis-{os.getpid()}-{time.monotonic_ns()}"  # a server ends with its session, some time later

    def tmux(*words: str) -> str:
        done = subprocess.run(["tmux", "-L", socket, *words], env=env, capture_output=True, text=True)
        return done.stdout

    line = f"clear; {command}; sleep 100" if ends else command
    tmux("-u", "new-session", "-d", "-x", str(columns), "-y", str(rows), "-s", "screen", f"exec sh -c {_quoted(line)}")
    shown, before = "", None
    end = time.monotonic() + 60.0
    while (not shown.strip() or shown != before) and time.monotonic() < end:
        before = shown
        time.sleep(4.0)
        shown = tmux("capture-pane", "-p", "-t", "screen")
        if not ends and "GPUs leased" in shown:
            break
    tmux("kill-session", "-t", "screen")
    return "\n".join(row.rstrip() for row in shown.rstrip("\n").splitlines())


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    pictures() if sys.argv[1:] == ["pictures"] else main()
