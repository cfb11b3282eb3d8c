"""The API over the loopback: what it promises to callers in any language."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from processes import PATIENCE_S, wait_until
from themis.cli import main
from themis.client.client import Client, Unavailable, user_name
from themis.client.command import name_of
from themis.client.home import make_token, read_token
from themis.client.submit_requests import read_requests
from themis.errors import InputError, UnknownName
from themis.machines.agent.gpus import gpu_type
from themis.schema import messages as schema
from themis.schema.routes import CALLS, ROUTES
from themis.schema.wire import kind, models_in
from themis.service.api.methods import Api
from themis.service.api.pages import HANDLERS
from themis.service.engine.config import Config
from themis.service.engine.machine_changes import find_hosts
from themis.service.operations.doctor import examine
from themis.service.operations.up import Service, running
from themis.traces.profiles.presets import load_cluster

SOURCE = Path(__file__).parents[2] / "src"
ROOT = os.geteuid() == 0


# ---- the description ---------------------------------------------------------------------------------------------------


def test_every_call_is_served_and_its_messages_are_there() -> None:
    for name, route in CALLS.items():
        assert name in HANDLERS or route.upload or callable(getattr(Api, name, None)), name
        assert set(route.inside) <= kind(route.request).model_fields.keys(), name
        assert not route.reply or kind(route.reply), name
        assert not route.part or route.part in kind(route.reply).model_fields, name
        assert route.text.endswith("."), name


def test_every_message_is_of_a_call() -> None:
    used = {schema.Message, schema.Request}
    for route in ROUTES:
        left = [kind(name) for name in (route.request, route.reply) if name]
        while left:
            model = left.pop()
            if model not in used:
                used.add(model)
                left += [inner for field in model.model_fields.values() for inner in models_in(field.annotation)]
    assert {*schema.Message.__subclasses__(), *schema.Request.__subclasses__()} <= used


# ---- a service ---------------------------------------------------------------------------------------------------------

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    config = Config(
        gpus=2,
        port=0,
        lease_s=2,
        tick_s=1,
        container_s=0.2,
        grace_s=1,
        allow_root=ROOT,
        single_trust=True,
        validate=True,
        retries=0,
        max_message_bytes=100_000,
        node_renew_s=1,
        node_lease_s=10,
    )
    with running(home, config) as up:
        yield up


@pytest.fixture
def home(service: Service) -> Path:
    return service.arbiter.journal.path.parent


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    with Client(home) as open_:
        yield open_


@slow
def test_a_command_runs_is_followed_and_leaves_its_record(client: Client, tmp_path: Path) -> None:
    made = client.run(["sh", "-c", "echo begin; sleep 0.3; echo $WORD in $PWD"], env={"WORD": "done"}, cwd=tmp_path)
    text = b"".join(client.logs(made.app, follow=True)).decode()
    assert text == f"begin\ndone in {tmp_path}\n"
    assert client.wait(made.app, timeout_s=PATIENCE_S).state == "completed"
    shown = client.show(made.name)
    assert [a.ending for a in shown.jobs[0].attempts] == ["finished"]
    assert shown.app.id in [app.id for app in client.history()]
    kinds = [record.kind for record in client.events()]
    assert kinds[0] == "Header"
    assert {"AppSubmitted", "Grant", "JobReached", "AppFinished"} <= set(kinds)
    assert json.loads(client.why(made.app).story)["app"] == made.name
    assert next(u for u in client.usage() if u.apps).gpu_hours > 0


@slow
def test_a_command_that_fails_says_how(client: Client) -> None:
    made = client.run(["sh", "-c", "echo no >&2; exit 7"])
    app = client.wait(made.app, timeout_s=PATIENCE_S)
    assert (app.state, app.reason) == ("failed", "its job failed once: exit code 7: no")
    assert b"".join(client.logs(made.app)) == b"no\n"


@slow
def test_a_running_app_is_seen_held_and_cancelled(client: Client, home: Path) -> None:
    made = client.run(["sleep", "100"], gpus=2)
    while client.show(made.app).app.state != "running":
        pass
    (share,) = client.share()
    assert (share.gpus, share.share, share.fair) == (2, 1.0, 1.0)
    assert client.nodes()[0].leased == 2
    assert client.hold(made.app).state == "held"
    assert client.resume(made.app).id == made.app
    assert client.cancel(made.app).state == "cancelled"
    with pytest.raises(InputError, match="is finished, so it cannot be resumed"):
        client.resume(made.app)


@slow
def test_an_app_that_is_cancelled_while_it_starts_gives_its_gpus_back(client: Client) -> None:
    for pause in (0.0, 0.02, 0.05, 0.1):
        made = client.run(["sleep", "100"], gpus=2)
        time.sleep(pause)
        client.cancel(made.app)
    assert client.wait(client.run(["true"], gpus=2).app, timeout_s=PATIENCE_S).state == "completed"


@slow
def test_lists_may_be_of_one_user(client: Client) -> None:
    theirs, mine = (client.run(["sleep", "100"], user=user).app for user in ("nobody", user_name()))
    wait_until(
        lambda: any(r.kind == "JobStarted" and r.jobs[0].app == mine for r in client.events()), "the job has started"
    )
    assert [node.name for node in client.nodes(user_name())] == [client.nodes()[0].name]
    assert client.nodes("someone") == []
    records = [record.record for record in client.events(user=user_name())]
    assert {r["app"]["user"] for r in records if r["kind"] == "AppSubmitted"} == {user_name()}
    granted = {r["app"] for r in records if r["kind"] == "Grant"}
    assert mine in granted
    assert theirs not in granted
    assert any(r["kind"] == "JobStarted" for r in records)
    last = max(record.number for record in client.events(user=user_name()))
    assert [record.number for record in client.events(last - 1, user=user_name(), limit=1)] == [last]
    for app in (theirs, mine):
        client.cancel(app)


@slow
def test_calls_without_the_token_are_refused(service: Service, client: Client) -> None:
    with Client(client.home, token="wrong") as other, pytest.raises(InputError, match="has no valid token"):
        other.info()
    assert get(service, "/v1/apps")[0] == 401


@slow
def test_wrong_calls_get_one_sentence(client: Client) -> None:
    with pytest.raises(InputError, match="unknown app 'nosuch'"):
        client.show("nosuch")
    with pytest.raises(InputError, match="unknown node 'm9'"):
        client.drain("m9")
    with pytest.raises(InputError, match="has no jobs"):
        client.submit(schema.SubmitRequest(name="a"))
    with pytest.raises(InputError, match="hours is 0"):
        client.run(["true"], hours=0.0)


@slow
def test_messages_are_bounded(client: Client) -> None:
    with pytest.raises(InputError, match="the body has more than"):
        client.run(["true"], env={"BIG": "x" * 200_000})


def get(service: Service, page: str, token: str = "") -> tuple[int, object]:
    request = urllib.request.Request(service.endpoint.http + page, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@slow
def test_status_is_json_over_http(service: Service, client: Client, home: Path) -> None:
    made, token = client.run(["true"]), read_token(home)
    client.wait(made.app, timeout_s=PATIENCE_S)
    assert get(service, "/healthz") == (200, {"status": "ok"})
    assert get(service, "/v1/apps")[0] == 401
    assert get(service, "/v1/info", token)[1]["gpus"] == 2  # type: ignore[index]
    assert get(service, f"/v1/apps/{made.app}", token)[1]["app"]["state"] == "completed"  # type: ignore[index]
    assert get(service, "/v1/events?after=0&limit=2", token)[1][0]["kind"] == "Header"  # type: ignore[index]
    assert get(service, "/v1/events?after=-1", token)[0] == 400
    assert get(service, f"/v1/events?after={'9' * 5000}", token)[0] == 400
    assert get(service, "/v1/apps/nosuch", token)[0] == 404
    assert get(service, "/v1/nodesx", token)[0] == 404
    for page in ("history", "nodes", "share", "usage"):
        assert get(service, f"/v1/{page}", token)[0] == 200
    for method in ("PUT", "DELETE", "PATCH"):
        request = urllib.request.Request(service.endpoint.http + "/v1/apps", data=b"{}", method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        assert (refused.value.code, refused.value.headers["Allow"]) == (405, "GET, POST")
        assert json.load(refused.value) == {"error": f"{method} is not allowed for /v1/apps, which takes GET and POST."}


def themis(*words: str) -> int:
    try:
        main(list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@slow
def test_the_commands_print_what_the_service_knows(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THEMIS_HOME", str(home))
    assert themis("run", "--gpus", "1", "--name", "first", "--", "sh", "-c", "echo from the job") == 0
    assert "from the job" in capfd.readouterr().out
    assert themis("run", "--", "sh", "-c", "exit 3") == 1
    assert "failed: its job failed" in capfd.readouterr().err
    assert themis("history", "-o", "json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["state"] for row in rows if row["name"] == "first"] == ["completed"]
    assert themis("nodes", "-o", "yaml") == 0
    assert yaml.safe_load(capfd.readouterr().out)[0]["gpus"] == 2
    for verb in (["queue"], ["share"], ["usage"], ["show", "first"], ["why", "first"], ["logs", "first"], ["events"]):
        assert themis(*verb) == 0, verb
    assert "from the job" in capfd.readouterr().out
    assert themis("queue", "-o", "jsno") == 2
    assert "Did you mean 'json'" in capfd.readouterr().err
    assert themis("cancel", "nosuch") == 2
    assert themis("run", "-d", "--name", "second", "--", "sleep", "100") == 0
    assert themis("cancel", "nosuch", "second", "-o", "json") == 2
    said = capfd.readouterr()
    assert json.loads(said.out[said.out.index("[") :])[0]["state"] == "cancelled"
    assert "unknown app 'nosuch'" in said.err
    assert [themis("wait", *names) for names in (["first"], ["first", "second"], ["first", "nosuch"])] == [0, 1, 2]
    assert "cancelled." in capfd.readouterr().err
    for verb in (["queue"], ["history"], ["share"], ["usage"], ["nodes"], ["events"]):
        assert themis(*verb, "--user", "nobody", "-o", "yaml") == 0, verb
    assert themis("run", "--gpus", "two", "--", "true") == 2
    assert themis("doctor") == 0


@slow
def test_logs_of_a_rank_or_an_attempt_that_never_was_are_refused(client: Client) -> None:
    app = client.run(["sh", "-c", "echo $RANK"], gpus=2, launch="gpu").app
    assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
    assert b"".join(client.logs(app, rank=1)) == b"1\n"
    with pytest.raises(InputError, match=r"had ranks 0 to 1, got rank 7\."):
        list(client.logs(app, rank=7))
    with pytest.raises(InputError, match="had 1 attempt so far, the last is 1, got attempt 3"):
        list(client.logs(app, attempt=3))


@slow
def test_a_user_who_has_a_token_gets_no_other_unasked(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THEMIS_HOME", str(home))
    assert themis("whoami") == 0
    assert " (administrator) at " in capfd.readouterr().out
    assert themis("user", "add", "carol") == 0
    first = capfd.readouterr().out.strip()
    assert themis("user", "add", "carol") == 2
    said = capfd.readouterr()
    assert (said.out, "carol already has a token" in said.err) == ("", True)
    assert themis("user", "add", "carol", "--replace") == 0
    assert capfd.readouterr().out.strip() != first
    assert themis("user", "remove", "carol") == 0


@slow
def test_the_story_of_a_job_that_wants_to_be_run_again_tells_of_no_failure(
    client: Client, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    app = client.run(["sh", "-c", "exit 75"]).app
    wait_until(lambda: bool(client.show(app).jobs[0].attempts), "its attempt has ended")
    story = json.loads(client.why(app).story)
    assert {cause for step in story["steps"] for cause in step["causes"]} == {"own"}
    monkeypatch.setenv("THEMIS_HOME", str(home))
    assert themis("why", "--verbose", str(app)) == 0
    words = capfd.readouterr().out.split("since submitted")[1]
    assert float(next(word for word in words.split() if word.replace(".", "").isdigit())) == 0.0, words
    client.cancel(app)


@slow
def test_curve_stopping_goes_by_the_losses_that_real_trials_report(client: Client, tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "curve.py"
    file = tmp_path / "sweep.yaml"
    file.write_text(
        f"""
        name: curves
        command: [{sys.executable}, {program}, "{{floor}}", "1000"]
        speed: 100
        sweep:
          parameters: {{floor: {{grid: [0.1, 2.0]}}}}
          trials: 2
          sampler: grid
          budget: 1000 steps
          tuner: {{kind: curve, check: 20 steps}}
        """
    )
    (made,) = client.submit_all(read_requests(file, ""))
    assert client.wait(made.app, timeout_s=PATIENCE_S).state == "completed"
    records = list(client.events())
    good, poor = (schema.JobOfApp(app=made.app, job=job.id) for job in client.show(made.app).jobs)
    for job, floor in ((good, 0.1), (poor, 2.0)):
        told = [r.record for r in records if r.kind == "LossReported" and r.jobs == [job]]
        assert len(told) >= 4
        assert all(r["loss"] == pytest.approx(floor + 1 / (0.05 * r["steps"] + 1)) for r in told)
    (stopped,) = (r for r in records if r.kind == "CurveStopped" and r.record["app"] == made.app)
    assert stopped.jobs == [poor]
    assert stopped.record["steps"] < 1000
    assert stopped.record["forecast"] == pytest.approx(2.0, abs=0.2)
    ended = {
        r.jobs[0].job: r.record["outcome"] for r in records if r.kind == "JobEnded" and r.record["app"] == made.app
    }
    assert ended == {good.job: "completed", poor.job: "stopped"}


@slow
def test_yaml_is_submitted_with_its_speeds_and_its_sweep(
    home: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THEMIS_HOME", str(home))
    file = tmp_path / "job.yaml"
    file.write_text("name: listed\ncommand: [sh, -c, 'echo from a file']\ngpus: 1\n")
    assert themis("submit", str(file)) == 0
    app = capfd.readouterr().out.split()[0]
    assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
    assert b"".join(client.logs(app)) == b"from a file\n"


@slow
def test_the_sdk_submits_files_as_the_command_does(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "name: sdk-second\ncommand: [sh, -c, pwd]\nafter: sdk-first\n---\nname: sdk-first\ncommand: [sh, -c, pwd]\n"
    )
    first, second = client.submit_file(file, folder=tmp_path)
    assert (first.name, second.name) == ("sdk-first", "sdk-second")
    assert client.wait(second.app, timeout_s=PATIENCE_S).state == "completed"
    assert b"".join(client.logs(second.app)) == f"{tmp_path}\n".encode()
    file.write_text("name: a\ncomand: x\n")
    with pytest.raises(InputError, match=r"two.yaml, line 2: unknown key 'comand'. Did you mean 'command'"):
        client.submit_file(str(file))


@slow
def test_a_home_has_one_arbiter(home: Path) -> None:
    code = f"from themis.cli import main; main(['up', '--gpus', '1', '--home', {str(home)!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "a service already runs with the data directory" in done.stderr


# ---- without a service ---------------------------------------------------------------------------------------------------


def test_a_client_without_an_arbiter_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `themis up`"):
        Client(tmp_path)
    with Client(tmp_path, address="127.0.0.1:1", token="t", timeout_s=0.1) as client, pytest.raises(Unavailable):
        client.info()


def test_an_arbiter_that_is_away_is_waited_for_as_long_as_was_said_and_that_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    began = time.monotonic()
    with (
        Client(tmp_path, address="127.0.0.1:1", token="t", patience_s=0.5, on_wait=said.append) as client,
        pytest.raises(Unavailable, match=r"does not answer; check that `themis up` runs there\.$"),
    ):
        client.info()
    assert time.monotonic() - began < 5
    assert said == ["The service at 127.0.0.1:1 does not answer. Retrying for up to 0.5 s."]
    (tmp_path / "journal.db").touch()
    with (
        Client(tmp_path, address="127.0.0.1:1", token="t", patience_s=0.0) as client,
        pytest.raises(Unavailable, match=f"start it with `themis up --data-dir {tmp_path}`"),
    ):
        client.info()


def test_a_token_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    token = make_token(tmp_path)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert make_token(tmp_path) == token
    assert len(token) >= 40
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(InputError, match="has mode 644"):
        read_token(tmp_path)


def test_machines_are_virtual_as_told() -> None:
    assert [host.machine.gpus for host in find_hosts(Config(cluster=load_cluster("2x4")))] == [4, 4]
    assert [host.machine.gpus for host in find_hosts(Config(gpus=8))] == [8]
    assert (gpu_type("NVIDIA H200"), gpu_type("Tesla V100-SXM2-16GB")) == ("H200", "V100-SXM2-16GB")


def test_real_gpus_are_found_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvml:
        NVMLError = RuntimeError
        nvmlInit = nvmlShutdown = staticmethod(lambda: None)
        nvmlDeviceGetCount = staticmethod(lambda: 2)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda i: i)
        nvmlDeviceGetPciInfo = staticmethod(lambda i: type("Pci", (), {"busId": f"0000:{9 - i}"}))
        nvmlDeviceGetUUID = staticmethod(lambda i: f"GPU-{i}")
        nvmlDeviceGetName = staticmethod(lambda i: "NVIDIA H200")

    monkeypatch.setitem(sys.modules, "pynvml", Nvml)
    (host,) = find_hosts(Config())
    assert (host.devices, host.machine.gpus, host.machine.gpu_type) == (("GPU-1", "GPU-0"), 2, "H200")
    (host,) = find_hosts(Config(gpu_names={"H200": "H100"}))
    assert (host.devices, host.machine.gpu_type) == (("GPU-1", "GPU-0"), "H100")
    with pytest.raises(UnknownName, match=r"unknown GPU type in gpu_names 'H20'. Did you mean 'H200'"):
        find_hosts(Config(gpu_names={"H20": "H100"}))


@pytest.mark.unfoldable
def test_the_doctor_finds_what_is_wrong(tmp_path: Path) -> None:
    states = {check["check"]: check["state"] for check in examine(tmp_path / "none")}
    assert "wrong" not in states.values()
    tmp_path.chmod(0o755)
    (tmp_path / "journal.db").write_text("no database")
    (tmp_path / "token").write_text("t")
    (tmp_path / "token").chmod(0o644)
    wrong = {check["check"] for check in examine(tmp_path) if check["state"] == "wrong"}
    assert wrong == {"data directory", "journal", "token"}


@slow
def test_the_doctor_tells_of_machines_whose_jobs_come_last(
    service: Service, client: Client, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nodes() -> tuple[str, str]:
        (found,) = (check for check in examine(home) if check["check"] == "nodes")
        return found["state"], found["finding"]

    own = os.getpriority(os.PRIO_PROCESS, 0)
    wait_until(lambda: client.nodes()[0].niceness == own, "the agent said so")
    monkeypatch.setattr(service.arbiter.executor, "niceness", lambda machine: 0)
    assert nodes() == ("ok", "1 machine, none of them lost")
    monkeypatch.setattr(service.arbiter.executor, "niceness", lambda machine: 15)
    state, finding = nodes()
    assert (state, "a niceness of 15" in finding) == ("note", True)
    assert finding.endswith("start the service without nice to change that"), "no word of Ray, where there is none"


@slow
def test_the_doctor_tells_whose_rights_jobs_have_by_what_runs_and_not_by_who_asks(
    service: Service, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> dict[str, tuple[str, str]]:
        return {check["check"]: (check["state"], check["finding"]) for check in examine(home)}

    (name,) = (host.machine.name for host in service.arbiter.hosts)
    wait_until(lambda: service.arbiter.executor.trust(0) != "", "the agent said so")
    own = ("root", "jobs may run as root") if ROOT else ("single", "all jobs run as one system user")
    assert service.arbiter.executor.trust(0) == own[0]
    assert found()["rights"][0] == "note"
    assert found()["rights"][1].startswith(f"on {name} {own[1]}")
    assert found()["GPUs"] == ("ok", "the service has 2, of type gpu")
    monkeypatch.setattr(service.arbiter.executor, "trust", lambda machine: "per_user")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert found()["rights"] == ("ok", "each job runs as its submitter's system user")


@pytest.mark.skipif(not ROOT, reason="only root could run jobs as others")
def test_the_doctor_knows_whose_rights_the_settings_give_to_jobs(tmp_path: Path) -> None:
    def rights(settings: str) -> tuple[str, str]:
        (tmp_path / "config.yaml").write_text(settings)
        (found,) = (check for check in examine(tmp_path) if check["check"] == "rights")
        return found["state"], found["finding"]

    assert rights("gpus: 1\n") == ("ok", "each job runs as its submitter's system user; root's own need --allow-root")
    assert rights("single_trust: true\n")[0] == "wrong", "the service would run jobs as root, and refuse to"
    state, finding = rights("single_trust: true\nallow_root: true\n")
    assert (state, finding.partition(":")[0]) == ("note", "single_trust")


def test_the_doctor_tries_the_ray_cluster_that_the_settings_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("engine: ray\naddress: 127.0.0.1:1\n")
    found = {check["check"]: (check["state"], check["finding"]) for check in examine(tmp_path)}
    assert found["GPUs"] == ("ok", "those of Ray's nodes, according to the settings")
    assert found["Ray"][0] == "wrong"
    there = importlib.util.find_spec("ray") is not None
    assert ("127.0.0.1:1 does not answer" if there else "pip install") in found["Ray"][1]


def test_the_doctor_reads_the_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("lease: 1m\ntickk: 2s\n")
    (found,) = (check for check in examine(tmp_path) if check["check"] == "settings")
    assert found["state"] == "wrong"
    assert "Did you mean 'tick'" in found["finding"]


def test_apps_are_named_after_their_script() -> None:
    assert name_of(["python", "-u", "deep/train.py", "--lr", "1"]) == "train"
    assert name_of(["/bin/sleep", "9"]) == "sleep"
    assert name_of(["--"]) == "app"


def test_themis_offers_its_client_without_loading_it_first() -> None:
    import themis as package

    assert package.Client is Client
    with pytest.raises(AttributeError):
        _ = package.nothing
