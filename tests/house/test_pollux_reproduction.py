"""The quick form of the measurement of Pollux' workloads: every table has its rows, and what is stored is not run again."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = ("pollux-known", "pollux-loads", "pollux-rigid", "pollux-learned", "pollux-wrong")


@pytest.mark.slow
def test_the_quick_form_writes_every_table_and_goes_on_from_its_store(tmp_path: Path, shared_data: Path) -> None:
    store, page = tmp_path / "store.jsonl", tmp_path / "page.md"
    command = [sys.executable, "reproduction/pollux_osdi21.py", "--quick", "--data", str(shared_data)]
    command += ["--store", str(store), "--out", str(page)]

    def run() -> str:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr
        return page.read_text(encoding="utf-8")

    first = run()
    kept = store.read_text(encoding="utf-8")
    for name in TABLES:
        rows = first.partition(f"<!-- table {name}: ")[2].split("\n")[2:]
        assert rows[0].startswith("| "), name
        assert rows[2].startswith("| "), name
    assert run() == first
    assert store.read_text(encoding="utf-8") == kept, "what is measured is not run again"


@pytest.mark.slow
def test_jobs_that_scale_end_sooner_under_sia_on_three_gpu_types(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "reproduction"))
    row = importlib.import_module("sia_types").row
    scale, rigid = (float(row(shared_data, 4, "sia:round_s=3600", scales)[2]) for scales in (True, False))
    assert 0 < scale < rigid
