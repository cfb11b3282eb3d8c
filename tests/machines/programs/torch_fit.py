"""A small regression under DistributedDataParallel (or alone), resumable by five lines of ``themis.train``.

The global batch is the same for every number of ranks, and so is the loss. Arguments: steps, seconds a step.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from themis import train
from themis.train import pytorch

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(7)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = train.Run(**pytorch.state(model=model, optimizer=optimizer), check_every_s=0.05, report_every_s=0.05)
truth = torch.randn(8, 1, generator=torch.Generator().manual_seed(1))
loss = torch.zeros(())
for step in run.steps(STEPS):
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    mine = inputs.chunk(dist.get_world_size())[dist.get_rank()]
    loss = ((model(mine) - mine @ truth) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    run.report(loss=loss / dist.get_world_size())
    time.sleep(PAUSE)
if dist.get_rank() == 0:
    total = sum(p.double().sum().item() for p in model.parameters())
    (Path(os.environ["THEMIS_CHECKPOINT_DIR"]) / "result").write_text(
        f"{loss.item()!r} {total!r} {dist.get_world_size()}"
    )
dist.barrier()
# Gloo's threads now and then abort an interpreter that ends in the usual way.
os._exit(0)
