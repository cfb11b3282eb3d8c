"""`themis agent run --root`: the folder for tasks and logs changes once nothing runs in the one before."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from themis.cli import main
from themis.errors import InputError
from themis.machines.agent import remote
from themis.machines.agent.identity import Identity, load, relocate, write

HOLDS = """
import pathlib, sys
from themis.machines.agent.node_agent import hold
hold(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_agent_run_takes_another_folder_for_tasks_as_join_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, before, served = tmp_path / "state", tmp_path / "before", list[Identity]()
    machine = Identity(name="m0", owner="o", host="h", port=1, gpus=1, gpu_type="gpu", root=str(before))
    state.mkdir()
    write(state / "machine.json", json.dumps(asdict(machine)))
    monkeypatch.setattr(remote, "serve", lambda folder, notice_s: served.append(load(folder)))
    main(["agent", "run", "--state", str(state), "--root", str(tmp_path / "other")])
    assert served == [replace(machine, root=str(tmp_path / "other"))]
    agent = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "other")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        with pytest.raises(InputError, match=r"still runs in .*other; wait until they ended"):
            relocate(state, before)
        relocate(state, tmp_path / "other")
        assert agent.stdin is not None
        agent.stdin.close()
    relocate(state, before)
    assert load(state) == machine
