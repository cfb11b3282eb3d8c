"""Writes docs/first-ten-minutes.md: what a new user types in an empty folder, what is printed, and how long it takes.

    python website/first_ten_minutes.py [--offline] [--python /usr/bin/python3]

It builds the wheel of this tree, and everything after that happens in a new virtual environment and an empty folder, as an
ordinary user (uid 65534 if the script runs as root), with 80 columns and none of the caller's variables. ``--offline``
takes the dependencies of this interpreter in place of installing them.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "first-ten-minutes.md"
NOBODY = 65534
ROWS, COLUMNS = 40, 80
"""Of the terminal."""
SETTINGS = "--machines 2x4 --set lease=20s --set tick=5s"
TRAIN = """import argparse, json, time
from pathlib import Path
from themis import train

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--data", type=Path, default=Path())
options = parser.parse_args()
list(options.data.iterdir())  # fails if the folder is not there
state = {"weight": 0.0}
run = train.Run(save=lambda path: path.write_text(json.dumps(state)),
                load=lambda path: state.update(json.loads(path.read_text())))
for step in run.steps(options.steps):
    time.sleep(0.1)  # a model would compute
    error = state["weight"] - 2.0
    state["weight"] -= options.lr * error
    run.report(loss=error * error)
print(f"rank {run.world.rank} of {run.world.world_size}: weight {state['weight']:.3f}")
"""
SWEEP = """name: lr-search
command: python train.py --lr {lr} --steps 900
speed: 10
checkpoint_time: 0.5s
sweep:
  parameters:
    lr: {loguniform: [1e-4, 1e-1]}
  trials: 9
  budget: 900 steps
  tuner: {kind: halving, eta: 3}
