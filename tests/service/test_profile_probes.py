"""``themis profile`` on virtual GPUs: true speeds, and probes that give way."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from processes import wait_until
from themis.cli.start import main
from themis.client import probing
from themis.client.probing import Gang, _probe
from themis.errors import InputError
from themis.schema import messages as schema
from themis.schema.wire import changed
from themis.traces.profiles.library import load_book

DYNAMIC = schema.Dynamic(mode="gns")
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
        # One of them asks for all GPUs of the probe's type, so it waits until the probe is gone.
        program = schema.Program(argv=["sleep", "0.2"], cwd="/")
        for kind in RATES:
            whole = schema.Job(
                name="j", regimes=[schema.Regime(steps=1.0)], gpus_min=2, gpu_types=[kind], program=program
            )
            client.submit(schema.SubmitRequest(name=f"whole-{kind}", jobs=[whole]))
        assert [client.wait(f"whole-{kind}").state for kind in RATES] == ["completed"] * len(RATES)
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


@pytest.mark.slow
def test_a_program_that_fails_is_run_once_and_what_is_wrong_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that reports nothing has no speed either, and what others measured is kept."""
    monkeypatch.setattr(probing, "SILENT_S", 2.0)
    monkeypatch.setenv("VIRTUAL_ENV", "of this shell")
    home, bad, ends = tmp_path / "home", tmp_path / "bad.yaml", tmp_path / "ends.yaml"
    silent, good, again = tmp_path / "silent.yaml", tmp_path / "good.yaml", tmp_path / "again.yaml"
    silent.write_text("name: silent\ncommand: [sleep, '60']\n")
    pace = {"regimes": [[1e12, 0, 1.0, 1.0]], "rates": {"gpu": {"0": {"1": 40.0}}}}
    command = [sys.executable, "-m", "themis.train.paced", json.dumps(pace)]
    told = 'test "$VIRTUAL_ENV" = "of this shell" && exec "$@"'
    good.write_text(f"name: good\ncommand: {json.dumps(['sh', '-c', told, 'sh', *command])}\n")
    again.write_text(good.read_text())
    bad.write_text(f"name: bad\ncommand: [{sys.executable}, nosuch.py]\n")
    ends.write_text("name: ends\ncommand: ['true']\n")
    (home / "profiles").mkdir(parents=True)
    (home / "profiles" / "kept.csv").write_text("model,gpu_type,gpus,steps_per_s\nm,gpu,1,2.0\n")
    wrong = {
        ("--name", "../lab"): "name is '../lab', expected 1 to 64 letters",
        ("--name", "gavel"): "which is a shipped book; choose another.",
        ("--name", "kept"): "kept.csv exists; name it otherwise or give --force.",
        ("--name", "lab", "--gpus", "1,8"): "has 2 GPUs of type gpu, expected at least 8; lower --gpus.",
        ("--name", "lab", str(tmp_path / "nosuch.yaml")): "nosuch.yaml",
        ("--name", "lab", str(good), str(again)): "again.yaml is a second one of good; name the model or the app of",
    }
    with daemon(home, options=("--machines", "1x2"), settings=(*QUICK, "single_trust=true")) as service:
        for words, said in wrong.items():
            with pytest.raises(SystemExit) as ended:
                main(["profile", str(bad), *words, "--seconds", "1", "--home", str(home)])
            assert ended.value.code == 2
            assert said in capsys.readouterr().err
        client = service.client()
        assert not client.history()
        with pytest.raises(SystemExit) as ended:
            main(["profile", str(bad), str(ends), "--name", "lab", "--seconds", "1", "--home", str(home)])
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert "bad on 1 gpu: no speed, " in said
        assert "ends on 1 gpu: no speed, " in said
        assert "gave way" not in said
        assert [app.name for app in client.history()] == ["probe-bad-1", "probe-ends-1"]
        fails = tmp_path / "fails.yaml"
        short = json.dumps({**pace, "regimes": [[100, 0, 1.0, 1.0]]})
        crash = f"{shlex.join([*command[:3], short])}; exit 3"
        fails.write_text(f"name: fails\ncommand: {json.dumps(['sh', '-c', crash])}\n")
        main(["profile", str(good), str(silent), str(fails), "--name", "lab", "--seconds", "3", "--home", str(home)])
        said = capsys.readouterr().err
        assert "silent on 1 gpu: no speed, it reported no steps within 5 s" in said
        assert "fails on 1 gpu: no speed, " in said
        assert load_book("lab", home / "profiles").get("good").curves["gpu", 0].rate == pytest.approx((40.0,), rel=0.05)


