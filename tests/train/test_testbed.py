"""The training scripts of the papers' models: each learns, saves, resumes, and trains on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from themis.machines.agent.system import SYSTEM
from themis.train import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.long]
torch = pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'themis-scheduler[torch]'")
FOLDER = Path(__file__).parents[2] / "examples" / "testbed"


@pytest.mark.parametrize("name", ["ResNet-18", "ResNet-50", "LM", "Transformer", "A3C", "CycleGAN", "Recommendation"])
def test_each_model_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import models

    torch.manual_seed(1)
    task = models.MODELS[name](True)
    seen = []
    for step in range(40):
        numbers = torch.randint(task.examples, (16,), generator=torch.Generator().manual_seed(step))
        total = 0.0
        for optimizer, compute in task.losses(numbers):
            task.optimizers[optimizer].zero_grad()
            loss = compute()
            loss.backward()
            task.optimizers[optimizer].step()
            total += float(loss.detach())
        seen.append(total)
    assert sum(seen[-10:]) < sum(seen[:10])


def started(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    command = [sys.executable, str(FOLDER / "train.py"), *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_it_saves_at_the_stop_signal_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    variables = {"THEMIS_CHECKPOINT_DIR": str(tmp_path / "saved"), "THEMIS_RUN_DIR": str(tmp_path)}
    arguments = ("LM", "--small", "--steps", "3")
    first = started(*arguments, **variables)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 143, said
    latest = Checkpoints(tmp_path / "saved").latest()
    assert latest is not None
    assert latest[1]["step"] == 1
    (tmp_path / "stop").unlink()
    second = started(*arguments, **variables)
    _, said = second.communicate(timeout=120)
    assert second.returncode == 0, said
    assert said.endswith("LM: 3 steps, batch size 32\n")


def test_two_ranks_agree_on_the_batch_size_that_the_noise_scale_advises(tmp_path: Path) -> None:
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(SYSTEM.free_port())}
    arguments = ("Recommendation", "--small", "--epochs", "4", "--batch", "16", "--max-batch", "32", "--adapt", "gns")
    both = [started(*arguments, RANK=str(rank), LOCAL_RANK=str(rank), **ranks) for rank in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "ranks", "said"),
    [
        ("--batch 0", "1", "--batch is 0, expected 1 or more"),
        ("--batch 1 --steps 5", "2", "--batch is 1, expected 2 or more on 2 ranks"),
        ("--epochs 0", "1", "--epochs is 0, expected 1 or more"),
        ("--adapt gns --epochs 1 --batch 64 --max-batch 16", "1", "--max-batch is 16, expected 64 or more"),
        ("--epochs 3 --batch 5000", "1", "--batch is 5000, expected at most the 1024 examples of an epoch"),
    ],
)
def test_a_line_that_would_train_nothing_is_refused(arguments: str, ranks: str, said: str) -> None:
    refused = started("LM", "--small", *arguments.split(), WORLD_SIZE=ranks)
    assert said in refused.communicate(timeout=120)[1]
    assert refused.returncode
