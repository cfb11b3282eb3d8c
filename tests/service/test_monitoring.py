"""Figures for monitoring: what they say, that their number is bounded, and a real Prometheus that reads and queries them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake import World
from prometheus_client.parser import text_string_to_metric_families
from test_http_api import Caller, app, serving

from processes import PATIENCE_S, wait_until
from themis.machines.engines.program import AttemptEnded, Ending
from themis.service.api.http_server import HttpServer
from themis.service.api.prometheus import families

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "monitoring"
LABELS = {"state", "gpu_type", "reason", "user", "statistic", "version", "policy", "engine", "file", "result"} | {
    "outcome", "ending", "level", "api", "method", "status", "le",
}  # fmt: skip


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[World, HttpServer]]:
    with serving(tmp_path / "home") as made:
        yield made


def read(server: HttpServer) -> dict[str, dict[tuple[str, ...], float]]:
    """Each sample's values by those of its labels."""
    status, text = Caller(server.port)("GET", "/metrics")
    assert status == 200
    out: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            assert set(sample.labels) <= LABELS, sample
            out.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return out


def failed(job: int) -> AttemptEnded:
    return AttemptEnded(
        app=job, job=job, attempt=1, ending=Ending.FAILED, cause="", code=3, seconds=1.0, steps=0.0, saved=False,
        killed=False, message="",
    )  # fmt: skip


def some_life(w: World, server: HttpServer) -> None:
    """An app that failed, one that runs, one that waits, one on hold, about whose number of GPUs the policy is asked."""
    call = Caller(server.port)
    for name, *gpus in (("failing", 1, 1), ("running", 2, 2), ("waiting", 4, 4), ("held", 1, 2)):
        call("POST", "/v1/apps", app(name, gpus=tuple(gpus)))
    call("POST", "/v1/apps/held/hold")
    w.executor.heard(failed(0))
    wait_until(lambda: call("GET", "/v1/apps/failing")[1]["app"]["state"] == "failed", "the app failed")


def test_figures_say_what_the_queue_says(served: tuple[World, HttpServer]) -> None:
    w, server = served
    some_life(w, server)
    now = read(server)
    states = [row["state"] for row in Caller(server.port)("GET", "/v1/apps")[1]]
    assert now["themis_apps"] == {(s,): float(states.count(s)) for s in ("running", "waiting", "stopping", "held")}
    assert sum(now["themis_gpus"].values()) == 4.0
    leased = {job: gpus for job, gpus in w.held().items() if gpus}
    assert now["themis_gpus"]["gpu", "leased"] == float(sum(map(len, leased.values())))
    assert now["themis_apps_waiting"]["gpus",] == float(states.count("waiting"))
    assert now["themis_apps_ended_total"]["failed",] == now["themis_attempts_ended_total"]["failed",] == 1.0
    assert now["themis_nodes"]["up",] == 2.0
    assert now["themis_gpus_demanded"][()] == 6.0, "of the app on hold nothing can run"
    assert now["themis_user_entitled_share"] == {("u",): 1.0}
    decisions = now["themis_decisions_total"]
    asked = sum(number for labels, number in decisions.items() if labels != ("forced",))
    assert now["themis_decision_seconds_count"][()] == asked > 0
    assert now["themis_journal_commit_seconds_count"][()] > 4
    assert now["themis_journal_records"][()] == float(w.arbiter.journal.last()[0])
    assert now["themis_api_calls_total"]["http", "Submit", "201"] == 4.0


def test_more_apps_are_no_more_figures(served: tuple[World, HttpServer]) -> None:
    w, server = served
    some_life(w, server)
    read(server)
    before = read(server)
    for n in range(20):
        Caller(server.port)("POST", "/v1/apps", app(f"a{n}"))
    after = read(server)
    assert {name: set(rows) for name, rows in after.items()} == {name: set(rows) for name, rows in before.items()}


def test_a_scrape_of_an_arbiter_that_does_not_answer_says_so(
    served: tuple[World, HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    w, server = served
    monkeypatch.setattr(w.arbiter.journal, "stuck", "no room")
    now = read(server)
    assert now["themis_arbiter_ready"][()] == 0.0
    assert now["themis_journal_stuck"][()] == 1.0
    assert "themis_gpus" not in now


def test_figures_need_a_token(served: tuple[World, HttpServer]) -> None:
    assert Caller(served[1].port, "wrong")("GET", "/metrics")[0] == 401


def test_the_page_on_monitoring_has_every_figure_with_its_meaning(served: tuple[World, HttpServer]) -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    listed = dict(re.findall(r"^\| `(themis_[a-z_]+)` \|[^|]*\|[^|]*\| (.*?) \|$", text, re.MULTILINE))
    ours = [family for family in families(served[1].app.api) if family.name.startswith("themis_")]
    assert listed == {f.name + "_total" * (f.type == "counter"): f.documentation for f in ours}


# ---- a real Prometheus -------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def prometheus(folder: Path, server: HttpServer) -> Iterator[int]:
    """Prometheus with the shipped configuration, quicker and for this server; gives its port."""
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms", "scrape_timeout": "500ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "themis.token").write_text("t")
    shutil.copy(EXAMPLES / "themis.rules.yml", folder)
    port = free_port()
    command = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([*command, "--storage.tsdb.path=data"], cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port, process, folder), lambda: (folder / "log").read_text())
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def answers(port: int, process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "log").read_text()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ask(port: int, path: str, **query: str) -> Any:
    address = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        value = json.load(answer)
    assert value["status"] == "success", value
    return value["data"]


def queries_of_dashboard() -> list[str]:
    board = json.loads((EXAMPLES / "grafana" / "themis.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_loads_the_rules_scrapes_the_service_and_answers_every_query_of_the_dashboard(
    served: tuple[World, HttpServer], tmp_path: Path
) -> None:
    w, server = served
    some_life(w, server)
    left = queries_of_dashboard()
    assert len(left) > 40
    with prometheus(tmp_path / "prometheus", server) as port:

        def answered() -> bool:
            left[:] = [query for query in left if not ask(port, "query", query=query)["result"]]
            return not left

        wait_until(answered, lambda: f"these queries give something: {left}")
        (target,) = ask(port, "targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        rules = [rule for group in ask(port, "rules")["groups"] for rule in group["rules"]]
        assert len(rules) > 15
        assert [rule for rule in rules if rule["health"] != "ok"] == []
        down = [rule for rule in rules if rule["name"] == "ThemisDown"]
        assert down[0]["state"] == "inactive"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_linter_of_prometheus_finds_nothing_wrong_with_the_figures(
    served: tuple[World, HttpServer],
) -> None:
    w, server = served
    some_life(w, server)
    text = Caller(server.port)("GET", "/metrics")[1]
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr.decode(), checked.stdout.decode()) == (0, "", "")
