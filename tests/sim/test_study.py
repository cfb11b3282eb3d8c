"""``themis.simulate``: what the command simulates, from Python; policies as functions; the page and the notebook run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import themis
from themis.errors import InputError, ThemisError, UnknownName
from themis.model.snapshot import Snapshot
from themis.policies.api import make_policy
from themis.traces.formats import load_workload
from themis.traces.profiles.presets import load_cluster

ROOT = Path(__file__).parents[2]
SHORT = "demo:hours=1"


def arrivals(snapshot: Snapshot) -> Any:
    """Apps by arrival and number, as ``fifo`` has them."""
    return np.lexsort((snapshot.app_id, snapshot.app_arrival))


def test_a_function_a_policy_and_a_name_of_the_same_order_give_the_same_run(tmp_path: Path) -> None:
    found = themis.simulate(SHORT, policies=["fifo", arrivals, make_policy("fifo")], logs=tmp_path)
    assert [run.policy for run in found.runs] == ["fifo", "arrivals", "fifo"]
    named, function, given = (found.apps.filter(found.apps["policy"] == name) for name in ("fifo", "arrivals", "fifo"))
    columns = ["app", "finish", "restarts", "gpu_seconds"]
    assert named.select(columns)[:16].equals(function.select(columns))
    assert given.height == 32
    assert {path.name for path in tmp_path.iterdir()} == {"fifo-seed0.jsonl.gz", "arrivals-seed0.jsonl.gz"}


def test_workload_and_cluster_may_be_objects() -> None:
    given = themis.simulate(load_workload("demo", hours="1"), load_cluster("demo-32"), "drf")
    assert given.apps.equals(themis.simulate(SHORT, policies="drf").apps)


def test_results_are_short_to_read_and_become_tables_figures_and_a_page(tmp_path: Path) -> None:
    found = themis.simulate(SHORT, policies=["drf", "fifo"], seeds=[3, 5], processes=1, settings={"lease_s": 300})
    assert all(len(line) <= 80 for line in repr(found).splitlines())
    assert len(repr(found).splitlines()) == 3
    assert len(repr(found.runs[0])) < 200
    assert found.summary["seeds"].to_list() == [2, 2]
    assert found.runs[0].settings["lease_s"] == 300
    assert found.apps.height == 2 * 2 * 16
    assert set(found.jobs["seed"]) == {3, 5}
    assert found.plot("jct").axes
    assert found.plot() is not None
    assert "drf" in found.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<pre>policy" in found._repr_html_()
    with pytest.raises(UnknownName, match=r"unknown figure 'jet'.*jct"):
        found.plot("jet")


def test_wrong_arguments_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"policy 3 is neither a name, nor a policy, nor a function"):
        themis.simulate(SHORT, policies=[3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="no policy or no seed"):
        themis.simulate(SHORT, seeds=0)
    with pytest.raises(InputError, match=r"half, seed 0: policy half returned \[0\].*expected the rows 0 to"):
        themis.simulate(SHORT, policies=lambda_of([0], "half"))
    with pytest.raises(ThemisError, match="ZeroDivisionError"):
        themis.simulate(SHORT, policies=lambda s: 1 / 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        themis.simulate(SHORT, logs=tmp_path / "file" / "logs")


def lambda_of(rows: list[int], name: str) -> Any:
    def order(snapshot: Snapshot) -> Any:
        return rows

    order.__name__ = name
    return order


def test_the_package_lists_its_names() -> None:
    assert {"Agent", "Client", "simulate"} <= set(dir(themis))


@pytest.mark.slow
def test_a_script_without_a_main_guard_simulates_in_parallel_once(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(
        f"import themis\nprint(len(themis.simulate({SHORT!r}, policies='drf', seeds=2, processes=2).runs))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150)
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["page", "notebook"])
def test_the_page_and_the_notebook_run(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    if source == "page":
        blocks = re.findall(
            r"```python\n(.*?)```", (ROOT / "docs" / "research.md").read_text(encoding="utf-8"), re.DOTALL
        )
    else:
        cells = json.loads((ROOT / "examples" / "research.ipynb").read_text(encoding="utf-8"))["cells"]
        blocks = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, source, "exec"), names)
    assert len(blocks) >= 2
    assert len(names["results"].runs) == 4
    assert source == "notebook" or "least_service" in capsys.readouterr().out
