"""Fields of a job are copied by name from the job file to the machine's program."""

from __future__ import annotations

from dataclasses import dataclass, fields

from job_texts import job

from themis.client.submit_requests import to_request
from themis.jobs import build
from themis.jobs.build import PRIOR_S
from themis.machines.engines.program import Program
from themis.schema import messages as schema
from themis.schema.same import same
from themis.schema.wire import as_dict, read
from themis.service.api.submission import _program
from themis.service.engine.config import Config
from themis.traces.profiles.models import DEFAULT_BOOK

KEYS = (
    "launch: machine",
    "grace: 5s",
    "stop_signal: SIGUSR1",
    "checkpoint_dir: /ckpt",
    "packages: uv.lock",
    "modules: [cuda/12.4]",
    "launcher: bwrap",
    "env: {A: b}",
    "cpus: 2",
    "memory: 1 GiB",
    "work: 90",
)


def test_every_key_of_a_program_reaches_the_machine() -> None:
    spec = job("\n".join(KEYS))
    request = read(schema.SubmitRequest, as_dict(to_request(spec, "ann", PRIOR_S, DEFAULT_BOOK)))
    (sent,) = build(spec, user="ann", system_user="ann").programs
    assert _program(request.jobs[0], "ann", Config()) == sent
    plain = Program(argv=("x",))
    elsewhere = {
        "bundle",
        "outputs",
        "exports",
        "secrets",
        "checkpoint_url",
        "own_steps",
    }  # by other ways, or with `send`
    assert {
        field.name for field in fields(Program) if getattr(sent, field.name) == getattr(plain, field.name)
    } == elsewhere


def test_a_field_that_two_shapes_have_needs_no_naming_between_them() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Here:
        name: str
        words: list[str]
        none: float | None = None
        mine: int = 1

    @dataclass(frozen=True, kw_only=True)
    class There:
        name: str
        words: tuple[str, ...]
        none: float = 2.0
        theirs: int = 3

    assert There(**same(There, Here(name="a", words=["b"]), theirs=4)) == There(name="a", words=("b",), theirs=4)
