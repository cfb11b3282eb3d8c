"""What comes after an instant changes no record before it: no reader or generator of dynamic jobs shows the future."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from themis.fairness.forecasts.believed import Estimation, measured_configs
from themis.model.events import AppSubmitted, Grant, Header
from themis.model.log import encode, is_record
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.sim.plan import Plan
from themis.sim.runner import Simulation
from themis.traces import shockwave_jobs
from themis.traces.csv_generic import write_csv
from themis.traces.formats import load_workload
from themis.traces.profiles.measured import gavel_book
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster
from themis.traces.trace_summary import paces

Log = list[tuple[float, object]]
Rows = list[tuple[int, int]]
SIZES = {"ResNet-18": (32, 64, 128, 256), "LM": (10, 20, 40, 80)}
CLUSTER = "1x4@V100"


def log_of(
    workload: Workload,
    book: ProfileBook,
    policy: str,
    until: float = float("inf"),
    starts: dict[int, float] | None = None,
) -> Log:
    """All records before ``until``; of an app what is declared alone, for its record holds the truth too.

    ``starts`` : filled with each job's first grant.
    """
    out: Log = []
    starts = {} if starts is None else starts

    def sink(time: float, record: object) -> None:
        if time >= until or isinstance(record, Header) or not is_record(record):  # type: ignore[arg-type]
            return
        starts.setdefault(record.job, time) if isinstance(record, Grant) else None
        text = _declared(record.app) if isinstance(record, AppSubmitted) else encode(time, record)  # type: ignore[arg-type]
        out.append((time, text))

    Simulation(
        workload=workload,
        cluster=load_cluster(CLUSTER),
        book=book,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(lease_s=120.0),
    ).run(sink)
    return out


def _declared(app: App) -> object:
    return app.name, app.arrival, [(j.model, j.gpus_max, j.dynamic, j.expected_regimes) for j in app.jobs]


def altered(epochs: Sequence[tuple[int, float]], keep: float, sizes: Sequence[int], rng: random.Random) -> list[Any]:
    """(batch, epochs) with everything after ``keep`` epochs replaced: other sizes, permuted, as many epochs in all."""
    out, left = [], keep
    for batch, count in epochs:
        if left <= 0:
            break
        out.append((batch, min(count, left)))
        left -= count
    rest = sum(count for _, count in epochs) - sum(count for _, count in out)
    first = out[-1][0] if out else epochs[0][0]
    if rest > 0:
        tail = rng.sample(list(sizes), len(sizes)) if out else [first, *rng.sample(list(sizes), len(sizes))]
        part = max(rest // len(tail), 1)
        for batch in tail:
            count = min(part, rest)
            out += [(batch, count)] if count > 0 else []
            rest -= count
        out[-1] = (out[-1][0], out[-1][1] + rest)
    return out


def kept(workload: Workload, book: ProfileBook, first: Mapping[int, float], until: float) -> dict[str, int]:
    """Epochs that each job has done by then at most: all since its first grant, at its fastest."""
    out = {}
    for j, (job, pace) in enumerate(paces(workload, book)):
        fastest = min(pace(r.batch) * r.pace for r in job.regimes)
        began = first.get(j, until)
        out[job.name] = int((until - began) / fastest) + 1 if began < until else 0
    return out


def assert_no_future(
    read: Callable[[Mapping[str, int] | None, random.Random], Workload], book: ProfileBook, policy: str
) -> None:
    """``read`` : the workload as it is (None), or with what comes after so many epochs of each job replaced."""
    plain = read(None, random.Random(0))
    starts: dict[int, float] = {}
    whole = log_of(plain, book, policy, starts=starts)
    end = max(time for time, _ in whole)
    dynamic = [job for app in plain.apps for job in app.jobs if job.dynamic and job.dynamic.hidden]
    assert len(dynamic) > 3
    for share in (0.15, 0.4):
        until = share * end
        other = read(kept(plain, book, starts, until), random.Random(1))
        regimes = [[j.regimes for a in w.apps for j in a.jobs] for w in (plain, other)]
        assert sum(a != b for a, b in zip(*regimes)) > 2, "the altered workload is another one"
        later = [replace(app, arrival=app.arrival + 1.0) if app.arrival > until else app for app in other.apps]
        before = [(t, r) for t, r in whole if t < until]
        found = log_of(replace(other, apps=tuple(later)), book, policy, until)
        different = next((pair for pair in zip(before, found) if pair[0] != pair[1]), None)
        assert different is None, f"what comes after {until:.0f} s changes a record before it: {different}"
        assert len(found) == len(before)


# ---- readers -------------------------------------------------------------------------------------------------------


def shockwave_files(folder: Path, rows: Mapping[str, Rows], name: str) -> tuple[Path, Path]:
    """A trace of gns and accordion jobs with these schedules; each epoch has a length of its own."""
    trace, schedules = folder / f"{name}.trace", folder / f"{name}.json"
    lines, each = [], []
    for i, (job, stretches) in enumerate(rows.items()):
        model, mode = ("ResNet-18", "gns") if i % 2 else ("LM", "accordion")
        batch = stretches[0][0]
        cells = (f"{model} (batch size {batch})", "c", "d", "-n", "0", "1000", "1", mode, "1", "-1", "900", str(60 * i))
        lines.append("\t".join(cells) + "\n")
        seconds = {str(size): 30.0 + 100.0 / size + (7 * size) % 5 for size in SIZES[model]}
        each.append({"id": i, "bs_rle": stretches, "epoch_s_by_bs": seconds})
        assert job == f"job{i:04d}/00"
    trace.write_text("".join(lines))
    schedules.write_text(json.dumps(each))
    return trace, schedules


@pytest.mark.parametrize("policy", ["shockwave", "themis"])
@pytest.mark.parametrize("book", [DEFAULT_BOOK, gavel_book()], ids=["generic", "gavel"])
def test_the_reader_of_shockwaves_traces_shows_no_future(tmp_path: Path, book: ProfileBook, policy: str) -> None:
    rows: dict[str, Rows] = {}
    for i in range(10):
        low, *_, high = SIZES["ResNet-18" if i % 2 else "LM"]
        rows[f"job{i:04d}/00"] = [(low, 6 + i), (2 * low, 5), (4 * low, 4)] if i % 2 else [(low, 10), (high, 5 + i)]

    def read(keep: Mapping[str, int] | None, rng: random.Random) -> Workload:
        new = rows
        if keep is not None:
            new = {
                name: altered(stretches, keep[name], SIZES["ResNet-18" if i % 2 else "LM"], rng)
                for i, (name, stretches) in enumerate(rows.items())
            }
        trace, schedules = shockwave_files(tmp_path, new, "a" if keep is None else "b")
        return load_workload(str(trace), format="shockwave", schedules=str(schedules), book=book)

    assert_no_future(read, book, policy)


def with_regimes(workload: Workload, keep: Mapping[str, int], rng: random.Random) -> Workload:
    def changed(job: Job) -> Job:
        if job.dynamic is None or not job.dynamic.hidden:
            return job
        rows = altered([(r.batch, r.steps) for r in job.regimes], keep[job.name], job.dynamic.batches, rng)
        return replace(job, regimes=tuple(Regime(steps=e, batch=b) for b, e in rows))

    return replace(workload, apps=tuple(replace(app, jobs=tuple(map(changed, app.jobs))) for app in workload.apps))


def test_dynamic_cells_of_the_generic_csv_show_no_future(tmp_path: Path) -> None:
    plain = load_workload("shockwave_jobs", jobs=10, gpus=8, scale=0.05)

    def read(keep: Mapping[str, int] | None, rng: random.Random) -> Workload:
        path = tmp_path / ("a.csv" if keep is None else "b.csv")
        write_csv(plain if keep is None else with_regimes(plain, keep, rng), path)
        return load_workload(str(path), book=gavel_book())

    assert_no_future(read, gavel_book(), "shockwave")


def test_the_generator_of_shockwaves_jobs_shows_no_future(monkeypatch: pytest.MonkeyPatch) -> None:
    true = shockwave_jobs.schedule

    def read(keep: Mapping[str, int] | None, rng: random.Random) -> Workload:
        if keep is None:
            return load_workload("shockwave_jobs", jobs=10, gpus=8, scale=0.05, dynamic=1.0)
        names = iter(sorted(keep))

        def other(mode: Any, model: str, batch: int, gpus: int, epochs: int) -> tuple[Regime, ...]:
            rows = [(r.batch, r.steps) for r in true(mode, model, batch, gpus, epochs)]
            sizes = [size for size in shockwave_jobs.RANGES[model][0] if size >= batch]
            new = altered(rows, keep[next(names)], sizes, rng)
            return tuple(Regime(steps=float(e), batch=b) for b, e in new)

        with monkeypatch.context() as patched:
            patched.setattr(shockwave_jobs, "schedule", other)
            return load_workload("shockwave_jobs", jobs=10, gpus=8, scale=0.05, dynamic=1.0)

    assert_no_future(read, gavel_book(), "shockwave")


def test_estimates_of_speeds_depend_on_declared_batch_sizes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    book = gavel_book()
    plan = Plan(
        workload="shockwave_jobs:jobs=6,gpus=8", cluster=CLUSTER, policies=("themis",), estimate={"references": "3"}
    )
    plain = load_workload("shockwave_jobs", jobs=6, gpus=8)
    other = with_regimes(plain, {job.name: 0 for app in plain.apps for job in app.jobs}, random.Random(3))
    cluster = load_cluster(CLUSTER)
    assert measured_configs(book, cluster.gpu_types)
    found = [plan._believed(cluster, book, workload, 0) for workload in (plain, other)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].fingerprint == found[1].fingerprint
    assert Estimation().references == 13


# ---- warnings ------------------------------------------------------------------------------------------------------


def test_a_missing_schedule_is_warned_of(tmp_path: Path) -> None:
    trace, schedules = shockwave_files(tmp_path, {"job0000/00": [(10, 5)], "job0001/00": [(32, 5)]}, "a")
    without = load_workload(str(trace), format="shockwave", book=gavel_book())
    (note,) = without.notes
    assert "2 jobs in mode accordion or gns are read as static jobs" in note
    assert "schedules=FILE" in note
    assert load_workload(str(trace), format="shockwave", schedules=str(schedules), book=gavel_book()).notes == ()


def test_every_unknown_model_is_named_with_a_hint(tmp_path: Path) -> None:
    lines = [("LM (batch size 20)", 0), ("WaveNets", 5), ("LM (batch size 10)", 9), ("ResNet-18 (batch size 7)", 11)]
    cells = [(name, "c", "d", "-n", "0", "1000", "1", "static", "1", "-1", "900", str(at)) for name, at in lines]
    trace = tmp_path / "s.trace"
    trace.write_text("".join("\t".join(row) + "\n" for row in cells))
    (note,) = load_workload(str(trace), format="shockwave").notes
    assert "4 jobs, which train 'generic' instead" in note
    assert "'LM' at batch size 10, 20 (2 jobs), which --profiles gavel has." in note
    assert "'WaveNets' (1 job). Did you mean 'WaveNet'?" in note
    (note,) = load_workload(str(trace), format="shockwave", book=gavel_book()).notes
    assert "'ResNet-18' at batch size 7 (1 job), which was measured at batch sizes 16, 32, 64, 128, 256." in note
