"""Work that is an estimate of time: on the wire, in the core, and with a real job that takes longer than was believed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from fake import request, world

from processes import PATIENCE_S
from themis.client.client import Client
from themis.client.submit_requests import read_requests
from themis.service.api.submission import submit
from themis.service.engine.config import Config
from themis.service.operations.service_settings import check
from themis.service.operations.up import running

SCRIPT = """
from themis.train import Run
import time
for step in (run := Run(save=lambda path: path.write_text(str(run.step)), load=lambda path: None)).steps(30):
    print("step", step, flush=True)
    time.sleep(0.1)
print("all done")
"""


@pytest.mark.parametrize(
    ("keys", "own"),
    [("work: 9", True), ("work: 9 gpu-seconds", False), ("walltime: 1h", False), ("speed: 2", False)],
)
def test_whose_steps_the_work_is_in_arrives_in_the_program(tmp_path: Path, keys: str, own: bool) -> None:
    (tmp_path / "job.yaml").write_text(f"name: a\ncommand: 'true'\n{keys}\n")
    (sent,) = read_requests(tmp_path / "job.yaml", "u")
    with world(tmp_path) as w:
        w.ask(lambda a: submit(a, type(sent).model_validate_json(sent.model_dump_json())))
        (entry,) = w.arbiter.journal.apps()
        assert [program.own_steps for program in entry.programs] == [own]


def test_files_may_name_models_of_every_book_and_are_checked_alike(tmp_path: Path) -> None:
    """Which of them the service knows is said by its ``profiles``; it refuses the others itself."""
    file = tmp_path / "jobs.yaml"
    file.write_text("name: a\ncommand: x\nmodel: ResNet-50\nbatch: 64\nwork: 90 steps\n")
    assert check([file]) == []
    assert [job.model for request in read_requests(file) for job in request.jobs] == ["ResNet-50"]
    file.write_text("name: a\ncommand: x\nmodel: ResNet-5000\n")
    assert "Did you mean 'ResNet-50'?" in check([file])[0]


def test_a_submission_that_does_not_say_counts_in_the_programs_steps(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        w.ask(lambda a: submit(a, request()))
        assert w.arbiter.journal.apps()[0].programs[0].own_steps


@pytest.mark.parametrize("policy", ["themis", "srtf"])
def test_a_job_that_overran_its_estimate_still_gets_its_turns(tmp_path: Path, policy: str) -> None:
    with world(tmp_path, 1, policy=policy) as w:
        for name in ("short", "long"):
            asked = request(name, steps=1.0 if name == "short" else 1000.0)
            w.ask(lambda a, asked=asked: submit(a, asked))
        served = 0
        for _ in range(20):
            w.turn(1.0)
            served += 0 in w.held()
        assert served >= 4
        assert not w.arbiter.engine.problem
        assert w.arbiter.state.work_left(w.arbiter.state.app_jobs(0))[0] > 0


@pytest.mark.slow
def test_a_real_job_that_takes_longer_than_estimated_does_all_of_its_work(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(
        f"name: slow\ncommand: [{sys.executable}, {tmp_path}/train.py]\nwork: 1 gpu-seconds\nworkdir: {tmp_path}\n"
    )
    config = Config(
        gpus=1,
        port=0,
        lease_s=1,
        tick_s=1,
        container_s=0.1,
        grace_s=5,
        validate=True,
        retries=0,
        node_renew_s=1,
        node_lease_s=10,
        allow_root=os.geteuid() == 0,
    )
    with running(tmp_path / "home", config), Client(tmp_path / "home") as client:
        for enter in (
            lambda: client.submit(read_requests(tmp_path / "job.yaml", "")[0]),
            lambda: client.run([sys.executable, str(tmp_path / "train.py")], hours=1 / 3600),
        ):
            app = enter().app
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
            text = b"".join(client.logs(app)).decode()
            assert "step 29\n" in text
            assert text.endswith("all done\n")
