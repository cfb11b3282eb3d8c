"""``themis trace``: what each verb prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command

from themis.traces.formats import load_workload

GOOD = "app,user,submit_s,gpus,duration_s\na,ann,0,2,3600\nb,bob,1800,4,3600\n"
BAD = "app,user,submit_s,gpus,duration_s\na,ann,0,2,60\nb,bob,5,many,60\nc,bob,-5,1,60\n"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.csv").write_text(GOOD, encoding="utf-8")
    (tmp_path / "bad.csv").write_text(BAD, encoding="utf-8")
    (tmp_path / "endless.csv").write_text(GOOD.splitlines()[0] + "\na,ann,0,1,1e300\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_describe_shows_figures_users_and_demand_against_capacity(themis: Command) -> None:
    ended = themis("trace", "describe", "good.csv", "--cluster", "1x4")
    assert ended.code == 0, ended
    for text in (
        "2, 2, 2",
        "6.0 GPU-hours",
        "mean 4.0, peak 6",
        "offered load on 1x4",
        "3.00 (4 GPUs)",
        "ann",
        "66.7%",
        "█",
    ):
        assert text in ended.out, text
    assert "file: good.csv" in ended.out


def test_describe_works_on_generators_and_without_a_cluster(themis: Command) -> None:
    ended = themis("trace", "describe", "demo:load=2", "--users", 1)
    assert ended.code == 0
    assert "and 2 more users" in ended.out
    assert "offered load" not in ended.out


def test_describe_as_json_has_the_figures_and_the_series(themis: Command) -> None:
    shown = json.loads(themis("trace", "describe", "good.csv", "-c", "1x4", "--json").out)
    assert (shown["apps"], shown["capacity"], shown["offered_load"]) == (2, 4, pytest.approx(3.0))
    assert shown["demand"]["mean"] == pytest.approx(4.0)
    assert len(shown["demand"]["gpus"]) == 400
    assert [u["user"] for u in shown["by_user"]] == ["bob", "ann"]


def test_describe_draws_and_refuses_other_formats_before_reading(themis: Command, tmp_path: Path) -> None:
    ended = themis("trace", "describe", "good.csv", "-c", "1x4", "--plot", "d.svg")
    assert "Figure: d.svg" in ended.err
    assert "capacity, 4" in (tmp_path / "d.svg").read_text(encoding="utf-8")
    assert "expected .png or .svg" in themis("trace", "describe", "nowhere.csv", "--plot", "d.pdf").err


def test_validate_lists_every_fault_and_ends_with_2(themis: Command) -> None:
    ended = themis("trace", "validate", "bad.csv")
    assert ended.code == 2
    first, second = ended.out.splitlines()
    assert first.startswith("bad.csv, line 3, column 'gpus': got 'many', expected")
    assert second.startswith("bad.csv, line 4, column 'submit_s': got '-5', expected")
    assert "2 errors." in ended.err
    ended = themis("trace", "validate", "bad.csv", "--limit", 1)
    assert (ended.code, len(ended.out.splitlines())) == (2, 1)
    assert "1 or more errors." in ended.err


def test_validate_as_json_lists_places(themis: Command) -> None:
    ended = themis("trace", "validate", "bad.csv", "--json")
    assert ended.code == 2
    assert [(f["line"], f["column"], f["value"]) for f in json.loads(ended.out)] == [
        (3, "gpus", "many"),
        (4, "submit_s", "-5"),
    ]
    assert json.loads(themis("trace", "validate", "good.csv", "--json").out) == []


def test_validate_says_that_a_file_is_sound_and_whether_it_fits(themis: Command) -> None:
    ended = themis("trace", "validate", "good.csv", "--cluster", "1x4")
    assert (ended.code, ended.out) == (0, "good.csv is valid: 2 apps, 2 jobs.\n")
    ended = themis("trace", "validate", "good.csv", "--cluster", "1x2")
    assert ended.code == 2
    assert "needs 4 GPUs; cluster '1x2' has 2" in ended.out
    assert themis("trace", "validate", "demo").code == 0


def test_convert_writes_what_is_read_back_equal(themis: Command, tmp_path: Path) -> None:
    for trace, target in (("good.csv", "a.csv"), ("demo", "b.csv.gz"), ("themis2:apps=5", "c.csv")):
        ended = themis("trace", "convert", trace, target, "--seed", 2)
        assert ended.code == 0, ended
        name, _, rest = trace.partition(":")
        options = dict([rest.split("=")]) if rest else {}
        assert load_workload(target).apps == load_workload(name, seed=2, **options).apps  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "trace",
    [
        "philly/philly_themis_like_apps.csv.gz:limit=50",
        "alibaba-gpu-v2023/openb_pod_list_gpuspec33.csv.gz:limit=500",
        "shockwave/traces/dynamic_120jobs_32gpu.trace:schedules={}/shockwave/bs_schedules/dynamic_120jobs_32gpu.json",
        "gavel/traces/max_min_fairness.trace:throughputs={}/gavel/tables/simulation_throughputs.json",
    ],
)
def test_a_real_trace_survives_conversion(trace: str, themis: Command, shared_data: Path) -> None:
    path, _, rest = trace.format(shared_data).partition(":")
    assert themis("trace", "convert", f"{shared_data}/{path}:{rest}", "t.csv").code == 0
    options = dict([rest.split("=")])
    assert load_workload("t.csv").apps == load_workload(f"{shared_data}/{path}", **options).apps  # type: ignore[arg-type]


def test_scale_writes_the_scaled_workload(themis: Command) -> None:
    ended = themis("trace", "scale", "good.csv", "out.csv", "--time", 0.5, "--gpus", 2, "--apps", 4)
    assert ended.code == 0, ended
    assert "out.csv: 4 apps, 4 jobs." in ended.err
    scaled = load_workload("out.csv")
    assert {job.gpus_max for app in scaled.apps for job in app.jobs} <= {4, 8}
    assert max(app.arrival for app in scaled.apps) == 900.0


def test_nothing_is_overwritten_unless_forced(themis: Command, tmp_path: Path) -> None:
    ended = themis("trace", "convert", "demo", "good.csv")
    assert ended.code == 2
    assert "good.csv exists; choose another file, or overwrite it with --force" in ended.err
    assert (tmp_path / "good.csv").read_text(encoding="utf-8") == GOOD
    assert themis("trace", "convert", "demo", "good.csv", "--force").code == 0


REFUSED = {
    "a file that is not there": (["describe", "nowhere.csv"], "cannot read trace 'nowhere.csv'"),
    "a misspelt generator": (["describe", "demoo"], "Did you mean 'demo'?"),
    "a misspelt option": (["describe", "demo:lod=2"], "Did you mean 'load'?"),
    "a seed among the options": (["describe", "demo:seed=2"], "seed is not one of its options"),
    "a misspelt format": (["convert", "good.csv", "x.csv", "-f", "helos"], "Did you mean 'helios'?"),
    "a misspelt cluster": (["describe", "demo", "-c", "sim-265"], "Did you mean 'sim-256'?"),
    "a faulty file": (["convert", "bad.csv", "x.csv"], "bad.csv, line 3, column 'gpus'"),
    "a target of another kind": (["convert", "demo", "x.parquet"], "expected a name that ends in .csv or .csv.gz"),
    "a target that cannot be written": (["convert", "demo", "nowhere/x.csv"], "cannot write trace"),
    "a job without end": (
        ["describe", "endless.csv"],
        "job 'a/00' of app 'a' takes 1e+300 s, expected at most 1e+10 s",
    ),
    "a factor of nothing": (["scale", "demo", "x.csv", "--load", "0"], "load is 0.0, expected a factor above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_trace_ends_in_one_sentence_on(case: str, themis: Command) -> None:
    args, expected = REFUSED[case]
    ended = themis("trace", *args)
    assert ended.code == 2, ended
    assert expected in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert ended.out == ""


@pytest.mark.parametrize("verb", ["describe", "validate", "convert", "scale"])
def test_every_verb_has_help_with_an_example(verb: str, themis: Command) -> None:
    ended = themis("trace", verb, "--help")
    assert ended.code == 0
    assert f"themis trace {verb}" in ended.out


def test_an_unknown_verb_is_a_usage_error(themis: Command) -> None:
    assert themis("trace", "descibe", "demo").code == 2
