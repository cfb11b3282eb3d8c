"""Whatever callers send is answered, or refused in one sentence: no traceback, no broken arbiter, nothing half done.

Bounded in examples; the same examples each time.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import httpx
import pytest
import yaml
from fake import request, world
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from test_agents import Scene

from processes import PATIENCE_S
from themis.client.home import read_token
from themis.client.submit_requests import read_requests
from themis.errors import InputError
from themis.schema import messages as schema
from themis.schema.routes import CALLS
from themis.schema.wire import as_dict, as_json, kind, read
from themis.service.api import views
from themis.service.api.access import Caller
from themis.service.api.pages import takes_body
from themis.service.api.submission import submit
from themis.service.engine.config import Config
from themis.service.operations.up import Service, running

BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
EDGES: list[float] = [0.0, 1.0, -1.0, 0.5, 2.0, 1e-300, 1e15, 1e300, float("inf"), float("-inf"), float("nan")]
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "a",
            "a-1",
            "u",
            "0",
            "1",
            "ok",
            "any",
            "failed",
            "generic",
            "*",
            "gpu",
            "machine",
            "/tmp",
            "SIGTERM",
            "..",
            "a\0b",
            "é",
            "x" * 70,
            "9" * 5000,
            "-1",
            "' OR 1=1 --",
        ]
    ),
    st.text(max_size=8),
)


@st.composite
def messages(draw: st.DrawFn, kind: Any, depth: int = 0) -> Any:
    """A message of a kind, each field left out or of any value that its type can hold, many of them at its edge."""
    values = {}
    for name, field in kind.model_fields.items():
        if not (field.is_required() or draw(st.sampled_from([True, True, False]))):
            continue
        if (found := _values(field.annotation, depth)) is not None:
            values[name] = draw(found)
    return kind.model_construct(**values)


def _values(of: Any, depth: int) -> st.SearchStrategy[Any] | None:
    """Values of a field's type; None where messages are too deep."""
    inner = [one for one in get_args(of) if one is not type(None) and not isinstance(one, str)]
    if get_origin(of) is list:
        found = _values(inner[0], depth)
        return None if found is None else st.lists(found, max_size=3)
    if get_origin(of) is dict:
        found = _values(inner[-1], depth)
        return None if found is None else st.dictionaries(TEXTS, found, max_size=2)
    if get_origin(of) is Literal:
        return st.sampled_from(get_args(of))
    if inner:  # optional, or with limits
        return _values(inner[0], depth)
    if isinstance(of, type) and issubclass(of, schema.Message):
        return messages(of, depth + 1) if depth <= 4 else None
    if of is bool:
        return st.booleans()
    if of is float:
        return st.one_of(st.sampled_from(EDGES), st.floats())
    if of is int:
        return st.sampled_from([0, 1, 2, 5, -1, 2**31 - 1, -(2**31)])
    return TEXTS


@st.composite
def submissions(draw: st.DrawFn) -> schema.SubmitRequest:
    """Near to right: a proper submission with one message of it, or some fields, replaced by anything."""
    asked = request("a", gpus=(1, 2), jobs=draw(st.integers(1, 3)))
    wild = draw(messages(schema.SubmitRequest))
    for name in draw(st.lists(st.sampled_from([*schema.SubmitRequest.model_fields]), max_size=3)):
        setattr(asked, name, getattr(wild, name))
    job = asked.jobs[0] if asked.jobs else request().jobs[0]
    odd = draw(messages(schema.Job))
    for name in draw(st.lists(st.sampled_from([*schema.Job.model_fields]), max_size=2)):
        setattr(job, name, getattr(odd, name))
    return asked


