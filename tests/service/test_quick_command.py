"""The quick verbs with a real service: what they load, what they print, and the same by the client that waits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon

from processes import PATIENCE_S

HEAVY = {"typer", "rich", "httpx", "starlette", "pydantic", "numpy", "yaml", "themis.jobs"}
SLOW = {"dataclasses", "inspect"}
"""A sixth of the time of a quick verb would be theirs."""
SCRIPT = """
import json, sys
from themis.cli import main
try: main(sys.argv[1:])
except SystemExit as end: code = end.code or 0
else: code = 0
names = {'.'.join(name.split('.')[:n]) for name in sys.modules for n in (1, 2)}
print(json.dumps([code, sorted(names)]))
"""
FAILING = "#!/bin/sh\n#SBATCH -J failing\nfor i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; done\nexit 3\n"
SWEEP = """
name: search
command: [{python}, {script}, "{{lr}}"]
sweep:
  parameters: {{lr: {{choice: [0.1, 0.2, 0.3, 0.4]}}}}
  trials: 4
  budget: 20 steps
  tuner: {{kind: halving, eta: 2, min_work: 10 steps}}
"""
TRIAL = """
import sys
from themis import train
run = train.Run(check_every_s=0.01, report_every_s=0.01)
for step in run.steps(20):
    run.report(loss=float(sys.argv[1]) + 1 / (step + 1))
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = (*QUICK, "backoff=10ms", "retries=0")
    with daemon(tmp_path_factory.mktemp("home"), options=("--gpus", "4"), settings=settings) as there:
        yield there


def themis(service: Daemon, *words: str) -> tuple[int, list[str], set[str]]:
    """Exit code, lines of stdout, loaded packages."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, words[0], "--data-dir", str(service.home), *words[1:]],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    *lines, last = done.stdout.splitlines()
    code, loaded = json.loads(last)
    return code, lines, set(loaded)


@pytest.mark.slow
def test_quick_verbs_load_nothing_heavy(service: Daemon, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: file\ncommand: sleep 1000\n")
    for words in (
        ("run", "-d", "--name", "one", "--", "sleep", "1000"),
        ("submit", str(tmp_path / "job.yaml")),
        ("queue",),
        ("queue", "-o", "json"),
        ("queue", "--me", "-o", "%i %.10j %t %M %R"),
        ("show", "one"),
        ("hold", "one"),
        ("resume", "one"),
        ("cancel", "one", "file"),
        ("nodes",),
        ("share",),
    ):
        code, lines, loaded = themis(service, *words)
        assert (code, loaded & HEAVY) == (0, set()), words
        if words[0] not in ("run", "submit"):
            assert loaded.isdisjoint(SLOW), words
        assert lines, words


@pytest.mark.slow
def test_a_failed_script_is_shown_with_its_exit_code_and_last_lines(service: Daemon, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(FAILING)
    code, lines, _ = themis(service, "submit", str(tmp_path / "job.sh"))
    assert (code, lines[0].split()[1]) == (0, "failing")
    with service.client() as client:
        assert client.wait("failing", timeout_s=PATIENCE_S).state == "failed"
    _, lines, loaded = themis(service, "show", "failing")
    assert not loaded & HEAVY
    assert "exit code 3" in lines[0]
    assert [line.strip() for line in lines[-10:]] == [f"line {i}" for i in range(3, 13)]
    assert "exit code 3; the last lines of its output:" in lines[-11]


@pytest.mark.slow
def test_a_sweep_is_shown_with_parameters_losses_and_who_was_stopped(service: Daemon, tmp_path: Path) -> None:
    (tmp_path / "trial.py").write_text(TRIAL)
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP.format(python=sys.executable, script=tmp_path / "trial.py"))
    code, _, _ = themis(service, "submit", str(file))
    assert code == 0
    with service.client() as client:
        assert client.wait("search", timeout_s=PATIENCE_S).state == "completed"
    _, lines, _ = themis(service, "show", "search", "-o", "json")
    trials = json.loads("\n".join(lines))["trials"]
    assert {trial["outcome"] for trial in trials} == {"completed", "stopped"}
    for trial in trials:
        assert trial["best_loss"] == pytest.approx(trial["parameters"]["lr"] + 1 / trial["best_steps"])
        if trial["outcome"] == "stopped":
            assert trial["why_stopped"] == "not among the best of its rung at 10 steps"
            assert trial["stopped"] > 0
    _, lines, _ = themis(service, "best", "search", "-o", "csv")
    titles, values = (line.split(",") for line in lines)
    best = dict(zip(titles, values))
    assert float(best["lr"]) == min(trial["parameters"]["lr"] for trial in trials if trial["outcome"] == "completed")


@pytest.mark.slow
def test_a_line_for_a_shell_runs_in_one(service: Daemon, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: piped\nshell: true\ncommand: echo a b | tr a-z A-Z; exit 0\n")
    assert themis(service, "submit", str(tmp_path / "job.yaml"))[0] == 0
    assert themis(service, "run", "-d", "--name", "redirected", "--shell", "--", "echo c | tr a-z A-Z")[0] == 0
    with service.client() as client:
        for app, text in (("piped", b"A B\n"), ("redirected", b"C\n")):
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
            assert b"".join(client.logs(app)) == text


@pytest.mark.slow
def test_errors_are_one_sentence(service: Daemon, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\ncomand: y\n")
    said = []
    for words in (("submit", str(tmp_path / "bad.yaml")), ("cancel", "nosuch"), ("show", "nosuch"), ("drain", "x")):
        done = subprocess.run(
            [sys.executable, "-m", "themis.cli", words[0], "--data-dir", str(service.home), *words[1:]],
            capture_output=True,
            text=True,
        )
        said.append((done.returncode, done.stderr))
    assert [code for code, _ in said] == [2] * 4
    assert "line 2: unknown key 'comand'. Did you mean 'command'?" in said[0][1]
