"""A job that says its speed on one GPU type, or on none, runs at assumed speeds, which show and why name until measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from processes import PATIENCE_S, wait_until
from themis.cli.start import main

RATES = {"V100": {"1": 40.0}, "K80": {"1": 33.0}}
"""True speeds; the models of the table are much slower on a K80."""


@pytest.mark.slow
def test_speeds_of_a_type_that_is_not_named_are_assumed_until_a_job_measures_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, apps = tmp_path / "home", []
    pace = {"regimes": [[1e9, 0, 1.0, 1.0]], "rates": {kind: {"0": rates} for kind, rates in RATES.items()}}
    command = json.dumps([sys.executable, "-m", "themis.train.paced", json.dumps(pace)])
    settings = (*QUICK, "single_trust=true", "profiles=gavel")
    with daemon(home, options=("--machines", "1x1@V100+1x1@K80"), settings=settings) as service:
        client = service.client()
        for name in ("one", "two"):
            job = tmp_path / f"{name}.yaml"
            job.write_text(
                f"name: {name}\ncommand: {command}\nspeed: {{V100: 40}}\nwork: 1000000 steps\nlaunch: machine\n"
            )
            apps += [made.app for made in client.submit_file(job, "ada", folder=tmp_path)]
        assert all(client.show(app).assumed[0].startswith("K80 (as ") for app in apps), "neither has run there"
        for verb in ("show", "why"):
            main([verb, "one", "--home", str(home)])
            assert "assumed until they are measured: on K80 (as" in " ".join(capsys.readouterr().out.split())
        wait_until(lambda: sum(client.show(app).app.gpus for app in apps) == 2, "the policy uses both types")
        wait_until(
            lambda: any(not client.show(app).assumed for app in apps), "the app on the K80 has measured its speed"
        )
        measured = [r.record for r in client.events() if r.kind == "SpeedMeasured" and r.record["gpu_type"] == "K80"]
        assert measured[0]["steps_per_s"] == pytest.approx(33.0, rel=0.1)
        for app in apps:
            client.cancel(app)
            client.wait(app, timeout_s=PATIENCE_S)


@pytest.mark.slow
def test_a_model_without_any_speed_has_guessed_ones_that_one_measurement_moves_on_all_types(tmp_path: Path) -> None:
    """Its time says 100 steps/s; it makes 40 on the V100 alone. The K80, which it never sees, keeps the ratio of its reference."""
    home, job = tmp_path / "home", tmp_path / "new.yaml"
    pace = {"regimes": [[1e9, 0, 1.0, 1.0]], "rates": {kind: {"0": rates} for kind, rates in RATES.items()}}
    command = json.dumps([sys.executable, "-m", "themis.train.paced", json.dumps(pace)])
    job.write_text(f"name: new\ncommand: {command}\nwork: 1000000 steps\nwalltime: 10000s\nlaunch: machine\n")
    settings = (*QUICK, "single_trust=true", "profiles=gavel")
    with daemon(home, options=("--machines", "1x1@V100+1x1@K80"), settings=settings) as service:
        client = service.client()
        (made,) = client.submit_file(job, "ada", folder=tmp_path)
        first, other = client.show(made.app).assumed
        assert first == "V100 (as guessed)"
        assert other.startswith("K80 (as ")
        wait_until(lambda: len(client.show(made.app).assumed) == 1, "the app has measured its speed where it runs")
        (event,) = [r.record for r in client.events() if r.kind == "SpeedMeasured"][:1]
        where, left = event["gpu_type"], client.show(made.app).assumed
        assert left == ([other] if where == "V100" else [first])
        assert event["steps_per_s"] == pytest.approx(RATES[where]["1"], rel=0.1)
        client.cancel(made.app)
        client.wait(made.app, timeout_s=PATIENCE_S)
