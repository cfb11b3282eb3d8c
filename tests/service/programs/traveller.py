"""A job whose files, packages, modules and checkpoints came to its machine; it ends with an exit code if anything is not whole.

Arguments: witness file, steps, seconds a step, number of packages. The witness is as that of ``beats.py``; beside it, ``.steps``
has a line for each step that rank 0 saved and for each that an attempt began with: task, ``saved`` or ``began``, step.
"""

import hashlib
import json
import os
import sys
import time

witness, steps, pause, packages = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
task, rank = os.environ["THEMIS_TASK"], os.environ["RANK"]


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def require(holds, what):
    if not holds:
        sys.exit(f"not whole: {what}")


with open("manifest.json") as file:
    manifest = json.load(file)
require({name: digest(name) for name in os.listdir(".") if name != "manifest.json"} == manifest, "files")
environment = os.environ["THEMIS_ENVIRONMENT"]
found = sorted(name for name in os.listdir(environment) if name.startswith("package-"))
require(found == sorted(f"package-{n}" for n in range(packages)), f"packages: {found}")
require(len({digest(f"{environment}/{name}") for name in found}) == 1, "packages of two installations")
require(os.environ.get("LOADED") == "cuda/12.4", "modules")

folder = os.environ["THEMIS_CHECKPOINT_DIR"]
at = 0
if os.path.exists(f"{folder}/state.json"):
    with open(f"{folder}/state.json") as file:
        state = json.load(file)
    at = state["step"]
    require(digest(f"{folder}/weights") == state["weights"], "weights")
elif rank == "0":
    data = os.urandom(24 << 20)
    with open(f"{folder}/weights", "wb") as file:
        file.write(data)
    with open(f"{folder}/state.new", "w") as file:
        json.dump({"step": 0, "weights": hashlib.sha256(data).hexdigest()}, file)
    os.replace(f"{folder}/state.new", f"{folder}/state.json")
out = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
said = os.open(f"{witness}.steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(said, f"{task} began {at}\n".encode() if rank == "0" else b"")
while True:
    os.write(out, f"{task} {rank} {time.monotonic()}\n".encode())
    if at >= steps:
        break
    time.sleep(pause)
    at += 1
    if rank == "0":
        with open(f"{folder}/state.json") as file:
            state = json.load(file)
        with open(f"{folder}/state.new", "w") as file:
            json.dump({**state, "step": at}, file)
        os.replace(f"{folder}/state.new", f"{folder}/state.json")
        os.write(said, f"{task} saved {at}\n".encode())
