"""Demand over time, users' shares, scaled workloads, and lists of faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import write

from themis.errors import InputError, TraceError
from themis.model.speed import ProfileBook
from themis.model.workload import App, CurveStopping, Halving, Hyperband, Job, LossCurve, Regime, Rung, Workload
from themis.traces.csv_generic import write_csv
from themis.traces.demand import demand, sparkline
from themis.traces.figure import write_demand
from themis.traces.formats import load_workload, reader_of
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.scale import Scale, scale
from themis.traces.trace_errors import find_faults
from themis.traces.trace_summary import by_user, describe


def app(name: str, arrival: float, seconds: float, gpus: int, user: str = "u") -> App:
    job = Job(name=name, model="generic", regimes=(Regime(steps=seconds * gpus),), gpus_min=gpus, gpus_max=gpus)
    return App(name=name, user=user, arrival=arrival, jobs=(job,))


TWO = Workload(name="two", apps=(app("a", 0, 100, 4, "x"), app("b", 50, 150, 2, "y")))


# ---- demand and users ----------------------------------------------------------------------------------------------


def test_demand_is_the_gpus_held_if_nobody_waits() -> None:
    found = demand(TWO, bins=4)
    assert found.edges.tolist() == [0, 50, 100, 150, 200]
    assert found.gpus == pytest.approx([4, 6, 2, 2])
    assert (found.peak, found.mean) == (6.0, pytest.approx(3.5))
    assert (found.above(3), found.above(6)) == (0.5, 0.0)


def test_the_rungs_of_a_sweep_follow_one_another_with_fewer_gpus() -> None:
    jobs = tuple(replace(app(f"j{i}", 0, 300, 1).jobs[0], gpus_max=2) for i in range(4))
    sweep = App(
        name="s",
        user="u",
        arrival=10,
        jobs=jobs,
        tuner=Halving(rungs=(Rung(jobs=4, steps=100), Rung(jobs=1, steps=100))),
    )
    found = demand(Workload(name="w", apps=(sweep,)), bins=2)
    assert found.edges.tolist() == [10, 60, 110]
    assert found.gpus == pytest.approx([8, 2])


def test_the_brackets_of_a_sweep_run_beside_each_other() -> None:
    jobs = tuple(replace(app(f"j{i}", 0, 300, 1).jobs[0], gpus_max=2) for i in range(5))
    one = Halving(rungs=(Rung(jobs=4, steps=100), Rung(jobs=1, steps=100)))
    other = Halving(rungs=(Rung(jobs=1, steps=100),))
    sweep = App(name="s", user="u", arrival=10, jobs=jobs, tuner=Hyperband(brackets=(one, other)))
    workload = Workload(name="w", apps=(sweep,))
    assert demand(workload, bins=2).gpus == pytest.approx([10, 2])
    assert (describe(workload).work, describe(workload).stopped) == (600.0, 3)
    (longer,) = scale(workload, Scale(time=3.0)).apps
    assert isinstance(longer.tuner, Hyperband)
    assert [b.steps for b in longer.tuner.brackets] == [600.0, 300.0]


def test_demand_and_work_of_curve_stopping_are_those_of_its_dry_run() -> None:
    curves = [LossCurve(a=2.0, b=0.02, c=c) for c in (0.3, 0.9, 0.5)]
    jobs = tuple(replace(app(f"j{i}", 0, 1000, 1).jobs[0], loss=loss) for i, loss in enumerate(curves))
    sweep = App(name="s", user="u", arrival=0, jobs=jobs, tuner=CurveStopping(check_steps=50, noise=0.0))
    workload = Workload(name="w", apps=(sweep,))
    found = demand(workload, bins=5)
    assert found.gpus == pytest.approx([3, 2.25, 1, 1, 1])
    summary = describe(workload)
    assert (summary.work, summary.stopped) == (1650.0, 2)
    (longer,) = scale(workload, Scale(time=3.0)).apps
    assert longer.tuner == CurveStopping(check_steps=150, noise=0.0)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(1, 1e5), st.integers(1, 64)), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
def test_demand_integrates_to_the_work(rows: list[tuple[float, float, int]]) -> None:
    workload = Workload(name="w", apps=tuple(app(str(i), *row) for i, row in enumerate(rows)))
    found = demand(workload, bins=50)
    assert float(found.gpus @ np.diff(found.edges)) == pytest.approx(describe(workload).work, rel=1e-6)


def test_a_sparkline_is_full_where_demand_is_highest() -> None:
    assert sparkline(np.array([0.0, 1.0, 2.0, 4.0])) == "▁▃▅█"
    assert sparkline(np.zeros(3)) == "▁▁▁"
    assert len(sparkline(np.ones(500), 60)) == 60


def test_users_are_listed_by_their_share_of_the_work() -> None:
    first, second = by_user(TWO)
    assert (first.user, first.apps, first.work, first.share, first.largest_gang) == (
        "x",
        1,
        400.0,
        pytest.approx(4 / 7),
        4,
    )
    assert second.user == "y"


@pytest.mark.parametrize("name", ["d.svg", "d.png"])
def test_equal_workloads_give_equal_figures(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_demand(path, demand(TWO), title="two", capacity=4)
    first = path.read_bytes()
    write_demand(path, demand(TWO), title="two", capacity=4)
    assert path.read_bytes() == first
    assert first[:5] in (b"<?xml", b"\x89PNG\r")


def test_a_figure_is_png_or_svg_in_a_folder_that_exists(tmp_path: Path) -> None:
    for name, complaint in (("d.pdf", "expected .png or .svg"), ("nowhere/d.svg", "cannot write")):
        with pytest.raises(InputError, match=complaint):
            write_demand(tmp_path / name, demand(TWO), title="two")


def test_a_workload_without_apps_has_no_demand_and_no_scale() -> None:
    empty = Workload(name="none", apps=())
    for act in (demand, lambda w: scale(w, Scale())):
        with pytest.raises(InputError, match="has no apps"):
            act(empty)


# ---- scale ---------------------------------------------------------------------------------------------------------


def test_scaling_by_nothing_changes_nothing() -> None:
    demo = load_workload("demo", seed=3)
    assert scale(demo, Scale()).apps == demo.apps


def test_time_scales_arrivals_work_and_deadlines_and_keeps_the_load() -> None:
    workload = replace(TWO, apps=(TWO.apps[0], replace(TWO.apps[1], deadline=350.0)))
    half = scale(workload, Scale(time=0.5))
    assert [a.arrival for a in half.apps] == [0, 25]
    assert half.apps[1].deadline == 175.0
    assert describe(half).work == pytest.approx(describe(workload).work / 2)


def test_load_brings_arrivals_closer_and_keeps_work_and_slack() -> None:
    workload = replace(TWO, apps=(TWO.apps[0], replace(TWO.apps[1], deadline=350.0)))
    busy = scale(workload, Scale(load=2))
    assert [a.arrival for a in busy.apps] == [0, 25]
    assert busy.apps[1].deadline == 25 + 300
    assert [a.jobs for a in busy.apps] == [a.jobs for a in workload.apps]


def test_gpus_are_scaled_to_at_least_one_and_work_stays() -> None:
    assert [a.jobs[0].gpus_max for a in scale(TWO, Scale(gpus=0.2)).apps] == [1, 1]
    assert [a.jobs[0].gpus_max for a in scale(TWO, Scale(gpus=1.25)).apps] == [5, 3]
    assert describe(scale(TWO, Scale(gpus=3))).work == pytest.approx(describe(TWO).work)


def test_fewer_apps_are_a_part_and_more_are_repeated_within_the_arrivals() -> None:
    demo = load_workload("demo", seed=1)
    few = scale(demo, Scale(apps=5, seed=7))
    assert set(few.apps) < set(demo.apps)
    assert few.apps == scale(demo, Scale(apps=5, seed=7)).apps != scale(demo, Scale(apps=5, seed=8)).apps
    many = scale(demo, Scale(apps=50, seed=7))
    assert len(many.apps) == 50
    assert set(demo.apps) < set(many.apps)
    assert max(a.arrival for a in many.apps) == demo.apps[-1].arrival
    assert "scaled: apps=50, seed=7" in many.source


def test_a_scaled_sweep_still_agrees_with_its_rungs(tmp_path: Path) -> None:
    scaled = scale(load_workload("themis2", apps=6), Scale(time=0.1))
    path = tmp_path / "s.csv"
    write_csv(scaled, path)
    assert load_workload(str(path)).apps == scaled.apps


@pytest.mark.parametrize("wrong", [{"time": 0}, {"load": -1}, {"gpus": float("inf")}, {"apps": -1}])
def test_a_factor_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"^scale: "):
        Scale(**wrong)  # type: ignore[arg-type]


# ---- faults --------------------------------------------------------------------------------------------------------

FAULTY = (
    "app,user,submit_s,gpus,duration_s,tuner\n"
    "a,u,0,2,60,\na,u,0,many,60,\nb,u,-1,2,60,\nc,u,0,2\n,u,0,1,5,\nd,u,0,1,5,\nd,u,0,1,5,halving 3x1\ne,u,0,1,5,\n"
)


def faults(path: str, **options: object) -> list[tuple[int, str]]:
    found = find_faults(Path(path), reader_of(path, "", options), limit=20)
    return sorted((f.line, f.column) for f in found if isinstance(f, TraceError))


def test_every_fault_of_a_generic_csv_is_found_once(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", FAULTY)
    assert faults(path) == [(3, "gpus"), (4, "submit_s"), (5, "duration_s"), (6, "app"), (8, "tuner")]


def test_every_fault_of_a_job_log_is_found_once(tmp_path: Path) -> None:
    path = write(
        tmp_path, "cluster01.csv", "job_id,submission_time,duration,num_gpu\na,0,5,1\nb,0,5,x\nc,0,5\na,0,5,1\n,1,1,1\n"
    )
    assert faults(path) == [(3, "num_gpu"), (4, "num_gpu"), (5, "job_id"), (6, "job_id")]


def test_no_more_faults_are_listed_than_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", FAULTY)
    assert len(find_faults(Path(path), reader_of(path, "", {}), limit=2)) == 2


def test_a_file_without_rows_has_one_fault_and_a_sound_one_none(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "app,submit_s,gpus,duration_s\n")
    assert "has a header but no rows" in str(find_faults(Path(path), reader_of(path, "", {}))[0])
    path = write(tmp_path, "t.csv", "app,submit_s,gpus,duration_s\na,0,1,1\n")
    assert find_faults(Path(path), reader_of(path, "", {})) == []


def test_a_reader_that_cannot_go_on_reports_its_first_fault() -> None:
    class Plugin:
        @classmethod
        def recognises(cls, header: tuple[str, ...]) -> bool:
            return False

        def read(self, path: Path, *, seed: int, book: ProfileBook) -> Workload:
            raise TraceError(file=str(path), line=1, column="c", value="v", expected="w")

    assert [str(f) for f in find_faults(Path("x"), Plugin(), book=DEFAULT_BOOK)] == [
        "x, line 1, column 'c': got 'v', expected w."
    ]
