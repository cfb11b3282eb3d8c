"""What-if of a running service: real small processes, over HTTP and the command; rights; what then happens."""

from __future__ import annotations

import json
import math
import urllib.request
from pathlib import Path

import pytest
from daemon import QUICK, Daemon, daemon
from fake import world

from processes import wait_until
from themis.cli import main
from themis.client.client import OVER, Client
from themis.client.home import log_in, read_endpoint, read_token
from themis.errors import ThemisError
from themis.schema import messages as schema
from themis.service.api import what_if

WORK_S = 40.0
SOON_S = 240.0
"""With leases of 2 s, a job whose start costs more gets nowhere in a simulation."""


def fill(service: Daemon) -> list[str]:
    """Six jobs of 2 GPUs and 40 s on 4 GPUs, the last of them bob's: two at a time."""
    with service.client() as client:
        for i in range(6):
            user = "bob" if i == 5 else ""
            client.run(
                ["sleep", str(WORK_S)],
                gpus=2,
                name=f"a{i}",
                hours=2 * WORK_S / 3600,
                **({"user": user} if user else {}),
            )
        return [app.name for app in client.queue()]


def run(*words: object) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.slow
def test_a_what_if_of_a_running_service_and_what_then_happened(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with daemon(
        tmp_path / "home", options=("--machines", "2x2", "--policy", "fifo"), settings=(*QUICK, "single_trust=true")
    ) as service:
        names = fill(service)
        with service.client() as client:
            with pytest.raises(ThemisError, match="Did you mean 'fair_finish'"):
                client.what_if(["fair_finsh"])
            with pytest.raises(ThemisError, match="simulations is 1000, expected"):
                client.what_if(simulations=1000)
            token = client.add_user("bob")
            wait_until(lambda: any(a.state == "running" for a in client.queue()), lambda: "an app runs")
            found = client.what_if(["current", "drf"], add_gpus=["4"], horizon_s=SOON_S, simulations=5, arrivals=False)
            assert [app.name for app in found.apps] == names
            assert list(found.columns) == ["today", "fifo", "drf"]
            assert found.policy == "fifo"
            case = found.cases[0]
            assert case.sooner >= 2
            assert case.later == 0
            assert "with 4 more GPUs" in case.sentence
            # The state is as it was: nothing changed.
            assert client.info().gpus == 4
            assert client.info().policy == "fifo"

            # A user sees the own apps and the totals, and leaves out no one else's.
            log_in(tmp_path / "bob", read_endpoint(service.home).address, token)
            with Client(tmp_path / "bob") as bob:
                own = bob.what_if(["drf"], horizon_s=SOON_S, simulations=2, arrivals=False)
                assert [app.user for app in own.apps] == ["bob"]
                assert own.cases[0].compared > 1, "totals are of all users' apps"
                with pytest.raises(ThemisError, match=r"Permission denied: app 0 .* ask what if it were gone"):
                    bob.what_if(without=["a0"])

            # The same over HTTP and by the command.
            request = urllib.request.Request(
                f"{read_endpoint(service.home).http}/v1/what-if",
                data=json.dumps(
                    {"policies": ["drf"], "simulations": 2, "no_arrivals": True, "horizon_s": SOON_S}
                ).encode(),
                headers={"Authorization": f"Bearer {read_token(service.home)}", "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                shown = [app["name"] for app in json.load(answer)["apps"]]
                assert shown == names[-len(shown) :]
            capfd.readouterr()
            assert (
                run(
                    "simulate",
                    "--live",
                    "--data-dir",
                    service.home,
                    "-p",
                    "drf",
                    "--seeds",
                    2,
                    "--no-arrivals",
                    "--horizon",
                    "4m",
                )
                == 0
            )
            said = capfd.readouterr()
            assert "Under drf" in said.out
            assert max(map(len, said.out.splitlines())) <= 80
            assert run("simulate", "-w", service.home, "--seeds", 2, "--no-arrivals", "--json") == 0
            at_home = json.loads(capfd.readouterr().out)
            assert [app["name"] for app in at_home["apps"]][-1] == names[-1]

            for name in names:
                assert client.wait(name, 400.0).state in OVER
            ended = {name: client.show(name).app.ended for name in names}
        for app in found.apps:
            ahead = ended[app.name] - found.now
            # Starts and ends on a busy machine take a while longer.
            assert app.forecasts[0].median_s == pytest.approx(ahead, abs=WORK_S)
        assert service.down() == 0
        # A service that is done: its journal from the beginning, beside what happened.
        assert run("simulate", "-w", service.home, "-p", "drf", "--seeds", 1, "--json", "--horizon", "4m") == 0
        again = json.loads(capfd.readouterr().out)
        assert [app["name"] for app in again["apps"]] == names
        assert all(math.isfinite(app["happened_s"]) for app in again["apps"])


def test_what_the_process_cannot_answer_is_a_sentence(tmp_path: Path) -> None:
    asked = what_if.question_of(schema.WhatIfRequest())
    with pytest.raises(ThemisError, match="is not a data directory"):
        what_if.ask(tmp_path, b'{"kind":"themis-state","policy":"fifo"}', 0.0, asked)


def test_questions_are_bounded() -> None:
    for request, words in (
        (schema.WhatIfRequest(simulations=101), "simulations is 101, expected 0"),
        (schema.WhatIfRequest(policies=["drf"] * 17), "policies has 17 entries, expected at most 16"),
    ):
        with pytest.raises(ThemisError, match=words):
            what_if.question_of(request)


def test_a_question_that_does_not_fit_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    with world(tmp_path, 2, policy="fifo") as w, pytest.raises(ThemisError, match="no app is in the system"):
        w.ask(lambda a: what_if.check(a.state, what_if.question_of(schema.WhatIfRequest())))
