"""The log's codec: exact, compact, and clear about what is broken."""

from __future__ import annotations

import dataclasses
import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from themis.errors import InputError
from themis.model import events as e
from themis.model.answers import NOTHING_TO_DECIDE, Ask, GpuGrant, Proof, Renewal, RoundPlan, Solved, TimeShare
from themis.model.cluster import Machine
from themis.model.dynamic import Dynamic, Mode
from themis.model.log import LogWriter, Record, decode, encode, is_record, read_log
from themis.model.workload import App, CurveStopping, Halving, Hyperband, Job, LossCurve, Regime, Rung

HEADER = e.Header(
    schema=e.SCHEMA,
    version="1",
    simulated=True,
    policy="themis",
    params={"f": 0.8, "rho": "paper", "none": None},
    seed=3,
    workload="demo",
    source="demo, seed 3",
    cluster="demo-32",
    settings={"lease_s": 600.0},
)
SWEEP = App(
    name="sweep",
    user="ann",
    arrival=1.5,
    weight=2.0,
    deadline=9e4,
    jobs=tuple(
        Job(
            name=f"j{i}",
            model="VGG16",
            regimes=(Regime(steps=10.0), Regime(steps=7.5, batch=64)),
            gpus_min=2,
            gpus_max=4,
            step_scale=1.1,
            gpu_types=("V100", "K80"),
            loss=LossCurve(a=2.0, b=0.1, c=0.3),
        )
        for i in range(4)
    ),
    tuner=Halving(rungs=(Rung(jobs=4, steps=5.0), Rung(jobs=2, steps=12.5))),
)
BRACKETS = dataclasses.replace(
    SWEEP,
    tuner=Hyperband(
        brackets=(
            Halving(rungs=(Rung(jobs=3, steps=5.0), Rung(jobs=1, steps=2.0))),
            Halving(rungs=(Rung(jobs=1, steps=9.0),)),
        )
    ),
)
CURVES = [
    dataclasses.replace(SWEEP, tuner=tuner)
    for tuner in (
        CurveStopping(check_steps=1 / 3),
        CurveStopping(check_steps=2.0, keep=3, confidence=0.9, warmup=6, noise=0.0),
    )
]
PLAIN = App(name="plain", user="bob", arrival=0.0, jobs=(Job(name="j", model="LSTM", regimes=(Regime(steps=1.0),)),))
DYNAMIC = dataclasses.replace(
    PLAIN,
    jobs=tuple(
        Job(
            name="j",
            model="LSTM",
            regimes=(Regime(steps=9.0, batch=64),),
            dynamic=Dynamic(mode=mode, epoch_steps=((64, 781.25), (128, 1170 / 3)), regimes=4),
        )
        for mode in Mode
    ),
)
GRANT = e.Grant(app=1, job=2, attempt=3, gpus=(4, 5, 6), seat=0, until=600.0, locality=1, target=1e5 / 3, score=1 / 1.3)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


PROOF = Proof(
    objective=-0.25,
    bound=-0.2,
    method="exact",
    offered=7,
    app=ints(3, 1),
    rho=np.array([2.5, np.inf]),
    bid=np.array([True, False]),
    won=ints(4, 0),
    kept=np.array([0.7, 1.0]),
    kept_low=np.array([0.6, 1.0]),
    kept_high=np.array([0.8, 1.0]),
    leftover=ints(0, 3),
    late=ints(5),
)
GPUS = GpuGrant(
    app=ints(3, 1),
    gang=ints(0, 1),
    machine=ints(2, 2),
    gpus=ints(4, 3),
    until=np.array([600.0, 540.0]),
    extend=ints(-1, -1),
)
SHARE = TimeShare(
    combos=ints(0, -1, 1, 2).reshape(2, 2), gpus=ints(2, 1), x=np.array([[0.1, 0.2], [1 / 3, 0]]), round_s=360.0
)
PLAN = RoundPlan(
    job=ints(5, 9), gpus=ints(1, 2), run=np.array([[True, False, True], [False, False, True]]), round_s=120.0
)
NO_PROOF = Proof()


def allocated(answer: Any, proof: Proof = NO_PROOF) -> e.Allocated:
    return e.Allocated(version=4, solved=Solved(answer=answer, proof=proof))


