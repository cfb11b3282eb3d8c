"""Two users on one Ray cluster: an Optuna study and a Ray Tune sweep, without Themis, alone on it, sharing it.

    python reproduction/tuning.py [--trials 24] [--out docs/reproduction/tuning.md]

Starts a Ray cluster of two raylets with two logical GPUs on this machine, and the service on it; about five minutes on two
cores. The users' programs are those of ``examples/tuning/two_users.py``. The share is GPU time held while each could have
used all four GPUs, from what the service says of its users. Needs the extras optuna and tune.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from themis import Client

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "tuning"))
import two_users

PAUSE_S, TRIAL_S, LEASE_S = 0.5, 9.0, 12
"""Seconds of a step; of a trial as the users believe, its start of about 4 s included; of a lease, a tenth of a shared sweep."""
PAGE = """# Tuning frameworks on shared GPUs

    make reproduce-tuning        # took {took:.0f} s on two cores, with other work beside it

Ann runs an Optuna study (median pruner), Ben a Ray Tune sweep (ASHA), each of {trials} trials of up to {steps} steps of {pause} s,
on one Ray cluster of two raylets with two logical GPUs each. Each wants all four GPUs. The programs are those of
[examples/tuning/two_users.py](../../examples/tuning/two_users.py): an ordinary study and an ordinary `Tuner`. Policy
`themis`, leases of {lease} s.

{table}

*Share*: GPU time held, of {contended:.0f} GPU s held by both, while each could have used all four; equal users' fair share is 50 %.
*Seconds*: from submission to the last result, a trial's start and a preempted one's return included: a process that imports
Optuna for each of Ann's trials, one that imports Ray for each of Ben's leases.

Fair shares are missed on so short a stretch. Ben comes first and has all four GPUs for a lease before anybody else is there, and
the policy evens out finish times at the ends of leases, not GPU seconds. Leases are the grain: in a run of 12 trials with leases of
30 s, Ben was done within his first one, and the shares were 0 % and 100 %. They are 10 minutes unless set otherwise.
"""


def plain(folder: Path, trials: int) -> dict[str, float]:
    """Both users' best without Themis, one after the other; steps take no time here, for only what is found counts."""
    from ray import tune

    os.environ[two_users.PAUSE] = "0.01"
    try:
        folder.mkdir()
        study = two_users.study_of(folder, trials)
        study.optimize(two_users.objective, n_trials=trials)
        tuner = two_users.tuner_of(tune.with_resources(two_users.curve, {"CPU": 1}), folder, trials)
        return {"ann": study.best_params["x"], "ben": tuner.fit().get_best_result().config["x"]}
    finally:
        del os.environ[two_users.PAUSE]


def alone(folder: Path, home: Path, trials: int) -> dict[str, tuple[float, float]]:
    """(best x, seconds) of each, with the whole cluster for itself."""
    found = {}
    with Client(home) as client:
        for user, run in (("ann", two_users.ann), ("ben", two_users.ben)):
            (folder / user).mkdir(parents=True)
            began = time.monotonic()
            found[user] = run(folder / user, trials, TRIAL_S, client), time.monotonic() - began
    return found


@contextmanager
def cluster() -> Iterator[str]:
    """Two raylets with two GPUs each, and CPUs for trials; their address."""
    import ray
    from ray.cluster_utils import Cluster

    # Ray would make its workers nicer than everything else on this machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    store = {"object_store_memory": 80 << 20}
    head = {"num_cpus": 6, "num_gpus": 0, "include_dashboard": False, **store}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for n in range(2):
            made.add_node(num_cpus=1, num_gpus=2, labels={"themis-node": f"m{n}"}, **store)
        yield str(made.address)
    finally:
        ray.shutdown()
        made.shutdown()


@contextmanager
def service(home: Path, address: str) -> Iterator[None]:
    """``themis up`` on it."""
    home.mkdir()
    command = [sys.executable, "-m", "themis.cli", "up", "--home", str(home), "--engine", "ray", "--address", address]
    command += ["--port", "0", "--http-port", "-1", *(["--allow-root"] if os.geteuid() == 0 else [])]
    for setting in (f"lease={LEASE_S}", "tick=5", "container=4", "single_trust=true", f"node_root={home}/nodes"):
        command += ["--set", setting]
    with open(home / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as up:
        try:
            while not (home / "endpoint.json").exists():
                assert up.poll() is None, (home / "log").read_text()
                time.sleep(0.2)
            with Client(home) as client:
                while sum(n.gpus for n in client.nodes()) < 4:
                    time.sleep(0.2)
            yield
        finally:
            up.terminate()


def main() -> None:
    """The page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("docs/reproduction/tuning.md"))
    given = parser.parse_args()
    import ray
    from ray import cloudpickle

    # Ray's workers do not look for modules beside the examples.
    cloudpickle.register_pickle_by_value(two_users)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, cluster() as address:
        folder, home = Path(name), Path(name) / "home"
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        best = plain(folder / "plain", given.trials)
        with service(home, address):
            by_itself = alone(folder / "alone", home, given.trials)
            (folder / "sharing").mkdir()
            at = time.monotonic()
            sharing = two_users.share(folder / "sharing", given.trials, TRIAL_S, home)
            seconds = time.monotonic() - at
    contended = sum(held for _, held in sharing.values())
    rows = [
        "| | best x without Themis | alone on it | seconds | sharing | GPU s while both wanted all | share |",
        "|---|" + "---|" * 6,
    ]
    for user, what in (("ann", "Ann, Optuna"), ("ben", "Ben, Ray Tune")):
        x, held = sharing[user]
        part = held / contended if contended else 0.0
        x_alone, s_alone = by_itself[user]
        found = f"{best[user]:.1f} | {x_alone:.1f} | {s_alone:.0f} | {x:.1f}"
        rows.append(f"| {what} | {found} | {held:.0f} | {part:.0%} |")
    rows.append(f"\nSharing, both together took {seconds:.0f} s.")
    table = "\n".join(rows)
    print(table)
    given.out.write_text(
        PAGE.format(
            took=time.monotonic() - began, trials=given.trials, steps=two_users.STEPS, pause=PAUSE_S, lease=LEASE_S,
            table=table, contended=contended,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
