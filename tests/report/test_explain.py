"""An app's story: every round, with rank, bid, payment and leases, told from the log."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from report_cases import HEADER, MINI, NOTHING, Log, app, auction, decision, finished, grant, revoke, write
from rich.console import Console

from themis.cli.table_columns import planned_now
from themis.errors import InputError, UnknownName
from themis.model import events as e
from themis.model.answers import CUT, Proof, RoundPlan, Solved, TimeShare
from themis.model.cluster import Machine
from themis.report.explain import Step, explain
from themis.report.explain_tables import collapse, table

STORY: Log = [
    (0.0, HEADER),
    (0.0, e.MachineJoined(machine=Machine(name="m", gpus=8))),
    (0.0, app("other", 0.0, 1)),
    (0.0, auction(8, [0], [1.0], [True], [4], [1.0], [0])),
    (5.0, app("mine", 5.0, 2)),
    (60.0, auction(4, [0, 1], [2.0, 1.5], [True, False], [0, 0], [1.0, 1.0], [0, 0])),
    (120.0, auction(4, [0, 1], [2.0, 1.6], [True, False], [0, 0], [1.0, 1.0], [0, 0])),
    (180.0, auction(4, [1, 0], [3.0, 2.0], [True, False], [4, 0], [0.75, 1.0], [0, 0])),
    (180.0, grant(1, 1, 1, (0, 1))),
    (180.0, grant(1, 2, 1, (2, 3))),
    (240.0, auction(2, [0], [2.0], [True], [0], [1.0], [0])),
    (300.0, auction(6, [1, 0], [2.5, 2.0], [True, False], [2, 0], [1.0, 1.0], [0, 0])),
    (300.0, revoke(1, 2, 1, "expired")),
    (300.0, e.Renew(jobs=(1,), until=900.0)),
    (360.0, auction(6, [0, 1], [2.6, 2.2], [True, False], [0, 0], [1.0, 1.0], [0, 2])),
    (360.0, grant(1, 2, 2, (4, 5))),
    (400.0, revoke(1, 1, 1, "finished")),
    (400.0, revoke(1, 2, 2, "finished")),
    (400.0, finished(1, 395.0, 1.5, 1.7, 1000.0)),
    (420.0, auction(8, [0], [2.0], [True], [8], [1.0], [0])),
]


def test_each_round_is_told(tmp_path: Path) -> None:
    story = explain(write(tmp_path / "x.jsonl.gz", STORY), "mine")
    assert (story.app, story.policy, story.form, story.jct, story.rho_paper) == ("mine", "themis", "paper", 395.0, 1.5)
    steps = {step.time: step for step in story.steps}
    assert list(steps) == [5.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 400.0]
    assert steps[5.0] == Step(time=5.0, note="arrived")
    assert steps[60.0] == Step(time=60.0, round=1, auction=True, offered=4, rho=1.5, rank=2, of=2, kept_low=0.99)
    assert steps[180.0] == Step(
        time=180.0,
        round=3,
        auction=True,
        offered=4,
        rho=3.0,
        rank=1,
        of=2,
        bid=True,
        won=4,
        kept=0.75,
        kept_low=0.74,
        kept_high=0.75,
        granted=4,
        held=4,
    )
    assert steps[240.0] == Step(time=240.0, round=4, offered=2, of=1, held=4)
    assert (steps[300.0].renewed, steps[300.0].revoked, steps[300.0].causes, steps[300.0].held) == (
        2,
        2,
        ("expired",),
        2,
    )
    assert (steps[360.0].bid, steps[360.0].leftover, steps[360.0].granted, steps[360.0].held) == (False, 2, 2, 4)
    assert (steps[400.0].round, steps[400.0].revoked, steps[400.0].held, steps[400.0].note) == (-1, 4, 0, "completed")


def test_equal_rounds_are_one_line_unless_all_are_asked_for(tmp_path: Path) -> None:
    story = explain(write(tmp_path / "x.jsonl", STORY), "mine")
    assert [len(group) for group in collapse(story.steps)] == [1, 2, 1, 1, 1, 1, 1]
    out = io.StringIO()
    Console(file=out, width=130).print(table(story))
    text = out.getvalue()
    for words in (
        "00:01:00 – 00:02:00",
        "1–2",
        "filtered",
        "1.50–1.60",
        "75.0 [74.0, 75.0]",
        "content",
        "+4 granted",
        "2 renewed, −2 expired",
        "completed",
        "simulated",
        "ρ 1.50 paper",
    ):
        assert words in text, words
    assert table(story, every=True).row_count == table(story).row_count + 1


def test_the_json_form_has_every_step(tmp_path: Path) -> None:
    story = json.loads(explain(write(tmp_path / "x.jsonl", STORY), "mine").to_json())
    assert len(story["steps"]) == 8
    assert story["steps"][3]["kept"] == 0.75


def test_without_auctions_leases_are_told(tmp_path: Path) -> None:
    log: Log = [(t, decision() if isinstance(r, e.Allocated) else r) for t, r in STORY]
    story = explain(write(tmp_path / "x.jsonl", log), "mine")
    assert story.form == ""
    assert [s.time for s in story.steps] == [5.0, 180.0, 300.0, 360.0, 400.0]
    assert story.steps[2].causes == ("expired",)
    out = io.StringIO()
    Console(file=out, width=120).print(table(story))
    assert "filtered" not in out.getvalue()
    assert "−2 expired" in out.getvalue()


def test_jobs_given_up_by_their_learning_curves_are_told_with_the_reason(tmp_path: Path) -> None:
    why = e.CurveStopped(app=1, job=2, steps=40.0, forecast=0.98, deviation=0.021, standard=0.406, chance=0.031)
    log: Log = [*STORY[:12], (290.0, why), (290.0, revoke(1, 2, 1, "stopped")), *STORY[13:14], STORY[-2]]
    story = explain(write(tmp_path / "x.jsonl", log), "mine")
    (step,) = [s for s in story.steps if s.stopped]
    # Jobs are numbered over all apps: "other" has the first, so its second is job 2.
    assert (step.time, step.revoked, step.stopped) == (290.0, 2, ("mine-1: 0.98 ± 0.02 against 0.406 (3.1%)",))
    out = io.StringIO()
    Console(file=out, width=220).print(table(story))
    assert "stopped mine-1: 0.98 ± 0.02 against 0.406 (3.1%)" in out.getvalue()
    assert "the one it had to beat" in " ".join(out.getvalue().split())


def test_an_app_that_a_cut_proof_left_out_is_still_ranked(tmp_path: Path) -> None:
    apps = list(range(300))
    many = auction(4, apps, [9.0] * 300, [a < 3 for a in apps], [0] * 300, [1.0] * 300, [int(a == 200) for a in apps])
    log: Log = [
        (0.0, HEADER),
        *((0.0, app(f"a{i}", 0.0, 1)) for i in apps),
        (60.0, many),
        (60.0, grant(200, 200, 1, (0,))),
    ]
    path = write(tmp_path / "x.jsonl", log)
    step = explain(path, "a200").steps[-1]
    assert (step.rank, step.of, step.leftover, step.granted) == (201, 300, 1, 1)
    left_out = explain(path, "a100").steps[-1]
    assert (left_out.auction, left_out.of, left_out.cut) == (False, 300, True)


def test_names_in_brackets_are_no_markup(tmp_path: Path) -> None:
    log = write(tmp_path / "x.jsonl.gz", [(0.0, HEADER), (0.0, app("[red]a", 0.0, 1, user="[/bold]"))])
    out = io.StringIO()
    Console(file=out, width=120).print(table(explain(log, "[red]a")))
    assert "[red]a of [/bold] under themis" in out.getvalue()


def test_an_unknown_app_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown app 'mein'\. Did you mean 'mine'\?"):
        explain(write(tmp_path / "x.jsonl", STORY), "mein")
    many: Log = [(0.0, HEADER), *((0.0, app(f"app-{i:03d}", 0.0, 1)) for i in range(500))]
    with pytest.raises(UnknownName) as error:
        explain(write(tmp_path / "y.jsonl", many), "app-12")
    assert len(str(error.value)) < 300


def test_an_active_app_has_an_open_end(tmp_path: Path) -> None:
    story = explain(write(tmp_path / "x.jsonl", STORY[:11]), "mine")
    assert story.jct != story.jct
    assert story.steps[-1].held == 4
    out = io.StringIO()
    Console(file=out, width=120).print(table(story))
    assert "still active" in out.getvalue()


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", MINI)
    path.write_bytes(path.read_bytes() + b'{"t":1,"kind":"AppSubmitted"}\n')
    with pytest.raises(InputError, match=rf"x\.jsonl, line {len(MINI) + 1}: "):
        explain(path, "A")
    assert NOTHING.app.size == 0


def test_a_planned_app_shows_its_forecasts_and_how_good_the_first_was(tmp_path: Path) -> None:
    def planned(at: float, starts: float, ends: float) -> tuple[float, e.Allocated]:
        one = np.array([1])
        proof = Proof(method="plan", job=one, starts=np.array([starts]), ends=np.array([ends]))
        answer = RoundPlan(job=one, gpus=one, run=np.ones((1, 1), dtype=bool), round_s=60.0)
        return at, e.Allocated(version=1, solved=Solved(answer=answer, proof=proof))

    log: Log = [
        (0.0, HEADER),
        (0.0, app("other", 0.0, 1)),
        (5.0, app("mine", 5.0, 1)),
        planned(60.0, 120.0, 505.0),
        planned(120.0, 120.0, 400.0),
        (120.0, grant(1, 1, 1, (0, 1))),
        (405.0, revoke(1, 1, 1, "finished")),
        (405.0, finished(1, 400.0, 1.5, 1.7, 1000.0)),
    ]
    story = explain(write(tmp_path / "x.jsonl", log), "mine")
    assert [(s.starts, s.ends) for s in story.steps if s.round >= 0] == [(120.0, 505.0), (120.0, 400.0)]
    assert story.first_forecast_off == pytest.approx(0.25)
    out = io.StringIO()
    Console(file=out, width=200).print(table(story, every=True))
    assert "25% of its completion time too late" in " ".join(out.getvalue().split())
    assert "00:08:25" in out.getvalue()


def test_forecasts_have_intervals_once_enough_jobs_started_and_ended(tmp_path: Path) -> None:
    """Eleven jobs waited and took 1.0, 1.1, ... 2.0 times as long as forecast; then one is to wait 100 s and to end after 200 s."""

    def planned(at: float, starts: float, ends: float, *jobs: int) -> tuple[float, e.Allocated]:
        ids = np.array(jobs)
        proof = Proof(method="plan", job=ids, starts=np.full(len(ids), starts), ends=np.full(len(ids), ends))
        answer = RoundPlan(job=ids, gpus=np.ones_like(ids), run=np.ones((len(ids), 1), dtype=bool), round_s=60.0)
        return at, e.Allocated(version=1, solved=Solved(answer=answer, proof=proof))

    old = range(11)
    log: Log = [
        (0.0, HEADER),
        *((0.0, app(f"old{j}", 0.0, 1)) for j in old),
        planned(0.0, 100.0, 1000.0, *old),
        *((100.0 + 10.0 * j, grant(j, j, 1, (0, 1))) for j in old),
        *((1000.0 + 100.0 * j, e.JobEnded(app=j, job=j, outcome="completed", steps=1.0)) for j in old),
        (3000.0, app("mine", 3000.0, 1)),
        planned(3000.0, 3100.0, 3200.0, 11),
        (3150.0, grant(11, 11, 1, (0, 1))),
    ]
    story = explain(write(tmp_path / "x.jsonl", log), "mine")
    (step,) = (s for s in story.steps if not math.isnan(s.starts))
    assert (step.starts, step.ends) == (3100.0, 3200.0)
    assert (step.starts_low, step.starts_high) == (pytest.approx(3110.0), pytest.approx(3200.0))
    assert (step.ends_low, step.ends_high) == (pytest.approx(3220.0), pytest.approx(3400.0))
    assert story.first_start_off == 50.0
    out = io.StringIO()
    Console(file=out, width=200).print(table(story, every=True))
    assert "[00:51:50, 00:53:20]" in out.getvalue()
    assert "50 s later than the first plan said" in " ".join(out.getvalue().split())
    assert planned_now(json.loads(story.to_json())) == [
        "Plan of 0 s after submission: it runs next at 100 s (110 to 200 s) and ends at 200 s (220 to 400 s)."
    ]


def test_an_app_whose_deadline_is_given_up_is_told_so(tmp_path: Path) -> None:
    def shared(at: float, *late: int, method: str = "slo") -> tuple[float, e.Allocated]:
        answer = TimeShare(
            combos=np.array([[0, -1], [1, -1]]), gpus=np.ones(2, np.int64), x=np.ones((2, 1)), round_s=60.0
        )
        return at, e.Allocated(
            version=1, solved=Solved(answer=answer, proof=Proof(method=method, late=np.array(late, int)))
        )

    log: Log = [
        (0.0, HEADER),
        (0.0, app("other", 0.0, 1)),
        (5.0, app("mine", 5.0, 1)),
        shared(60.0, 0),
        shared(120.0, 0, 1),
        shared(180.0, 0, 1),
        shared(240.0, 1, method=f"{CUT}: 3 deadlines kept, 4 not ruled out"),
        (405.0, finished(1, 400.0, 1.5, 1.7, 1000.0)),
    ]
    story = explain(write(tmp_path / "x.jsonl", log), "mine")
    assert [step.time for step in story.steps if step.late] == [120.0, 180.0, 240.0]
    out = io.StringIO()
    Console(file=out, width=200).print(table(story))
    assert "deadline given up, × 2" in out.getvalue()
    assert "deadline given up (3 deadlines kept, 4 not ruled out)" in out.getvalue()
