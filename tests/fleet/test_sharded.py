"""A gang on two machines whose ranks each write a part of the checkpoint goes on on two others, which share no disk with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from daemon import daemon

from fleetmachines import machines
from processes import PATIENCE_S, ranks_of, wait_until

pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'themis-scheduler[torch]'")
pytestmark = [pytest.mark.slow, pytest.mark.long]
PROGRAM = Path(__file__).parents[1] / "machines" / "programs" / "sharded.py"
NAMES = ("m0", "m1", "m2", "m3")
STEPS = 150


def test_a_sharded_checkpoint_of_two_machines_is_loaded_on_two_other_machines(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    options = ("--engine", "fleet")
    with (
        daemon(tmp_path / "home", options=options) as service,
        machines(service.home, tmp_path / "machines") as fleet,
    ):
        for name in NAMES:
            fleet.add(name, 1)
        wait_until(lambda: service.client().info().gpus == 4, "all machines serve")

        def busy() -> set[str]:
            return {name for name in NAMES if ranks_of(fleet.tasks(name))}

        def rows(attempt: int, what: str) -> dict[int, list[str]]:
            """By rank, the words of the last line of this kind."""
            lines = (line.split() for line in witness.read_text().splitlines()) if witness.exists() else ()
            return {int(rank): more for n, rank, kind, *more in lines if (int(n), kind) == (attempt, what)}

        with service.client() as client:
            command = [sys.executable, str(PROGRAM), str(witness), str(STEPS), "0.1"]
            app = client.run(command, gpus=2, hours=1.0, launch="gpu").app
            wait_until(lambda: (client.show(app).jobs[0].steps or 0) >= 10, lambda: f"it trains\n{service.said()}")
            first = busy()
            assert len(first) == 2
            for name in sorted(first):
                client.drain(name)
            ended = client.wait(app, timeout_s=PATIENCE_S)
            assert ended.state == "completed", client.show(app)
        saved, loaded = rows(1, "saved"), rows(2, "loads")
        shards = {rank: words[1] for rank, words in saved.items()}
        assert set(shards) == {0, 1}
        assert shards[0] != shards[1], "each machine has a file of its own rank alone"
        assert int(saved[0][0]) >= 10
        both = ",".join(sorted(shards.values()))
        assert loaded == {rank: [saved[0][0], both] for rank in range(2)}, (
            "each has the files of both, and no step is lost"
        )
        assert rows(2, "ends") == {rank: [str(STEPS), "True"] for rank in range(2)}, "each element is what it should be"
        second = {name for name in NAMES if [*fleet.tasks(name).glob("logs/*attempt2")]}
        assert second == set(NAMES) - first
