"""A value that is refused is refused in the same sentence whichever way it comes, and OpenAPI shows its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from themis import limits
from themis.client.calls import made
from themis.errors import InputError
from themis.jobs import parse
from themis.schema import messages as schema
from themis.schema.wire import read, read_object
from themis.service.api.pages import document
from themis.service.operations.service_settings import load


def refusal(call: Any) -> str:
    with pytest.raises(InputError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("retries", "2000", "retries is 2000, expected a whole number from 0 to 1000."),
        ("retries", "-1", "retries is -1, expected a whole number from 0 to 1000."),
        ("retries", "1.5", "retries is 1.5, expected a whole number from 0 to 1000."),
        ("retries", "true", "retries is true, expected a whole number from 0 to 1000."),
    ],
)
def test_a_value_is_refused_in_the_same_sentence_in_a_job_file_a_body_a_message_and_a_setting(
    tmp_path: Path, key: str, value: str, sentence: str
) -> None:
    body = read_object(f'{{"{key}": {value}}}'.encode())
    assert refusal(lambda: read(schema.SubmitRequest, body)) == sentence
    assert refusal(lambda: made(schema.SubmitRequest, **body)) == f"the call cannot be sent: {sentence}"
    (fault,) = parse(f"name: a\ncommand: x\n{key}: {value}\n", source="jobs.yaml", folder="/").faults
    assert str(fault) == f"jobs.yaml, line 3: {sentence}"
    (tmp_path / "service.yaml").write_text(f"{key}: {value}\n")
    assert refusal(lambda: load(tmp_path / "service.yaml", env={})) == f"{tmp_path}/service.yaml, line 1: {sentence}"


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ({"regimes": [{}]}, "missing key 'steps' in jobs[0].regimes[0]."),
        ({"regimes": [{"step": 5}]}, "unknown key 'step' in jobs[0].regimes[0]. Did you mean 'steps'? Known: batch, steps."),
        ({"regimes": [{"steps": 0}]}, "jobs[0].regimes[0].steps is 0, expected a number from 0.001 to 1e+15."),
        ({"gpu_types": ["x" * 201]}, "jobs[0].gpu_types[0] has 201 characters, expected at most 200."),
        ({"program": {"cwd": "a\0"}}, "jobs[0].program.cwd is 'a\\x00', which has the character U+0000; expected printable text."),
        ({"program": {"modules": ["m"] * 101}}, "jobs[0].program.modules has 101 entries, expected at most 100."),
        ({"gpus_min": None}, "jobs[0].gpus_min is null, expected a whole number from 1 to 1000000."),
        ({"dynamic": {"mode": "gsn"}}, "jobs[0].dynamic.mode is 'gsn', expected one of gns, accordion, declared. Did"),
    ],
)  # fmt: skip
def test_a_limit_of_a_field_is_refused_with_its_place(job: dict[str, Any], sentence: str) -> None:
    assert refusal(lambda: read(schema.SubmitRequest, {"name": "a", "jobs": [job]})).startswith(sentence)


def test_openapi_shows_the_limits_of_fields() -> None:
    parts = document()["components"]["schemas"]
    steps = {"type": "number", "minimum": 0.001, "maximum": 1e15, "description": limits.STEPS.what}
    assert parts["Regime"]["properties"]["steps"] == steps
    assert parts["Regime"]["required"] == ["steps"]
    assert parts["Job"]["properties"]["gpu_types"]["maxItems"] == 100
    assert parts["Program"]["properties"]["cwd"]["maxLength"] == 4096


def test_comments_of_fields_are_their_descriptions_in_openapi() -> None:
    parts = document()["components"]["schemas"]
    assert parts["Program"]["properties"]["argv"]["description"] == "no shell"
    assert parts["Program"]["properties"]["work_is_time"]["description"].startswith(
        "The job's work is an estimate of time"
    )
    assert parts["App"]["properties"]["progress"]["description"].startswith("share of its work done, 0 to 1")
    (job, *_) = [p for p in document()["paths"]["/v1/apps/{app}/logs"]["get"]["parameters"] if p["name"] == "job"]
    assert job["schema"]["description"] == "position in the app, from 0"


def test_work_of_a_job_file_beyond_a_limit_of_the_wire_is_refused_with_its_line(tmp_path: Path) -> None:
    from themis.client.submit_requests import read_requests

    file = tmp_path / "jobs.yaml"
    file.write_text("name: a\ncommand: x\nwork: 1e15 epochs\nsteps_per_epoch: 1e12\n")
    said = refusal(lambda: read_requests(file, folder=tmp_path))
    assert said == f"{file}, line 1: steps is 1e+27, expected a number from 0.001 to 1e+15."
