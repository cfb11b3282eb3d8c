"""Idle GPUs of real processes, by a stand-in of NVML that reports the utilisation that the test names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from live import LONG, grant, live, shell

from themis.machines.engines.program import GangIdle

NVML = """
import json, os
class NVMLError(Exception): pass
class Rates:
    def __init__(self, gpu): self.gpu = gpu
def nvmlInit(): pass
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetComputeRunningProcesses(handle): return []
def nvmlDeviceGetUtilizationRates(handle):
    return Rates(json.load(open(os.environ["NVML_SAYS"]))[handle])
"""


@pytest.mark.slow
def test_utilisation_is_that_which_nvml_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml/pynvml.py").write_text(NVML)
    says = tmp_path / "says.json"
    says.write_text(json.dumps({"GPU-0": 90, "GPU-1": 0}))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nvml"), prepend=os.pathsep)
    monkeypatch.setenv("NVML_SAYS", str(says))
    programs = {0: shell("sleep 1000"), 1: shell("sleep 1000")}
    with live(tmp_path / "run", programs, 2, settings=LONG, devices=["GPU-0", "GPU-1"]) as w:
        w.executor.submit(grant(1, (0,)))
        w.executor.submit(grant(1, (1,), job=1))
        found = w.until(GangIdle, lambda idle: idle.gpu_seconds > 0)
        assert (found.job, found.by) == (1, "nvml")
        assert found.idle_s > 0
        assert not [item for item in w.heard if isinstance(item, GangIdle) and item.job == 0]
