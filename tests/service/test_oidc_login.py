"""``themis login --oidc`` against a service and a provider, each over its own sockets: users, groups, the audit log."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon
from oidcprovider import SmallProvider, small_provider

from processes import wait_until
from themis.cli import main
from themis.client.home import read_endpoint, read_token

pytestmark = pytest.mark.slow
SETTINGS = """
oidc:
  issuer: {issuer}
  client_id: themis
  client_secret: s3cret & more
  admins: [chiefs]
  scopes: [openid, profile, offline_access]
groups:
  vision: {{gpus: 2}}
  speech: {{}}
others: {{weight: 2, gpus: 3}}
"""


@dataclass
class World:
    service: Daemon
    lab: SmallProvider
    folder: Path

    @property
    def address(self) -> str:
        return read_endpoint(self.service.home).address

    def themis(self, user: str, *words: str) -> subprocess.Popen[str]:
        """The command, with a data directory of this user."""
        command = [sys.executable, "-m", "themis.cli", *words]
        env = {**os.environ, "COLUMNS": "200", "THEMIS_DATA_DIR": str(self.folder / user)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def done(self, user: str, *words: str) -> tuple[int, str, str]:
        process = self.themis(user, *words)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def login(self, user: str) -> tuple[int, str, str]:
        """The user agrees in the browser, without an earlier sign-in; an empty name declines."""
        shutil.rmtree(self.folder / (user or "nobody"), ignore_errors=True)
        process = self.themis(user or "nobody", "login", self.address, "--oidc")
        wait_until(lambda: len(self.lab.devices) > 0, lambda: "the provider is asked")
        code = next(iter(self.lab.devices.values()))["code"]
        self.lab.allow(code, user)
        out, err = process.communicate(timeout=60)
        self.lab.devices.clear()
        assert code in err
        assert f"{self.lab.issuer}/device" in err
        return process.returncode, out, err


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("oidc")
    home = folder / "home"
    home.mkdir()
    with small_provider() as lab:
        lab.users = {"ann": {"groups": ["vision"]}, "boss": {"groups": ["chiefs"]}, "eve": {}}
        (home / "config.yaml").write_text(SETTINGS.format(issuer=lab.issuer))
        options = ("--machines", "1x4", "--set", "single_trust=true", "--config", str(home / "config.yaml"))
        with daemon(home, options=options, settings=QUICK) as service:
            yield World(service, lab, folder)


def test_a_user_signs_in_submits_and_is_in_the_group_that_the_provider_names(world: World) -> None:
    code, out, err = world.login("ann")
    assert code == 0, err
    assert re.fullmatch(rf"You are ann at {world.address} until .+\.\n", out)
    assert (world.folder / "ann" / "token").stat().st_mode & 0o777 == 0o600
    code, out, err = world.done("ann", "run", "-d", "--gpus", "1", "--", "sleep", "0.1")
    assert code == 0, err
    with world.service.client() as client:
        values = {row.name: row.value for row in client.settings()}
        # Who was not listed keeps what those who are not listed have.
        assert (values["users.ann.group"], values["users.ann.weight"], values["users.ann.gpus"]) == ("vision", "2", "3")
        assert [(row.user, row.method, row.admin) for row in client.users("ann")] == [("ann", "oidc", False)]
        assert client.settings_history()[0].user == "oidc"
    world.lab.users["ann"]["groups"] = ["speech", "other"]
    before = read_token(world.folder / "ann")
    # A second login renews the first without a browser.
    code, out, err = world.done("ann", "login", world.address, "--oidc")
    assert (code, err) == (0, "")
    assert read_token(world.folder / "ann") != before
    with world.service.client() as client:
        assert {row.name: row.value for row in client.settings()}["users.ann.group"] == "speech"
    world.lab.users["ann"]["groups"] = []
    assert world.done("ann", "login", world.address, "--oidc")[0] == 0
    with world.service.client() as client:
        assert {row.name: row.value for row in client.settings()}["users.ann.group"] == "none"


def test_who_did_what_from_where_is_in_the_audit_log(world: World) -> None:
    assert world.login("boss")[0] == 0
    assert world.login("eve")[0] == 0
    assert world.done("eve", "drain", "m0")[0] == 2
    assert world.done("boss", "set", "tick=2s")[0] == 0
    code, out, _ = world.done("boss", "audit", "-o", "json")
    rows = json.loads(out)
    told = [(row["user"], row["method"], row["address"], row["action"], row["target"], row["outcome"]) for row in rows]
    assert code == 0
    assert told[0] == ("boss", "oidc", "127.0.0.1", "Set", "tick=2s", "ok")
    assert told[1][:4] == ("eve", "oidc", "127.0.0.1", "Drain")
    assert told[1][5] == "refused"
    assert ("eve", "oidc", "127.0.0.1", "SignIn", "device", "ok") in told
    code, out, _ = world.done("eve", "audit")
    assert code == 0
    assert "Drain" in out
    assert "boss" not in out
    code, _, err = world.done("eve", "audit", "--user", "boss")
    assert code == 2
    assert "Permission denied" in err


def test_who_declines_gets_one_sentence_and_nothing_is_stored(world: World) -> None:
    code, out, err = world.login("")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith("the sign-in was declined at the provider.")
    assert not (world.folder / "nobody" / "token").exists()


def test_a_user_who_is_removed_is_signed_out(world: World) -> None:
    assert world.login("eve")[0] == 0
    code, _, err = world.done("eve", "queue", "-o", "json")
    assert code == 0, err
    with world.service.client() as client:
        assert client.remove_user("eve").method == "oidc"
    code, _, err = world.done("eve", "queue", "-o", "json")
    assert code == 2
    assert "no valid token, or it has expired" in err


def test_the_settings_show_the_issuer_and_no_secret(world: World) -> None:
    with world.service.client() as client:
        values = {row.name: row.value for row in client.settings()}
    assert values["oidc"] == world.lab.issuer
    assert "s3cret" not in json.dumps(values)
    assert "s3cret" not in world.service.said()


def test_without_a_provider_the_reason_is_said(tmp_path: Path) -> None:
    with daemon(tmp_path / "home", options=("--machines", "1x1", "--set", "single_trust=true")) as service:
        world = World(service, SmallProvider(0, keys=[]), tmp_path)
        code, _, err = world.done("ann", "login", world.address, "--oidc")
    assert code == 2
    assert "has no OIDC provider" in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{client_id: themis}", "issuer"),
        ("{issuer: 'http://sso.example.org', client_id: themis}", "expected an address as https://"),
        ("{issuer: 'https://sso.example.org?x', client_id: themis}", "expected an address as https://"),
        ("{issuer: 'https://sso.example.org', client_id: themis, session: 5s}", "a duration from 1m to 30d"),
        ("{issuer: 'https://sso.example.org', client_id: themis, url: 'https://a.example.org/x'}", "without a path"),
        ("{issuer: 'https://sso.example.org', client_id: themis, secret: x}", "secret"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_sentence(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"gpus: 1\noidc: {text}\n")
    with pytest.raises(SystemExit) as end:
        main(["up", "--config", str(path), "--data-dir", str(tmp_path / "home")])
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_a_provider_that_is_down_is_a_warning_at_the_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("oidc: {issuer: 'http://127.0.0.1:9', client_id: themis}\n")
    options = ("--machines", "1x1", "--set", "single_trust=true", "--config", str(home / "config.yaml"))
    with daemon(home, options=options) as service:
        wait_until(lambda: "sign-in with OIDC fails" in service.said(), service.said)
        with service.client() as client:
            assert client.info().admin
