"""`themis check` refuses what can never be submitted or run, and warns of what would fail a second later."""

from __future__ import annotations

from pathlib import Path

import pytest

from themis.cli import main
from themis.jobs import check, warnings_of
from themis.jobs.runnable import MOST_TEXT


def faults(tmp_path: Path, text: str) -> str:
    (tmp_path / "job.yaml").write_text(text)
    return "\n".join(check([tmp_path / "job.yaml"], folder=tmp_path))


def warned(tmp_path: Path, text: str, **more: object) -> list[str]:
    assert faults(tmp_path, text) == ""
    return warnings_of([tmp_path / "job.yaml"], folder=tmp_path, **more)  # type: ignore[arg-type]


def test_variables_and_arguments_that_no_program_can_be_given_are_refused_before_they_are_submitted(
    tmp_path: Path,
) -> None:
    long = "x" * MOST_TEXT
    assert f"line 3: key 'env': the variable 'BIG' has {MOST_TEXT + 4} bytes, expected at most {MOST_TEXT}" in faults(
        tmp_path, f"name: a\ncommand: 'true'\nenv:\n  BIG: {long}\n"
    )
    assert "key 'command': an argument has" in faults(tmp_path, f"name: a\ncommand: [echo, {long}y]\n")
    some = "".join(f"  V{i}: {'x' * 100_000}\n" for i in range(11))
    assert "in total, expected at most 1048576" in faults(tmp_path, f"name: a\ncommand: 'true'\nenv:\n{some}")
    assert faults(tmp_path, f"name: a\ncommand: 'true'\nenv:\n  BIG: {long[:-4]}\n") == ""


@pytest.mark.parametrize(
    "value",
    [
        "!!python/tuple [echo, x]",
        "!!python/object/apply:os.system ['true']",
        "!!set {echo: null}",
        "!!python/name:os.system ''",
    ],
)
def test_tags_that_make_objects_are_refused_wherever_they_stand(tmp_path: Path, value: str) -> None:
    said = faults(tmp_path, f"name: a\ncommand: {value}\n")
    assert "line 2: it has the tag" in said
    assert "expected plain values" in said


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("cat x | wc", "|"),
        ("make && ./run", "&&"),
        ("python a.py > log", ">"),
        ("cd sub; ./run", "sub;"),
        ("./run 2>&1", "2>&1"),
    ],
)
def test_a_line_of_shell_is_refused_for_no_shell_runs_it(tmp_path: Path, command: str, word: str) -> None:
    assert f"key 'command' has {word!r}, but no shell runs the command" in faults(
        tmp_path, f"name: a\ncommand: {command}\n"
    )
    assert faults(tmp_path, f'name: a\ncommand: [sh, -c, "{command}"]\n') == ""
    words = ", ".join(f'"{part}"' for part in command.split())
    assert faults(tmp_path, f"name: a\ncommand: [{words}]\n") == "", "a list of words means what it says"


SWEEP = """
name: a
command: {command}
sweep:
  parameters: {{lr: [0.1, 0.2], wd: [1, 2]}}
  budget: 10 steps
  trials: 2
"""


def test_a_sweep_whose_command_lacks_a_parameter_is_warned_of(tmp_path: Path) -> None:
    (said,) = warned(tmp_path, SWEEP.format(command="echo {lr}"))
    assert (
        "the command does not use the sweep's wd, so all trials are equal unless the program reads THEMIS_PARAMS"
        in said
    )
    assert "job.yaml, line 2: app 'a'" in said
    assert warned(tmp_path, SWEEP.format(command="echo {lr} {wd}")) == []


def test_a_program_or_folder_that_is_not_here_is_warned_of(tmp_path: Path) -> None:
    def said(text: str, **more: object) -> str:
        return "\n".join(warned(tmp_path, f"name: a\n{text}\n", **more))

    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    assert "program 'no-such-program' is not on this machine's PATH" in said("command: no-such-program")
    assert "is not executable; run chmod +x" in said("command: ./train.sh")
    assert "does not exist" in said("command: ./other.sh")
    assert f"the workdir '{tmp_path}/sub' does not exist on this machine" in said("command: 'true'\nworkdir: sub")
    assert said("command: no-such-program", here=False) == ""
    (tmp_path / "train.sh").chmod(0o755)
    assert said("command: ./train.sh") == said("command: 'true'") == ""


def test_a_gpu_type_that_no_machine_has_is_warned_of_with_those_that_there_are(tmp_path: Path) -> None:
    (said,) = warned(tmp_path, "name: a\ncommand: 'true'\ngpu_types: A1000\n", gpu_types={"A100", "V100"})
    assert "no machine has a GPU of type A1000. Did you mean 'A100'? The machines have A100, V100." in said
    assert warned(tmp_path, "name: a\ncommand: 'true'\ngpu_types: [V100, H100]\n", gpu_types={"A100", "V100"}) == []
    assert warned(tmp_path, "name: a\ncommand: 'true'\ngpu_types: A1000\n") == [], "the machines are not known"


def test_warnings_are_printed_and_are_no_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THEMIS_HOME", str(tmp_path / "none"))
    (tmp_path / "job.yaml").write_text("name: a\ncommand: no-such-program\n")
    main(["check", str(tmp_path / "job.yaml")])
    assert "Warning: " in (said := " ".join(capfd.readouterr().err.split()))
    assert "program 'no-such-program' is not on this machine's PATH" in said
