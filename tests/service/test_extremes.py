"""Submissions of all kinds, through the API's reader to the arbiter, and those that are accepted through their lives.

2,000 in ``make test``; ``THEMIS_FUZZ=20000`` tries as many.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake import World, world

from extremes import count, drawn
from themis.errors import ThemisError
from themis.machines.engines.program import AttemptEnded, Ending
from themis.model.events import BatchChanged, JobReached, JobStopped, LossReported
from themis.service.api import views
from themis.service.api.access import Access, Caller
from themis.service.api.costs import Costs
from themis.service.api.http_app import rendered, status_of
from themis.service.api.methods import Api
from themis.service.api.pages import find
from themis.service.engine.arbiter_queue import WakeUp

POLICIES = ("fair_finish", "themis", "max_min_fairness", "shockwave")
ADMIN, USER = Caller(user="root", admin=True), Caller(user="u", admin=False)


def api_of(w: World, home: Path) -> Api:
    """The API of an arbiter whose turns the test takes."""
    w.arbiter.ask = lambda do, timeout_s=60.0, *, changes=True: w.ask(lambda a: do())  # type: ignore[method-assign]
    api = Api(w.arbiter, home, Access(home, "token", "root"))
    api.costs = Costs(cpu=lambda: 0.0)
    return api


def submission(rng: random.Random, name: str) -> dict[str, Any]:
    """A valid submission, of a kind that the generator draws."""
    program: dict[str, Any] = {
        "argv": ["sleep", "1"],
        "cwd": "/tmp",
        "env": {"A": "b"},
        "grace_s": 1.5,
        "stop_signal": "SIGTERM",
    }
    steps = rng.choice([1e-3, 0.5, 10.0, 1e6, 1e14])
    job: dict[str, Any] = {
        "name": "j0",
        "regimes": [{"steps": steps}],
        "gpus_min": 1,
        "gpus_max": 2,
        "program": program,
    }
    out: dict[str, Any] = {"name": name, "jobs": [job], "weight": rng.choice([1e-6, 0.5, 1.0]), "retries": 0}
    match rng.randrange(7):
        case 0:
            out["deadline_s"], out["walltime_s"] = rng.choice([0.0, 60.0, 3e8]), 3600.0
        case 1:
            out["brackets"] = {"brackets": [{"rungs": [{"jobs": 2, "steps": steps}, {"jobs": 1, "steps": steps}]}]}
            out["jobs"] = [{**job, "name": f"j{i}", "regimes": [{"steps": 2 * steps}]} for i in range(2)]
        case 2:
            out["curve"] = {"check_steps": steps, "keep": 1, "confidence": 0.95, "warmup": 4}
            out["jobs"] = [{**job, "name": f"j{i}"} for i in range(2)]
        case 3:
            sizes = [{"batch": 32, "steps_per_epoch": 100.0}, {"batch": 64, "steps_per_epoch": 1e-9}]
            job |= {"regimes": [{"steps": 10.0, "batch": 32}], "dynamic": {"mode": "gns", "sizes": sizes}}
        case 4:
            rate = 1e12 if steps > 1e13 else 1e-9 if steps > 1 else 1.0
            curve = {"gpu_type": "*", "gpus": [1, 4], "steps_per_s": [rate, rate]}
            out["profile"] = {"curves": [curve], "slowdown": [1.0, 1.0, 2.0, 1e6], "checkpoint_s": 7.5}
        case 5:
            job |= {"cpus": 0.5, "memory": 1 << 20, "gpu_types": ["gpu"], "model": "generic", "step_scale": 0.5}
            out["at_once"] = 1
    return out


def job_file(rng: random.Random, name: str) -> dict[str, Any]:
    """The keys of a valid job file."""
    work = rng.choice(["0.001 steps", "90 epochs", "40 gpu-hours", "1e15 steps", 1000])
    out: dict[str, Any] = {
        "name": name,
        "command": "true",
        "work": work,
        "gpus": "1..2",
        "workdir": "/tmp",
        "retries": 0,
    }
    if "epochs" in str(work):
        out["steps_per_epoch"] = rng.choice([0.1, 100.0, 1e12])
    if rng.random() < 0.5:
        out |= {
            "speed": {"*": 2.5},
            "slowdown": [1, 1, 1.1, 1e6],
            "checkpoint_time": "7s",
            "deadline": "2h",
        }
    if rng.random() < 0.3:
        out |= {"array": "0-2%1", "walltime": "1h", "env": {"A": "b"}}
    return out


def sent(rng: random.Random, number: int) -> tuple[str, str, bytes]:
    """What was done to a message, the page that it is sent to, and its body."""
    name = f"a{number}"
    if number % 4:
        return "/v1/apps", *drawn(rng, submission(rng, name), number)
    what, text = drawn(rng, job_file(rng, name), number)
    return "/v1/jobfiles", what, json.dumps({"text": text.decode(), "folder": "/tmp", "key": name}).encode()


def turn(w: World, passed: float) -> None:
    """A turn that does not wait for something to come in."""
    w.arbiter.queue.put(WakeUp())
    w.turn(passed)


def live(w: World, rng: random.Random, app: int) -> None:
    """Let an app's jobs report, change, fail and complete as its machine would say; whatever is left is cancelled."""
    s = w.arbiter.state
    for _ in range(6):
        turn(w, rng.choice([0.0, 1e-3, 1.1]))
        for job in [j for j in w.held() if s.jobs.app[j] == app]:
            attempt, total = int(s.jobs.attempt[job]), float(s.jobs.total[job])
            at = rng.choice([0.0, total / 3, total])
            loss = rng.choice([0.0, 1.0, -1e30, 1e30])
            match rng.randrange(6):
                case 0:
                    w.say(LossReported(job=job, attempt=attempt, steps=at, loss=loss))
                case 1:
                    w.say(BatchChanged(job=job, attempt=attempt, steps=at, batch=rng.choice([1, 64, 10**9])))
                case 2:
                    ended = AttemptEnded(
                        app=app, job=job, attempt=attempt, ending=Ending.FAILED, cause="", code=1, seconds=0.0, steps=at,
                        saved=False, killed=False, message="",
                    )  # fmt: skip
                    w.say(ended, JobStopped(job=job, attempt=attempt, steps=at))
                case _:
                    w.say(JobReached(job=job, attempt=attempt, steps=float(s.jobs.target[job]), loss=math.inf))
        if not s.apps.active[app]:
            return
        if rng.random() < 0.1:
            w.ask(lambda a: a.hold(app))
            turn(w, 1.0)
            w.ask(lambda a: a.resume(app))
    w.ask(lambda a: views.show(a, str(app)))
    w.ask(lambda a: a.cancel(app))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_any_submission_is_refused_with_a_reason_or_lives_and_ends(tmp_path: Path, policy: str) -> None:
    rng, kinds = random.Random(policy), Counter[str]()
    with world(tmp_path, 2, 4, policy=policy, max_submissions=10**9, cpus=8, memory=4 << 30) as w:
        api = api_of(w, tmp_path)
        for number in range(count("THEMIS_FUZZ", 2000) // len(POLICIES)):
            path, what, body = sent(rng, number)
            page, inside = find("POST", path)
            known = w.arbiter.state.apps.size
            refused: ThemisError | None = None
            try:
                rendered(page, api.by(rng.choice([ADMIN, USER])), inside, "", body)
            except ThemisError as error:
                refused = error
            kinds["refused" if refused else "changed" if what else "valid"] += 1
            if refused:
                sentence = str(refused)
                assert what, f"a valid one: {sentence} {body!r}"
                assert status_of(refused) in (400, 403, 404, 413, 429), (what, sentence)
                assert sentence.isprintable(), (what, sentence)
                assert sentence[-1] in ".?)", (what, sentence)
                assert len(sentence) < 3000, what
                assert w.arbiter.state.apps.size == known
            for app in range(known, w.arbiter.state.apps.size):
                live(w, rng, app)
            assert w.arbiter.engine.problem == "", what
        assert not w.arbiter.state.apps.active[: w.arbiter.state.apps.size].any()
        rows = w.arbiter.journal.db.execute("SELECT line FROM records WHERE kind = 'AppFinished'").fetchall()
        wrong = [line for (line,) in rows if not all(map(finite, json.loads(line).values()))]
    assert not wrong, wrong[:3]
    assert min(kinds["refused"], kinds["valid"], kinds["changed"]) > 50, kinds
    print(policy, dict(kinds))


def finite(value: Any) -> bool:
    """Whether a number of a record, or each of a list, is one."""
    if isinstance(value, list):
        return all(map(finite, value))
    return value is not None and (not isinstance(value, float) or math.isfinite(value))
