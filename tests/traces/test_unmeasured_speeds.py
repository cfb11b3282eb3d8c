"""Speeds that nobody measured: 0 bars a GPU type, nothing is faster than the nearest measurement, and the log says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from themis.core.learning import Measured
from themis.core.scheduler import Scheduler
from themis.errors import InputError
from themis.model.dynamic import Dynamic, Mode
from themis.model.events import AppSubmitted, AssumedSpeed, MachineJoined
from themis.model.log import decode, encode
from themis.model.settings import Settings
from themis.model.speed import Curve, ProfileBook, compile_speeds, linear
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.report.compare import caption
from themis.report.metrics import Fold
from themis.report.speeds import sentence
from themis.sim.runner import Simulation
from themis.traces.profiles.assumed import Assumptions
from themis.traces.profiles.csv_file import read_csv, write_csv
from themis.traces.profiles.library import load_book
from themis.traces.profiles.presets import load_cluster
from themis.traces.profiles.throughputs import profiles_of

TABLE = {
    "v100": {
        "('Net (batch size 16)', 1)": {"null": 8.0},
        "('Net (batch size 128)', 1)": {"null": 1.0},
        "('Net (batch size 256)', 1)": {"null": 0.0},
        "('Net (batch size 256)', 2)": {"null": 0.0},
    },
    "k80": {
        "('Net (batch size 16)', 1)": {"null": 4.0},
        "('Net (batch size 128)', 1)": {"null": 0.5},
        "('Net (batch size 128)', 2)": {"null": 0.0},
        "('Net (batch size 256)', 1)": {"null": 0.25},
    },
}


@pytest.fixture
def book(tmp_path: Path) -> ProfileBook:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    return load_book(str(path))


def net(batch: int, gpus: int = 1, *, dynamic: Dynamic | None = None) -> Job:
    regimes = (Regime(steps=10.0, batch=batch),)
    return Job(name="j", model="Net", regimes=regimes, gpus_min=gpus, gpus_max=gpus, dynamic=dynamic)


def one(job: Job, name: str = "a") -> App:
    return App(name=name, user="u", arrival=0.0, jobs=(job,))


def rate(book: ProfileBook, batch: int, kind: str, gpus: int) -> float:
    return book.rate("Net", batch, kind, gpus, locality=0)  # type: ignore[arg-type]


def test_what_was_measured_as_0_bars_the_type_and_other_types_keep_it(book: ProfileBook) -> None:
    assert rate(book, 256, "V100", 1) == rate(book, 256, "V100", 2) == 0.0
    assert rate(book, 256, "K80", 1) == 0.25
    with pytest.raises(InputError, match=r"at batch size 256 .*V100: it was measured as 0"):
        compile_speeds(book, [("Net", 256)], ("V100",), 4)


def test_a_gang_that_was_measured_as_0_is_not_continued_from_one_gpu(book: ProfileBook) -> None:
    assert rate(book, 128, "K80", 1) == 0.5
    assert [rate(book, 128, "K80", gpus) for gpus in (2, 3, 8)] == [0.0] * 3


def test_counts_between_a_gang_that_fits_and_one_that_does_not_are_0() -> None:
    curve = Curve(gpus=(2, 8), rate=(2.0, 6.0), barred=(1, 4))
    found = curve.at(np.array([1, 2, 3, 4, 6, 8, 16]))
    assert found[[0, 2, 3, 4]].tolist() == [0.0] * 4
    assert found[[1, 5, 6]].tolist() == pytest.approx([2.0, 6.0, 12.0])


@pytest.mark.parametrize("batch", [8, 20, 64, 100, 512])
@pytest.mark.parametrize("kind", ["V100", "K80"])
def test_an_unmeasured_batch_size_is_never_faster_than_the_nearest_measured_one(
    book: ProfileBook, batch: int, kind: str
) -> None:
    profile = book.get("Net")
    near = profile.nearest(kind, batch)
    assert abs(np.log(near / batch)) == min(abs(np.log(b / batch)) for k, b in profile.curves if k == kind and b)
    assert 0 < rate(book, batch, kind, 1) <= rate(book, near, kind, 1)
    assert rate(book, batch, kind, 1) * batch <= rate(book, near, kind, 1) * near + 1e-9
    assert profile.is_assumed(kind, batch, 1)
    assert not profile.is_assumed(kind, near, 1)


def test_gangs_beyond_those_measured_are_assumed_and_linear_profiles_are_not(book: ProfileBook) -> None:
    assert book.get("Net").is_assumed("V100", 16, 4)
    assert not linear("l", 1.0, source="measured: here").is_assumed("V100", 0, 4)
    assert linear("l", 1.0, source="assumption: by eye").is_assumed("V100", 0, 4)


def test_a_job_is_not_placed_where_its_gang_or_a_later_batch_size_does_not_fit(book: ProfileBook) -> None:
    core = Scheduler(book, Settings(), make_policy("fifo").pace)
    for machine in (*load_cluster("1x4@V100").machines, *load_cluster("1x4@K80").machines):
        core.step(MachineJoined(machine=machine), 0.0)
    grows = Dynamic(mode=Mode.GNS, epoch_steps=((128, 1.0), (256, 0.5)))
    for i, job in enumerate((net(128, 1), net(128, 2), net(128, 1, dynamic=grows), net(256, 1))):
        core.step(AppSubmitted(app=one(job, f"a{i}")), 0.0)
    state = core.state
    assert state.allowed(np.arange(4)).tolist() == [[True, True], [True, False], [False, True], [False, True]]
    assert [[state.may_use(j, k) for k in (0, 1)] for j in range(4)] == state.allowed(np.arange(4)).tolist()


def test_a_csv_says_0_for_what_does_not_fit(tmp_path: Path) -> None:
    path, again = tmp_path / "t.csv", tmp_path / "again.csv"
    path.write_text("model,gpu_type,gpus,steps_per_s\nnet,V100,1,2\nnet,V100,2,0\nnet,K80,1,0\n")
    rates = read_csv(path)
    (profile,) = profiles_of(rates, "here")
    assert profile.curve("K80", 0) is None
    curve = profile.curve("V100", 0)
    assert curve is not None
    assert curve.at(np.array([1, 2])).tolist() == [2.0, 0.0]
    write_csv(again, rates)
    assert read_csv(again) == rates


def test_a_measurement_lifts_a_bar(book: ProfileBook) -> None:
    measured = Measured()
    for gpus, kind, batch in ((2, "K80", 128), (1, "V100", 256)):
        measured.rates["Net", batch, kind, gpus, "", 0, 0] = 0.75
    found = measured.corrected(book.get("Net"))
    assert found.curve("K80", 128).at(np.array(2)) == pytest.approx(0.75)  # type: ignore[union-attr]
    assert found.curve("V100", 256).at(np.array(1)) == pytest.approx(0.75)  # type: ignore[union-attr]


def test_books_that_bar_nothing_keep_their_fingerprint(book: ProfileBook) -> None:
    plain = {kind: {key: row for key, row in jobs.items() if row["null"]} for kind, jobs in TABLE.items()}
    assert "barred" not in repr(book.get("Net"))
    assert plain != TABLE
    assert load_book("themis").fingerprint == "3cea59d329a049e5"


def test_the_log_marks_assumed_speeds_and_every_report_counts_them(book: ProfileBook) -> None:
    apps = (one(net(16), "a"), one(net(64), "b"), one(net(16, 4), "c"))
    fold, lines = Fold(), []

    def sink(time: float, record: object) -> None:
        fold.add(time, record)  # type: ignore[arg-type]
        lines.append(encode(time, record))  # type: ignore[arg-type]

    Simulation(
        workload=Workload(name="w", apps=apps),
        cluster=load_cluster("2x4@V100"),
        book=book,
        policy_name="fifo",
        policy=make_policy("fifo"),
    ).run(sink)
    said = [r.assumed for _, r in map(decode, lines) if isinstance(r, AppSubmitted)]
    assert said == [(), (AssumedSpeed("Net", 64, "V100", 1),), (AssumedSpeed("Net", 16, "V100", 4),)]
    run = fold.result()
    assert (run.inputs.speeds, run.inputs.assumed) == (3, (*(said[1] or ()), *(said[2] or ())))
    assert sentence([run]) == (
        "2 of 3 speeds are assumed, not measured: Net at batch size 64 on 1 V100, Net at batch size 16 on 4 V100."
    )
    assert sentence([run]) in caption([run])


def test_logs_from_before_say_nothing_of_assumptions() -> None:
    old = AppSubmitted(app=one(net(16)))
    assert b"assumed" not in encode(0.0, old)
    assert decode(encode(0.0, old))[1] == old


def test_speeds_of_types_that_a_job_may_not_use_are_not_listed(book: ProfileBook) -> None:
    job = Job(name="j", model="Net", regimes=(Regime(steps=1.0, batch=64),), gpu_types=("K80",))
    assert Assumptions(book).of(one(job), ("V100", "K80")) == (AssumedSpeed("Net", 64, "K80", 1),)


def test_the_published_trace_declares_no_batch_size_that_does_not_fit(shared_data: Path) -> None:
    from themis.sim.many import run_many
    from themis.sim.plan import Plan

    root = shared_data / "shockwave"
    schedules = root / "bs_schedules" / "dynamic_120jobs_32gpu.json"
    plan = Plan(
        workload=f"{root / 'traces' / 'dynamic_120jobs_32gpu.trace'}:schedules={schedules}",
        format="shockwave",
        cluster="1x32@V100",
        policies=("fifo",),
        profiles=str(root / "throughputs" / "tacc_throughputs.json"),
    )
    (run,) = plan.runs()
    declared = {
        b for app in run.simulation.workload.apps for j in app.jobs if j.model == "Transformer" for _, b in j.configs
    }
    assert max(declared) == 128
    (done,) = run_many([run], Fold, processes=1)
    assert done.result is not None
    assert done.result.inputs.assumed == ()
