"""Explain our mean JCT under Tiresias on Pollux' workloads step by step, and write docs/reproduction/pollux.md.

    python reproduction/pollux_osdi21.py [--data FOLDER] [--quick | --measured] [--out docs/reproduction/pollux.md]

Each row of the table changes one thing and keeps what the rows above it changed. The first two rows undo what our reader
of the workloads now does right. The published figures are the mean JCTs under Tiresias of the artifact's results.
Everything is deterministic. The tables on jobs that scale are of ``pollux_elastic``.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from grid import SHARED
from pollux_elastic import STORE, Runs, tables
from themis.model.events import AppFinished
from themis.model.settings import Settings
from themis.model.units import Locality, Seconds
from themis.model.workload import Job, Workload
from themis.policies.api import make_policy
from themis.sim.runner import Record, Simulation
from themis.traces.bundle import member_texts, members, texts
from themis.traces.formats import load_workload
from themis.traces.pollux_speeds import MACHINE, applications
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

CLUSTER = "16x4"
FOLDER = "simulator/workloads"
"""Of the archive's three folders of workloads; ``benchmark/workloads`` holds the same files."""
PUBLISHED = {6: 3470.0, 1: 2474.0}
"""Mean JCT in seconds under Tiresias by workload, from the artifact's results."""
NOTES = Path(__file__).parent / "notes" / "pollux.md"

Change = Callable[[Workload, Path], Workload]


def same(workload: Workload, archive: Path) -> Workload:
    """The workload as the reader gives it."""
    return workload


def whole_batches(workload: Workload, archive: Path) -> Workload:
    """Jobs of one GPU compute their batch in one part, as our reader had it."""
    measured = applications(archive)

    def changed(name: str, job: Job) -> Job:
        app = measured[name.rpartition("-")[0]]
        batch = BATCH.get(name.rpartition("-")[0])
        if job.gpus_max > 1 or batch is None or batch > app.local_limit:
            return job
        local, step, _ = np.array(app.times[(1,)]).T
        whole = float(np.interp(batch, local, step)) * app.iterations[batch]
        now = app.seconds(1, batch)
        return job if now is None else _longer(job, whole / now)

    return _each(workload, changed)


BATCH = {"ncf": 32768}
"""The only application that has jobs of one GPU beyond its smallest batch size, and their batch size."""


def counted_twice(workload: Workload, archive: Path) -> Workload:
    """Also, gangs that span machines are slowed although their measured time includes it, as our reader had it."""

    def changed(name: str, job: Job) -> Job:
        slowdown = DEFAULT_BOOK.get(job.model).slowdown[Locality.RACK]
        return _longer(job, slowdown) if job.gpus_max > MACHINE else job

    return _each(whole_batches(workload, archive), changed)


def by_goodput(workload: Workload, archive: Path) -> Workload:
    """Jobs advance by goodput, as in the artifact's simulator; our reader takes the iterations of a measured run."""
    measured, runs = applications(archive), _runs(archive)
    rows = {row["name"]: row for number in PUBLISHED for row in _csv(archive, f"{FOLDER}/workload-{number}.csv")}
    known: dict[tuple[str, int, int], float] = {}

    def changed(name: str, job: Job) -> Job:
        row = rows[name]
        key = (row["application"], job.gpus_max, int(row["batch_size"]))
        if key not in known:
            app, batch = measured[key[0]], key[2]
            iterations = float(
                np.interp(batch, sorted(app.iterations), [app.iterations[b] for b in sorted(app.iterations)])
            )
            known[key] = _iterations(runs[key[0]], batch) / iterations
        return _longer(job, known[key])

    return _each(workload, changed)


def at_minutes(workload: Workload, archive: Path) -> Workload:
    """Also, jobs are seen at the next whole minute; ``mean_jct`` counts from the submission."""
    workload = by_goodput(workload, archive)
    return replace(
        workload, apps=tuple(replace(app, arrival=60.0 * math.ceil(app.arrival / 60)) for app in workload.apps)
    )


def _iterations(runs: Mapping[int, list[dict[str, str]]], batch: int) -> float:
    """Iterations whose goodput adds up to a training's progress (Pollux §3.1).

    Progress of an iteration is ``(var + sqr) / (var / scale + sqr)``, with the gradients' measured norm and variance in each
    epoch and the batch size relative to the smallest; an epoch's progress is the least of those measured.
    """
    low, high = max(b for b in runs if b <= batch), min(b for b in runs if b >= batch)
    share = (batch - low) / (high - low) if high > low else 0.0
    total = before = 0.0
    for epoch in range(min(len(rows) for rows in runs.values())):
        sqr, var = (
            (1 - share) * float(runs[low][epoch][name]) + share * float(runs[high][epoch][name])
            for name in ("grad_sqr", "grad_var")
        )
        gain = (var + sqr) / (var / (batch / min(runs)) + sqr)
        until = min(float(rows[epoch]["progress"]) for rows in runs.values())
        total, before = total + (until - before) / gain, until
    return total


