"""``dynamic:`` in job files: what it declares, what is refused, and that it comes over the wire as it was written."""

from __future__ import annotations

import pytest
from job_texts import faults, job

from themis.client.submit_requests import to_request
from themis.jobs import build
from themis.jobs.build import PRIOR_S
from themis.model.dynamic import Dynamic, Mode
from themis.model.workload import Regime
from themis.service.api.submission import read_app
from themis.service.engine.config import Config
from themis.traces.profiles.models import DEFAULT_BOOK

PLAIN = "name: a\ncommand: python train.py\nwork: 90 epochs\nbatch: 64\nsteps_per_epoch: 800\n"


def test_gns_climbs_in_doublings_up_to_the_largest() -> None:
    found = job("dynamic: {mode: gns, max_batch: 300}", PLAIN)
    sizes = ((64, 800.0), (128, 400.0), (256, 200.0), (300, 800 * 64 / 300))
    assert found.dynamic == Dynamic(mode=Mode.GNS, epoch_steps=sizes)
    assert found.regimes == (Regime(steps=90.0, batch=64),)


def test_accordion_has_two_sizes_and_a_number_of_regimes() -> None:
    found = job("dynamic: {mode: accordion, max_batch: 256, regimes: 4}", PLAIN)
    assert found.dynamic == Dynamic(mode=Mode.ACCORDION, epoch_steps=((64, 800.0), (256, 200.0)), regimes=4)


def test_a_declared_schedule_is_the_jobs_regimes() -> None:
    found = job("dynamic: {mode: declared, schedule: 30@64 50@128 10@64}", PLAIN)
    assert found.dynamic == Dynamic(mode=Mode.DECLARED, epoch_steps=((64, 800.0), (128, 400.0)))
    assert [(r.steps, r.batch) for r in found.regimes] == [(30, 64), (50, 128), (10, 64)]


def test_a_static_job_is_as_if_nothing_was_said() -> None:
    assert job("dynamic: {mode: static}", PLAIN).dynamic is None


@pytest.mark.parametrize(
    "keys",
    [
        "mode: gns, max_batch: 512",
        "mode: accordion, max_batch: 512, regimes: 3",
        "mode: declared, schedule: 40@64 50@128",
    ],
)
def test_a_dynamic_job_comes_over_the_wire_as_it_was_written(keys: str) -> None:
    spec = job(f"dynamic: {{{keys}}}", PLAIN)
    built = build(spec, user="ann")
    (sent,) = built.app.jobs
    (got,) = read_app(to_request(spec, "ann", PRIOR_S, DEFAULT_BOOK), 0.0, Config(), 8, 8).jobs
    assert got.dynamic == sent.dynamic == spec.dynamic
    assert got.regimes == sent.regimes == spec.regimes
    assert got.steps == 90.0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("dynamic: {mode: gsn, max_batch: 9}", "gsn"),
        ("dynamic: {mode: gns}", "needs 'max_batch'"),
        ("dynamic: {mode: gns, max_batch: 32}", "expected at least the job's batch of 64"),
        ("dynamic: {mode: gns, max_batch: many}", "many"),
        ("dynamic: {mode: gns, max_batch: 128, schedule: 90@64}", "requires mode 'declared'"),
        ("dynamic: {mode: accordion, max_batch: 128, regimes: -1}", "regimes"),
        ("dynamic: {mode: declared}", "needs a 'schedule'"),
        ("dynamic: {mode: declared, schedule: 30 epochs}", "such as '30@64 60@128'"),
        ("dynamic: {mode: declared, schedule: 30@64 0@128}", "such as '30@64 60@128'"),
        ("dynamic: {mode: declared, schedule: 90@128}", "begins at batch size 128"),
        ("dynamic: {mode: declared, schedule: 30@64}", "has 30 epochs, expected the job's work of 90 epochs"),
        ("dynamic: yes please", "dynamic"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(keys: str, said: str) -> None:
    found = faults(PLAIN + keys)
    assert len(found) == 1, found
    assert said in found[0]


def test_it_needs_a_batch_size_and_epochs() -> None:
    head, gns = "name: a\ncommand: train\n", "dynamic: {mode: gns, max_batch: 128}\n"
    assert "missing key 'batch'" in faults(head + gns + "work: 9 epochs\nsteps_per_epoch: 10")[0]
    assert "must be in epochs" in faults(head + gns + "batch: 64\nwork: 900")[0]
    assert "must be in epochs" in faults(head + gns + "batch: 64")[0]
    sweep = "sweep: {parameters: {lr: {choice: [1, 2]}}, budget: 9 epochs}\nsteps_per_epoch: 5\nbatch: 64\n"
    assert any("jobs of a sweep cannot be dynamic" in f for f in faults("name: a\ncommand: t {lr}\n" + gns + sweep))
