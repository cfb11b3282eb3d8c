"""The digest of a script, taken when a job file is read."""

from __future__ import annotations

from pathlib import Path

from themis.client.submit_requests import read_requests, with_code

FILE = """
name: one
command: python train.py --x 1
---
name: module
command: python -m train
---
name: search
command: python train.py --lr {lr}
speed: 10
sweep: {parameters: {lr: [0.1, 0.2, 0.3]}, sampler: grid, budget: 10 steps, tuner: batch}
"""


def test_each_job_of_a_file_has_the_digest_of_its_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "jobs.yaml").write_text(FILE)
    requests = read_requests(tmp_path / "jobs.yaml", folder=tmp_path)
    found = {r.name: [job.program.exports.get("THEMIS_CODE", "") for job in r.jobs] for r in requests}
    assert found["module"] == [""]
    assert len(set(found["search"] + found["one"])) == 1
    assert found["one"][0].endswith(" train.py")
    (tmp_path / "train.py").write_text("print(2)")
    with_code(requests)
    assert requests[0].jobs[0].program.exports["THEMIS_CODE"] != found["one"][0]


def test_more_scripts_than_sixteen_are_not_read(tmp_path: Path) -> None:
    lines = []
    for i in range(20):
        (tmp_path / f"t{i}.py").write_text(f"print({i})")
        lines.append(f"name: j{i}\ncommand: python t{i}.py\n")
    (tmp_path / "jobs.yaml").write_text("---\n".join(lines))
    requests = read_requests(tmp_path / "jobs.yaml", folder=tmp_path)
    assert sum("THEMIS_CODE" in r.jobs[0].program.exports for r in requests) == 16
