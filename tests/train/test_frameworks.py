"""Helpers for PyTorch, Hugging Face, Lightning and Keras, each skipped where its framework is missing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from themis.train import Checkpoints, Run
from themis.train.world import World

pytestmark = [pytest.mark.slow, pytest.mark.long]
torch = pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'themis-scheduler[torch]'")


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def fit(folder: Path, cut: int | None = None) -> Any:
    """Two epochs over a shuffled loader, with dropout; the weights at the end."""
    from themis.train import pytorch

    torch.manual_seed(3)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    run = Run(**pytorch.state(model=model, optimizer=optimizer), checkpoints=folder)
    for x, y in run.batches(loader, epochs=2):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
        if run.step + 1 == cut:
            os.kill(os.getpid(), signal.SIGTERM)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("cut", [2, 6, 9])
def test_pytorch_goes_on_exactly_with_shuffled_data_and_dropout(tmp_path: Path, cut: int) -> None:
    whole = fit(tmp_path / "whole")
    with pytest.raises(SystemExit):
        fit(tmp_path / "cut", cut)
    assert torch.equal(fit(tmp_path / "cut"), whole)


def test_a_loss_of_several_values_is_told_where_it_is_reported() -> None:
    run = Run(world=World())
    run.report(loss=torch.ones(1, requires_grad=True))
    with pytest.raises(ValueError, match=r"loss is a tensor of 3 values, expected one; report its mean\(\)"):
        run.report(loss=torch.ones(3))


def test_pytorch_refuses_parts_that_cannot_be_saved_and_checkpoints_of_others(tmp_path: Path) -> None:
    from themis.train import pytorch

    with pytest.raises(TypeError, match="lr is a float"):
        pytorch.state(lr=0.1)
    linear = torch.nn.Linear(1, 1)
    pytorch.state(model=linear)["save"](tmp_path / "state")
    with pytest.raises(KeyError, match="has no optimizer"):
        pytorch.state(model=linear, optimizer=torch.optim.Adam(linear.parameters()))["load"](tmp_path / "state")


@pytest.mark.filterwarnings("default")  # theirs are not ours to mend
def test_hugging_face_saves_leaves_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from themis.train import huggingface

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": ((self.linear(x) - labels) ** 2).mean()}

    def trainer(callback: Any, steps: int = 8) -> Any:
        torch.manual_seed(1)
        rows = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(32)]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=steps,
            per_device_train_batch_size=4,
            report_to=[],
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        return transformers.Trainer(model=Model(), args=arguments, train_dataset=rows, callbacks=[callback])

    class Told(huggingface.ThemisCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    assert huggingface.last_checkpoint(str(tmp_path)) is None
    with pytest.raises(SystemExit):
        trainer(Told(Run(world=World()))).train()
    last = huggingface.last_checkpoint(str(tmp_path))
    assert last is not None
    assert last.endswith("checkpoint-4")
    again = trainer(huggingface.ThemisCallback(Run(world=World(target=6.0))))
    again.train(resume_from_checkpoint=last)
    assert again.state.global_step == 6


@pytest.mark.filterwarnings("default")  # theirs are not ours to mend
def test_lightning_saves_leaves_and_goes_on(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from themis.train import lightning as ours

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.stop_at == self.global_step:
                os.kill(os.getpid(), signal.SIGTERM)
            return (self.linear(batch[0]) ** 2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit_lightning(callback: Any, stop_at: int) -> Any:
        model = Model()
        model.stop_at = stop_at
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=4)
        trainer = lightning.Trainer(
            max_steps=8,
            callbacks=[callback],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            default_root_dir=tmp_path,
        )
        trainer.fit(model, loader, ckpt_path=ours.last_checkpoint(str(tmp_path)))
        return trainer

    with pytest.raises(SystemExit):
        fit_lightning(ours.ThemisCallback(str(tmp_path), Run(world=World())), stop_at=3)
    saved = torch.load(tmp_path / "themis.ckpt", weights_only=False)
    assert saved["global_step"] == 4
    trainer = fit_lightning(ours.ThemisCallback(str(tmp_path), Run(world=World())), stop_at=99)
    assert trainer.global_step == 8


@pytest.mark.filterwarnings("default")  # theirs are not ours to mend
def test_keras_saves_leaves_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch has four batches: cut in the second epoch, it begins that one again and ends after its ten steps."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    from themis.train import keras as ours

    def build() -> Any:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    class Cut(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations) == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    def fit_keras(run: Run, *others: Any) -> Any:
        model, epoch = ours.resume(build, str(tmp_path))
        inputs = torch.randn(32, 4).numpy()
        callbacks = [ours.ThemisCallback(str(tmp_path), run), *others]
        model.fit(inputs, inputs[:, :1], 8, epochs=5, initial_epoch=epoch, callbacks=callbacks, verbose=0)
        return model

    with pytest.raises(SystemExit) as left:
        fit_keras(Run(world=World()), Cut())
    assert left.value.code == 143
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert latest[1] == {"step": 6, "epoch": 1}
    saved, epoch = ours.resume(build, str(tmp_path))
    assert epoch == 1
    assert int(saved.optimizer.iterations) == 6, "the optimizer's state is there, too"
    run = Run(world=World(target=10.0))
    assert int(fit_keras(run).optimizer.iterations) == 10
    assert run.step == 10


@pytest.mark.filterwarnings("default")
def test_keras_counts_batches_over_optimizers_and_leaves_a_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fits, the second with a new optimizer that takes four batches for a step, cut while it validates: nothing goes back."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    from themis.train import keras as ours

    validated = list[int]()

    class Cut(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            validated.append(batch)
            if batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    def build() -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    inputs = torch.randn(32, 4).numpy()
    data = (inputs, inputs[:, :1])
    model, run = build(), Run(world=World())
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(*data, 8, epochs=2, callbacks=[ours.ThemisCallback(str(tmp_path), run)], verbose=0)
    model.compile(keras.optimizers.Adam(0.01, gradient_accumulation_steps=4), "mse")
    callbacks = [ours.ThemisCallback(str(tmp_path), run), Cut()]
    with pytest.raises(SystemExit):
        model.fit(*data, 8, epochs=5, validation_data=data, validation_batch_size=4, callbacks=callbacks, verbose=0)
    assert validated == [0, 1]
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert latest[1] == {"step": 12, "epoch": 1}
    saved, epoch = ours.resume(build, str(tmp_path))
    assert epoch == 1
    assert float(abs(saved.weights[0].numpy() - model.weights[0].numpy()).max()) == 0.0


def test_checkpoints_of_the_library_hold_whatever_a_framework_writes(tmp_path: Path) -> None:
    """A folder of shards, as sharded training saves it."""

    def save(path: Path) -> None:
        path.mkdir()
        torch.save({"w": torch.ones(2)}, path / "shard-0.pt")

    Checkpoints(tmp_path).write(3, save, {"step": 3})
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert torch.load(latest[0] / "shard-0.pt")["w"].tolist() == [1.0, 1.0]
