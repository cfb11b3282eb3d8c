"""A tensor whose parts are on the ranks, each of which adds 1 a step; torch.distributed.checkpoint writes a file a rank.

Arguments: witness, steps, seconds a step. The witness gets a line at the begin of each rank, for each save, and at the end.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from themis import train

WITNESS, STEPS, PAUSE, SIZE = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), 100_003
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
weights = distribute_tensor(torch.arange(float(SIZE)), init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])


def say(*words: object) -> None:
    """A line of the witness."""
    with open(WITNESS, "a") as file:
        file.write(" ".join(map(str, (os.environ["THEMIS_ATTEMPT"], rank, *words))) + "\n")


def shards(folder: Path) -> str:
    """Files of a checkpoint that are in this machine's folder."""
    return ",".join(sorted(path.name for path in folder.glob("*.distcp")))


def save(path: Path) -> None:
    """A part of the checkpoint, from each rank."""
    dcp.save({"weights": weights}, checkpoint_id=path)
    dist.barrier()
    say("saved", run.step, shards(path))


def load(path: Path) -> None:
    """All ranks read the parts that they need, of whatever rank."""
    say("loads", run.step, shards(path))
    dcp.load({"weights": weights}, checkpoint_id=path)


run = train.Run(save, load, everywhere=True, check_every_s=0.05, report_every_s=0.1)
for _ in run.steps(STEPS):
    weights.to_local().add_(1.0)
    time.sleep(PAUSE)
whole = weights.full_tensor()
say("ends", run.step, bool(torch.equal(whole, torch.arange(float(SIZE)) + STEPS)))
dist.barrier()
# Gloo's threads now and then abort an interpreter that ends in the usual way.
os._exit(0)
