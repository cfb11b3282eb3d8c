"""Gavel's and Shockwave's traces: with a book that knows their models, and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logs import assert_fault, only, seconds, write

from themis.errors import InputError, UnknownName
from themis.model.dynamic import Dynamic, Mode
from themis.model.speed import ProfileBook
from themis.model.workload import Regime
from themis.traces.formats import load_workload, recognise
from themis.traces.profiles.gavel_table import profiles_from_gavel, split_job_type
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster
from themis.traces.trace_summary import describe

TABLE = {
    "k80": {"('ResNet-18 (batch size 64)', 1)": {"null": 5.0}, "('A3C', 1)": {"null": 2.0}},
    "v100": {
        "('ResNet-18 (batch size 64)', 1)": {"null": 20.0, "('A3C', 1)": [9.0, 1.0]},
        "('ResNet-18 (batch size 64)', 4)": {"null": 60.0},
        "('ResNet-18 (batch size 32)', 1)": {"null": 30.0},
        "('ResNet-18 (batch size 256)', 1)": {"null": 0.0},
        "('A3C', 1)": {"null": 4.0},
    },
    "v100_unconsolidated": {"('ResNet-18 (batch size 64)', 4)": {"null": 40.0}},
}


def gavel_line(**changes: Any) -> str:
    cells = {
        "job_type": "ResNet-18 (batch size 64)",
        "command": 'python3 main.py --data="%s/x"',
        "dir": "cifar10",
        "arg": "--num_steps",
        "needs": "1",
        "steps": "6000",
        "gpus": "4",
        "weight": "2",
        "slo": "-1.000000",
        "arrival": "7.5",
    }
    return "\t".join(str(v) for v in {**cells, **changes}.values()) + "\n"


def table(tmp_path: Path) -> str:
    return write(tmp_path, "throughputs.json", json.dumps(TABLE))


def test_a_job_type_is_a_model_and_a_batch_size() -> None:
    assert split_job_type("ResNet-18 (batch size 64)") == ("ResNet-18", 64)
    assert split_job_type("A3C") == ("A3C", 0)


def test_without_its_model_a_job_is_generic_and_lasts_as_long_as_the_table_says(tmp_path: Path) -> None:
    path = write(tmp_path, "a.trace", gavel_line())
    assert recognise(Path(path)) == "gavel"
    workload = load_workload(path, throughputs=table(tmp_path))
    job = only(workload.apps)
    assert (job.model, job.gpus_min, job.gpus_max) == ("generic", 4, 4)
    assert seconds(job) == pytest.approx(6000 / 60)
    assert (workload.apps[0].arrival, workload.apps[0].weight, workload.apps[0].deadline) == (7.5, 2.0, None)
    slower = load_workload(write(tmp_path, "b.trace", gavel_line(gpus=1)), throughputs=table(tmp_path), reference="K80")
    assert seconds(only(slower.apps)) == pytest.approx(6000 / 5)


def test_a_book_made_of_the_table_keeps_model_batch_and_steps(tmp_path: Path) -> None:
    book = DEFAULT_BOOK.with_profiles(profiles_from_gavel(Path(table(tmp_path))))
    job = only(load_workload(write(tmp_path, "a.trace", gavel_line(slo=2)), book=book).apps)
    assert (job.model, [(r.steps, r.batch) for r in job.regimes]) == ("ResNet-18", [(6000.0, 64)])
    summary = describe(load_workload(write(tmp_path, "a.trace", gavel_line()), book=book), book=book)
    assert summary.longest_job == pytest.approx(100)


def test_a_service_objective_is_a_deadline_in_durations_after_arrival(tmp_path: Path) -> None:
    path = write(tmp_path, "a.trace", gavel_line(slo=2))
    assert load_workload(path, throughputs=table(tmp_path)).apps[0].deadline == pytest.approx(7.5 + 2 * 100)


def test_the_profiles_hold_measured_rates_and_leave_out_what_did_not_fit(tmp_path: Path) -> None:
    profiles = {p.name: p for p in profiles_from_gavel(Path(table(tmp_path)))}
    resnet = profiles["ResNet-18"]
    assert set(resnet.curves) == {("V100", 0), ("V100", 32), ("V100", 64), ("K80", 0), ("K80", 64)}
    assert (resnet.curves["V100", 64].gpus, resnet.curves["V100", 64].rate) == ((1, 4), (20.0, 60.0))
    assert resnet.curves["V100", 0] == resnet.curves["V100", 32]
    assert resnet.slowdown == (1.0, 1.0, 1.5, 1.773)
    assert profiles["A3C"].slowdown == (1.0, 1.0, 1.0, 1.0)


def test_table_4s_transformer_is_not_taken_for_gavels(tmp_path: Path) -> None:
    path = write(tmp_path, "a.trace", gavel_line(job_type="Transformer (batch size 64)"))
    with pytest.raises(InputError, match=r"does not know 'Transformer \(batch size 64\)', which --profiles gavel has"):
        load_workload(path)


@pytest.mark.parametrize(
    ("column", "changes", "value"),
    [
        ("scale_factor", {"gpus": 0}, "0"),
        ("total_steps", {"steps": "0"}, "0"),
        ("priority_weight", {"weight": "-1"}, "-1"),
        ("arrival_s", {"arrival": "now"}, "now"),
        ("job_type", {"job_type": "ResNet-18 (batch size 7)"}, "ResNet-18 (batch size 7)"),
    ],
)
def test_a_faulty_line_is_located(tmp_path: Path, column: str, changes: dict[str, Any], value: str) -> None:
    path = write(tmp_path, "a.trace", gavel_line() + gavel_line(**changes))
    assert_fault(path, line=2, column=column, value=value, throughputs=table(tmp_path))


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.trace", gavel_line())
    for text in ("[]", "{", '{"v100": {"x": {"null": 1}}}', '{"v100": {"(\'a\', 1)": {}}}'):
        with pytest.raises(InputError, match="is no table of throughputs"):
            load_workload(path, throughputs=write(tmp_path, "bad.json", text))
    with pytest.raises(InputError, match="cannot read throughputs"):
        load_workload(path, throughputs=str(tmp_path / "nowhere.json"))
    with pytest.raises(InputError, match="reference is 'A100', expected one of K80, V100"):
        load_workload(path, throughputs=table(tmp_path), reference="A100")


# ---- Shockwave -----------------------------------------------------------------------------------------------------


def shockwave_line(mode: str = "accordion") -> str:
    cells = gavel_line(gpus=1).strip().split("\t")
    return "\t".join([*cells[:7], mode, *cells[7:9], "400", "3"]) + "\n"


SCHEDULE = [{"id": 0, "bs_rle": [[64, 10], [256, 5]], "epoch_s_by_bs": {"64": 30.0, "256": 12.0}}]


def test_without_schedules_a_job_is_static_and_as_long_as_the_file_says(tmp_path: Path) -> None:
    path = write(tmp_path, "s.trace", shockwave_line())
    assert recognise(Path(path)) == "shockwave"
    job = only(load_workload(path).apps)
    assert (job.model, len(job.regimes), seconds(job)) == ("generic", 1, pytest.approx(400))


def test_with_schedules_each_batch_size_is_a_regime_that_lasts_its_epochs(tmp_path: Path) -> None:
    path = write(tmp_path, "s.trace", shockwave_line())
    schedules = write(tmp_path, "schedules.json", json.dumps(SCHEDULE))
    job = only(load_workload(path, schedules=schedules, modes="known").apps)
    assert ([r.batch for r in job.regimes], job.dynamic) == ([64, 256], None)
    assert seconds(job) == pytest.approx(10 * 30 + 5 * 12)
    job = only(load_workload(path, schedules=schedules, modes="known", book=with_256(tmp_path)).apps)
    assert job.model == "ResNet-18"
    assert [(pytest.approx(r.steps), r.batch) for r in job.regimes] == [(300 * 20, 64), (60 * 8, 256)]


def with_256(tmp_path: Path) -> ProfileBook:
    everything = {**TABLE["v100"], "('ResNet-18 (batch size 256)', 1)": {"null": 8.0}}
    known = write(tmp_path, "t.json", json.dumps({"v100": everything}))
    return DEFAULT_BOOK.with_profiles(profiles_from_gavel(Path(known)))


def assert_declared(dynamic: Dynamic | None, mode: Mode, epoch_steps: dict[int, float]) -> None:
    assert dynamic is not None
    assert (dynamic.mode, dict(dynamic.epoch_steps)) == (mode, pytest.approx(epoch_steps))


def test_of_a_dynamic_job_epochs_mode_and_range_are_declared(tmp_path: Path) -> None:
    path = write(tmp_path, "s.trace", shockwave_line() + shockwave_line("gns") + shockwave_line("static"))
    each = [{**SCHEDULE[0], "id": i} for i in range(2)] + [{**SCHEDULE[0], "id": 2, "bs_rle": [[64, 10]]}]
    schedules = write(tmp_path, "schedules.json", json.dumps(each))
    accordion, gns, static = (a.jobs[0] for a in load_workload(path, schedules=schedules, book=with_256(tmp_path)).apps)
    assert [(r.steps, r.batch) for r in accordion.regimes] == [(10, 64), (5, 256)]
    # Seconds of an epoch at the first batch size times measured steps/s; as many examples at the others.
    assert_declared(accordion.dynamic, Mode.ACCORDION, {64: 30.0 * 20, 256: 150.0})
    assert_declared(gns.dynamic, Mode.GNS, {64: 600.0, 128: 300.0, 256: 150.0})
    assert static.dynamic is None
    generic = only(load_workload(path, schedules=schedules, limit=1).apps)
    assert generic.dynamic is not None
    assert generic.dynamic.batches == (64, 256)
    assert generic.expected_regimes == (Regime(steps=15, batch=64),)
    assert seconds(generic) == pytest.approx(10 * 30 + 5 * 12)
    with pytest.raises(UnknownName, match="unknown modes 'know'"):
        load_workload(path, schedules=schedules, modes="know")


def test_a_mode_or_schedule_that_is_not_there_is_located(tmp_path: Path) -> None:
    assert_fault(write(tmp_path, "s.trace", shockwave_line("magic")), line=1, column="mode", value="magic")
    path = write(tmp_path, "s.trace", shockwave_line() + shockwave_line("gns"))
    schedules = write(tmp_path, "schedules.json", json.dumps(SCHEDULE))
    assert_fault(path, line=2, column="mode", value="gns", schedules=schedules)
    for text in ("{}x", '[{"id": 1}]', '[{"id": 0, "bs_rle": [], "epoch_s_by_bs": {}}]'):
        with pytest.raises(InputError, match=r"is no list of schedules|has no epochs"):
            load_workload(path, schedules=write(tmp_path, "bad.json", text))


# ---- the real files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trace", "jobs", "gpu_hours"),
    [
        ("sim_cases/static120_multi.trace", 120, 3_003.0),
        ("sim_cases/cont1000_single_lam2100.trace", 1000, 15_327.3),
        ("traces/max_min_fairness.trace", 96, 392.6),
    ],
)
def test_the_real_gavel_traces(shared_data: Path, trace: str, jobs: int, gpu_hours: float) -> None:
    gavel = shared_data / "gavel"
    table = str(gavel / "tables" / "simulation_throughputs.json")
    summary = describe(load_workload(str(gavel / trace), throughputs=table))
    assert (summary.jobs, summary.gpu_hours) == (jobs, pytest.approx(gpu_hours, abs=0.1))


def test_the_real_gavel_table_profiles_the_models_of_its_traces(shared_data: Path) -> None:
    gavel = shared_data / "gavel"
    book = DEFAULT_BOOK.with_profiles(profiles_from_gavel(gavel / "tables" / "simulation_throughputs.json"))
    workload = load_workload(str(gavel / "sim_cases" / "cont1000_single_lam2100.trace"), book=book)
    summary = describe(workload, load_cluster("12x1@V100"), book)
    assert summary.models["Recommendation"] == 198
    assert summary.gpu_hours == pytest.approx(15_327.3, abs=0.1)


def test_the_real_shockwave_jobs_last_their_isolated_seconds(shared_data: Path) -> None:
    root = shared_data / "shockwave"
    schedules = root / "bs_schedules" / "dynamic_120jobs_32gpu.json"
    path = str(root / "traces" / "dynamic_120jobs_32gpu.trace")
    published = {f"job{job['id']:04d}": job for job in json.loads(schedules.read_text())}
    workload = load_workload(path, schedules=str(schedules))
    assert len(workload.apps) == 120
    for app in workload.apps:
        assert seconds(app.jobs[0]) == pytest.approx(published[app.name]["isolated_s"], rel=1e-4)
        assert app.arrival == published[app.name]["arrival_s"]
    assert describe(load_workload(path)).gpu_hours == pytest.approx(197.6, abs=0.1)
