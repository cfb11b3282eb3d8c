"""Is the simulator true to the live service? One workload, run by both. Writes docs/reproduction/fidelity.md.

The live side is ``themis up`` with virtual GPUs and real processes that train at the speeds of their profiles, preempted with
checkpoints and started again; the simulated side gets the same apps, arrivals, speeds, policy and settings, and what the
start of a gang cost in that very live run: beforehand, or on another day, a machine that does other work has other costs.

One decision that falls otherwise sends all later ones other ways. So the live side is run more than once, and the simulation
once more at each of many costs that single starts had: how far these lie apart is how far anybody can foresee the run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from themis.client import themis_pb2 as pb
from themis.client.client import OVER, Client
from themis.client.spec import to_request
from themis.demo.live import service
from themis.jobs import build, read_jobs
from themis.jobs.build import Built
from themis.model.log import LogWriter
from themis.model.settings import Settings
from themis.model.units import Float, Locality
from themis.model.workload import LossCurve, Workload
from themis.policies.api import make_policy
from themis.profiles.models import DEFAULT_BOOK
from themis.profiles.presets import load_cluster
from themis.report.metrics import metrics_of
from themis.report.result import RunMetrics, scalar
from themis.sim.runner import Simulation

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduction" / "fidelity.md"
PROGRAM = ROOT / "reproduction" / "programs" / "paced.py"
MACHINES = "2x4"
LEASE_S, TICK_S, GATHER_S, RATE, ACROSS, CHECKPOINT_S = 10.0, 2.0, 0.5, 10.0, 1.3, 0.2
AIM = 0.1
"""Largest difference of a figure that counts as agreement."""
BELIEVED_START_S = 0.4
"""What the live service is told that a start costs; what it does cost is measured."""
QUANTILES = np.linspace(0.05, 0.95, 19)
"""Of the starts' costs, at which the simulation is run again."""
USERS = ("ada", "ben", "cleo")
SHOWN = ("makespan", "jct_mean", "rho_paper_max", "rho_exact_max", "gpu_seconds")
TITLES = ("makespan, s", "mean JCT, s", "max rho, paper", "max rho, exact", "GPU time, s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An app, when it comes, and how fast each job's loss falls."""

    built: Built
    arrival: float
    qualities: tuple[float, ...]


def workload(apps: int, seed: int, folder: Path, scale: float = 1.0) -> list[Planned]:
    """Sweeps, bags and gangs of a minute or so, drawn by the seed; ``scale`` multiplies every duration and arrival."""
    rng = np.random.default_rng(seed)
    made, arrival = [], 0.0
    for i in range(apps):
        kind = ("sweep", "gang", "elastic", "bag")[int(rng.integers(4))]
        steps = int(RATE * scale * rng.uniform(15, 40))
        gpus = {"gang": int(rng.choice([2, 4])), "elastic": "1..4"}.get(kind, 1)
        command = [
            "python",
            str(PROGRAM),
            "--rate",
            RATE,
            "--across",
            ACROSS,
            "--steps",
            steps * (3 if kind == "sweep" else 1),
        ]
        text: dict[str, object] = {
            "name": f"{kind}-{i}", "gpus": gpus, "launch": "machine", "grace": "10s", "speed": RATE,
            "slowdown": [1, 1, ACROSS, ACROSS], "checkpoint_time": CHECKPOINT_S,
        }  # fmt: skip
        count = {"sweep": 9, "bag": int(rng.integers(2, 5))}.get(kind, 1)
        qualities = tuple(round(float(q), 4) for q in rng.uniform(0.002, 0.05, size=count))
        if kind == "sweep":
            # The first rung has every trial for a ninth of the work of the one that wins.
            steps = max(steps * 3 // 9 * 9, 9)
            command[-1] = steps
            text["sweep"] = {
                "parameters": {"quality": {"grid": list(qualities)}}, "trials": count, "sampler": "grid",
                "budget": f"{steps} steps", "tuner": {"kind": "halving", "eta": 3, "min_work": f"{steps // 9} steps"},
            }  # fmt: skip
            command += ["--quality", "{quality}"]
        else:
            text |= {"work": f"{steps} steps"} | ({"array": f"0-{count - 1}"} if kind == "bag" else {})
        text["command"] = command
        file = folder / f"{i}.yaml"
        # JSON is YAML.
        file.write_text(json.dumps(text))
        (spec,) = read_jobs([file], folder=folder)
        built = build(spec, user=str(rng.choice(USERS)), arrival=arrival)
        made.append(Planned(built=built, arrival=arrival, qualities=qualities))
        arrival += float(rng.exponential(8.0)) * scale
    return made


def run_live(
    planned: Sequence[Planned], policy: str, settings: Mapping[str, object], home: Path, log: Path
) -> RunMetrics:
    """Submit each app when its time has come; ends when all are over."""
    with service(home, machines=MACHINES, policy=policy, settings=settings), Client(home) as client:
        began, todo = time.monotonic(), list(planned)
        while todo or any(app.state not in OVER for app in client.queue()):
            while todo and time.monotonic() - began >= todo[0].arrival:
                client.submit(_request(todo.pop(0).built))
            time.sleep(0.05 if todo else 0.3)
        with open(log, "w", encoding="utf-8") as file:
            file.writelines(f"{record.json}\n" for record in client.events())
    return metrics_of(log)


def _request(built: Built) -> pb.SubmitRequest:
    return to_request(built.spec, built)


def run_simulated(
    planned: Sequence[Planned], arrivals: Sequence[float], policy: str, start_s: float, stop_s: float, log: Path
) -> RunMetrics:
    """The same apps in the simulator, as they came to the service, their losses those that the program reports.

    The policy believes what the live one does of what it costs to come back; the program has nothing to load, so the
    checkpoint's time is a part of that belief alone.
    """
    settings = Settings(
        lease_s=LEASE_S, tick_s=TICK_S, gather_s=GATHER_S, container_s=BELIEVED_START_S + CHECKPOINT_S
    )  # fmt: skip
    apps = tuple(
        replace(p.built.app, arrival=arrival, jobs=tuple(
            replace(job, model=_model(p), loss=LossCurve(a=1.0, b=q)) for job, q in zip(p.built.app.jobs, p.qualities)
        ))
        for p, arrival in zip(planned, arrivals)
    )  # fmt: skip
    profiles = (replace(p.built.profile, name=_model(p), checkpoint_s=0.0) for p in planned if p.built.profile)
    book = DEFAULT_BOOK.with_profiles(profiles)
    simulation = Simulation(
        workload=Workload(name="fidelity", apps=apps), cluster=load_cluster(MACHINES), book=book, policy_name=policy,
        policy=make_policy(policy), settings=settings, start_s=start_s, stop_s=stop_s,
    )  # fmt: skip
    with LogWriter(log) as writer:
        simulation.run(writer)
    return metrics_of(log)


def _model(planned: Planned) -> str:
    return f"{planned.built.app.user}/{planned.built.app.name}"


@dataclass(frozen=True, slots=True)
class Costs:
    """What the live run paid for changes, in seconds each.

    Attributes
    ----------
    starts : of each first attempt that reached its target: from its grant to that report, less its steps.
    stops : of each gang that was preempted: from the order to its GPUs' return.
    """

    starts: tuple[float, ...]
    stops: tuple[float, ...]


def costs(log: Path) -> Costs:
    """Read them off a live log."""
    granted: dict[int, dict[str, Any]] = {}
    told: dict[int, dict[str, Any]] = {}
    starts, stops = [], []
    for line in log.read_text().splitlines():
        record = json.loads(line)
        match record["kind"]:
            case "Grant":
                granted[record["job"]] = record
            case "Revoke" if record["cause"] not in ("finished", "rung"):
                told[record["job"]] = record
            case "JobStopped" if record["job"] in told:
                stops.append(record["t"] - told.pop(record["job"])["t"])
            case "JobReached" if record["attempt"] == 1:
                grant = granted[record["job"]]
                across = ACROSS if grant["locality"] >= Locality.RACK else 1.0
                steps_s = record["steps"] * across / (RATE * len(grant["gpus"]))
                starts.append(record["t"] - grant["t"] - steps_s)
    return Costs(tuple(starts), tuple(stops))


def live_settings() -> dict[str, object]:
    """For ``themis up``."""
    return {
        "lease": LEASE_S, "tick": TICK_S, "gather": GATHER_S, "container": BELIEVED_START_S, "progress": 1, "single_trust": "true",
        "retries": 0,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """One workload under one policy; a row of figures, as ``SHOWN``, for each run.

    Attributes
    ----------
    live : of each live run. ``told`` : of its simulation at the mean cost of a start. ``again`` : of those at other costs.
    costs : what changes cost in each live run.
    """

    live: Float
    told: Float
    again: Float
    costs: list[Costs]

    @property
    def one(self) -> Float:
        """How far the simulations at the mean costs are off the live runs, in the mean."""
        return self.told.mean(axis=0) / self.live.mean(axis=0) - 1.0

    @property
    def means(self) -> Float:
        """How far the mean of the others is."""
        return self.again.mean(axis=0) / self.live.mean(axis=0) - 1.0

    def rows(self) -> list[str]:
        """Of the table."""
        spread = (f"{low:.2f} – {high:.2f}" for low, high in zip(self.again.min(axis=0), self.again.max(axis=0)))
        return [
            *(f"live | {_cells(row)}" for row in self.live),
            *(f"simulated | {_cells(row)}" for row in self.told),
            f"... difference | {_shares(self.one)}",
            f"simulated, mean of {len(self.again)} | {_cells(self.again.mean(axis=0))}",
            f"... their range | {' | '.join(spread)} |",
            f"... difference | {_shares(self.means)}",
        ]


def compare(planned: Sequence[Planned], policy: str, folder: Path, lives: int) -> Compared:
    """Run both sides: of each live run, simulations with its arrivals and with what starts and stops cost in it."""
    logs = [folder / f"live-{n}.jsonl" for n in range(lives)]
    live = [
        metrics_of(log) if log.exists() else run_live(planned, policy, live_settings(), folder / f"home-{n}", log)
        for n, log in enumerate(logs)
    ]
    paid = [costs(log) for log in logs]
    told, again = [], []
    for run, cost in zip(live, paid):
        arrivals = [app.arrival for app in run.apps]
        stop_s = statistics.mean(cost.stops) if cost.stops else 0.0
        costs_s = [statistics.mean(cost.starts), *np.quantile(cost.starts, QUANTILES).tolist()]
        logs = [folder / "simulated.jsonl", *[folder / "again.jsonl"] * len(QUANTILES)]
        runs = [run_simulated(planned, arrivals, policy, at, stop_s, log) for at, log in zip(costs_s, logs)]
        first, *others = [_figures(run) for run in runs]
        told.append(first)
        again += others
    return Compared(np.array([_figures(run) for run in live]), np.array(told), np.array(again), paid)


def _figures(run: RunMetrics) -> list[float]:
    return [scalar(run, name) for name in SHOWN]


def _cells(row: Float) -> str:
    return " | ".join(f"{x:.2f}" for x in row) + " |"


def _shares(row: Float) -> str:
    return " | ".join(f"{x:+.1%}" for x in row) + " |"


def _largest(off: Sequence[Float]) -> str:
    return ", ".join(f"{t.removesuffix(', s')} {x:.1%}" for t, x in zip(TITLES, np.abs(off).max(axis=0)))


def main() -> None:
    """Run and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apps", type=int, default=14)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--policies", default="themis", help="separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every duration")
    parser.add_argument("--lives", type=int, default=4, help="live runs of each seed")
    parser.add_argument(
        "--logs", type=Path, help="keep the event logs of both sides there; live ones that are there are not run again"
    )
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    lines = ["| policy | seed | | " + " | ".join(TITLES) + " |", "|---|---|---|" + "---|" * len(TITLES)]
    verdict: list[str] = []
    paid: list[Costs] = []
    with tempfile.TemporaryDirectory(prefix="themis-fidelity-") as place:
        folder = (given.logs or Path(place)).absolute()
        for policy in given.policies.split(","):
            done: list[Compared] = []
            for seed in given.seeds:
                here = folder / f"{policy}-{seed}"
                here.mkdir(parents=True, exist_ok=True)
                planned = workload(given.apps, seed, here, given.scale)
                done.append(compare(planned, policy, here, given.lives))
                rows = [f"| {policy} | {seed} | {row}" for row in done[-1].rows()]
                print("\n".join(rows), file=sys.stderr)
                lines += rows
            paid += [cost for compared in done for cost in compared.costs]
            live, again = (np.mean([getattr(c, side).mean(axis=0) for c in done], axis=0) for side in ("live", "again"))
            lines += [
                f"| {policy} | all | live, mean | {_cells(live)}", f"| {policy} | all | simulated, mean | {_cells(again)}",
                f"| {policy} | all | ... difference | {_shares(again / live - 1.0)}",
            ]  # fmt: skip
            missed = [
                f"{title.removesuffix(', s')} at seed {seed} ({off:+.0%})"
                for seed, compared in zip(given.seeds, done)
                for name, title, off in zip(SHOWN, TITLES, compared.one)
                if abs(off) > AIM
            ]
            verdict += [
                f"Aim, {policy}: every figure within {AIM:.0%} at every seed. "
                f"{'Missed: ' + ', '.join(missed) if missed else 'Met'}.",
                f"Largest differences of a seed, {policy}: {_largest([c.one for c in done])} (simulations at the mean cost);",
                f"{_largest([c.means for c in done])} (at all costs). Over all seeds: {_largest([again / live - 1.0])}.",
            ]
    notes = (ROOT / "reproduction" / "notes" / "fidelity.md").read_text()
    starts, stops = ([x for run in paid for x in getattr(run, what)] for what in ("starts", "stops"))
    table = "\n".join(lines)
    given.out.write_text(
        notes.format(
            table=table,
            verdict="\n".join(verdict),
            apps=given.apps,
            start=statistics.mean(starts),
            start_low=float(np.quantile(starts, 0.05)),
            start_high=float(np.quantile(starts, 0.95)),
            stop=statistics.mean(stops) if stops else 0.0,
            believed=BELIEVED_START_S,
            checkpoint=CHECKPOINT_S,
            runs=len(QUANTILES),
            lives=given.lives,
            lease=LEASE_S,
            tick=TICK_S,
            gather=GATHER_S,
            machines=MACHINES,
        )
    )


if __name__ == "__main__":
    main()