@pytest.mark.parametrize("beside", [False, True])
def test_a_probe_is_of_no_known_model_so_no_policy_pairs_it_and_it_teaches_nothing(beside: bool) -> None:
    own = {"checkpoint_dir": "/kept", "checkpoint_url": "s3://kept"}
    program = schema.Program(argv=["train", "it's"], env={"A": "b c"}, cwd="/a b", **own)
    curve = schema.SpeedCurve(gpu_type="V100", gpus=[1], steps_per_s=[2.0])
    request = schema.SubmitRequest(
        name="net",
        jobs=[
            schema.Job(
                model="ResNet-50", regimes=[schema.Regime(steps=5.0, batch=64)], program=program, dynamic=DYNAMIC
            )
        ],
        profile=schema.Profile(curves=[curve]),
    )
    probe = _probe(request, Gang(gpu_type="V100", gpus=1), 60.0, request if beside else None)
    assert (probe.jobs[0].model, probe.profile, probe.weight) == ("generic", None, 1e-6)
    program_of = probe.jobs[0].program
    assert (program_of.checkpoint_dir, program_of.checkpoint_url, probe.jobs[0].dynamic) == ("", "", None)
    if beside:
        assert """cd '/a b' && env 'A=b c' train 'it'"'"'s'; kill""" in probe.jobs[0].program.argv[2]
        other = changed(request, jobs=[changed(request.jobs[0], program=changed(program, launcher="bwrap"))])
        with pytest.raises(InputError, match="net and net differ in launcher, expected the same"):
            _probe(request, Gang(gpu_type="V100", gpus=1), 60.0, other)


@pytest.mark.slow
def test_pairs_on_one_gpu_of_a_named_machine_have_their_true_speeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each program is slowed by its neighbour by a share of its own; measured before both train, a pair would show none."""
    home, there = tmp_path / "home", tmp_path / "there"
    there.mkdir()
    program, line = Path(__file__).with_name("programs") / "neighbour.py", ["profile"]
    alone = {"net": 40.0, "lm": 25.0}
    beside = {"net": {"net": 0.5, "lm": 0.6}, "lm": {"net": 0.8, "lm": 0.7}}
    for name, rate in alone.items():
        shares = [f"{other}={share}" for other, share in beside[name].items()]
        command = json.dumps([sys.executable, str(program), str(there), name, str(rate), *shares])
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\ncommand: {command}\n")
        line.append(str(tmp_path / f"{name}.yaml"))
    with daemon(home, options=("--machines", "3x1@V100"), settings=(*QUICK, "single_trust=true")) as service:
        client = service.client()
        node = client.nodes()[1].name
        line += ["--pairs", "--node", node, "--name", "lab", "--seconds", "3", "--home", str(home)]
        main(line)
        # The middle one of three machines of a GPU each.
        granted = [record.record["gpus"] for record in client.events() if record.kind == "Grant"]
        assert granted == [[1]] * 6
        for wrong, sentence in (("n9", "n9"), (node, "has 1, expected at least 2; lower --gpus")):
            with pytest.raises(SystemExit):
                main(["profile", line[1], "--gpus", "2", "--node", wrong, "--name", "other", "--home", str(home)])
            assert sentence in capsys.readouterr().err
    for name, shares in beside.items():
        profile = load_book("lab", home / "profiles").get(name)
        assert profile.curves["V100", 0].rate == pytest.approx([alone[name]], rel=0.05)
        found = {other: profile.share_beside("V100", 0, (other, 0)) for other in shares}
        assert found == pytest.approx(shares, rel=0.05)
