"""``themis set`` and ``Client.set`` against a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from themis.cli import main
from themis.client.client import Client, user_name
from themis.errors import InputError
from themis.service.api.setting_calls import Door
from themis.service.engine.config import Config
from themis.service.operations.changing import changed
from themis.service.operations.service_settings import load
from themis.service.operations.up import Service, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Service]]:
    home = tmp_path_factory.mktemp("home")
    config = Config(gpus=2, port=0, lease_s=60.0, allow_root=True)
    with running(home, config) as up:
        yield home, up


def ran(capsys: pytest.CaptureFixture[str], home: Path, *args: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code: object = 0
    try:
        main(["set", "--data-dir", str(home), *args])
    except SystemExit as end:
        code = end.code or 0
    said = capsys.readouterr()
    assert isinstance(code, int)
    return code, said.out, said.err


def test_set_changes_lists_and_refuses(service: tuple[Path, Service], capsys: pytest.CaptureFixture[str]) -> None:
    home, up = service
    assert ran(capsys, home, "policy=drf", "gpus=3") == (
        0,
        "gpus: 2 -> 3\npolicy: fair_finish -> drf\n" + up_lines(up),
        "",
    )
    assert ran(capsys, home, "policy=drf") == (0, "Nothing changed.\n", "")
    code, text, _ = ran(capsys, home, "-o", "json")
    rows = {row["name"]: row for row in json.loads(text)}
    assert (code, rows["policy"]["value"], rows["policy"]["user"]) == (0, "drf", user_name())
    assert rows["port"]["restart"]
    assert "since" not in rows["lease"]
    for args, message in (
        (("lease=1m", "lease=2m"), "lease is given twice (1m and 2m); give it once."),
        (("lease",), "got 'lease', expected KEY=VALUE"),
        (("--reload", "lease=1m"), "--reload cannot be combined with KEY=VALUE"),
        (("leese=1m",), "Did you mean 'lease'?"),
        (("gpus=0",), "gpus is 0, expected at least 1 GPU."),
        (("lease=-1",), "lease is -1, expected a time such as 90s"),
    ):
        code, _, error = ran(capsys, home, *args)
        assert code == 2
        assert message in " ".join(error.split()), error
        assert "Traceback" not in error
    with Client(home) as client:
        assert client.info().gpus == 3
        kinds = [record.kind for record in client.events()]
    assert kinds.count("SettingsChanged") == 1


def up_lines(up: Service) -> str:
    name = up.arbiter.state.machines[0].name
    return f"machine {name}: 2 -> 3 GPUs\n"


def test_users_see_settings_and_only_administrators_change_them(service: tuple[Path, Service]) -> None:
    home, _ = service
    with Client(home) as owner:
        token = owner.add_user("bob", no_jobs=True)
        address = owner.address
    with Client(home, address=address, token=token) as bob:
        assert bob.settings()
        with pytest.raises(InputError, match="only administrators may change settings; user bob is not"):
            bob.set(lease="5m")


def test_an_edited_file_is_taken_on_when_it_is_reloaded(
    service: tuple[Path, Service], capsys: pytest.CaptureFixture[str]
) -> None:
    home, up = service
    file = home / "config.yaml"
    file.write_text(
        "gpus: 2\nlease: 60s\nport: 7000\nusers: {ann: {weight: 2, budget: {hard: 5}}}\nprice: {H200: 3.5}\n"
    )
    up.api.door = Door(changed, lambda: load(file, {"allow_root": True}, env={}))
    code, text, error = ran(capsys, home, "--reload")
    assert (code, error) == (0, "")
    assert "users.ann.weight: none -> 2" in text
    assert "users.ann.budget.hard: none -> 5\n" in text
    assert "price.H200: none -> 3.5\n" in text
    assert "port changes when the service starts again" in text
    file.write_text("gpus: 2\nlease: 0\n")
    code, _, error = ran(capsys, home, "--reload")
    assert code == 2
    assert "line 2" in error
    with Client(home) as client:
        rows = {row.name: row.value for row in client.settings()}
    assert (rows["users.ann.weight"], rows["lease"]) == ("2", "1m")
