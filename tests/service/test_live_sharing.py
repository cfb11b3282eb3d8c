"""Two jobs on one GPU in the live service: a pair from a table of one's own, real processes, and what they measure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from themis.model.events import Grant, JobStopped, SpeedMeasured
from themis.schema import messages as schema
from themis.service.engine.journal import Journal

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
STEPS = Path(__file__).parents[1] / "machines" / "programs" / "steps.py"
TABLE = """\
model,gpu_type,steps_per_s,partner
one,lab,20,
two,lab,20,
one,lab,10.5,two
two,lab,10.5,one
"""


def request(model: str) -> schema.SubmitRequest:
    """Some ten seconds of steps, a twentieth of a second each, alone or not: the processes only sleep."""
    program = schema.Program(argv=[sys.executable, str(STEPS), "200", "0.05"], cwd="/")
    job = schema.Job(
        name=model, model=model, regimes=[schema.Regime(steps=200)], gpus_min=1, gpus_max=1, program=program
    )
    return schema.SubmitRequest(name=model, jobs=[job])


def test_a_pair_shares_a_gpu_on_its_two_seats_and_its_speed_is_learnt(tmp_path: Path) -> None:
    """Alone 20 steps/s, beside the other believed 10.5: what they reach together is about 20, which is news."""
    home = tmp_path / "home"
    (home / "profiles").mkdir(parents=True)
    (home / "profiles" / "lab.csv").write_text(TABLE)
    options = ("--machines", "1x1@lab", "--policy", "max_min_fairness:sharing=true,round_s=4")
    with daemon(home, options=options, settings=(*QUICK, "profiles=lab")) as service:
        with service.client() as client:
            numbers = [client.submit(request(model)).app for model in ("one", "two")]
            for number in numbers:
                ended = client.wait(number)
                assert ended.state == "completed", b"".join(client.logs(number))
        assert service.down() == 0
    records = list(Journal(home / "journal.db").records())
    grants = [(t, r) for t, r in records if isinstance(r, Grant)]
    assert {r.seat for _, r in grants} == {0, 1}, "both seats of the one GPU were used"
    there: dict[int, int] = {}
    together = 0
    for _, record in records:
        if isinstance(record, Grant):
            there[record.job] = record.seat
            together = max(together, len(there))
        elif isinstance(record, JobStopped):
            there.pop(record.job, None)
    assert together == 2
    told = [r for _, r in records if isinstance(r, SpeedMeasured) and r.partner]
    assert told, "a pair that is faster than believed is news"
    assert all(12 < r.steps_per_s < 25 for r in told)


def test_a_hierarchy_from_a_file_decides_who_runs(tmp_path: Path) -> None:
    """One GPU; the entity of everybody runs its jobs in order of arrival: the second waits for the first (Gavel §4.3)."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "policy: fairness\nmembers:\n"
        "  - {name: product, weight: 2, users: [nobody-here]}\n"
        '  - name: research\n    members:\n      - {name: inner, policy: fifo, users: ["*"]}\n'
    )
    options = ("--machines", "1x1", "--policy", f"hierarchical:file={plan},round_s=2")
    with daemon(tmp_path / "home", options=options) as service, service.client() as client:
        numbers = [client.submit(short(name)).app for name in ("first", "second")]
        ends = [client.wait(number) for number in numbers]
        assert [e.state for e in ends] == ["completed", "completed"]
        assert ends[0].ended < ends[1].ended
        decisions = [r.line for r in client.events() if r.kind == "Allocated"]
    assert decisions
    assert all("Hierarchical" in text for text in decisions), "and nobody else decided in its place"


def short(name: str) -> schema.SubmitRequest:
    """Two seconds of steps."""
    program = schema.Program(argv=[sys.executable, str(STEPS), "40", "0.05"], cwd="/")
    job = schema.Job(
        name=name, model="generic", regimes=[schema.Regime(steps=40)], gpus_min=1, gpus_max=1, program=program
    )
    return schema.SubmitRequest(name=name, jobs=[job])
