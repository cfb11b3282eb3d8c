"""CPU time of verbs of the command line: user and system time of the process, median of several runs.

    python benchmarks/cpu_verbs.py [RUNS] [PYTHON_OF_ANOTHER_VERSION]

Starts a service of eight virtual GPUs. With a second interpreter, whose environment has another version, runs of both are
interleaved, so that other load on the machine counts for both.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from themis.cli.table import VERBS as VERBS_OF_ALL

LOSSES = """
from themis import train
run = train.Run(save=lambda path: path.write_text(""), load=lambda path: None)
for step in run.steps(4):
    run.report(loss=1.0 / (1 + step))
"""
VERBS = (
    "--help",
    "--version",
    "queue",
    "queue -o json",
    "show APP",
    "submit job.yaml",
    "run -d -- true",
    "cancel APP",
    "nodes",
    "share",
    "why APP",
    "best losses",
    "logs APP",
    "hold APP",
    "usage",
    "history",
)


def main() -> None:
    """Print a table: verb, milliseconds of each version."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    pythons = [*sys.argv[2:3], sys.executable]
    with tempfile.TemporaryDirectory(prefix="themis-") as folder:
        env = {**os.environ, "THEMIS_DATA_DIR": f"{folder}/data"}
        (Path(folder) / "job.yaml").write_text("name: hello\ncommand: 'true'\n")
        up = ["-m", "themis.cli", "up", "--gpus", "8", "--port", "0", "--allow-root"]
        with open(os.devnull, "w") as nothing:
            service = subprocess.Popen([sys.executable, *up], env=env, stdout=nothing, stderr=nothing)
        try:
            while not (Path(folder) / "data" / "endpoint.json").exists():
                time.sleep(0.1)
            _reported(env, folder)
            print("| verb | " + " | ".join(f"{python}, ms" for python in pythons) + " |")
            print("|---|" + "---|" * len(pythons))
            for verb in VERBS:
                seen: list[list[float]] = [[] for _ in pythons]
                for _ in range(runs):
                    for python, times in zip(pythons, seen):
                        times.append(_cpu_ms([python, "-m", "themis.cli", *verb.split()], env, folder))
                print(f"| `{verb}` | " + " | ".join(f"{statistics.median(t):.0f}" for t in seen) + " |", flush=True)
            for python in pythons:
                helps = {
                    verb: _median([python, "-m", "themis.cli", verb, "--help"], env, folder) for verb in VERBS_OF_ALL
                }
                longest = max(helps, key=helps.__getitem__)
                imported = [_median([python, "-c", code], env, folder) for code in ("import themis", "pass")]
                print(
                    f"\n{python}: `--help` of {len(helps)} verbs, at most {helps[longest]:.0f} ms ({longest}); ", end=""
                )
                print(f"`import themis` {imported[0] - imported[1]:.0f} ms beside an empty program's {imported[1]:.0f}")
        finally:
            service.terminate()
            service.wait()


def _reported(env: dict[str, str], folder: str) -> None:
    """Run the app ``losses`` until the service has a loss of it."""
    themis = [sys.executable, "-m", "themis.cli"]
    made = [*themis, "run", "-d", "--name", "losses", "--", sys.executable, "-c", LOSSES]
    subprocess.run(made, env=env, cwd=folder, check=True, capture_output=True)
    while subprocess.run([*themis, "best", "losses"], env=env, cwd=folder, capture_output=True).returncode:
        time.sleep(0.5)


def _median(command: list[str], env: dict[str, str], folder: str) -> float:
    return statistics.median(_cpu_ms(command, env, folder) for _ in range(3))


def _cpu_ms(command: list[str], env: dict[str, str], folder: str) -> float:
    if command[-1] == "APP":
        run = [sys.executable, "-m", "themis.cli", "run", "-d", "--", "sleep", "900"]
        made = subprocess.run(run, env=env, cwd=folder, check=True, capture_output=True, text=True)
        command[-1] = made.stdout.strip()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


if __name__ == "__main__":
    main()
