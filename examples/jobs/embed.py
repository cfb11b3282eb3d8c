"""One shard of array.yaml: writes its numbers to shards/INDEX.txt."""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--shard", type=int, required=True)
parser.add_argument("--of", type=int, required=True)
options = parser.parse_args()
folder = Path("shards")
folder.mkdir(exist_ok=True)
numbers = range(options.shard, 100, options.of)
(folder / f"{options.shard}.txt").write_text("".join(f"{number * number}\n" for number in numbers))
