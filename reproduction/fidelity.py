"""Is the simulator true to the live service? One workload, run by both. Writes docs/reproduction/fidelity.md.

The live side is ``themis up`` with virtual GPUs and real processes that train at the speeds of their profiles, preempted with
checkpoints and started again; the simulated side gets the same apps, arrivals, speeds, policy and settings, and what each
start of a gang cost in that very live run: beforehand, or on another day, a machine that does other work has other costs.

One decision that falls otherwise sends all later ones other ways. So the live side is run more than once, and the simulation
once more with everything slightly off, and with the costs in many other orders: how far these lie apart is how far anybody
can foresee the run. The page says how many decisions of a live run its simulation makes alike, and which is the first that
differs.
"""

from __future__ import annotations

import argparse
import getpass
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fidelity_logs import Costs, compared_decisions, costs
from themis.cli.live_demo.demo_run import service
from themis.client.client import OVER, Client
from themis.client.submit_requests import to_request
from themis.jobs import build, read_jobs
from themis.jobs.build import PRIOR_S, Built
from themis.model.log import LogWriter
from themis.model.settings import Settings
from themis.model.units import Float
from themis.model.workload import LossCurve, Workload
from themis.policies.api import make_policy
from themis.report.metrics import metrics_of
from themis.report.result import RunMetrics, scalar
from themis.schema import messages as schema
from themis.sim.runner import Simulation
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduction" / "fidelity.md"
PROGRAM = ROOT / "reproduction" / "programs" / "paced.py"
MACHINES = "2x4"
LEASE_S, TICK_S, GATHER_S, RATE, ACROSS, CHECKPOINT_S = 10.0, 2.0, 0.5, 10.0, 1.3, 0.2
AIM = 0.1
"""Largest difference of a figure that counts as agreement."""
BELIEVED_START_S = 0.4
"""What the live service is told that a start costs; what it does cost is measured."""
ORDERS = 20
"""Simulations of a live run: with its costs in their own order, and beginning with each twentieth of them; as many again with
everything slightly off."""
SHAKEN_S = 0.05
"""By up to so much, arrivals and costs alike."""
SETTLE_S = 2.0
"""From the service's first answer to the first app: the process that runs the policy has started by then."""
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
            "name": f"{kind}-{i}",
            "gpus": gpus,
            "launch": "machine",
            "grace": "10s",
            "speed": RATE,
            "slowdown": [1, 1, ACROSS, ACROSS],
            "checkpoint_time": CHECKPOINT_S,
        }
        count = {"sweep": 9, "bag": int(rng.integers(2, 5))}.get(kind, 1)
        qualities = tuple(round(float(q), 4) for q in rng.uniform(0.002, 0.05, size=count))
        if kind == "sweep":
            # The first rung has every trial for a ninth of the work of the one that wins.
            steps = max(steps * 3 // 9 * 9, 9)
            command[-1] = steps
            text["sweep"] = {
                "parameters": {"quality": {"grid": list(qualities)}},
                "trials": count,
                "sampler": "grid",
                "budget": f"{steps} steps",
                "tuner": {"kind": "halving", "eta": 3, "min_work": f"{steps // 9} steps"},
            }
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
        began, todo = time.monotonic() + SETTLE_S, list(planned)
        while todo or any(app.state not in OVER for app in client.queue()):
            while todo and time.monotonic() - began >= todo[0].arrival:
                client.submit(_request(todo.pop(0).built))
            time.sleep(0.05 if todo else 0.3)
        with open(log, "w", encoding="utf-8") as file:
            file.writelines(f"{record.line}\n" for record in client.events())
    return metrics_of(log)


def _request(built: Built) -> schema.SubmitRequest:
    return to_request(built.spec, getpass.getuser(), PRIOR_S, DEFAULT_BOOK)


def run_simulated(
    planned: Sequence[Planned], arrivals: Sequence[float], policy: str, paid: Costs, log: Path
) -> RunMetrics:
    """The same apps in the simulator, as they came to the service, their losses those that the program reports.

    Each start and each stop costs what the next one of the live run did.

    The policy believes what the live one does of what it costs to come back; the program has nothing to load, so the
    checkpoint's time is a part of that belief alone.
    """
    settings = Settings(lease_s=LEASE_S, tick_s=TICK_S, gather_s=GATHER_S, container_s=BELIEVED_START_S + CHECKPOINT_S)
    apps = tuple(
        replace(
            p.built.app,
            arrival=arrival,
            jobs=tuple(
                replace(job, model=_model(p), loss=LossCurve(a=1.0, b=q))
                for job, q in zip(p.built.app.jobs, p.qualities)
            ),
        )
        for p, arrival in zip(planned, arrivals)
    )
    profiles = (replace(p.built.profile, name=_model(p), checkpoint_s=0.0) for p in planned if p.built.profile)
    book = DEFAULT_BOOK.with_profiles(profiles)
    simulation = Simulation(
        workload=Workload(name="fidelity", apps=apps),
        cluster=load_cluster(MACHINES),
        book=book,
        policy_name=policy,
        policy=make_policy(policy),
        settings=settings,
        start_s=paid.starts,
        finish_s=paid.finishes,
        stop_s=paid.stops,
    )
    with LogWriter(log) as writer:
        simulation.run(writer)
    return metrics_of(log)


def _model(planned: Planned) -> str:
    return f"{planned.built.app.user}/{planned.built.app.name}"


def live_settings() -> dict[str, object]:
    """For ``themis up``."""
    return {
        "lease": LEASE_S,
        "tick": TICK_S,
        "gather": GATHER_S,
        "container": BELIEVED_START_S,
        "progress": 1,
        "single_trust": "true",
        "retries": 0,
    }


@dataclass(frozen=True, slots=True)
class Compared:
    """One workload under one policy; a row of figures, as ``SHOWN``, for each run.

    Attributes
    ----------
    live : of each live run. ``told`` : of its simulation with the costs in their order. ``again`` : of those in other orders.
    shaken : of those with everything slightly off.
    costs : what changes cost in each live run. ``differ`` : its decisions beside those of its simulation, in words.
    """

    live: Float
    told: Float
    again: Float
    shaken: Float
    costs: list[Costs]
    differ: list[str]

    @property
    def one(self) -> Float:
        """How far the simulations with the costs in their order are off the live runs, in the mean."""
        return self.told.mean(axis=0) / self.live.mean(axis=0) - 1.0

    def foreseen(self, runs: Float) -> Float:
        """How far the median of these simulations is off that of the live runs."""
        off: Float = np.median(runs, axis=0) / np.median(self.live, axis=0) - 1.0
        return off

    def rows(self) -> list[str]:
        """Of the table."""
        return [
            *(f"live | {_cells(row)}" for row in self.live),
            *(f"simulated | {_cells(row)}" for row in self.told),
            f"... difference | {_shares(self.one)}",
            *self._spread("all slightly off", self.shaken),
            *self._spread("other orders", self.again),
        ]

    def _spread(self, name: str, runs: Float) -> list[str]:
        """Median and range of simulations, and how far the median is off that of the live runs."""
        spread = (f"{low:.2f} – {high:.2f}" for low, high in zip(runs.min(axis=0), runs.max(axis=0)))
        return [
            f"{name}, median of {len(runs)} | {_cells(np.median(runs, axis=0))}",
            f"... their range | {' | '.join(spread)} |",
            f"... difference of medians | {_shares(self.foreseen(runs))}",
        ]


def compare(planned: Sequence[Planned], policy: str, folder: Path, lives: int) -> Compared:
    """Run both sides: of each live run, simulations with its arrivals and with what starts and stops cost in it."""
    logs = [folder / f"live-{n}.jsonl" for n in range(lives)]
    live = [
        metrics_of(log) if log.exists() else run_live(planned, policy, live_settings(), folder / f"home-{n}", log)
        for n, log in enumerate(logs)
    ]
    paid, told, again, shaken, differ = [costs(log, RATE, ACROSS) for log in logs], [], [], [], []
    rng = np.random.default_rng(0)
    for n, (run, cost) in enumerate(zip(live, paid)):
        arrivals = [app.arrival for app in run.apps]
        own = folder / f"simulated-{n}.jsonl"
        told.append(_figures(run_simulated(planned, arrivals, policy, cost, own)))
        differ.append(compared_decisions(logs[n], own))
        for order in range(1, ORDERS):
            other = folder / "again.jsonl"
            again.append(_figures(run_simulated(planned, arrivals, policy, cost.later(order / ORDERS), other)))
            off = np.maximum(np.array(arrivals) + rng.uniform(-SHAKEN_S, SHAKEN_S, len(arrivals)), 0.0)
            costs_off = cost.shaken(SHAKEN_S, rng)
            shaken.append(_figures(run_simulated(planned, np.sort(off).tolist(), policy, costs_off, other)))
    rows = (np.array(figures) for figures in ([_figures(run) for run in live], told, again, shaken))
    return Compared(*rows, paid, differ)


def _figures(run: RunMetrics) -> list[float]:
    return [scalar(run, name) for name in SHOWN]


def _cells(row: Float) -> str:
    return " | ".join(f"{x:.2f}" for x in row) + " |"


def _shares(row: Float) -> str:
    return " | ".join(f"{x:+.1%}" for x in row) + " |"


def _missed(seeds: Sequence[int], offs: Sequence[Float]) -> str:
    """The figures that are off by more than the aim."""
    return ", ".join(
        f"{title.removesuffix(', s')} at seed {seed} ({x:+.0%})"
        for seed, off in zip(seeds, offs)
        for title, x in zip(TITLES, off.tolist())
        if abs(x) > AIM
    )


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
            live, told = (np.mean([getattr(c, side).mean(axis=0) for c in done], axis=0) for side in ("live", "told"))
            lines += [
                f"| {policy} | all | live, mean | {_cells(live)}",
                f"| {policy} | all | simulated, mean | {_cells(told)}",
                f"| {policy} | all | ... difference | {_shares(told / live - 1.0)}",
            ]
            true, foreseen = (
                _missed(given.seeds, offs) for offs in ([c.one for c in done], [c.foreseen(c.again) for c in done])
            )
            verdict += [
                f"Aim, {policy}: every figure within {AIM:.0%} at every seed. {'Missed: ' + true if true else 'Met'}.",
                f"As a forecast (other orders): {'missed: ' + foreseen if foreseen else 'met'}.",
                f"Largest differences of a seed, {policy}: {_largest([c.one for c in done])}.",
                f"Over all seeds: {_largest([told / live - 1.0])}.",
                "",
                *(
                    f"- {policy}, seed {seed}, live run {n}: {words}."
                    for seed, compared in zip(given.seeds, done)
                    for n, words in enumerate(compared.differ, start=1)
                ),
            ]
    notes = (ROOT / "reproduction" / "notes" / "fidelity.md").read_text()
    starts, finishes, stops = (
        [x for run in paid for x in getattr(run, what)] for what in ("starts", "finishes", "stops")
    )
    table = "\n".join(lines)
    # What ``fidelity_forward.py`` wrote stays.
    _, forward, rest = (given.out.read_text() if given.out.exists() else "").partition("\n## What-if forward")
    given.out.write_text(
        notes.format(
            table=table,
            verdict="\n".join(verdict),
            apps=given.apps,
            start=statistics.mean(starts),
            start_low=float(np.quantile(starts, 0.05)),
            start_high=float(np.quantile(starts, 0.95)),
            finish=statistics.mean(finishes),
            stop=statistics.mean(stops) if stops else 0.0,
            shaken=SHAKEN_S,
            believed=BELIEVED_START_S,
            checkpoint=CHECKPOINT_S,
            runs=ORDERS - 1,
            lives=given.lives,
            lease=LEASE_S,
            tick=TICK_S,
            gather=GATHER_S,
            machines=MACHINES,
        )
        + forward
        + rest
    )


if __name__ == "__main__":
    main()