RECORDS: list[Record] = [
    HEADER,
    e.MachineJoined(machine=Machine(name="m0", gpus=8, gpu_type="V100", rack="r", gpus_per_slot=2)),
    e.MachineJoined(machine=Machine(name="m1", gpus=1)),
    e.MachineFailed(machine=1),
    e.AgentBid(version=7, app=2, said="rho", rho=1.25),
    e.AgentBid(version=7, app=3, said="bid", rho=2.5, rows=(((2, 1), 1, 0, -1, 1.5), ((4,), 2, 1, 0, 1 / 3))),
    e.Compacted(records=12),
    e.JobsOrdered(app=2, jobs=(9, 7)),
    e.AccountingSet(prices=(("V100", 2.5), ("*", 1.0)), currency="EUR", groups=(("ann", "lab"),), zone="Europe/Berlin"),
    e.MetricsReported(job=3, attempt=2, steps=600.0, total=2000.0, values=(("loss", 0.5), ("f1", math.inf))),
    e.GpusIdle(job=3, attempt=2, gpu_seconds=120.5, by="nvml", action="warned"),
    e.GpusIntruded(job=3, attempt=2, machine=1, gpus=(8, 9), pids=(4711,)),
    e.MachineReturned(machine=1),
    e.MachineDraining(machine=1, until=9.5),
    e.MachineDraining(machine=1),
    e.GpusWithheld(machine=1, gpus=(8,), pids=(4711, 4712), reason="job3-attempt1 left it"),
    e.GpusWithheld(machine=1, gpus=()),
    e.AppSubmitted(app=SWEEP, weight=2.0),
    e.AppSubmitted(app=PLAIN),
    e.AppSubmitted(app=DYNAMIC),
    e.AppSubmitted(app=BRACKETS),
    *(e.AppSubmitted(app=app) for app in CURVES),
    e.AppCancelled(app=0),
    e.AppHeld(app=0),
    e.AppResumed(app=0),
    e.JobDelayed(job=2, until=90.5),
    e.JobGivenUp(job=2, cause="walltime"),
    e.QuotaSet(name="group g", users=("a", "b"), gpus=4),
    e.QuotaSet(name="user a", users=("a",), gpus=None),
    e.JournalRepaired(lost=12, attempts=((2, 3), (4, 1))),
    e.Quarantined(app=3, reason="ZeroDivisionError: x", frames=("core/a.py:1 f", "ZeroDivisionError"), skipped=(7, 9)),
    e.Quarantined(machine=0, reason="the service was started without it"),
    e.FairnessSet(between="users"),
    e.UserWeightsSet(users=(("ann", 0.37), ("bob", 3.0))),
    e.SettingsChanged(
        user="ann",
        values={"lease": 300.0, "policy": "themis:f=0.4", "users.bob.gpus": None},
        settings={"lease_s": 300.0},
        policy="themis:f=0.4",
        params={"f": 0.4, "rho": "paper"},
    ),
    e.MachineResized(machine=3, gpus=0),
    e.ProfilesSet(profiles=({"~Profile": {"name": "m"}},)),
    e.FairnessSet(between="groups", groups=(("g", 0.37, ("a", "b")), ("h", 7.0, ("c",)))),
    e.JobStarted(job=2, attempt=1),
    e.SpeedMeasured(
        model="m", gpu_type="V100", gpus=1, locality=0, steps_per_s=0.0, batch=64, partner="n", partner_batch=8
    ),
    e.JobProgress(job=2, attempt=1, steps=0.1),
    e.JobStopped(job=2, attempt=1, steps=1 / 3),
    e.JobReached(job=2, attempt=1, steps=1e9, loss=0.3),
    e.GoodputReported(job=3, attempt=1, steps=2.5, noise=410.0, gpu_type="V100", times=(0.1,) * 7),
    e.BatchChanged(job=2, attempt=1, steps=1 / 3, batch=64),
    e.LossReported(job=2, attempt=1, steps=1 / 3, loss=0.3),
    allocated(GPUS, PROOF),
    allocated(dataclasses.replace(GPUS, until=np.array([600.0, 600.0]))),
    allocated(GpuGrant(app=ints(), gang=ints(), machine=ints(), gpus=ints(), until=np.zeros(0), extend=ints())),
    allocated(Renewal(until=660.0), NOTHING_TO_DECIDE),
    allocated(Renewal(until=660.0, new=GPUS), NOTHING_TO_DECIDE),
    allocated(SHARE),
    allocated(TimeShare(combos=ints(4, -1, 2, -1).reshape(2, 2), gpus=ints(2, 1), x=np.ones((2, 1)), round_s=360.0)),
    allocated(TimeShare(combos=np.zeros((0, 2), dtype=np.int64), gpus=ints(), x=np.zeros((0, 3)), round_s=1.0)),
    allocated(PLAN),
    allocated(RoundPlan(job=ints(), gpus=ints(), run=np.zeros((0, 4), dtype=bool), round_s=1.0)),
    GRANT,
    dataclasses.replace(GRANT, until=np.inf),
    e.Renew(jobs=(2, 5), until=660.0),
    e.Revoke(app=1, job=2, attempt=3, cause="expired"),
    e.JobEnded(app=1, job=2, outcome="stopped", steps=3.25),
    e.LeastLease(job=2, start_s=20.5, step_s=1 / 3, least_s=30.0),
    e.CurveStopped(app=1, job=2, steps=3.25, forecast=0.5, deviation=0.1, standard=0.2, chance=1 / 3),
    e.AppFinished(
        app=1,
        outcome="completed",
        jct=10.0,
        rho_paper=0.9,
        rho_exact=1.1,
        t_id_paper=11.1,
        t_id_exact=9.1,
        contention=2.0,
        capacity=32.0,
        gpu_seconds=55.5,
        needed=((50.5, 4.0), (1 / 3, 1.5)),
    ),
]


