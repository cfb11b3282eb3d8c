"""One line per workload and policy: the SHA-256 of its event log. Equal lines before and after a change: equal logs, byte for byte.

    python benchmarks/same_logs.py [--quick] > after.txt; diff before.txt after.txt

Every policy runs on generated workloads of one seed that together use sweeps, gangs, several GPU types, jobs that change their
speed, pairs on a GPU, failing machines and users with weights. ``--quick``: the first workload alone.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from themis.policies.api import policy_names

WORKLOADS = {
    "gangs, failures": "-w themis1:apps=6,load=2,gpus=16,scale=0.04 -c 2x8 --mtbf 30000",
    "sweeps, short steps": "-w themis2:apps=6,load=2,gpus=8,scale=0.03 -c 1x8 --set step_s=180",
    "three types": "-w gavel_multi:jobs=40 -c gavel-36 --profiles gavel",
    "dynamic jobs": "-w shockwave_jobs:jobs=24 -c 4x4@V100 --profiles gavel --set lease_s=120",
    "users": "-w demo:gpus=16,hours=6 -c 2x8 --set between=users",
}


def main() -> None:
    """Run all, print a line each; a policy that cannot run a workload has no line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first workload alone")
    quick = parser.parse_args().quick
    policies = ",".join(policy_names())
    for name, options in list(WORKLOADS.items())[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "themis.cli",
                "simulate",
                *options.split(),
                "-q",
                "-p",
                policies,
                "-o",
                folder,
            ]
            ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
            if ran.returncode:
                print(f"{name}: {ran.stderr.strip()}", file=sys.stderr)
            for log in sorted(Path(folder).glob("*.jsonl.gz")):
                digest = hashlib.sha256(gzip.decompress(log.read_bytes())).hexdigest()
                print(f"{name:<22}{log.name.removesuffix('-seed0.jsonl.gz'):<26}{digest[:32]}", flush=True)


if __name__ == "__main__":
    main()
