"""Train a model of the papers' tables as a job of Themis: ``python train.py ResNet-18 --batch 32 --steps 2000``.

One process, or a rank for each GPU (``launch: gpu``). The batch is global: with other GPUs it stays what it is. With
``--adapt`` it changes as Accordion or the gradient noise scale advises, and work is counted in epochs.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from models import MODELS, Task
from torch.utils.data import DataLoader, DistributedSampler

from themis import train
from themis.train import adaptive, pytorch


def arguments() -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int, default=32, help="global batch size, 1 or more (default: 32)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, default=1000, help="steps in all (default: 1000)")
    length.add_argument("--epochs", type=int, help="epochs in all, in place of steps")
    parser.add_argument("--adapt", choices=("gns", "accordion"), help="change the batch size; needs --epochs")
    parser.add_argument("--max-batch", type=int, help="largest batch size (default: four times --batch)")
    parser.add_argument("--small", action="store_true", help="narrow layers and short epochs, for a CPU")
    options = parser.parse_args()
    if options.adapt and options.epochs is None:
        parser.error(f"--adapt {options.adapt} counts work in epochs: give --epochs in place of --steps.")
    limit, ranks = options.max_batch or 4 * options.batch, int(os.environ.get("WORLD_SIZE", "1"))
    for name, value, least in (
        ("steps", options.steps, 1),
        ("epochs", 1 if options.epochs is None else options.epochs, 1),
        ("batch", options.batch, ranks),
        ("max-batch", limit, options.batch),
    ):
        if value < least:
            parser.error(f"--{name} is {value}, expected {least} or more{f' on {ranks} ranks' if ranks > 1 else ''}.")
    return options


def average(task: Task) -> None:
    """The mean of the ranks' gradients, in place: what DistributedDataParallel does, for several networks and losses."""
    if dist.is_initialized():
        for parameter in task.modules.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def main() -> None:
    """Train, save at a preemption, resume."""
    options = arguments()
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    torch.manual_seed(1)
    task = MODELS[options.model](options.small)
    task.modules.to(device)
    limit = min(options.max_batch or 4 * options.batch, task.examples)
    if options.epochs and options.batch > task.examples:
        raise SystemExit(f"--batch is {options.batch}, expected at most the {task.examples} examples of an epoch.")
    detector: adaptive.NoiseScale | adaptive.GradientNorm | None = None
    if options.adapt == "gns":
        detector = adaptive.NoiseScale(task.watched)
    elif options.adapt == "accordion":
        detector = adaptive.GradientNorm(task.watched, small=options.batch, large=limit)
    parts = {"modules": task.modules, **task.optimizers} | ({"detector": detector} if detector else {})
    run = train.Run(**pytorch.state(**parts))
    run.batch_size = options.batch

    @run.each_epoch
    def adapt(epoch: int) -> None:
        if isinstance(detector, adaptive.NoiseScale):
            run.batch_size = detector.advise(run.batch_size, limit)
        elif detector is not None:
            run.batch_size = detector.epoch_ended()

    def loader() -> DataLoader[int]:
        numbers = range(task.examples)
        sampler = DistributedSampler(numbers, ranks, rank, seed=2)
        each = run.batch_size // ranks
        run.batch_size = each * ranks
        return DataLoader(numbers, each, sampler=sampler, drop_last=True)

    def step(numbers: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=device)
        for i, (name, compute) in enumerate(task.losses(numbers.to(device))):
            task.optimizers[name].zero_grad()
            loss = compute()
            loss.backward()
            average(task)
            if isinstance(detector, adaptive.NoiseScale) and i == 0:
                detector.step(run.batch_size)
            elif detector is not None and i == 0:
                detector.step()
            task.optimizers[name].step()
            total = total + loss.detach()
        return total

    if options.epochs:
        for numbers in run.batches(loader, options.epochs):
            run.report(loss=step(numbers))
    else:
        for number in run.steps(options.steps):
            drawn = torch.randint(task.examples, (options.batch,), generator=torch.Generator().manual_seed(number))
            run.report(loss=step(drawn.tensor_split(ranks)[rank]))
    print(f"{options.model}: {run.step} steps, batch size {run.batch_size}", file=sys.stderr)


if __name__ == "__main__":
    main()
