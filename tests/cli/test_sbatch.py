"""Scripts with #SBATCH headers become job files; what has no effect is named."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from themis.cli import sbatch
from themis.cli.check_verbs import check
from themis.errors import InputError
from themis.jobs import build, parse


def document(headers: str, body: str = "echo hello", first: str = "#!/bin/bash", words: tuple[str, ...] = ()) -> Any:
    text = "\n".join([first, *(f"#SBATCH {line}" for line in headers.split(";") if line), body, ""])
    found, notes = sbatch.document(text, Path("/there/job.sh"), words)
    return json.loads(found), notes


@pytest.mark.parametrize(
    ("headers", "keys"),
    [
        ("-J train", {"name": "train"}),
        ('--job-name="my job"', {"name": "my-job"}),
        ("--gres=gpu:2", {"gpus": 2}),
        ("--gres=gpu:a100:4", {"gpus": 4, "gpu_types": ["a100"]}),
        ("-G 3", {"gpus": 3}),
        ("-N 2;--gpus-per-node=4", {"gpus": 8}),
        ("-n 4;--gpus-per-task=1;-c 6", {"gpus": 4, "cpus": 6.0}),
        ("-a 0-9%2", {"array": "0-9%2"}),
        ("-t 90", {"walltime": "5400s"}),
        ("--time=1-12:30:00", {"walltime": "131400s"}),
        ("--time 10:30", {"walltime": "630s"}),
        ("-t 1-6", {"walltime": "108000s"}),
        ("--gpus=2;--mem=32G", {"memory": f"{16 << 30} B"}),
        ("--mem-per-gpu=500M", {"memory": f"{500 << 20} B"}),
        ("-D /data", {"workdir": "/data"}),
        ("--dependency=afterok:3:4,afterany:5", {"after": {"3": "ok", "4": "ok", "5": "any"}}),
        ("--export=A=1,B=x", {"env": {"A": "1", "B": "x"}}),
        ("--signal=B:USR1@120", {"stop_signal": "SIGUSR1", "grace": "120s"}),
    ],
)
def test_headers_become_keys_of_a_job_file(headers: str, keys: dict[str, Any]) -> None:
    found, notes = document(headers)
    assert {key: found[key] for key in keys} == keys
    assert notes == []
    assert not parse(json.dumps(found), source="job.sh", folder="/").faults


def test_what_is_not_understood_is_named_in_one_line() -> None:
    _, notes = document("--mail-type=END;-p gpu;--gpus=1;--qos high")
    assert notes == [
        "/there/job.sh: not understood, without effect: --mail-type (line 2), --partition (line 3), --qos (line 5)."
    ]


@pytest.mark.parametrize(
    "header", ["-t soon", "--gpus=0", "--gres=gpu:x:y:z", "-n none", "--dependency=singleton", "--mem=x"]
)
def test_a_wrong_value_is_named_with_its_line(header: str) -> None:
    with pytest.raises(InputError, match=r"^/there/job\.sh, line 2: --\S+ is .*, expected "):
        document(header)


def test_headers_end_at_the_first_command() -> None:
    found, _ = document("", "echo x\n#SBATCH --gpus=4")
    assert found["gpus"] == 1


def test_a_script_without_a_first_line_is_refused() -> None:
    with pytest.raises(InputError, match="has no first line such as #!/bin/bash"):
        document("--gpus=1", first="# nothing")


def test_an_interpreter_that_is_no_shell_gets_the_file() -> None:
    found, _ = document("", first="#!/usr/bin/env python3", words=("--lr", "1"))
    assert found["command"] == ["python3", "/there/job.sh", "--lr", "1"]


def test_the_text_of_an_array_keeps_its_braces() -> None:
    body = 'echo "{lr} ${HOME:+x} {{a}} $1 $SLURM_ARRAY_TASK_ID" {1,2}'
    found, _ = document("-a 0-1", body, words=("{name}",))
    (spec,) = parse(json.dumps(found), source="job.sh", folder="/").submissions
    programs = build(spec, user="bob").programs
    env = {"THEMIS_JOB_ID": "7", "THEMIS_APP_ID": "3", "HOME": "/", "PATH": "/bin:/usr/bin", **programs[1].env}
    done = subprocess.run(programs[1].argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "{lr} x {{a}} {name} 1 1 2\n"


def test_output_goes_to_the_file_of_the_header(tmp_path: Path) -> None:
    found, notes = document(f"--output={tmp_path}/%x-%j.out;-J a", "echo out; echo err >&2; exit 3")
    done = subprocess.run(found["command"], env={"THEMIS_APP_ID": "3", "PATH": "/bin:/usr/bin"})
    assert done.returncode == 3
    assert (tmp_path / "a-3.out").read_text() == "out\nerr\n"
    assert "`themis logs` does not show it" in notes[0]


def test_a_job_whose_output_has_no_place_fails(tmp_path: Path) -> None:
    found, _ = document(f"--output={tmp_path}/missing/a.out", f"touch {tmp_path}/ran")
    done = subprocess.run(found["command"], env={"PATH": "/bin:/usr/bin"}, capture_output=True)
    assert done.returncode == 1
    assert not (tmp_path / "ran").exists()


def test_check_reads_a_script_as_submit_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.sh", tmp_path / "bad.sh"
    good.write_text("#!/bin/bash\n#SBATCH --gpus=2\necho one: [two\n")
    bad.write_text("#!/bin/bash\n#SBATCH --array=9-2\necho\n")
    check([good])
    assert capsys.readouterr().out == f"{good} is valid.\n"
    with pytest.raises(typer.Exit):
        check([good, bad])
    assert "array is '9-2'" in capsys.readouterr().err
