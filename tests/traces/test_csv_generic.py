"""The generic CSV: what it means, what it refuses, and that it loses nothing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from themis.errors import InputError, TraceError
from themis.model.dynamic import Dynamic, Mode
from themis.model.workload import (
    App,
    Bag,
    CurveStopping,
    Group,
    Halving,
    Hyperband,
    Job,
    LossCurve,
    Regime,
    Rung,
    User,
    Workload,
)
from themis.traces.csv_generic import COLUMNS, GenericCsv, write_csv
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCS = Path(__file__).parents[2] / "docs"


def read(tmp_path: Path, *lines: str) -> Workload:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return load_workload(str(path))


def test_rows_of_one_app_need_not_be_adjacent_and_the_app_arrives_with_its_first_job(tmp_path: Path) -> None:
    workload = read(tmp_path, "app,user,submit_s,gpus,duration_s", "a,u,9,1,10", "b,v,8,2,10", "a,u,7,1,10")
    assert [(app.name, app.user, app.arrival, len(app.jobs)) for app in workload.apps] == [
        ("a", "u", 7.0, 2),
        ("b", "v", 8.0, 1),
    ]


@pytest.mark.parametrize("model", ["VGG16", "LangModel", "generic", "ideal"])
def test_a_duration_is_what_the_job_takes_on_its_most_gpus_at_the_best_placement(tmp_path: Path, model: str) -> None:
    workload = read(
        tmp_path, "app,submit_s,gpus_min,gpus_max,duration_s,model,step_scale", f"a,0,1,4,1234.5,{model},1.5"
    )
    job = workload.apps[0].jobs[0]
    rate = DEFAULT_BOOK.rate(model, 0, "gpu", 4, 0) / job.step_scale  # type: ignore[arg-type]
    assert job.steps / rate == pytest.approx(1234.5, rel=1e-12)


def test_what_is_left_out_has_the_documented_defaults(tmp_path: Path) -> None:
    app = read(tmp_path, "app,submit_s,gpus,steps", "a,0,2,10").apps[0]
    assert app == App(
        name="a",
        user="a",
        arrival=0.0,
        jobs=(Job(name="a/00", model="generic", regimes=(Regime(steps=10.0),), gpus_min=2, gpus_max=2),),
        tuner=Bag(),
    )


def test_the_minimum_of_an_elastic_job_is_one_where_it_is_not_given(tmp_path: Path) -> None:
    job = read(tmp_path, "app,submit_s,gpus_max,steps", "a,0,4,10").apps[0].jobs[0]
    assert (job.gpus_min, job.gpus_max) == (1, 4)


def test_a_gzipped_file_a_byte_order_mark_and_blank_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress("\ufeffapp , submit_s,gpus,steps\n\n a ,0,1.0,1e3\n\n".encode()))
    app = load_workload(str(path)).apps[0]
    assert (app.name, app.jobs[0].steps) == ("a", 1000.0)


def test_the_shipped_example_is_read_and_the_documentation_shows_it() -> None:
    workload = load_workload(str(EXAMPLES / "trace.csv"))
    assert [len(app.jobs) for app in workload.apps] == [1, 3, 4, 1]
    assert isinstance(workload.apps[2].tuner, Halving)
    assert (
        "".join((EXAMPLES / "trace.csv").read_text().splitlines(keepends=True)[:4]) in (DOCS / "traces.md").read_text()
    )


def test_every_column_is_documented() -> None:
    text = (DOCS / "traces.md").read_text()
    assert [column for column in COLUMNS if f"`{column}`" not in text] == []


HEADER = "app,user,submit_s,gpus,gpus_min,gpus_max,duration_s,steps,model,job,weight,tuner,loss"
GOOD = "a,u,0,1,,,10,,,,,,"
FAULTS = {
    "an app without a name": (",u,0,1,,,10,,,,,,", "app", "", "name"),
    "a submit time that is no number": ("a,u,soon,1,,,10,,,,,,", "submit_s", "soon", "seconds"),
    "a submit time below 0": ("a,u,-1,1,,,10,,,,,,", "submit_s", "-1", "0 or more"),
    "a submit time that is not finite": ("a,u,inf,1,,,10,,,,,,", "submit_s", "inf", "seconds"),
    "a submit time that is not a number at all": ("a,u,nan,1,,,10,,,,,,", "submit_s", "nan", "seconds"),
    "no gpus at all": ("a,u,0,,,,10,,,,,,", "gpus_max", "", "1 or more"),
    "zero gpus": ("a,u,0,0,,,10,,,,,,", "gpus", "0", "1 or more"),
    "half a gpu": ("a,u,0,1.5,,,10,,,,,,", "gpus", "1.5", "whole"),
    "gpus given twice": ("a,u,0,1,1,2,10,,,,,,", "gpus_min", "1", "either"),
    "a minimum above the maximum": ("a,u,0,,4,2,10,,,,,,", "gpus_min", "4", "at most gpus_max, which is 2"),
    "neither duration nor steps": ("a,u,0,1,,,,,,,,,", "duration_s", "", "above 0"),
    "both duration and steps": ("a,u,0,1,,,10,10,,,,,", "duration_s", "10", "one of the two"),
    "a duration of 0": ("a,u,0,1,,,0,,,,,,", "duration_s", "0", "above 0"),
    "steps that are no number": ("a,u,0,1,,,,many,,,,,", "steps", "many", "steps above 0"),
    "a batch that is no number": ("a,u,0,1,,,,10@x,,,,,", "steps", "10@x", "steps@batch"),
    "negative steps in a regime": ("a,u,0,1,,,,10@4 -1@8,,,,,", "steps", "10@4 -1@8", "above 0"),
    "an unknown model": ("a,u,0,1,,,10,,VGG17,,,,", "model", "VGG17", "perhaps 'VGG1"),
    "a weight of 0": ("a,u,0,1,,,10,,,,0,,", "weight", "0", "above 0"),
    "an unknown tuner": ("a,u,0,1,,,10,,,,,asha,", "tuner", "asha", "nothing (all jobs run to the end), rungs"),
    "halving without rungs": ("a,u,0,1,,,10,,,,,halving,", "tuner", "halving", "rungs"),
    "rungs that grow": ("a,u,0,1,,,10,,,,,halving 1x5 2x5,", "tuner", "halving 1x5 2x5", "no more jobs"),
    "a rung that is no pair": ("a,u,0,1,,,10,,,,,halving 1x5x6,", "tuner", "halving 1x5x6", "rungs"),
    "hyperband without rungs": ("a,u,0,1,,,10,,,,,hyperband,", "tuner", "hyperband", "brackets"),
    "an empty bracket": ("a,u,0,1,,,10,,,,,hyperband 1x5 |,", "tuner", "hyperband 1x5 |", "brackets"),
    "brackets of other size": (
        "a,u,0,1,,,10,,,,,hyperband 1x5 | 1x5,",
        "tuner",
        "hyperband 1x5 | 1x5",
        "together 1 jobs",
    ),
    "rungs without end": ("a,u,0,1,,,10,,,,,halving 1xinf,", "tuner", "halving 1xinf", "rungs"),
    "curve without steps": ("a,u,0,1,,,10,,,,,curve keep=1,", "tuner", "curve keep=1", "check_steps=500"),
    "curve of another kind": (
        "a,u,0,1,,,10,,,,,curve check_steps=5 best=1,",
        "tuner",
        "curve check_steps=5 best=1",
        "curve",
    ),
    "curve twice": (
        "a,u,0,1,,,10,,,,,curve check_steps=5 check_steps=5,",
        "tuner",
        "curve check_steps=5 check_steps=5",
        "'curve",
    ),
    "curve that is never sure": (
        "a,u,0,1,,,10,,,,,curve check_steps=5 confidence=1,",
        "tuner",
        "curve check_steps=5 confidence=1",
        "less than 1",
    ),
    "too many reports": (
        "a,u,0,1,,,,1e9,,,,curve check_steps=1,",
        "tuner",
        "curve check_steps=1",
        "at most 10000 reports",
    ),
    "a first rung of other size": ("a,u,0,1,,,10,,,,,halving 2x5 1x5,", "tuner", "halving 2x5 1x5", "1 jobs"),
    "a loss of two numbers": ("a,u,0,1,,,10,,,,,,1 2", "loss", "1 2", "three numbers"),
    "a row with too few cells": ("a,u,0,1", "gpus_min", "", "13 cells"),
    "a row with too many cells": ("a,u,0,1,,,10,,,,,,,7", "number 14", "7", "13 cells"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_row_is_located_to_the_column(tmp_path: Path, fault: str) -> None:
    row, column, value, expected = FAULTS[fault]
    with pytest.raises(TraceError) as caught:
        read(tmp_path, HEADER, GOOD.replace("a", "other", 1), "", row)
    error = caught.value
    assert (error.line, error.column, error.value) == (4, column, value)
    assert expected in str(error)
    assert str(tmp_path / "trace.csv") in str(error)
    assert "\n" not in str(error)


DISAGREEMENTS = {
    "user": ("a,u,0,1,10,,,", "a,v,0,1,10,,,"),
    "weight": ("a,u,0,1,10,1,,", "a,u,0,1,10,2,,"),
    "user_weight": ("a,u,0,1,10,,2,", "b,u,0,1,10,,3,"),
    "group": ("a,u,0,1,10,,,g", "b,u,0,1,10,,,h"),
}


@pytest.mark.parametrize("column", DISAGREEMENTS)
def test_rows_that_must_agree_and_do_not_are_refused(tmp_path: Path, column: str) -> None:
    with pytest.raises(TraceError, match="as on line 2") as caught:
        read(tmp_path, "app,user,submit_s,gpus,duration_s,weight,user_weight,group", *DISAGREEMENTS[column])
    assert (caught.value.line, caught.value.column) == (3, column)


def test_two_jobs_of_one_app_may_not_share_a_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no other job of app 'a'"):
        read(tmp_path, "app,submit_s,gpus,steps,job", "a,0,1,1,j", "a,0,1,1,j")


def test_a_model_written_in_small_letters_is_answered_with_its_real_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="perhaps 'Inception-v3'"):
        read(tmp_path, "app,submit_s,gpus,steps,model", "a,0,1,1,inception-v3")


def test_lines_are_counted_through_quoted_cells_that_span_lines(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, "app,submit_s,gpus,steps", '"a', 'b",0,1,1', "c,0,1,none")
    assert caught.value.line == 4


def test_an_unknown_column_is_answered_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1: unknown column 'gpu_min'\. Did you mean 'gpus_min'\?"):
        read(tmp_path, "app,submit_s,gpu_min,steps", "a,0,1,1")


def test_a_column_may_be_neither_repeated_nor_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'steps' appears twice"):
        read(tmp_path, "app,submit_s,gpus,steps,steps", "a,0,1,1,1")
    path = tmp_path / "trace.csv"
    path.write_text("app,gpus\na,1\n")
    with pytest.raises(InputError, match="column 'submit_s' is missing"):
        GenericCsv().read(path)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"app,submit_s,gpus,steps\n", "no rows"),
        ("t.csv", b"\xff\xfe\x00", "UTF-8"),
        ("t.csv", b'app,submit_s\n"a,0\n', "not valid CSV"),
        ("t.csv.gz", b"app,submit_s", "gzip"),
        ("t.csv.gz", gzip.compress(b"app,submit_s,gpus,steps\na,0,1,1\n", mtime=0)[:-12], "cannot read"),
        ("absent.csv", None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_input_error(
    tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        load_workload(str(tmp_path / name))


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6).map(str.strip).filter(bool)
positive = st.floats(min_value=1e-300, max_value=1e300)
finite = st.floats(allow_nan=False, allow_infinity=False)
losses = st.builds(LossCurve, a=finite, b=st.floats(min_value=0.0, allow_infinity=False), c=finite)
regimes = st.lists(st.builds(Regime, steps=positive, batch=st.integers(0, 4096)), min_size=1, max_size=3).map(tuple)


@st.composite
def jobs(draw: st.DrawFn, name: str) -> Job:
    least = draw(st.integers(1, 16))
    known = draw(regimes)
    sizes = {regime.batch: draw(positive) for regime in known if regime.batch}
    dynamics = st.builds(
        Dynamic,
        mode=st.sampled_from(Mode),
        epoch_steps=st.just(tuple(sorted(sizes.items()))),
        regimes=st.integers(1, 9),
    )
    return Job(
        name=name,
        model=draw(st.sampled_from(list(DEFAULT_BOOK.profiles))),
        regimes=known,
        dynamic=draw(st.none() | dynamics) if known[0].batch else None,
        gpus_min=least,
        gpus_max=draw(st.integers(least, 64)),
        step_scale=draw(positive),
        gpu_types=draw(st.lists(names.filter(lambda t: "|" not in t), max_size=2).map(tuple)),
        loss=draw(losses),
    )


@st.composite
def apps(draw: st.DrawFn, name: str, users: list[str]) -> App:
    members = tuple(draw(jobs(job)) for job in draw(st.lists(names, min_size=1, max_size=3, unique=True)))
    rungs = (Rung(jobs=len(members), steps=draw(positive)), Rung(jobs=1, steps=draw(positive)))
    single = Halving(rungs=(Rung(jobs=1, steps=draw(positive)),))
    check = max(job.steps for job in members) * draw(st.floats(1e-3, 1e3))
    tuners = [Bag(), Halving(rungs=rungs), Hyperband(brackets=(single,) * len(members))]
    if 0 < check < float("inf"):
        more = {"keep": draw(st.integers(1, 9)), "warmup": draw(st.integers(4, 9)), "noise": draw(st.floats(0, 1))}
        tuners.append(CurveStopping(check_steps=check, confidence=draw(st.floats(0.5, 0.999)), **more))
    return App(
        name=name,
        user=draw(st.sampled_from(users)),
        arrival=draw(st.floats(min_value=0, max_value=1e12)),
        jobs=members,
        tuner=draw(st.sampled_from(tuners)),
        weight=draw(positive),
        deadline=draw(st.none() | st.floats(min_value=0, max_value=1e12)),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    people = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    return Workload(
        name="t",
        apps=tuple(draw(apps(name, people)) for name in draw(st.lists(names, min_size=1, max_size=3, unique=True))),
        users=tuple(User(name=name, weight=draw(positive), group="g") for name in people),
        groups=(Group(name="g", weight=2.5),),
    )


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(workload=workloads(), zipped=st.booleans())
def test_what_is_written_is_read_back_exactly(tmp_path: Path, workload: Workload, zipped: bool) -> None:
    path = tmp_path / ("t.csv.gz" if zipped else "t.csv")
    write_csv(workload, path)
    again = load_workload(str(path))
    assert again.apps == workload.apps
    active = {app.user for app in workload.apps}
    assert set(again.users) == {user for user in workload.users if user.name in active}
    assert again.groups == workload.groups


@pytest.mark.parametrize("name", ["demo", "themis1", "themis2"])
def test_a_generated_workload_survives_writing_and_reading(tmp_path: Path, name: str) -> None:
    options = {} if name == "demo" else {"apps": 20}
    workload = load_workload(name, seed=3, **options)
    write_csv(workload, tmp_path / "w.csv")
    assert load_workload(str(tmp_path / "w.csv")).apps == workload.apps


@pytest.mark.parametrize("bad", ["", " a", "a|b"])
def test_a_gpu_type_that_could_not_be_read_back_is_not_written(tmp_path: Path, bad: str) -> None:
    job = Job(name="j", model="generic", regimes=(Regime(steps=1.0),), gpu_types=(bad,))
    workload = Workload(name="w", apps=(App(name="a", user="u", arrival=0.0, jobs=(job,)),))
    with pytest.raises(InputError, match="GPU type name"):
        write_csv(workload, tmp_path / "w.csv")


def test_a_folder_that_does_not_exist_is_an_input_error_when_writing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write_csv(load_workload("demo"), tmp_path / "absent" / "w.csv")


@pytest.mark.parametrize(
    ("steps", "cell", "expected"),
    [
        ("10@4", "gsn 4=9", "gns, accordion or declared"),
        ("10@4", "gns 4=x", "steps per epoch"),
        ("10@4", "gns", "at least one"),
        ("10@4", "gns 8=9", "begins at batch size 4"),
        ("10", "gns 8=9", "begins at batch size 0"),
        ("9@4", "gns 4=9 regimes=2 regimes=3", "a mode"),
        ("9@4", "accordion 4=9 regimes=0", "at most 0 regimes"),
        ("9@4", "accordion 8=9 4=9", "rising"),
        ("9@4", "accordion 4=0", "above 0"),
    ],
)
def test_a_faulty_dynamic_job_is_located(tmp_path: Path, steps: str, cell: str, expected: str) -> None:
    (tmp_path / "t.csv").write_text(f"app,submit_s,gpus,steps,dynamic\na,0,1,{steps},{cell}\n")
    with pytest.raises(TraceError, match=expected) as caught:
        load_workload(str(tmp_path / "t.csv"))
    assert "column 'dynamic'" in str(caught.value)
