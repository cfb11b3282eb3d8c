"""Variables of the submitter's shell by name, and secrets from a file that only its account reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from themis.client.exported import code_of, exported
from themis.errors import InputError
from themis.machines.agent.environment import exports, rank_env
from themis.machines.agent.keeper import Absent, changed_code, secrets_of
from themis.machines.engines.hosts import Host, task_specs
from themis.machines.engines.program import Program
from themis.model.cluster import Machine
from themis.model.events import Grant

SHELL = {
    "PATH": "/venv/bin:/bin",
    "VIRTUAL_ENV": sys.prefix,
    "CONDA_PREFIX": "/no/such/conda",
    "WANDB_PROJECT": "vision",
    "WANDB_API_KEY": "x",
    "MY_PASSWORD": "x",
    "DB": "postgres://ann:pw@host/db",
    "DATA": "/data",
    "RANK": "7",
    "HOME": "/home/ann",
}


def test_a_job_gets_what_its_shell_has_by_name_and_never_a_secret() -> None:
    assert exported("NONE", SHELL) == ({}, [])
    assert exported("", SHELL) == ({name: SHELL[name] for name in ("PATH", "VIRTUAL_ENV", "WANDB_PROJECT")}, [])
    whole, left_out = exported("ALL", SHELL)
    assert sorted(whole) == ["CONDA_PREFIX", "DATA", "PATH", "VIRTUAL_ENV", "WANDB_PROJECT"]
    assert left_out == ["DB", "MY_PASSWORD", "WANDB_API_KEY"]
    assert exported("DATA,CONDA_PREFIX", SHELL)[0] == {"DATA": "/data", "CONDA_PREFIX": "/no/such/conda"}
    for text, words in (("WANDB_API_KEY", "--secret WANDB_API_KEY"), ("RANK", "'RANK'"), ("NOSUCH", "not set")):
        with pytest.raises(InputError, match=words):
            exported(text, SHELL)


def test_what_the_job_sets_and_what_themis_sets_is_not_exported() -> None:
    program = Program(argv=("x",), env={"DATA": "own"}, exports={"DATA": "/data", "PATH": "/venv/bin", "RANK": "7"})
    grant = Grant(app=0, job=0, attempt=1, gpus=(0,), seat=0, until=9.0, locality=1, target=1.0, score=1.0)
    (spec,) = task_specs(grant, program, [Host(machine=Machine(name="m", gpus=1))], "/c", 4096).values()
    env = rank_env(spec, 0, "/run", {"PATH": "/bin"})
    assert exports(spec, env) == {"PATH": "/venv/bin"}
    assert env["PATH"] == "/bin", "what prepares the job's files has the agent's"
    assert spec.protocol == 5


def test_a_script_that_changed_since_its_submission_is_named_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    made = code_of(["python", "train.py", "--x"], str(tmp_path))["THEMIS_CODE"]
    monkeypatch.chdir(tmp_path)
    assert changed_code(made) == changed_code("") == ""
    (tmp_path / "train.py").write_text("print(2)")
    assert changed_code(made) == "train.py"
    assert code_of(["python", "-m", "train"], str(tmp_path)) == code_of(["python", "nosuch.py"], str(tmp_path)) == {}


def test_secrets_come_from_a_file_of_the_account_alone(tmp_path: Path) -> None:
    path = tmp_path / ".config" / "themis" / "secrets"
    with pytest.raises(Absent, match="No such file"):
        secrets_of(["A"], str(tmp_path))
    path.parent.mkdir(parents=True)
    path.write_text("# mine\nA=one=1\nB = two\n")
    path.chmod(0o640)
    with pytest.raises(Absent, match="chmod 600"):
        secrets_of(["A"], str(tmp_path))
    path.chmod(0o600)
    assert secrets_of(["A"], str(tmp_path)) == {"A": "one=1"}
    with pytest.raises(Absent, match="has no C"):
        secrets_of(["A", "C"], str(tmp_path))
    assert os.stat(path).st_uid == os.getuid()
