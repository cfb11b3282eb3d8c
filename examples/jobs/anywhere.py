"""What anywhere.yaml trains: a line through points, with PyTorch, by ranks that are on one machine or on several."""

import time

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from themis import train
from themis.train import pytorch

distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
run = train.Run(**pytorch.state(model=model, optimizer=optimizer), check_every_s=0.2)

x = torch.linspace(-1.0, 1.0, 12)[rank::ranks, None]
for _ in run.steps(100):
    time.sleep(0.05)  # a larger model would be busy
    loss = torch.nn.functional.mse_loss(parallel(x), 3.0 * x + 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
print(f"rank {rank} of {ranks}: y = {model.weight.item():.6f} x + {model.bias.item():.6f}")
distributed.destroy_process_group()
