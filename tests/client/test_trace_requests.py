"""Traces as submissions, and the stand-in that does their work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from themis.client.trace_requests import Play, requests_of
from themis.errors import InputError
from themis.model.dynamic import Dynamic, Mode
from themis.model.speed import linear
from themis.model.workload import App, Job, LossCurve, Regime, Workload
from themis.schema import messages as schema
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.train.paced import Pace, Training
from themis.train.run import PREEMPTED, Run
from themis.train.world import World

NODES = [schema.Node(name="m0", gpus=4, gpu_type="V100"), schema.Node(name="m1", gpus=2, gpu_type="K80")]
BOOK = DEFAULT_BOOK.with_profiles([linear("Net", 0.5, type_speed={"K80": 0.25}, checkpoint_s=6.0)])
NET = Job(name="net", model="Net", regimes=(Regime(steps=1200.0),), gpus_min=1, gpus_max=2, loss=LossCurve(b=0.1))
GROWS = Job(
    name="grows",
    model="Net",
    regimes=(Regime(steps=2.0, batch=8), Regime(steps=1.0, batch=16, pace=2.0)),
    dynamic=Dynamic(mode=Mode.GNS, epoch_steps=((8, 100.0), (16, 50.0))),
)


def trace(*jobs: Job) -> Workload:
    apps = (App(name=f"a/{i}", user="ada", arrival=100.0 + 600.0 * i, jobs=(job,)) for i, job in enumerate(jobs))
    return Workload(name="trace", apps=tuple(apps))


class Clock:
    """Time that passes by sleeping alone; a stop signal comes at ``stop_at``."""

    def __init__(self, stop_at: float = 1e9) -> None:
        self.now, self.stop_at, self.run = 0.0, stop_at, Run()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.run._signalled = self.now >= self.stop_at


def trained(
    message: schema.Job, folder: Path, gang: tuple[str, int, int], stop_at: float = 1e9
) -> tuple[Clock, list[dict[str, float]]]:
    """Run the stand-in of a submission; returns the clock and its reports."""
    (folder / "run" / "reports").mkdir(parents=True, exist_ok=True)
    pace, clock = Pace(**json.loads(message.program.argv[-1])), Clock(stop_at)
    target = 1e18 if message.dynamic else sum(r.steps for r in message.regimes)
    clock.run = Run(
        report_every_s=0.0, world=World(target=target, checkpoint_dir=folder / "saved", run_dir=folder / "run")
    )
    training = Training(pace, clock.run, gang, clock=lambda: clock.now, sleep=clock.sleep)
    if stop_at < 1e9:
        with pytest.raises(SystemExit, match=str(PREEMPTED)):
            training.train()
    else:
        training.train()
    return clock, [json.loads(line) for line in (folder / "run" / "reports" / "reports.jsonl").read_text().splitlines()]


def test_time_is_shorter_by_the_scale_and_the_believed_speed_of_a_stand_in_faster() -> None:
    (_, first), (at, second) = requests_of(trace(NET, NET), NODES, BOOK, Play(name="p", scale=60.0))
    assert at == pytest.approx(10.0)
    assert (first.key, first.name, first.user, second.name) == ("play/p/a-0", "a-0", "ada", "a-1")
    (job,) = first.jobs
    assert job.step_scale == pytest.approx(1 / 60)
    assert [r.steps for r in job.regimes] == [1200.0]


@pytest.mark.parametrize(("gang", "seconds"), [(("V100", 1, 0), 10.0), (("V100", 2, 0), 5.0), (("K80", 1, 0), 40.0)])
def test_a_stand_in_takes_the_time_of_the_trace_on_the_gpus_that_it_was_given(
    tmp_path: Path, gang: tuple[str, int, int], seconds: float
) -> None:
    ((_, request),) = requests_of(trace(NET), NODES, BOOK, Play(name="p", scale=60.0))
    clock, reports = trained(request.jobs[0], tmp_path, gang)
    assert clock.now == pytest.approx(seconds, rel=0.01)
    assert (reports[-1]["steps"], reports[-1]["reached"]) == (1200, True)
    assert reports[-1]["loss"] == pytest.approx(NET.loss.at(1200.0))


def test_the_true_speed_differs_from_the_believed_one_by_the_pace(tmp_path: Path) -> None:
    ((_, request),) = requests_of(trace(NET), NODES, BOOK, Play(name="p", scale=60.0, pace=1.5))
    assert request.jobs[0].step_scale == pytest.approx(1 / 60)
    assert trained(request.jobs[0], tmp_path, ("V100", 1, 0))[0].now == pytest.approx(15.0, rel=0.01)


def test_a_preempted_stand_in_saves_and_resumes_where_it_was(tmp_path: Path) -> None:
    ((_, request),) = requests_of(trace(NET), NODES, BOOK, Play(name="p", scale=60.0))
    first, reports = trained(request.jobs[0], tmp_path, ("V100", 1, 0), stop_at=4.0)
    assert reports[-1]["saved"] == pytest.approx(120 * first.now, abs=2)
    second, reports = trained(request.jobs[0], tmp_path, ("V100", 1, 0))
    # Loading a checkpoint takes a sixtieth of the six seconds too.
    assert first.now + second.now == pytest.approx(10.1, rel=0.01)
    assert reports[-1]["steps"] == 1200


def test_a_dynamic_stand_in_follows_the_true_batch_sizes_which_the_submission_does_not_tell(tmp_path: Path) -> None:
    ((_, request),) = requests_of(trace(GROWS), NODES, BOOK, Play(name="p", scale=10.0))
    assert [(r.steps, r.batch) for r in request.jobs[0].regimes] == [(3.0, 8)]
    clock, reports = trained(request.jobs[0], tmp_path, ("V100", 1, 0))
    # Two epochs of 100 steps and one of 50 that take twice as long, at 2 steps/s and ten times faster.
    assert clock.now == pytest.approx((200 / 2 + 50 / 2 * 2) / 10, rel=0.01)
    assert [r["batch"] for r in reports if r.get("epochs", 0) <= 2.0][-1] == 8
    assert (reports[-1]["batch"], reports[-1]["epochs"], reports[-1]["steps"]) == (16, 3.0, 250)


def test_a_command_gets_its_share_of_the_steps_at_the_models_own_speed() -> None:
    play = Play(
        name="p", scale=60.0, command="train.py '{model} {{x}}' --batch {batch} --steps {steps}", folder="/here"
    )
    (_, (at, request)) = requests_of(trace(NET, replace(NET, model="Net")), NODES, BOOK, play)
    (job,) = request.jobs
    assert at == pytest.approx(10.0)
    assert (job.program.argv, job.program.cwd) == (["train.py", "Net {x}", "--batch", "0", "--steps", "20"], "/here")
    assert ([r.steps for r in job.regimes], job.step_scale) == ([20.0], 1.0)


@pytest.mark.parametrize(
    "name", ["themis1:apps=2", "themis2:apps=2", "gavel_multi:jobs=3", "shockwave_jobs:jobs=3", "demo"]
)
def test_workloads_of_all_papers_become_submissions(name: str) -> None:
    from themis.sim.plan import split_parameters
    from themis.traces.profiles.measured import gavel_book

    generator, options = split_parameters(name)
    book = DEFAULT_BOOK if generator[:5] in ("themi", "demo") else gavel_book()
    workload = load_workload(generator, book=book, **options)
    nodes = [schema.Node(name=f"m{i}", gpus=8, gpu_type="V100") for i in range(4)]
    found = requests_of(workload, nodes, book, Play(name="p", scale=100.0))
    assert len(found) == len(workload.apps)
    for app, (_, request) in zip(workload.apps, found):
        assert len(request.jobs) == len(app.jobs)
        for message in request.jobs:
            Pace(**json.loads(message.program.argv[-1])).rate("V100", message.gpus_min, 0, message.regimes[0].batch)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scale": 0.0}, "--scale is 0, expected a factor of 1e-9 to 1e9"),
        ({"pace": float("nan")}, "--pace is nan, expected a factor of 1e-9 to 1e9"),
        ({"command": "x {modl}"}, r"--command has '\{modl\}', expected one of .* Did you mean 'model'"),
        ({"command": "x {"}, r"--command has '\{', expected one of"),
        ({"command": "x '"}, "cannot be split into words"),
        ({"command": "x", "pace": 2.0}, "--pace is for stand-ins"),
    ],
)
def test_a_wrong_option_is_named_in_a_sentence(options: dict[str, float | str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        requests_of(trace(NET), NODES, BOOK, Play(name="p", **options))  # type: ignore[arg-type]


def test_a_job_that_no_machine_can_hold_is_refused_before_anything_is_submitted() -> None:
    with pytest.raises(InputError, match="needs 9 GPUs"):
        requests_of(trace(NET, replace(NET, gpus_min=9, gpus_max=9)), NODES, BOOK, Play(name="p"))
