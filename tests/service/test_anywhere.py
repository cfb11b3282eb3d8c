"""One job file on one machine and on a Ray cluster, preempted on both: the same model, bit for bit as far as it is printed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from processes import PATIENCE_S, wait_until
from raycluster import RayCluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs"
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
SETTINGS = (*QUICK, "node_lease=30", "lease=10")
"""Long enough for a busy machine."""


def test_a_job_file_needs_no_change_to_move_from_one_machine_to_a_ray_cluster(
    tmp_path: Path, ray_nodes: RayCluster
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    # The interpreter of the tests, for the "python" of whoever has an environment active.
    file = tmp_path / "anywhere.yaml"
    file.write_text((EXAMPLES / "anywhere.yaml").read_text().replace("command: python ", f"command: {sys.executable} "))
    here, lines = trained(tmp_path / "here", file, ["--machines", "1x4"])
    there, same = trained(tmp_path / "there", file, ray_nodes.options(tmp_path / "there" / "run" / "on-nodes"))
    assert (len(here), len(there)) == (1, 2), "three GPUs are on two nodes of two"
    assert lines == same
    assert [line.split(":")[0] for line in lines] == [f"rank {n} of 3" for n in range(3)]
    assert len({line.split(":")[1] for line in lines}) == 1, "the ranks trained one model"


def trained(home: Path, file: Path, options: Sequence[str]) -> tuple[set[str], list[str]]:
    """Machines that the job ran on when it was preempted, and the last line of each rank."""
    with daemon(home, options=options, settings=SETTINGS) as service, service.client() as client:
        wait_until(lambda: sum(node.gpus for node in client.nodes()) == 4, "its nodes are there")
        submit = [sys.executable, "-m", "themis.cli", "submit", "--home", str(home), str(file)]
        subprocess.run(submit, cwd=EXAMPLES, check=True, stdout=subprocess.DEVNULL)
        wait_until(lambda: (client.show("anywhere").jobs[0].steps or 0) >= 10, "it trains")
        nodes = set(client.show("anywhere").jobs[0].nodes)
        client.hold("anywhere")
        wait_until(lambda: not client.show("anywhere").app.gpus, "it saved and gave its GPUs back")
        client.resume("anywhere")
        assert client.wait("anywhere", timeout_s=PATIENCE_S).state == "completed", service.said()
        (job,) = client.show("anywhere").jobs
        assert [a.ending for a in job.attempts] == ["stopped", "finished"]
        assert 10 <= job.attempts[0].steps < 100, "the second attempt did only the rest"
        return nodes, [b"".join(client.logs("anywhere", rank=n)).decode().splitlines()[-1] for n in range(3)]