def test_any_submission_is_taken_or_refused_and_what_was_taken_is_there_after_a_restart(tmp_path: Path) -> None:
    with world(tmp_path, 2, 2, max_apps=40, cpus=4, memory=4 << 30) as w:

        @BOUNDED
        @given(submissions(), st.booleans())
        def check(asked: schema.SubmitRequest, admin: bool) -> None:
            known = w.arbiter.state.apps.size
            refused = ""
            try:
                right = read(schema.SubmitRequest, asked.model_dump(warnings=False))
                made = w.ask(lambda a: submit(a, right, Caller(user="u", admin=admin)))
            except InputError as error:
                refused = str(error)
            assert "\n" not in refused
            if refused:
                assert len(w.arbiter.journal.apps()) == w.arbiter.state.apps.size == known
            else:
                w.turn(1.1)
                w.ask(lambda a: views.show(a, str(made.app)))
                w.ask(lambda a: views.apps(a, schema.AppsRequest()))
                if made.app % 2 and w.arbiter.state.apps.active[made.app]:
                    w.ask(lambda a: a.cancel(made.app))
            assert w.arbiter.engine.problem == ""

        check()
        apps = [(entry.name, entry.outcome) for entry in w.arbiter.journal.apps()]
        assert len(apps) >= 3, "some are right"
        held, clock = w.held(), w.clock
    with world(tmp_path, 2, 2, clock=clock, cpus=4, memory=4 << 30) as w:
        assert [(entry.name, entry.outcome) for entry in w.arbiter.journal.apps()] == apps
        assert w.held() == held


YAML = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.sampled_from(["1h", "2..8", "0-9%4", "4 GiB"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
KEYS = [
    "gpus",
    "gpu_types",
    "cpus",
    "memory",
    "env",
    "walltime",
    "retries",
    "after",
    "array",
    "sweep",
    "work",
    "model",
    "speed",
    "launch",
    "grace",
    "deadline",
    "nmae",
]


@BOUNDED
@given(st.dictionaries(st.sampled_from(KEYS), YAML, max_size=3))
def test_any_job_file_becomes_a_submission_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed-job.yaml"
    path.write_text(yaml.safe_dump({"name": "a", "command": "true", **data}))
    refused = ""
    try:
        read_requests(path)
    except InputError as error:
        refused = str(error)
    assert "\n" not in refused


@st.composite
def bids(draw: st.DrawFn) -> schema.AgentAnswer:
    """Near to right: rows that a machine of two GPUs could serve, a field of one of them, or of the bid, replaced by anything."""
    asked = schema.AgentAnswer(rho=4.0, jobs=draw(st.sampled_from([[], [0], [1, 0], [1]])))
    shapes = draw(st.lists(st.sampled_from([((1,), 3.0), ((1, 1), 2.0), ((2,), 1.0)]), unique=True, max_size=3))
    asked.rows.extend(schema.BidRow(gangs=gangs, span="machine", rho=rho) for gangs, rho in shapes)
    changed: Any = draw(st.sampled_from([asked, None, *asked.rows]))
    if changed is None:
        return asked
    wild = draw(messages(type(changed)))
    name = draw(st.sampled_from([*type(wild).model_fields]))
    setattr(changed, name, getattr(wild, name))
    return asked


@pytest.mark.slow
def test_any_bid_is_taken_or_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    taken = []
    with world(tmp_path, 2, agent_s=1e6, policy="themis") as w:
        scene = Scene(w)
        number = scene.offered().round

        @settings(BOUNDED, max_examples=150)
        @given(bids())
        def check(asked: schema.AgentAnswer) -> None:
            asked.app, asked.round = str(scene.app), number
            refused = ""
            try:
                scene.desk.answer(scene.app, asked)
            except InputError as error:
                refused = str(error)
            assert "\n" not in refused
            taken.append(not refused)

        check()
        assert 20 < sum(taken) < len(taken) - 20, "some are right, and some are wrong"
        scene.bid(schema.Offer.model_construct(round=number), ([2], 1.0))
        assert list(w.held().values()) == [(0, 1)], "the last bid is the one that counts"
        assert w.arbiter.engine.problem == ""


@BOUNDED
@given(
    st.one_of(
        messages(schema.ShowReply),
        messages(schema.NodesReply),
        messages(schema.WhyReply),
        messages(schema.FairnessReply),
    )
)
def test_replies_come_back_as_they_were(message: Any) -> None:
    with suppress(ValidationError):  # required parts are missing
        whole = type(message).model_validate(message.model_dump())
        again = type(message).model_validate_json(as_json(whole))
        assert repr(again) == repr(whole)  # NaN is not equal to itself
        assert set(as_dict(whole)) <= {"json" if name == "story" else name for name in type(message).model_fields}


# ---- over the wire --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    config = Config(
        gpus=1,
        port=0,
        lease_s=2,
        tick_s=1,
        container_s=0.2,
        grace_s=0,
        allow_root=os.geteuid() == 0,
        single_trust=True,
        validate=True,
        retries=0,
        node_renew_s=1,
        node_lease_s=10,
        max_apps=10,
    )
    with running(tmp_path_factory.mktemp("home"), config) as up:
        yield up


def token_of(service: Service) -> str:
    return read_token(service.arbiter.journal.path.parent)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"AddUser", "Upload", "OpenApi"}))
