"""The Philly tables: what a row becomes, and the figures of the real files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from themis.errors import InputError, TraceError
from themis.model.units import Locality
from themis.traces.formats import load_workload
from themis.traces.mix import unit_hash
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster
from themis.traces.trace_summary import describe

APPS = "app_id,vc,submit_s,num_gpus,duration_s\n0,b436b2,50,4,600\n0,b436b2,55,4,1200\n1,6214e9,10,1,7\n"
JOBS = (
    "vc,submit_s,submit_time,num_gpus,duration_s,in_pollux\n"
    "6214e9,0,2017-08-14 23:27:00,1,100,0\n"
    "6214e9,30,2017-08-14 23:27:30,1,100,0\n"
    "6214e9,31,2017-08-14 23:27:31,2,100,0\n"
    "6214e9,61,2017-08-14 23:28:01,1,100,0\n"
    "11cb48,62,2017-08-14 23:28:02,1,100,0\n"
)


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "philly.csv"
    path.write_text(text)
    return str(path)


def test_rows_of_one_app_id_are_a_bag_of_rigid_jobs_and_each_vc_is_a_user(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, APPS))
    assert [(a.name, a.user, a.arrival, len(a.jobs)) for a in workload.apps] == [
        ("app1", "6214e9", 10.0, 1),
        ("app0", "b436b2", 50.0, 2),
    ]
    assert {(j.gpus_min, j.gpus_max) for j in workload.apps[1].jobs} == {(4, 4)}


@pytest.mark.parametrize("seed", range(6))
def test_a_job_takes_exactly_its_duration_on_its_gpus_at_the_best_placement(tmp_path: Path, seed: int) -> None:
    job = load_workload(write(tmp_path, APPS), seed=seed).apps[1].jobs[1]
    rate = DEFAULT_BOOK.rate(job.model, 0, "gpu", 4, Locality.SLOT)
    assert job.steps / rate == pytest.approx(1200, rel=1e-12)


def test_single_jobs_makes_each_job_an_app(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, APPS), single_jobs="true")
    assert [(a.name, len(a.jobs)) for a in workload.apps] == [("app1-00002", 1), ("app0-00000", 1), ("app0-00001", 1)]


def test_an_app_keeps_its_model_whatever_is_cut_around_it(tmp_path: Path) -> None:
    path = write(tmp_path, JOBS)
    whole = {a.name: a.jobs[0].model for a in load_workload(path, seed=2).apps}
    part = {a.name: a.jobs[0].model for a in load_workload(path, seed=2, start=31, user="6214e9").apps}
    assert part == {name: whole[name] for name in ("p000002", "p000003")}


def test_the_hash_behind_the_draw_never_changes() -> None:
    assert unit_hash(0, "app0") == GOLDEN_HASH


GOLDEN_HASH = 0.4178848346370896


def test_a_window_counts_arrivals_from_its_start_and_a_limit_keeps_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, JOBS)
    assert [a.arrival for a in load_workload(path, start=30, end=62).apps] == [0.0, 1.0, 31.0]
    assert [a.arrival for a in load_workload(path, limit=2).apps] == [0.0, 30.0]


def test_jobs_close_in_time_with_equal_gpus_of_one_vc_are_grouped_by_the_gap(tmp_path: Path) -> None:
    path = write(tmp_path, JOBS)
    assert [len(a.jobs) for a in load_workload(path, gap_s=30).apps] == [2, 1, 1, 1]
    assert [len(a.jobs) for a in load_workload(path, gap_s=31).apps] == [3, 1, 1]
    assert [len(a.jobs) for a in load_workload(path, gap_s=31, min_jobs=2).apps] == [3]


FAULTS = {
    "num_gpus": ("0,v,0,0,5", "0"),
    "duration_s": ("0,v,0,1,0", "0"),
    "submit_s": ("0,v,x,1,5", "x"),
    "vc": ("0,,0,1,5", ""),
    "app_id": (",v,0,1,5", ""),
}


@pytest.mark.parametrize("column", FAULTS)
def test_a_faulty_row_is_located_to_the_column(tmp_path: Path, column: str) -> None:
    row, value = FAULTS[column]
    with pytest.raises(TraceError) as caught:
        load_workload(write(tmp_path, APPS + row + "\n"))
    assert (caught.value.line, caught.value.column, caught.value.value) == (5, column, value)


def test_options_that_leave_nothing_or_contradict_themselves_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, APPS)
    for options, complaint in (
        ({"user": "nobody"}, "no app is left"),
        ({"start": 5, "end": 5}, "expected 0 <= start < end"),
        ({"limit": -1}, "limit is -1"),
        ({"single_job": True}, "Did you mean 'single_jobs'"),
    ):
        with pytest.raises(InputError, match=complaint):
            load_workload(path, **options)


def test_the_real_apps_are_732_of_14521_jobs_and_160884_gpu_hours(shared_data: Path) -> None:
    workload = load_workload(str(shared_data / "philly" / "philly_themis_like_apps.csv.gz"), seed=0)
    summary = describe(workload, load_cluster("sim-256"))
    assert (summary.apps, summary.jobs) == (732, 14_521)
    assert summary.gpu_hours == pytest.approx(160_884, abs=1)
    assert summary.apps_per_user["6214e9"] / 732 == pytest.approx(0.65, abs=0.01)
    assert summary.longest_job / 86400 == pytest.approx(37.7, abs=0.05)


@pytest.mark.slow
def test_grouping_the_real_jobs_gives_the_published_apps(shared_data: Path) -> None:
    """[2017-10-09, 2017-10-23), gap 30 s, apps of 4 to 100 jobs: the recipe of the other table."""
    start = 55 * 86400 + 33 * 60
    grouped = load_workload(
        str(shared_data / "philly" / "philly_jobs.csv.gz"),
        start=start,
        end=start + 14 * 86400,
        gap_s=30,
        min_jobs=4,
        max_jobs=100,
    )
    given = load_workload(str(shared_data / "philly" / "philly_themis_like_apps.csv.gz"))
    assert (len(grouped.apps), grouped.jobs) == (732, 14_521)
    assert Counter((a.user, a.arrival, len(a.jobs)) for a in grouped.apps) == Counter(
        (a.user, a.arrival, len(a.jobs)) for a in given.apps
    )
