"""The unit that starts a machine's agent at boot is one that systemd accepts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from themis.machines.agent.systemd_unit import NAME, text


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: apt install systemd"
)
@pytest.mark.parametrize("system", [True, False], ids=["system", "user"])
def test_systemd_accepts_the_agents_unit(tmp_path: Path, system: bool) -> None:
    (tmp_path / NAME).write_text(text("gpu1", tmp_path / "state", sys.executable, system=system))
    done = subprocess.run(
        ["systemd-analyze", *([] if system else ["--user"]), "verify", str(tmp_path / NAME)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "notice"},
    )
    assert (done.returncode, done.stderr) == (0, "")
