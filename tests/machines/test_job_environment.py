"""A job's environment is a short list: nothing else of the shell that the service was started in reaches it. A real job."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from live import LONG, grant, live

from processes import left_of, wait_until
from themis.errors import InputError
from themis.machines.engines.program import AttemptEnded, Ending, Program
from themis.service.operations.service_settings import load

OPERATORS = {
    "LD_LIBRARY_PATH": "/opt/operator/lib",
    "SSL_CERT_FILE": "/opt/operator/ca.pem",
    "CUDA_HOME": "/opt/operator/cuda",
    "PYTHONSTARTUP": "/opt/operator/start.py",
    "HTTPS_PROXY": "http://operator:secret@proxy:8080",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "THEMIS_DATA_DIR": "/opt/operator/home",
    "SLURM_JOB_ID": "1",
}
LOCALE = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "Europe/Berlin"}
OWN = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"}
ALWAYS = {
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED", "THEMIS_APP_ID", "THEMIS_JOB_ID"),
    *("THEMIS_ATTEMPT", "THEMIS_GPUS", "THEMIS_CHECKPOINT_DIR", "THEMIS_GRACE_S", "THEMIS_STOP_SIGNAL"),
    *("THEMIS_TARGET_STEPS", "THEMIS_RUN_DIR", "THEMIS_TASK", "THEMIS_GPU_TYPE", "THEMIS_LOCALITY"),
}


@pytest.mark.parametrize("named", [(), ("HTTPS_PROXY", "NOT_THERE")])
def test_a_job_gets_of_its_services_shell_what_is_listed_or_named_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    for name, value in {**OPERATORS, **LOCALE}.items():
        monkeypatch.setenv(name, value)
    program = Program(argv=("env",), env={"OWN_PATH": "mine", "SSL_CERT_FILE": "/mine.pem"}, grace_s=1.0)
    settings = dataclasses.replace(LONG, inherits=named)
    with live(tmp_path / "run", program, 1, settings=settings) as world:
        world.executor.submit(grant(1, (0,)))
        assert world.until(AttemptEnded).ending is Ending.FINISHED
        text = (world.root / "nodes/m0/logs/job0-attempt1/rank-0.log").read_text()
    found = dict(line.split("=", 1) for line in text.splitlines())
    passed = {"HTTPS_PROXY"} & {*named}
    assert found.keys() - OWN == {"OWN_PATH", "SSL_CERT_FILE", *LOCALE, *ALWAYS, *passed}
    assert found["SSL_CERT_FILE"] == "/mine.pem"
    assert {name: found[name] for name in passed} == {name: OPERATORS[name] for name in passed}
    wait_until(lambda: not left_of(tmp_path), "no process was left")


def test_variables_to_pass_on_are_names_and_none_of_ours() -> None:
    assert (
        load(None, {"pass_variables": "LD_LIBRARY_PATH, HTTPS_PROXY"}, {}).pass_variables
        == "LD_LIBRARY_PATH HTTPS_PROXY"
    )
    for wrong in ("THEMIS_TOKEN", "SLURM_JOB_ID", "A=1", "1A", "A;B"):
        with pytest.raises(InputError, match="pass_variables"):
            load(None, {"pass_variables": wrong}, {})
