"""The loops that docs/training.md shows run as they are shown."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from themis.train import Checkpoints

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
STEPS, BATCHES, ADAPTIVE = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _themis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("THEMIS_CHECKPOINT_DIR", str(tmp_path))
    yield
    signal.signal(signal.SIGTERM, before)


def run(block: str, **names: Any) -> dict[str, Any]:
    exec(compile(block, "training.md", "exec"), names)
    return names


def saved(folder: Path) -> dict[str, Any]:
    latest = Checkpoints(folder).latest()
    assert latest is not None
    return latest[1]


def test_a_loop_of_steps_in_five_lines(tmp_path: Path) -> None:
    assert len([line for line in STEPS.splitlines() if line]) < 5
    seen: list[int] = []
    names = {"save": lambda path: path.write_text("state"), "load": Path.read_text}
    run(STEPS, train_step=lambda step: seen.append(step) or 0.5, **names)
    assert seen == list(range(10_000))
    assert saved(tmp_path)["step"] == 10_000
    run(STEPS, train_step=lambda step: seen.append(step) or 0.5, **names)
    assert len(seen) == 10_000, "nothing is left to do"


@pytest.mark.slow
@pytest.mark.long
def test_a_data_loader_and_one_whose_batches_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'themis-scheduler[torch]'")
    data = torch.utils.data.TensorDataset(torch.randn(128, 4), torch.randn(128, 1))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def backward(batch: Any) -> Any:
        optimizer.zero_grad()
        loss = ((model(batch[0]) - batch[1]) ** 2).mean()
        loss.backward()
        return loss

    def train_step(batch: Any) -> Any:
        loss = backward(batch)
        optimizer.step()
        return loss

    names = {"model": model, "optimizer": optimizer, "DataLoader": torch.utils.data.DataLoader, "data": data}
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    loader = torch.utils.data.DataLoader(data, batch_size=64)
    run(BATCHES, train_step=train_step, scheduler=scheduler, loader=loader, **names)
    assert (saved(tmp_path)["epoch"], saved(tmp_path)["step"]) == (90, 180)
    monkeypatch.setenv("THEMIS_CHECKPOINT_DIR", str(tmp_path / "adaptive"))
    run(ADAPTIVE, backward=backward, **names)
    assert saved(tmp_path / "adaptive")["epoch"] == 90