"""


@dataclass
class Section:
    """A part of the page. ``steps`` : who types, and what; a text of several lines is a file with its name in the first."""

    title: str
    text: str
    steps: Sequence[tuple[str, str]]


SECTIONS = (
    Section(
        "Install",
        "A wheel and its dependencies in a virtual environment. No GPU, no root, no other service is needed.",
        [
            ("", "python3 -m venv env"),
            ("", "source env/bin/activate"),
            ("", "pip install --quiet WHEEL"),
            ("", "themis --version"),
        ],
    ),
    Section(
        "Start",
        "Two virtual machines of four GPUs, with leases of 20 s so that nothing here waits for the default of 10 minutes. The "
        "scheduler runs in the background; everything below happens in a second shell.",
        [("", f"themis up {SETTINGS} &"), ("", "themis doctor")],
    ),
    Section(
        "Two users",
        "The account that started the service is its administrator, and gives each user a token. `themis login` keeps it in the "
        "user's own data directory. Here all shells belong to one account, so each user's shell sets `THEMIS_DATA_DIR`.",
        [
            ("", "themis user add ada > ada.token"),
            ("", "themis user add ben > ben.token"),
            ("ada", "themis login 127.0.0.1:7433 < ada.token"),
            ("ben", "themis login 127.0.0.1:7433 < ben.token"),
            ("", "themis user list"),
        ],
    ),
    Section(
        "A sweep",
        "Ada trains nine variants of a script by successive halving: all for 100 steps, the best three up to 300, the best one "
        "up to 900.",
        [
            ("ada", f"train.py\n{TRAIN}"),
            ("ada", f"sweep.yaml\n{SWEEP}"),
            ("ada", "themis check sweep.yaml"),
            ("ada", "themis submit sweep.yaml"),
            ("ada", "sleep 3"),
            ("ada", "themis queue"),
        ],
    ),
    Section(
        "A second user",
        "All GPUs are busy with the sweep. Ben submits a job of four GPUs, and asks why it waits.",
        [
            ("ben", "themis run --gpus 4 --hours 0.02 --name bert --detach -- python train.py --steps 100"),
            ("ben", "themis why bert"),
            ("ben", "themis wait bert"),
            ("ben", "themis queue"),
            ("ben", "themis logs bert"),
        ],
    ),
    Section(
        "A job that fails",
        "Its data is missing. With `--retries 0` it is not tried again. The exit code of `themis run` is 1.",
        [
            ("ben", "themis run --retries 0 --name no-data -- python train.py --data imagenet"),
            ("ben", "themis show no-data"),
        ],
    ),
    Section(
        "A drain",
        "Only an administrator may take a machine out of service. Its jobs save, and continue on the other one as soon as "
        "there is room.",
        [
            ("ben", "themis run --gpus 4 --name long --detach -- python train.py --steps 3000"),
            ("ben", "sleep 8"),
            ("", "themis nodes"),
            ("ben", "themis drain m000"),
            ("", "themis drain m000"),
            ("", "sleep 10"),
            ("", "themis nodes"),
            ("", "themis queue"),
            ("", "themis share"),
            ("", "themis undrain m000"),
            ("ben", "themis cancel long"),
        ],
    ),
    Section(
        "Accounts",
        "What each user has had, and what has ended.",
        [
            ("ada", "themis wait lr-search"),
            ("ada", "themis show lr-search"),
            ("", "themis usage"),
            ("", "themis history"),
        ],
    ),
    Section(
        "Stop",
        "Ctrl-C, or SIGTERM: jobs would save first. `themis up` with the same options recovers all apps.",
        [("", "kill -TERM %1"), ("", "themis queue")],
    ),
)


@dataclass
class Machine:
    """The new user's shell."""

    folder: Path
    wheel: Path
    offline: bool
    python: str
    service: subprocess.Popen[bytes] | None = None
    log: list[tuple[str, float, str]] = field(default_factory=list)

    @property
    def drop(self) -> list[str]:
        """Words before a command that make it an ordinary user's."""
        if os.geteuid() != 0:
            return []
        return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]

    def environment(self, user: str) -> dict[str, str]:
        """A new shell's; the site's settings of pip stay."""
        env = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key.endswith("_proxy")}
        env |= {
            "HOME": str(self.folder),
            "PATH": f"{self.folder}/env/bin:/usr/local/bin:/usr/bin:/bin",
        }
        env |= {"LANG": "C.UTF-8", "TZ": "UTC", "TERM": "dumb"}
        return env | ({"THEMIS_DATA_DIR": str(self.folder / f".themis-{user}")} if user else {})

    def shell(self, line: str, user: str) -> str:
        """Run a line in a terminal of 80 columns; what it prints, with its exit code if that is not 0."""
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        done = subprocess.Popen(
            [*self.drop, "bash", "-c", line],
            stdout=theirs,
            stderr=theirs,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            env=self.environment(user),
        )
        os.close(theirs)
        said = b""
        with suppress(OSError):  # of a terminal whose other end is closed
            while read := os.read(ours, 65536):
                said += read
        os.close(ours)
        done.wait()
        return said.decode().replace("\r\n", "\n") + (f"(exit code {done.returncode})\n" if done.returncode else "")

    def types(self, line: str, user: str) -> None:
        """One step; remembers what it took and what it printed."""
        began = time.monotonic()
        if "\n" in line:
            name, _, text = line.partition("\n")
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o644)
            said = ""
        elif line.startswith("themis up"):
            said = self.start(line.removesuffix(" &"))
        elif line.startswith("kill"):
            said = self.stop()
        elif line.startswith("source") or (line.startswith("pip") and self.offline):
            said = self.link() if line.startswith("pip") else ""
        else:
            line = line.replace("python3", self.python) if line.startswith("python3") else line
            said = self.shell(line.replace("WHEEL", str(self.wheel)), user)
        self.log.append((user, time.monotonic() - began, said))

    def link(self) -> str:
        """The wheel without its dependencies, which are this interpreter's."""
        with_pip = [sys.executable, "-m", "pip", "--python", str(self.folder / "env/bin/python"), "install", "-q"]
        subprocess.run([*with_pip, "--no-deps", "--no-index", str(self.wheel)], check=True)
        (site,) = self.folder.glob("env/lib/python*/site-packages")
        (site / "zz_dependencies.pth").write_text("".join(f"{p}\n" for p in sys.path if p.endswith("-packages")))
        return ""

    def start(self, line: str) -> str:
        """``themis up``, until it serves."""
        log = self.folder / "up.log"
        with log.open("wb") as file:
            command = [*self.drop, *line.split()]
            self.service = subprocess.Popen(
                command, cwd=self.folder, env=self.environment(""), stdout=file, stderr=file
            )
        while "Themis schedules" not in log.read_text():
            if self.service.poll() is not None:
                raise SystemExit(f"the service did not start:\n{log.read_text()}")
            time.sleep(0.05)
        time.sleep(0.2)
        return log.read_text()

    def stop(self) -> str:
        """SIGTERM, as Ctrl-C; what the service prints at the end."""
        assert self.service is not None
        before = len((self.folder / "up.log").read_text())
        self.service.send_signal(signal.SIGTERM)
        self.service.wait(120)
        return (self.folder / "up.log").read_text()[before:]


