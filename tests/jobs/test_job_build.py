"""From submissions to apps with an estimate of their work, and to programs."""

from __future__ import annotations

import json

import pytest
from job_texts import job

from themis.jobs import build, programs_of
from themis.jobs.build import PRIOR_S
from themis.jobs.readers import NAMED
from themis.model.units import Locality
from themis.traces.profiles.models import DEFAULT_BOOK

PLAIN = "name: a\ncommand: python train.py\n"


def _seconds(text: str, gpus: int, gpu_type: str = "A100") -> float:
    """How long the job is believed to take on so many GPUs of one machine."""
    built = build(job(text, PLAIN), user="u")
    (one,) = built.app.jobs
    book = DEFAULT_BOOK.with_profiles([built.profile] if built.profile else [])
    return one.steps * one.step_scale / book.rate(one.model, one.regimes[0].batch, gpu_type, gpus, Locality.MACHINE)


@pytest.mark.parametrize(
    ("keys", "gpus", "seconds"),
    [
        ("gpus: 2..8\nwork: 1000\nspeed: {A100: {1: 5, 4: 18}}", 4, 1000 / 18),
        ("work: 10 epochs\nsteps_per_epoch: 50\nspeed: 5", 1, 100),
        ("work: 1000\nmodel: ResNet50", 1, 1000 * 0.382),
        ("gpus: 4\nwork: 2 gpu-hours", 4, 1800),
        ("work: 2 gpu-hours\nspeed: {A100: 5}", 1, 7200),
        ("gpus: 2..8\nwork: 1000\nwalltime: 1h", 2, 3600),
        ("gpus: 2..8\nwork: 1000\nwalltime: 1h", 8, 900),
        ("gpus: 2\nwork: 1000", 2, PRIOR_S),
        ("gpus: 2..8\nwalltime: 1h", 2, 3600),
        ("gpus: 2..8\nwalltime: 1h\nspeed: {A100: {1: 5, 4: 18}}", 2, 3600),
        ("gpus: 4", 4, PRIOR_S),
    ],
)
def test_work_is_estimated_by_what_is_known(keys: str, gpus: int, seconds: float) -> None:
    assert _seconds(keys, gpus) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("keys", "own", "estimated"),
    [
        ("work: 9\nspeed: 1", True, False),
        ("work: 9", True, True),
        ("work: 9 gpu-hours", False, False),
        ("", False, True),
        ("speed: 2", False, True),
    ],
)
def test_it_is_said_whether_work_is_a_guess_and_in_whose_steps(keys: str, own: bool, estimated: bool) -> None:
    built = build(job(keys, PLAIN), user="u")
    assert (built.in_own_steps, built.estimated) == (own, estimated)
    assert all(program.own_steps is own for program in built.programs)


def test_a_trial_gets_its_parameters_by_place_variable_and_json() -> None:
    spec = job(
        "env: {OUT: 'out/{index}', KEEP: '${HOME}{{x}}'}\nsweep: {parameters: {lr: [0.1, 0.2], on: true, s: a b}, "
        "budget: 9, sampler: grid}"
    )
    last = build(spec, user="u").programs[1]
    assert last.argv == ("python", "train.py", "0.2")
    assert last.env == {
        "OUT": "out/1",
        "KEEP": "${HOME}{x}",
        "THEMIS_INDEX": "1",
        "THEMIS_PARAM_LR": "0.2",
        "THEMIS_PARAM_ON": "true",
        "THEMIS_PARAM_S": "a b",
        "THEMIS_PARAMS": '{"lr": 0.2, "on": true, "s": "a b"}',
    }
    assert json.loads(last.env["THEMIS_PARAMS"]) == dict(spec.trials[1].parameters)


def test_a_value_with_a_place_in_it_is_not_filled_again() -> None:
    spec = job("sweep: {parameters: {lr: ['{index}']}, budget: 9, sampler: grid}")
    assert build(spec, user="u").programs[0].argv == ("python", "train.py", "{index}")


