"""Two users on one Ray cluster: an Optuna study and a Ray Tune sweep, without Themis, alone on it, sharing it.

    python reproduction/tuning.py [--trials 32] [--out docs/reproduction/tuning.md]

Starts a Ray cluster of two raylets with two logical GPUs on this machine, and the service on it; a quarter of an hour on two
cores. The users' programs are those of ``examples/tuning/two_users.py``. What each holds, wants and has for a rho is asked of the
service five times a second; shares are of the stretch in which each could have used all GPUs. Needs the extras optuna and tune.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from themis import Client

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "tuning"))
import two_users

USERS = {"ann": "Ann, Optuna", "ben": "Ben, Ray Tune"}
LOOK_S = 0.2
KEPT = Path("out/tuning")
"""Where the service's journal goes in the end."""
PAUSE_S, TRIAL_S, LEASE_S = 1.0, 14.0, 12
"""Seconds of a step; of a trial as the users believe, its start of about 4 s included; of a lease."""
PARTS = 4
"""Of the stretch in which both want all, one share each."""
PAGE = """# Tuning frameworks on shared GPUs

    make reproduce-tuning        # took {took:.0f} s on two cores, with other work beside it

Ann runs an Optuna study (median pruner), Ben a Ray Tune sweep (ASHA), each of {trials} trials of up to {steps} steps of {pause} s,
on one Ray cluster of two raylets with two logical GPUs each. Each wants all four GPUs. The programs are those of
[examples/tuning/two_users.py](../../examples/tuning/two_users.py): an ordinary study and an ordinary `Tuner`. Policy
`fair_finish`, the default, leases of {lease} s.

{table}

*Seconds*: from submission to the last result, a trial's start and a preempted one's return included: a process that imports
Optuna for each of Ann's trials, one that imports Ray for each of Ben's leases. *Measured rho*: seconds sharing, over N times the
seconds alone; N is the number of apps in the system over the app's life, on average. *The service's rho*: the same at the app's
end, by what the users believed of a trial ({trial:g} s), which is all that the policy knows. At most 1 would be fair.

{shares}

*Share*: GPU time held, of {contended:.0f} GPU s held by both, while each could have used all four; equal users' fair share is 50 %.
*rho then*: the service's estimate of what it will be in the end, averaged over the part.

The best trial is the same alone and sharing. `fair_finish` lets who can be done first go first, as long as the others then still
end when they would on their own share: one user holds all four GPUs, then the other. Ann's rho is above 1: all that is known of
a trial is what she declared, and each change of hands costs starts. Under `themis`, the default on 24 November 2026, both held
between 14 and 86 % in each quarter, and sharing took 339 s, with measured rho of 1.63 and 1.37. One run each: no interval.

Before a worker of Ray Tune told the scheduler that Tune has a checkpoint or an outcome of its work, each preemption seemed to cost
Ben everything. His rho seemed to grow without end, and he was given 72 % and 76 % of the GPU time in two runs of this script.
`out/tuning` keeps the service's journal, which tells why each lease went where it did.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment in which both users had an app: what each held, whether both could have used all GPUs, each one's rho now."""

    seconds: float
    gpus: dict[str, int]
    both_want_all: bool
    rho: dict[str, float]


