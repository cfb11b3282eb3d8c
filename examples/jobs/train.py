"""What the examples train: a weight that moves towards 2. A pause in each step stands for the time that a model computes."""

import argparse
import json
import time
from pathlib import Path

from themis import train

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, help="a folder that must exist")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="sgd")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--pause", type=float, default=0.01, help="seconds of a step")
options = parser.parse_args()
if options.data and not options.data.is_dir():
    raise SystemExit(f"{options.data} is not a folder")
state = {"weight": 0.0}
run = train.Run(
    save=lambda path: path.write_text(json.dumps(state)), load=lambda path: state.update(json.loads(path.read_text()))
)

for _ in run.steps(options.steps):
    time.sleep(options.pause * options.layers / 2)
    error = state["weight"] - 2.0
    slope = error if options.optimizer == "sgd" else error / (abs(error) + 1e-8)
    state["weight"] -= options.lr * slope * (1.0 - options.dropout)
    run.report(loss=error * error)
print(f"rank {run.world.rank} of {run.world.world_size}: weight {state['weight']:.3f}")