def test_a_single_job_keeps_its_braces() -> None:
    spec = job("", "name: a\ncommand: awk '{print} {{x}} {index}'\n")
    assert build(spec, user="u").programs[0].argv[1] == "{print} {{x}} {index}"


def test_jobs_of_an_array_are_told_apart() -> None:
    built = build(job("array: 2,5%1\ncheckpoint_dir: saved", "name: a\ncommand: x {name} {index}\n"), user="u")
    assert [p.argv for p in built.programs] == [("x", "a", "2"), ("x", "a", "5")]
    assert [j.name for j in built.app.jobs] == ["a-2", "a-5"]
    assert [p.checkpoint_dir for p in built.programs] == ["/work/saved/2", "/work/saved/5"]
    assert built.spec.at_once == 1
    assert programs_of({"a": built})(built.app, 1) is built.programs[1]


def test_jobs_of_an_app_with_the_longest_name_have_names_that_the_service_takes() -> None:
    names = [j.name for j in build(job("array: 98-101", f"name: {'a' * 64}\ncommand: x\n"), user="u").app.jobs]
    assert all(NAMED.fullmatch(name) for name in names)
    assert [name[-4:] for name in names] == ["a-98", "a-99", "-100", "-101"]


def test_trials_never_share_a_checkpoint_folder() -> None:
    """A place that is the same for some trials does not tell them apart."""
    spec = job("checkpoint_dir: '{lr}'\nsweep: {parameters: {lr: [1, 2], b: [1, 2]}, budget: 9, sampler: grid}")
    folders = [p.checkpoint_dir for p in build(spec, user="u").programs]
    assert len(set(folders)) == 4


def test_the_app_carries_arrival_deadline_and_limits() -> None:
    spec = job("deadline: 1h\ngpus: 2..4\ngpu_types: [V100]\ngrace: 5s\nlaunch: machine\nstop_signal: SIGUSR1\n", PLAIN)
    built = build(spec, user="u", arrival=100.0, name="a.7", system_user="ada")
    assert (built.app.name, built.app.user, built.app.arrival, built.app.deadline) == ("a.7", "u", 100.0, 3700.0)
    (one,) = built.app.jobs
    assert (one.gpus_min, one.gpus_max, one.gpu_types) == (2, 4, ("V100",))
    (program,) = built.programs
    assert (program.grace_s, program.launch, program.stop_signal, program.user) == (5.0, "machine", "SIGUSR1", "ada")


@pytest.mark.parametrize("types", ["[V100, A100]", "{any_of: [V100, A100]}", "{any_of: [V100, A100, V100]}"])
def test_a_job_may_run_on_any_of_several_gpu_types(types: str) -> None:
    built = build(job(f"gpu_types: {types}\nspeed: {{V100: 2, A100: 5}}\n", PLAIN), user="u")
    assert built.app.jobs[0].gpu_types == ("V100", "A100")
    assert built.profile is not None
    assert built.profile.curve("V100", 0) != built.profile.curve("A100", 0)


def test_two_users_profiles_do_not_meet() -> None:
    spec = job("speed: 2", PLAIN)
    assert build(spec, user="u").profile != build(spec, user="v").profile


def test_an_app_with_a_guessed_speed_has_a_profile_of_its_own() -> None:
    """What is measured of it must not pass for the speed of other unknown models."""
    guessed = build(job("work: 9", PLAIN), user="u")
    assert guessed.profile is not None
    assert guessed.app.jobs[0].model == guessed.profile.name == "u/a"
    assert build(job("work: 9\nmodel: ResNet50", PLAIN), user="u").profile is None


def test_figure_4_the_median_task_stands_in_for_work_that_nobody_knows() -> None:
    """Themis, Figure 4: 3.75 hours."""
    assert PRIOR_S == 13_500
