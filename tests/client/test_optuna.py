"""Optuna's studies as apps: the same trials as without Themis, preempted ones resumed, failures the trial's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import objectives
import pytest
from daemon import daemon

from processes import PATIENCE_S, wait_until
from themis.client.adapters.object_reference import reference
from themis.errors import InputError
from themis.schema import messages as schema

optuna = pytest.importorskip("optuna", reason="Optuna is not installed; pip install 'themis-scheduler[optuna]'")
from themis.client.adapters.optuna import optimize, submit  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)
POINTS = (4.0, -6.0, 7.0, 2.0, -3.0)
WHY = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


class Desk:
    """A client that only takes submissions."""

    def __init__(self) -> None:
        self.requests: list[schema.SubmitRequest] = []

    def submit(self, request: schema.SubmitRequest) -> schema.SubmitReply:
        self.requests.append(request)
        if request.jobs[0].gpus_min > 8:
            raise InputError("too many")
        return schema.SubmitReply(app=0, name=request.name)


def study(where: Path | None, **more: Any) -> Any:
    """A fresh study, in a file or in memory."""
    storage = f"sqlite:///{where}/study.db" if where else None
    return optuna.create_study(storage=storage, study_name="s", **more)


def test_a_job_finds_a_function_of_a_module_and_others_are_refused() -> None:
    found = reference(objectives.curve)
    assert (found.module, found.name, found.folder) == ("objectives", "curve", str(Path(__file__).parent))
    assert found.load() is objectives.curve
    for function in (lambda trial: 0.0, optimize.__class__):
        with pytest.raises(InputError, match="top of a script or module"):
            reference(function)


def test_each_trial_is_a_job_and_those_that_wait_come_first(tmp_path: Path) -> None:
    made, desk = study(tmp_path), Desk()
    made.add_trial(optuna.create_trial(value=1.0))
    made.enqueue_trial({"x": 3.0})
    submit(made, objectives.curve, 3, gpus=(1, 2), user="ann", env={"A": "b"}, client=desk)  # type: ignore[arg-type]
    (request,) = desk.requests
    assert [job.name for job in request.jobs] == ["trial1", "trial2", "trial3"]
    assert (request.user, request.name) == ("ann", "s")
    assert {(job.gpus_min, job.gpus_max, job.program.env["A"]) for job in request.jobs} == {(1, 2, "b")}
    assert len(made.trials) == 4


def test_a_refused_submission_leaves_no_trial_waiting_and_bad_input_is_told(tmp_path: Path) -> None:
    made = study(tmp_path)
    with pytest.raises(InputError, match="too many"):
        submit(made, objectives.curve, 2, gpus=9, client=Desk())  # type: ignore[arg-type]
    assert {t.state.name for t in made.trials} == {"FAIL"}
    for more, words in (({"n_trials": 0}, "n_trials is 0"), ({"n_trials": 1, "hours": 0.0}, "hours is 0")):
        with pytest.raises(InputError, match=words):
            submit(made, objectives.curve, client=Desk(), **more)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="in this process's memory"):
        submit(study(None), objectives.curve, 1, client=Desk())  # type: ignore[arg-type]


@pytest.mark.slow
@WHY
@pytest.mark.parametrize("stored", [True, False], ids=["sqlite", "memory"])
def test_alone_a_study_has_the_very_trials_that_it_has_without_themis(tmp_path: Path, stored: bool) -> None:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    plain, shared = study(None, pruner=pruner), study(tmp_path if stored else None, pruner=pruner)
    for made in (plain, shared):
        for x in POINTS:
            made.enqueue_trial({"x": x})
    plain.optimize(objectives.curve, n_trials=len(POINTS))
    with daemon(tmp_path / "home", options=("--gpus", "1")) as service, service.client() as client:
        assert optimize(shared, objectives.curve, len(POINTS), hours=0.001, client=client).state == "completed"
    states = {t.params["x"]: (t.state.name, t.value, t.intermediate_values) for t in plain.trials}
    assert {t.params["x"]: (t.state.name, t.value, t.intermediate_values) for t in shared.trials} == states
    assert {name for name, _, _ in states.values()} == {"COMPLETE", "PRUNED"}
    assert shared.best_params == plain.best_params


@pytest.mark.slow
def test_a_preempted_trial_is_resumed_with_its_parameters_and_not_failed(tmp_path: Path) -> None:
    made = study(tmp_path)
    with daemon(tmp_path / "home", options=("--gpus", "2")) as service, service.client() as client:
        app = submit(made, objectives.resumable, 2, hours=0.002, client=client).app
        wait_until(lambda: all("x" in t.params for t in made.trials), "both trials drew their parameters")
        client.hold(app)
        wait_until(lambda: client.show(app).app.gpus == 0, "it gave its GPUs back")
        assert [t.state.name for t in made.trials] == ["RUNNING"] * 2
        client.resume(app)
        assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
        endings = [[a.ending for a in job.attempts] for job in client.show(app).jobs]
    assert endings == [["stopped", "finished"]] * 2
    assert [(t.state.name, t.value, t.user_attrs["same"]) for t in made.trials] == [("COMPLETE", 2.0, True)] * 2


@pytest.mark.slow
def test_what_an_objective_raises_fails_its_trial_alone(tmp_path: Path) -> None:
    made = study(tmp_path)
    with daemon(tmp_path / "home", options=("--gpus", "2")) as service, service.client() as client:
        assert optimize(made, objectives.broken, 4, hours=0.001, client=client).state == "completed"
        logs = b"".join(client.logs("s", job=1))
    assert [t.state.name for t in made.trials] == ["COMPLETE", "FAIL", "COMPLETE", "FAIL"]
    assert b"ValueError: no good" in logs


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "tuning" / "optuna_study.py"
    with daemon(tmp_path / "home", options=("--gpus", "2")) as service:
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env={**os.environ, "THEMIS_HOME": str(service.home)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    assert "completed; best x" in done.stdout


def test_a_trial_tells_its_parameters_its_values_and_that_it_was_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    from themis.client.adapters.optuna_trial import Told, tell

    (tmp_path / "reports").mkdir()
    monkeypatch.setenv("THEMIS_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    made = study(None, direction="minimize")
    trial = Told(made, made.ask()._trial_id)
    trial.suggest_float("lr", 0.5, 0.5)
    trial.suggest_categorical("optimizer", ["adam"])
    trial.report(2.0, 1)
    tell(trial, PRUNED=1.0)
    rows = [json.loads(line) for line in (tmp_path / "reports" / "reports.jsonl").read_text().splitlines()]
    assert rows == [
        {"metrics": {"lr": 0.5, "value": 2.0}, "loss": 2.0},
        {"metrics": {"lr": 0.5, "PRUNED": 1.0}},
    ]


def test_trials_without_hours_are_of_unknown_work(tmp_path: Path) -> None:
    desk = Desk()
    submit(study(tmp_path), objectives.curve, 1, gpus=2, client=desk)  # type: ignore[arg-type]
    (job,) = desk.requests[0].jobs
    assert (job.program.work_unknown, job.regimes) == (True, []), "the service assumes some"
