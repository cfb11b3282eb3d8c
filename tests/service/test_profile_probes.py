"""``themis profile`` on virtual GPUs: true speeds, and probes that give way."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from processes import wait_until
from themis.cli.start import main
from themis.schema import messages as schema
from themis.traces.profiles.library import load_book

RATES = {"V100": {"1": 40.0, "2": 70.0}, "K80": {"1": 10.0, "2": 19.0}}


@pytest.mark.slow
def test_probes_find_true_speeds_by_type_and_gang_and_give_way_to_an_app_that_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, job = tmp_path / "home", tmp_path / "job.yaml"
    pace = {"regimes": [[1e12, 0, 1.0, 1.0]], "rates": {kind: {"0": rates} for kind, rates in RATES.items()}}
    command = json.dumps([sys.executable, "-m", "themis.train.paced", json.dumps(pace)])
    job.write_text(f"name: net\ncommand: {command}\nlaunch: machine\n")
    line = ["profile", str(job), "--gpus", "1,2", "--name", "lab", "--seconds", "3", "--home", str(home), "--json"]
    with daemon(home, options=("--machines", "1x2@V100+1x2@K80"), settings=(*QUICK, "single_trust=true")) as service:
        client = service.client()
        probing = threading.Thread(target=main, args=(line,))
        probing.start()
        wait_until(lambda: any(app.gpus for app in client.queue()), "a probe runs")
        # It asks for all GPUs of the probe's type, so it waits until the probe is gone.
        program = schema.Program(argv=["sleep", "0.2"], cwd="/")
        whole = [
            schema.Job(name=kind, regimes=[schema.Regime(steps=1.0)], gpus_min=2, gpu_types=[kind], program=program)
            for kind in RATES
        ]
        client.submit(schema.SubmitRequest(name="whole", jobs=whole))
        assert client.wait("whole").state == "completed"
        probing.join()
        gone = [app.state for app in client.history() if app.name.startswith("probe")]
        # Four speeds, and the probe that gave way.
        assert gone == ["cancelled"] * 5
    assert "gave way" in capsys.readouterr().err
    profile = load_book("lab", home / "profiles").get("net")
    for kind, rates in RATES.items():
        curve = profile.curves[kind, 0]
        assert dict(zip(map(str, curve.gpus), curve.rate)) == pytest.approx(rates, rel=0.05)
    with pytest.raises(SystemExit):
        main(["profile", str(job), "--gpus", "one", "--name", "lab"])
    assert "--gpus is 'one', expected numbers from 1 up" in capsys.readouterr().err
