"""Gavel (OSDI'20), measured again: recorded traces beside its published simulator, and the claims of its §7.

    python reproduction/gavel_osdi20.py [--quick] [--seeds 0-2] [--out docs/reproduction/gavel.md]

Simulated: rounds of 360 s, Gavel's measured speeds, no cost of preemption, as that simulator has it. The cluster is a third of the
paper's, 12 V100 + 12 P100 + 12 K80, at a third of its arrivals. Recorded traces are looked for in ``THEMIS_DATA`` or
``../shared/data``. Results are kept in out/reproduction/gavel.jsonl, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gavel_runs import DATA, PHYSICAL, ROOT, THIRD, Cell, Result, Store, fluid
from gavel_solves import estimate_errors, partition_loss
from grid import marker, table, text
from themis.report.intervals import t_interval
from themis.sim.plan import parse_seeds

PAGE = ROOT / "docs" / "reproduction" / "gavel.md"
NOTES = ROOT / "reproduction" / "notes" / "gavel.md"
CONTINUOUS, STATIC = "cont1000_single_lam2100", "static120_multi"
AWARE, BLIND = "max_min_fairness", "max_min_fairness:aware=false"
RECORDED = (
    (STATIC, "makespan", "min_total_duration_perf"),
    (STATIC, AWARE, "max_min_fairness_perf"),
    (STATIC, BLIND, "max_min_fairness"),
    (STATIC, "finish_time_fairness", "finish_time_fairness_perf"),
    (STATIC, "gandiva_packing", "gandiva"),
    (CONTINUOUS, AWARE, "max_min_fairness_perf"),
    (CONTINUOUS, f"{AWARE}:resolve_interval=1920", "max_min_fairness_perf"),
    (CONTINUOUS, f"{AWARE}:resolve_interval=1920,backfill=false", "max_min_fairness_perf"),
    (CONTINUOUS, BLIND, "max_min_fairness"),
    (CONTINUOUS, "finish_time_fairness", "finish_time_fairness_perf"),
    (CONTINUOUS, "allox", "allox"),
    (CONTINUOUS, "gandiva_packing", "gandiva"),
    (CONTINUOUS, "proportional", "isolated"),
)
COST = "cost=V100=2.48/P100=1.46/K80=0.45"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run: jobs that arrive, those that are measured, jobs of batches, seeds."""

    single: tuple[int, int, int]
    late: tuple[int, int, int]
    multi: tuple[int, int, int]
    small: tuple[int, int, int]
    batch: int
    seeds: tuple[int, ...]
    estimates: tuple[tuple[int, float], ...] = tuple((r, p) for r in (6, 13, 20) for p in (0.05, 0.1, 0.2, 0.4))
    """References and shares measured, of which the estimator's errors are told."""

    def cells(self, policy: str, workload: str, window: tuple[int, int, int]) -> list[Cell]:
        """A cell for each seed."""
        jobs, first, last = window
        return [
            Cell(policy=policy, workload=f"{workload},jobs={jobs}", seed=seed, first=first, last=last)
            for seed in self.seeds
        ]