@contextmanager
def sampled(home: Path) -> Iterator[list[Sample]]:
    """Fills as long as the context lasts; ``seconds`` : since the last sample."""
    samples, ended = list[Sample](), threading.Event()

    def look() -> None:
        with Client(home) as client:
            everything, last = sum(node.gpus for node in client.nodes()), time.monotonic()
            while not ended.wait(LOOK_S):
                apps, now = {app.user: app for app in client.queue()}, time.monotonic()
                if apps.keys() == {*USERS}:
                    wanted = all(app.demand >= everything for app in apps.values())
                    held, rho = ({u: getattr(apps[u], name) for u in USERS} for name in ("gpus", "rho"))
                    samples.append(Sample(now - last, held, wanted, rho))
                last = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def shares(samples: list[Sample]) -> tuple[str, float]:
    """The table of shares, over the stretch and its parts, and GPU seconds of both in it."""
    stretch = [s for s in samples if s.both_want_all]
    total = sum(s.seconds for s in stretch)
    rows = ["| | seconds | " + " | ".join(f"{who} | rho then" for who in USERS.values()) + " |", "|---|" + "---|" * 5]
    contended, at = 0.0, 0.0
    parts: list[list[Sample]] = [[] for _ in range(PARTS)]
    for s in stretch:
        parts[min(int(PARTS * at / total), PARTS - 1)].append(s)
        at += s.seconds
    for title, part in [("all of it", stretch), *((f"part {n} of {PARTS}", p) for n, p in enumerate(parts, start=1))]:
        seconds = sum(s.seconds for s in part)
        held = {u: sum(s.gpus[u] * s.seconds for s in part) for u in USERS}
        rho = {u: sum(s.rho[u] * s.seconds for s in part) / seconds for u in USERS}
        contended = contended or sum(held.values())
        cells = " | ".join(f"{held[u] / sum(held.values()):.0%} | {rho[u]:.2f}" for u in USERS)
        rows.append(f"| {title} | {seconds:.0f} | {cells} |")
    return "\n".join(rows), contended


def lives(home: Path) -> dict[str, tuple[float, float, float]]:
    """Of each user's last app: (seconds from submission to its end, apps in the system meanwhile on average, the service's rho)."""
    with Client(home) as client:
        last = {app.user: app for app in sorted(client.history(), key=lambda app: app.submitted)}
    out = {}
    for user, app in last.items():
        others = [max(0.0, min(app.ended, o.ended) - max(app.submitted, o.submitted)) for o in last.values()]
        seconds = app.ended - app.submitted
        out[user] = seconds, sum(others) / seconds, app.rho
    return out


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


def alone(folder: Path, home: Path, trials: int) -> dict[str, float]:
    """Best x of each, with the whole cluster for itself."""
    found = {}
    with Client(home) as client:
        for user, run in (("ann", two_users.ann), ("ben", two_users.ben)):
            (folder / user).mkdir(parents=True)
            found[user] = run(folder / user, trials, TRIAL_S, client, PAUSE_S)
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
    command += ["--port", "0", *(["--allow-root"] if os.geteuid() == 0 else [])]
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
    parser.add_argument("--trials", type=int, default=32)
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
            by_itself, lived_alone = alone(folder / "alone", home, given.trials), lives(home)
            (folder / "sharing").mkdir()
            at = time.monotonic()
            with sampled(home) as samples:
                sharing = two_users.share(folder / "sharing", given.trials, TRIAL_S, home, PAUSE_S)
            seconds = time.monotonic() - at
            lived = lives(home)
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.copy(home / "journal.db", KEPT)
    rows = [
        "| | best x without Themis | alone on it | seconds | sharing | seconds | measured rho | the service's rho |",
        "|---|" + "---|" * 7,
    ]
    for user, what in USERS.items():
        s_alone, _, _ = lived_alone[user]
        s_sharing, apps, rho = lived[user]
        found = f"{best[user]:.1f} | {by_itself[user]:.1f} | {s_alone:.0f} | {sharing[user][0]:.1f} | {s_sharing:.0f}"
        rows.append(f"| {what} | {found} | {s_sharing / (apps * s_alone):.2f} | {rho:.2f} |")
    rows.append(f"\nSharing, both together took {seconds:.0f} s.")
    table = "\n".join(rows)
    parts, contended = shares(samples)
    page = PAGE.format(
        took=time.monotonic() - began,
        trials=given.trials,
        steps=two_users.STEPS,
        pause=PAUSE_S,
        lease=LEASE_S,
        trial=TRIAL_S,
        table=table,
        shares=parts,
        contended=contended,
    )
    print(page)
    given.out.write_text(page)


if __name__ == "__main__":
    main()