def test_no_message_makes_a_call_fail(service: Service, name: str) -> None:
    """Proper statuses alone; 500 is a traceback of ours."""
    route, model = CALLS[name], kind(CALLS[name].request)
    headers = {"Authorization": f"Bearer {token_of(service)}"}
    with httpx.Client(base_url=service.endpoint.http, headers=headers, timeout=PATIENCE_S) as client:

        @settings(BOUNDED, max_examples=15)
        @given(messages(model))
        def check(message: Any) -> None:
            fields = as_dict(message.model_copy(update={"follow": False} if "follow" in model.model_fields else {}))
            fields.pop("env", None)
            with suppress(InputError):
                path = route.filled(fields)
                rest = {key: value for key, value in fields.items() if key not in route.inside}
                how = {"json": rest} if takes_body(route) else {"params": rest} if route.method == "GET" else {}
                with client.stream(route.method, path, **how) as reply:
                    pieces = [piece for piece, _ in zip(reply.iter_raw(), range(20))]
                assert reply.status_code != 500, pieces

        check()
    assert service.arbiter.broken is None


PARTS = st.one_of(
    TEXTS, st.sampled_from(["v1", "apps", "events", "history", "info", "%00", "%ff", "..", "?user=%ff", "?after=1e9"])
)


@pytest.mark.slow
def test_no_request_makes_the_status_pages_fail(service: Service) -> None:
    token = token_of(service)

    @BOUNDED
    @given(
        st.lists(PARTS, max_size=4),
        st.dictionaries(st.sampled_from(["user", "after", "limit", "x"]), TEXTS, max_size=2),
    )
    def check(parts: list[str], query: dict[str, str]) -> None:
        from urllib.parse import quote, urlencode

        path = "/" + "/".join(p if p.startswith(("?", "%")) else quote(p, safe="") for p in parts)
        page = http.client.HTTPConnection(service.endpoint.http.removeprefix("http://"), timeout=PATIENCE_S)
        page.request(
            "GET",
            f"{path}{'&' if '?' in path else '?'}{urlencode(query)}",
            headers={"Authorization": f"Bearer {token}"},
        )
        answer = page.getresponse()
        said = answer.read()
        page.close()
        assert answer.status < 500, said
        if path.partition("?")[0] == "/":  # where browsers are led to the console
            assert (answer.status, answer.getheader("Location")) == (303, "/console/now")
        else:
            json.loads(said)

    check()
    assert service.arbiter.broken is None


@pytest.mark.slow
def test_odd_authorizations_are_refused_and_not_logged_as_bugs(service: Service) -> None:
    for given_ in ("", "Bearer", "Bearer é", "Bearer " + "x" * 5000, "\x80\x81"):
        page = http.client.HTTPConnection(service.endpoint.http.removeprefix("http://"), timeout=PATIENCE_S)
        page.request("GET", "/v1/info", headers={"Authorization": given_.encode("latin-1", "replace")})
        assert page.getresponse().status == 401
        page.close()