def assert_same(a: Any, b: Any) -> None:
    """Equal down to the types of arrays."""
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert (a == b).all()
    elif dataclasses.is_dataclass(a):
        for f in dataclasses.fields(a):
            assert_same(getattr(a, f.name), getattr(b, f.name))
    else:
        assert a == b


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_every_kind_of_record_comes_back_as_it_was(record: Record) -> None:
    time, back = decode(encode(123.456, record))
    assert time == 123.456
    assert_same(back, record)


def test_every_event_and_command_is_a_record_but_the_machinery() -> None:
    machinery = {"Wake", "WakeAt", "Solve", "CollectBids", "BidsCollected", "Forced"}
    kinds = {kind.__name__ for union in (e.Event, e.Command) for kind in union.__args__}  # type: ignore[attr-defined]
    assert {type(r).__name__ for r in RECORDS} == kinds - machinery | {"Header"}
    assert all(is_record(r) for r in RECORDS)
    assert not is_record(e.Wake())
    assert not is_record(e.WakeAt(time=1.0))


def test_an_answer_that_asks_for_bids_is_no_record() -> None:
    ask = allocated(Ask(column="bids", apps=ints(1), offer=ints(2)))
    assert not is_record(ask)
    with pytest.raises(InputError, match="asks for bids"):
        encode(0.0, ask)


@given(
    time=st.floats(min_value=0, allow_nan=False),
    target=st.floats(allow_nan=False),
    score=st.floats(0, 1),
    gpus=st.lists(st.integers(0, 10**6), min_size=1, max_size=9),
)
def test_numbers_come_back_bit_for_bit(time: float, target: float, score: float, gpus: list[int]) -> None:
    grant = dataclasses.replace(GRANT, target=target, score=score, gpus=tuple(gpus))
    assert decode(encode(time, grant)) == (time, grant)


@given(name=st.text(min_size=1), weight=st.floats(min_value=1e-9, max_value=1e9))
def test_any_name_survives(name: str, weight: float) -> None:
    record = e.AppSubmitted(app=dataclasses.replace(PLAIN, name=name, user=name), weight=weight)
    assert decode(encode(0.0, record))[1] == record


def test_a_long_proof_keeps_the_rows_that_bid_or_got_leftovers() -> None:
    n = 10
    proof = Proof(
        app=np.arange(n),
        rho=np.arange(n) / 2,
        bid=np.arange(n) < 2,
        won=np.zeros(n, dtype=np.int64),
        kept=np.ones(n),
        leftover=np.where(np.arange(n) == 7, 3, 0),
    )
    line = encode(0.0, allocated(GPUS, proof), rows=5)
    assert orjson.loads(line)["proof"]["rows"] == n
    assert orjson.loads(line)["proof"]["at"] == [0, 1, 7]
    _, back = decode(line)
    assert isinstance(back, e.Allocated)
    assert back.solved.proof.app.tolist() == [0, 1, 7]
    assert back.solved.proof.leftover.tolist() == [0, 0, 3]