FULL = Size(
    single=(900, 400, 550),
    late=(2100, 1333, 1500),
    multi=(500, 200, 300),
    small=(400, 100, 200),
    batch=100,
    seeds=(0, 1, 2),
)
QUICK = Size(
    single=(8, 2, 6), late=(8, 2, 6), multi=(8, 2, 6), small=(8, 2, 6), batch=6, seeds=(0,), estimates=((13, 0.2),)
)
Measure = Callable[[Cell], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One line of the table of claims: a ratio of two policies' figures, paired by seed."""

    section: str
    claim: str
    paper: str
    ours: str
    detail: str


def ratio(
    size: Size, run: Measure, worse: Sequence[Cell], better: Sequence[Cell], figure: Callable[[Result], float]
) -> tuple[str, str]:
    """(mean ratio with its interval, both means)."""
    a, b = [figure(run(c)) for c in worse], [figure(run(c)) for c in better]
    return f"{text(t_interval([x / y for x, y in zip(a, b)]))}x", f"{np.mean(a):,.1f} -> {np.mean(b):,.1f}"


def jct_claims(size: Size, run: Measure) -> list[Claim]:
    """Mean JCT of single-GPU jobs and of gangs, at the paper's high load and at two thirds of it."""
    out = []

    def add(
        section: str, claim: str, paper: str, workload: str, window: tuple[int, int, int], worse: str, better: str
    ) -> None:
        pair = ratio(
            size, run, size.cells(worse, workload, window), size.cells(better, workload, window), lambda r: r.mean
        )
        out.append(Claim(section=section, claim=claim, paper=paper, ours=pair[0], detail=f"{pair[1]} h"))

    single, multi = "gavel_single:rate=1.87", "gavel_multi:rate=0.87"
    add("7.3, fig 9", "LAS, single GPUs: mean JCT, agnostic over aware", "3.5x", single, size.single, BLIND, AWARE)
    first = replace(size, seeds=size.seeds[:1])
    pair = ratio(
        first, run, first.cells(BLIND, single, size.late), first.cells(AWARE, single, size.late), lambda r: r.mean
    )
    out.append(
        Claim(
            section="7.3, fig 9",
            claim="the same as late as the paper's jobs 4000-5000, one seed",
            paper="3.5x",
            ours=pair[0],
            detail=f"{pair[1]} h",
        )
    )
    add("7.3, fig 9", "the same at two thirds of the load", "-", "gavel_single:rate=1.25", size.single, BLIND, AWARE)
    add("7.3, fig 10", "LAS, gangs: mean JCT, agnostic over aware", "2.2x", multi, size.multi, BLIND, AWARE)
    add(
        "7.3, fig 9",
        "Gandiva's packing over LAS with space sharing",
        "2.2x",
        single,
        size.single,
        "gandiva_packing",
        f"{AWARE}:sharing=true",
    )
    add(
        "7.3, fig 9", "LAS without space sharing over with it", "-", single, size.single, AWARE, f"{AWARE}:sharing=true"
    )
    add("7.3, fig 9", "AlloX over LAS, aware", "about 1x, more at high load", single, size.single, "allox", AWARE)
    add(
        "7.3, fig 11",
        "FTF, gangs: mean JCT, agnostic over aware",
        "3x",
        multi,
        size.multi,
        "finish_time_fairness:aware=false",
        "finish_time_fairness",
    )
    add(
        "7.3",
        "FIFO, single GPUs: mean JCT, agnostic over aware",
        "2.7x",
        single,
        size.single,
        "fifo_hetero:aware=false",
        "fifo_hetero",
    )
    add(
        "7.3",
        "FIFO, single GPUs: mean JCT, agnostic over aware with space sharing",
        "3.8x",
        single,
        size.single,
        "fifo_hetero:aware=false",
        "fifo_hetero:sharing=true",
    )
    return out


def ftf_claim(size: Size, run: Measure) -> Claim:
    """Mean finish-time fairness: JCT over the job's JCT where everybody has an equal part of every type."""
    workload = "gavel_multi:rate=0.87"
    alone = [np.array(run(c).jct) for c in size.cells("proportional", workload, size.multi)]
    means = []
    for policy in ("finish_time_fairness:aware=false", "finish_time_fairness"):
        cells = size.cells(policy, workload, size.multi)
        means.append([float(np.mean(np.array(run(c).jct) / base)) for c, base in zip(cells, alone)])
    found = text(t_interval([a / b for a, b in zip(*means)]))
    return Claim(
        section="7.3, fig 11",
        claim="FTF, gangs: mean rho, agnostic over aware",
        paper="2.8x",
        ours=f"{found}x",
        detail=f"{np.mean(means[0]):.2f} -> {np.mean(means[1]):.2f}",
    )


def priority_claims(size: Size, run: Measure) -> list[Claim]:
    """A fifth of the jobs weighs five times as much."""
    workload = "gavel_single:rate=1.87,high=0.2"
    out = []
    for name, weighty, paper in (("high", True, "1.5x"), ("low", False, "2.7x")):

        def mean(r: Result, weighty: bool = weighty) -> float:
            of_kind = [t for t, w in zip(r.jct, r.weight) if (w > 1) == weighty]
            return float(np.mean(of_kind or [np.nan])) / 3600.0

        pair = ratio(
            size, run, size.cells(BLIND, workload, size.single), size.cells(AWARE, workload, size.single), mean
        )
        out.append(
            Claim(
                section="7.3",
                claim=f"LAS, jobs of {name} priority: mean JCT, agnostic over aware",
                paper=paper,
                ours=pair[0],
                detail=f"{pair[1]} h",
            )
        )
    return out


def makespan_claims(size: Size, run: Measure) -> list[Claim]:
    """A batch of jobs that are all there at once."""
    workload, window = "gavel_multi:static=true", (size.batch, 0, size.batch)
    best = size.cells("makespan", workload, window)
    out = []
    for other, what, paper in (
        ("fifo_hetero:aware=false", "FIFO", "2.5x"),
        ("gandiva_packing", "Gandiva's packing", "1.4x"),
    ):
        pair = ratio(size, run, size.cells(other, workload, window), best, lambda r: r.end / 3600.0)
        out.append(
            Claim(
                section="7.3",
                claim=f"makespan, {what} over the policy",
                paper=paper,
                ours=pair[0],
                detail=f"{pair[1]} h",
            )
        )
    return out


def cost_claims(size: Size, run: Measure) -> list[Claim]:
    """ResNet-50 and A3C jobs of half a day to eight, with deadlines, arriving over weeks."""
    options = "models=ResNet-50,A3C,days=0.5,1,2,4,8,slo=1.2,2,10,rate=0.15"
    window = (size.batch, 0, size.batch)
    fast = size.cells("max_throughput", f"gavel_single:{options}", window)
    out = []
    for policy, what, paper, misses in (
        ("min_cost", "cost", "1.4x", "35 %"),
        ("min_cost_slo", "cost with SLOs", "1.2x", "none"),
    ):
        cells = size.cells(f"{policy}:{COST}", f"gavel_single:{options}", window)
        pair = ratio(size, run, fast, cells, lambda r: r.dollars)
        missed = float(np.mean([np.mean(run(c).missed) for c in cells]))
        before = float(np.mean([np.mean(run(c).missed) for c in fast]))
        out.append(
            Claim(
                section="7.3",
                claim=f"dollars, most throughput over least {what}; deadlines missed",
                paper=f"{paper}; {misses}",
                ours=f"{pair[0]}; {missed:.0%}",
                detail=f"{pair[1]} $; most throughput misses {before:.0%}",
            )
        )
    return out


def other_claims(size: Size, run: Measure, ideal: Measure) -> list[Claim]:
    """The hierarchy against a static partition, and the mechanism against the fluid ideal."""
    loss = [partition_loss(seed) for seed in size.seeds]
    cells = size.cells(AWARE, "gavel_single:rate=1.87", size.single)
    apart = [run(c).mean / ideal(c).mean for c in cells]
    return [
        Claim(
            section="7.3, fig 12",
            claim="total throughput of a static partition below the hierarchy's",
            paper="17 %",
            ours=f"{text(t_interval([100 * x for x in loss]), 1)} %",
            detail="18 jobs of 3 entities, 3 + 3 + 3 GPUs",
        ),
        Claim(
            section="7.5, fig 15b",
            claim="mean JCT in rounds over the ideal, every job exactly its share",
            paper="nearly equal",
            ours=f"{text(t_interval(apart), 3)}x",
            detail="LAS, single GPUs",
        ),
    ]


def claims(size: Size, run: Measure, ideal: Measure) -> str:
    """The table of claims."""
    found = [
        *jct_claims(size, run),
        ftf_claim(size, run),
        *priority_claims(size, run),
        *makespan_claims(size, run),
        *cost_claims(size, run),
        *other_claims(size, run, ideal),
    ]
    return table(
        ("paper", "claim", "there", f"here, {len(size.seeds)} seeds", "figures"),
        ((c.section, c.claim, c.paper, c.ours, c.detail) for c in found),
    )


def estimated(size: Size, run: Measure) -> str:
    """Figure 16: max-min fairness on 12 GPUs, without space sharing, with estimated throughputs, and with the true ones."""
    sharing, small = f"{AWARE}:sharing=true", "1x4@V100+1x4@P100+1x4@K80"
    base = size.cells(AWARE, "gavel_single:rate=0.62", size.small)
    rows = []
    for what, policy, estimate in (
        ("no space sharing", AWARE, ""),
        ("assumed: 13 references, nothing else measured", sharing, "references=13,probes=0"),
        ("estimated: 6 references, a tenth measured", sharing, "references=6,probes=0.1"),
        ("estimated: 13 references, a fifth measured", sharing, "references=13,probes=0.2"),
        ("true throughputs", sharing, ""),
    ):
        cells = [replace(c, policy=policy, estimate=estimate, cluster=small) for c in base]
        jct = [run(c).mean for c in cells]
        rows.append((what, f"{text(t_interval(jct), 1)} h"))
    return table(("throughputs", f"mean JCT, {len(size.seeds)} seeds"), rows)


def errors(size: Size) -> str:
    """How far estimates are from the truth, where nothing was measured."""
    rows = []
    for references, probes in size.estimates:
        found = [estimate_errors(references, probes, seed) for seed in size.seeds]
        mean = [float(np.mean([f[i] for f in found])) for i in range(4)]
        rows.append((str(references), f"{probes:.0%}", *(f"{m:.3f}" for m in mean)))
    return table(
        ("references", "measured", "nearest reference", "completed alone", "mean reference", "best reference"), rows
    )


# ---- recorded traces -----------------------------------------------------------------------------------------------


def recorded(run: Measure, rows: Sequence[tuple[str, str, str]]) -> str:
    """The recorded traces beside the published simulator's results."""
    lines = []
    for trace, policy, case in rows:
        window = (300, 600) if trace == CONTINUOUS else (0, 0)
        cell = Cell(
            policy=policy,
            workload=f"sim_cases/{trace}.trace",
            first=window[0],
            last=window[1],
            table="simulation_throughputs",
        )
        here = run(cell)
        told = json.loads((DATA / "sim_cases" / f"{trace}.{case}.c12.json").read_text())
        there = told["avg_jct_h"] if trace == CONTINUOUS else told["max_jct_h"]
        ours = here.mean if trace == CONTINUOUS else max(here.jct) / 3600.0
        what = "continuous, mean JCT of jobs 300-599" if trace == CONTINUOUS else "static, makespan"
        cpu = f"{told['cpu_s']:.0f}" if "cpu_s" in told else "-"
        lines.append((what, policy, f"{there:.2f} h", f"{ours:.2f} h", cpu, f"{here.cpu:.1f}"))
    return table(("trace", "policy", "published", "ours", "CPU s, published", "CPU s, ours"), lines)


def physical(run: Measure) -> str:
    """The trace of the physical experiment, as the published simulator has it: 5.196 h agnostic, 3.824 h aware."""
    lines = []
    for policy, there in ((BLIND, 5.196), (AWARE, 3.824)):
        found = run(
            Cell(
                policy=policy,
                workload="traces/max_min_fairness.trace",
                cluster=PHYSICAL,
                table="physical_cluster_throughputs",
            )
        )
        lines.append((policy, f"{there:.3f} h", f"{found.mean:.3f} h"))
    return table(("policy", "published simulator", "ours"), lines)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a few jobs and no recorded traces: shows that everything runs"
    )
    parser.add_argument("--seeds", default="", help="as 0-2")
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--store", type=Path, default=Path("out/reproduction/gavel.jsonl"))
    given = parser.parse_args()
    base = QUICK if given.quick else FULL
    size = replace(base, seeds=tuple(parse_seeds(given.seeds))) if given.seeds else base
    store = Store(given.store)
    page = NOTES.read_text()
    there = DATA.exists() and not given.quick
    nothing = "(The recorded traces are not here.)"
    tables = {
        "recorded": recorded(store.run, RECORDED) if there else nothing,
        "physical": physical(store.run) if there else nothing,
        "estimated": estimated(size, store.run),
        "errors": errors(size),
        "claims": claims(size, store.run, fluid),
    }
    for name, body in tables.items():
        named = marker(f"gavel-{name}", "python reproduction/gavel_osdi20.py") if body != nothing else ""
        page = page.replace("{{" + name + "}}", named + body)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(page)
    print(f"{given.out}: written; cluster {THIRD}, seeds {size.seeds}.")


if __name__ == "__main__":
    main()
