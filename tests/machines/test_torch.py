"""A PyTorch job by torchrun: preempted and resumed with the loss of a run that never stopped. The service's tests resize one."""

from __future__ import annotations

from pathlib import Path

import pytest
from live import LONG, Live, grant, live, revoke, script

from themis.machines.engines.program import AttemptEnded, Ending, Program
from themis.model.events import JobProgress, JobReached, JobStopped

pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'themis-scheduler[torch]'")
pytestmark = [pytest.mark.slow, pytest.mark.long]

STEPS = 40


def fit(pause: float, *, torchrun: bool) -> Program:
    """The small regression, by torchrun or with a rank for each GPU."""
    plain = script("torch_fit.py", STEPS, pause)
    if not torchrun:
        return plain
    argv = (plain.argv[0], "-m", "torch.distributed.run", *plain.argv[1:])
    return Program(argv=argv, launch="machine", grace_s=20.0)


def result(world: Live) -> tuple[float, float, int]:
    """Loss of the last step, sum of all weights, number of ranks at the end."""
    loss, weights, ranks = world.checkpoint("result").read_text().split()
    return float(loss), float(weights), int(ranks)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, float, int]:
    """An uninterrupted run on two GPUs."""
    with live(tmp_path_factory.mktemp("straight"), fit(0.0, torchrun=False), settings=LONG) as world:
        world.executor.submit(grant(1, (0, 1), target=STEPS))
        world.until(JobReached)
        return result(world)


def interrupted(world: Live, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[float, float, int]:
    """Preempted once it has done some steps, resumed on other GPUs."""
    world.executor.submit(grant(1, before, target=STEPS))
    world.until(JobProgress, lambda e: e.steps >= 3)
    world.executor.submit(revoke(1))
    ended, stopped = world.until(AttemptEnded), world.until(JobStopped)
    assert (ended.ending, ended.killed) == (Ending.STOPPED, False), world.logs()
    assert 3 <= stopped.steps < STEPS
    world.executor.submit(grant(2, after, target=STEPS))
    assert world.until(JobReached).steps == STEPS
    return result(world)


def test_a_preempted_torchrun_job_ends_with_exactly_the_loss_of_an_uninterrupted_one(
    tmp_path: Path, straight: tuple[float, float, int]
) -> None:
    with live(tmp_path, fit(0.1, torchrun=True), settings=LONG) as world:
        assert interrupted(world, (0, 1), (2, 3)) == straight