def _runs(archive: Path) -> dict[str, dict[int, list[dict[str, str]]]]:
    """Rows of the validation runs, an epoch each, by application and batch size."""
    out: dict[str, dict[int, list[dict[str, str]]]] = {}
    for name, lines in texts(archive, "validation-*.csv"):
        folder, _, file = name.rpartition("/")
        batch = int(file.removeprefix("validation-").removesuffix(".csv"))
        out.setdefault(folder.rpartition("/")[2], {})[batch] = list(csv.DictReader(lines))
    return out


def _csv(archive: Path, member: str) -> list[dict[str, str]]:
    (found,) = [name for name in members(archive) if f"/{name}".endswith(f"/{member}")]
    return [row for _, lines in member_texts(archive, [found]) for row in csv.DictReader(lines)]


def _each(workload: Workload, changed: Callable[[str, Job], Job]) -> Workload:
    apps = (replace(app, jobs=tuple(changed(app.name, job) for job in app.jobs)) for app in workload.apps)
    return replace(workload, apps=tuple(apps))


def _longer(job: Job, factor: float) -> Job:
    return replace(job, regimes=tuple(replace(regime, steps=regime.steps * factor) for regime in job.regimes))


DEFAULTS = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One row: what it changes, and all that is in force."""

    changes: str
    workload: Change = same
    policy: str = "tiresias"
    settings: Settings = DEFAULTS


SHORT = Settings(container_s=22.5)
MINUTE = Settings(container_s=22.5, lease_s=60.0)
STEPS = (
    Step(
        changes="before: the slowdown of gangs over machines counted twice, batches in one part", workload=counted_twice
    ),
    Step(changes="**ours, closed**: the slowdown is counted once", workload=whole_batches),
    Step(changes="**ours, closed**: one GPU takes a batch beyond the smallest in two parts (`ncf`: 46 s, not 33 s)"),
    Step(changes="a start costs 30 s in all (22.5 s and a checkpoint's 7.5 s), not 42.5 s", settings=SHORT),
    Step(
        changes="two queues parted at 16 GPU-hours, not least attained service",
        settings=SHORT,
        policy="tiresias_2q:threshold=1.5",
    ),
    Step(changes="GPUs may change every minute, not every 10", settings=MINUTE, policy="tiresias_2q:threshold=15"),
    Step(
        changes="jobs advance by goodput, not by the iterations of the measured run (`yolov3` +10 %, `cifar10` +5 %)",
        settings=MINUTE,
        policy="tiresias_2q:threshold=15",
        workload=by_goodput,
    ),
    Step(
        changes="jobs are seen at the next whole minute",
        settings=MINUTE,
        policy="tiresias_2q:threshold=15",
        workload=at_minutes,
    ),
)


def mean_jct(step: Step, number: int, archive: Path) -> Seconds:
    """Mean job completion time of a workload's 160 jobs."""
    read = load_workload(str(archive), format="pollux", member=f"{FOLDER}/workload-{number}.csv")
    workload = step.workload(read, archive)
    unseen = float(np.mean([now.arrival for now in workload.apps])) - float(np.mean([app.arrival for app in read.apps]))
    jct: list[Seconds] = []

    def sink(time: Seconds, record: Record) -> None:
        if isinstance(record, AppFinished):
            jct.append(record.jct)

    Simulation(
        workload=workload,
        cluster=load_cluster(CLUSTER),
        book=DEFAULT_BOOK,
        policy_name=step.policy.partition(":")[0],
        policy=make_policy(step.policy),
        settings=step.settings,
    ).run(sink)
    return float(np.mean(jct)) + unseen


def page(archive: Path, elastic: Mapping[str, str], steps: Sequence[Step] = STEPS) -> str:
    """The page in Markdown. ``elastic`` : tables by the name that the notes have for them."""
    rows = []
    for step in steps:
        found = {number: mean_jct(step, number, archive) for number in PUBLISHED}
        cells = [f"{jct:,.0f} ({jct / PUBLISHED[number] - 1:+.1%})" for number, jct in found.items()]
        rows.append(f"| {step.changes} | {' | '.join(cells)} |")
    notes = NOTES.read_text().split("<!-- table -->")
    head = [
        "| each row keeps the changes above it | " + " | ".join(f"workload-{n}, mean JCT s" for n in PUBLISHED) + " |",
        "|---|" + "---|" * len(PUBLISHED),
    ]
    last = f"| *published* | {' | '.join(f'{v:,.0f}' for v in PUBLISHED.values())} |"
    made = f"Measured {datetime.now(UTC):%Y-%m-%d} by `python reproduction/pollux_osdi21.py`.\n"
    rest = notes[1]
    for name, text in elastic.items():
        rest = rest.replace(f"<!-- {name} -->", text)
    return notes[0] + "\n".join([*head, *rows, last]) + "\n\n" + made + rest


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--out", type=Path, default=Path("docs/reproduction/pollux.md"))
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--quick", action="store_true", help="ten jobs of one workload: shows that everything runs")
    parser.add_argument("--measured", action="store_true", help="tables of what the store holds alone")
    given = parser.parse_args()
    runs = Runs(given.data, given.store, measured=given.measured)
    elastic = tables(runs, (6,), limit=10, draws=1) if given.quick else tables(runs)
    given.out.write_text(
        page(given.data / "pollux" / "pollux-osdi21.tar.gz", elastic, STEPS[-1:] if given.quick else STEPS)
    )


if __name__ == "__main__":
    main()