def test_defaults_of_a_workload_are_left_out() -> None:
    app = orjson.loads(encode(0.0, e.AppSubmitted(app=PLAIN)))["app"]
    assert app == {
        "name": "plain",
        "user": "bob",
        "arrival": 0.0,
        "jobs": [{"name": "j", "model": "LSTM", "regimes": [{"steps": 1.0}]}],
    }


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_file_gives_back_what_was_written_and_equal_runs_equal_bytes(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for path in paths:
        with LogWriter(path) as log:
            for time, record in enumerate(RECORDS):
                log(float(time), record)
            log(99.0, e.Wake())
    assert paths[0].read_bytes() == paths[1].read_bytes()
    back = list(read_log(paths[0]))
    assert [time for time, _ in back] == [float(t) for t in range(len(RECORDS))]
    for (_, got), wrote in zip(back, RECORDS):
        assert_same(got, wrote)


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"t":1.0,"kind":"Gra', "not JSON"),
        (b"[]", "not a line of an event log"),
        (b'{"t":1.0,"kind":"Gift"}', "unknown kind of record 'Gift'"),
        (b'{"t":1.0,"kind":"JobStarted","job":1}', "this is no JobStarted: .*attempt"),
        (b'{"t":1.0,"kind":"Grant","job":1}', "this is no Grant: Object missing required field `app`"),
        (b'{"t":1.0,"kind":"JobStarted","job":1,"attempt":1,"x":2}', "this is no JobStarted: unknown field x"),
        (b'{"t":1.0,"kind":"JobStarted","job":1.5,"attempt":1}', "this is no JobStarted: Expected `int`, got `float`"),
        (b'{"t":1.0,"kind":"AppSubmitted","app":{"name":"a","user":"u","arrival":-1,"jobs":[]}}', "app 'a'"),
        (
            b'{"t":1.0,"kind":"AppSubmitted","app":{"name":"a","user":"u","arrival":1,"tuner":{"kind":"asha"},"jobs":[]}}',
            "unknown tuner 'asha'",
        ),
        (b'{"t":1.0,"kind":"Allocated","version":1,"answer":{"kind":"wish"}}', "unknown kind of answer 'wish'"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, says: str) -> None:
    path = write(tmp_path / "x.jsonl", encode(0.0, HEADER), encode(0.5, GRANT), line)
    with pytest.raises(InputError, match=rf"x\.jsonl, line 3: .*{says}"):
        list(read_log(path))


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (encode(0.0, GRANT), "expected a Header"),
        (encode(0.0, dataclasses.replace(HEADER, schema=99)), f"has schema 99, this Themis reads {e.SCHEMA}"),
    ],
)
def test_a_log_of_another_kind_is_refused(tmp_path: Path, first: bytes, says: str) -> None:
    with pytest.raises(InputError, match=rf"line 1: .*{says}"):
        list(read_log(write(tmp_path / "x.jsonl", first)))


def test_missing_empty_and_truncated_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the log"):
        list(read_log(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="is empty"):
        list(read_log(write(tmp_path / "empty.jsonl", b"")))
    short = tmp_path / "short.jsonl.gz"
    short.write_bytes(gzip.compress(b"\n".join([encode(0.0, HEADER)] + [encode(0.0, GRANT)] * 500))[:-30])
    with pytest.raises(InputError, match="ends too early"):
        list(read_log(short))
    with pytest.raises(InputError, match="cannot read the log"):
        list(read_log(write(tmp_path / "plain.jsonl.gz", encode(0.0, HEADER))))


def test_a_logged_command_agrees_with_an_equal_one_alone() -> None:
    drawn = e.JobEnded(app=1, job=2, outcome="completed", steps=3.0, isolated_s=7.0)
    assert e.agrees(drawn, drawn)
    assert not e.agrees(dataclasses.replace(drawn, isolated_s=8.0), drawn)
    assert not e.agrees(GRANT, None)