@contextmanager
def new_machine(python: str, offline: bool) -> Iterator[Machine]:
    """An empty folder, and the wheel outside of it."""
    with tempfile.TemporaryDirectory(prefix="themis-new-user-") as name:
        top = Path(name)
        top.chmod(0o755)
        folder, dist = top / "user", top / "dist"
        folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, NOBODY, NOBODY)
        build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(dist), str(ROOT)]
        subprocess.run(build, check=True, capture_output=True)
        (wheel,) = dist.glob("*.whl")
        machine = Machine(folder, wheel, offline, python)
        try:
            yield machine
        finally:
            if machine.service is not None and machine.service.poll() is None:
                machine.service.terminate()
                machine.service.wait(120)


def page(machine: Machine) -> str:
    """The page, from what the steps printed."""
    steps = iter(machine.log)
    parts, rows, total = [], [], 0.0
    for number, section in enumerate(SECTIONS, 1):
        lines, took = [], 0.0
        for user, line in section.steps:
            _, seconds, said = next(steps)
            took += seconds
            lines.append(_typed(user, line, seconds, machine.wheel.name))
            lines.append(said.rstrip())
        total += took
        rows.append(f"| {number}. {section.title} | {took:.0f} s | {_clock(total)} |")
        body = "\n".join(line for line in lines if line)
        body = body.replace(str(machine.folder), "/home/me").replace("nobody", "me")
        body = re.sub(r"\+g[0-9a-f]{7,}(\.dirty)?", "+g1a2b3c4", body)
        parts.append(f"## {number}. {section.title}\n\n{section.text}\n\n```text\n{body}\n```\n")
    how = "dependencies were there" if machine.offline else "dependencies from a package index nearby"
    where = f"{os.cpu_count()} busy cores, Python {_version(machine)}, {how}"
    head = f"""# The first ten minutes, with a clock

What a new user types in an empty folder, and what is printed. `website/first_ten_minutes.py` typed it and wrote this page on
{time.strftime("%Y-%m-%d")}, as an ordinary user ({where}).
Seconds in parentheses are the time of a command; reading and typing come on top. The prompt says who types: `$` is the account
that runs the service, `ada$` and `ben$` are two users. [The tutorial](tutorial.md) explains more.

| | time | clock |
|---|---|---|
{chr(10).join(rows)}
"""
    return "\n".join([head, *parts])


def _typed(user: str, line: str, seconds: float, wheel: str) -> str:
    """The line as it is typed, with its time."""
    if "\n" in line:
        name, _, text = line.partition("\n")
        return f"{user}$ cat > {name} <<'END'\n{text}END"
    quiet = seconds < 0.05 or line.startswith("sleep")
    return f"{user}$ {line.replace('WHEEL', wheel)}{'' if quiet else f'    ({seconds:.1f} s)'}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _version(machine: Machine) -> str:
    found = re.search(r"\(Python ([\d.]+)\)", "".join(said for _, _, said in machine.log))
    return found[1] if found else platform.python_version()


def main() -> None:
    """Run all steps, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--python", default="/usr/bin/python3", help="of the new environment")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    with new_machine(options.python, options.offline) as machine:
        for section in SECTIONS:
            print(section.title, flush=True)
            for user, line in section.steps:
                machine.types(line, user)
        options.out.write_text(page(machine), encoding="utf-8")


if __name__ == "__main__":
    main()
