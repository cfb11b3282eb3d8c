"""Measure the claims of the Themis paper's evaluation again, and write docs/reproduction/themis.md.

    python reproduction/themis_nsdi20.py [--quick] [--seeds 0-19] [--apps 24] [--scale 0.25] [--jobs 2] [--out FILE]
    python reproduction/themis_nsdi20.py --only readings [--seeds 0-19] [--scale 0.25] [--store FILE] [--measured]

The second form measures the claims with both kinds of baselines and writes the page's section "Readings of the baselines" alone;
with ``--measured`` it runs nothing and writes what the store holds.

Every experiment is a grid of simulations with one set of defaults; nothing is tuned to a figure. What differs from the
paper's is said in notes/themis.md, which becomes part of the page. Results are kept in out/reproduction/themis.jsonl,
so that an interrupted run goes on where it was. All figures are simulated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import readings
import themis as package
from grid import CODE, Cell, Result, Results, measure, over_seeds, stored_by_code, table, text
from pictures import distributions
from themis.model.snapshot import Snapshot
from themis.policies.api import Workbench, make_policy
from themis.policies.themis import Themis
from themis.report.intervals import Interval, t_interval
from themis.sim.plan import parse_seeds
from worlds import ALIKE, build, work_error

HOUR = 3600.0
PAPER = ("themis", "gandiva", "tiresias", "optimus", "slaq", "srtf", "srsf")
"""The paper's schedulers (§6.1)."""
OTHERS = ("themis:rho=exact", "drf", "fifo")
CLOSE = ("themis", "gandiva", "tiresias", "srsf", "drf")
SHARES = (0.0, 1.0)
ERRORS = (0.0, 0.05, 0.1, 0.2)
LIES = (0.0, 0.1, 0.2, 0.34, 0.5, 0.75, 1.0)
KNOBS = (0.0, 0.4, 0.8, 1.0)
LEASES = (300.0, 600.0, 1200.0, 2400.0)
QUICK_SCALE = 0.1
"""The quick form shows that everything runs; its figures mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run."""

    apps: int
    seeds: tuple[int, ...]
    full: bool
    scale: float

    def cells(self, base: Cell) -> list[Cell]:
        """The cell under every seed."""
        return [replace(base, seed=seed) for seed in self.seeds]

    def base(self, workload: str, cluster: str = "testbed-64", **more: Any) -> Cell:
        """A cell with Themis and the first seed."""
        return Cell(
            policy="themis",
            workload=workload,
            cluster=cluster,
            seed=self.seeds[0],
            apps=self.apps,
            scale=self.scale,
            **more,
        )

    def some(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """All values in full, the ends in the quick form."""
        return tuple(values) if self.full else (values[0], values[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One line of the summary."""

    section: str
    claim: str
    paper: str
    ours: str
    holds: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Its runs, and what it says of them: Markdown and lines of the summary."""

    name: str
    title: str
    cells: Callable[[Size], list[Cell]]
    say: Callable[[Size, Results], tuple[str, list[Claim]]]


def number(name: str) -> Callable[[Result], float]:
    """A result's number by name."""
    return lambda result: result[name]


def ratio(results: Results, worse: Sequence[Cell], better: Sequence[Cell], name: str) -> Interval:
    """Mean over common seeds of one policy's number over another's."""
    return t_interval([results[a][name] / results[b][name] for a, b in zip(worse, better)])


# ---- macrobenchmarks: Figures 9 to 13 -------------------------------------------------------------------------------


def macro_cells(size: Size) -> list[Cell]:
    policies = PAPER + OTHERS if size.full else ("themis", "themis:rho=exact", "tiresias", "gandiva")
    return [c for w in ("themis1", "themis2") for p in policies for c in size.cells(replace(size.base(w), policy=p))]


COLUMNS = (
    ("max ρ", "rho_paper_max", 1.0, 2),
    ("median ρ", "rho_paper_median", 1.0, 2),
    ("Jain ρ", "rho_paper_jain", 1.0, 2),
    ("max ρ exact", "rho_exact_max", 1.0, 2),
    ("median ρ exact", "rho_exact_median", 1.0, 2),
    ("ρ exact > 1, %", "rho_exact_above_1", 0.01, 0),
    ("mean JCT h", "jct_mean", HOUR, 1),
    ("GPU time h", "gpu_seconds", HOUR, 0),
    ("placement", "placement", 1.0, 3),
    ("restarts", "restarts", 1.0, 0),
)


def macro(size: Size, results: Results) -> tuple[str, list[Claim]]:
    parts, claims = [], []
    for workload, figures in (("themis1", "9, 11"), ("themis2", "10, 12, 13")):
        runs = {p: size.cells(replace(size.base(workload), policy=p)) for p in _policies(size, results, workload)}
        rows = [
            [p, *(text(over_seeds(results, cells, number(n)), digits, scale) for _, n, scale, digits in COLUMNS)]
            for p, cells in runs.items()
        ]
        parts.append(f"**Workload {workload[-1]}** (figures {figures})\n")
        parts.append(table(["policy", *(c[0] for c in COLUMNS)], rows) + "\n")
        claims += _macro_claims(workload, runs, results)
    return "\n".join(parts), claims


def _policies(size: Size, results: Results, workload: str) -> list[str]:
    return [p for p in PAPER + OTHERS if replace(size.base(workload), policy=p) in results]


def _macro_claims(workload: str, runs: dict[str, list[Cell]], results: Results) -> list[Claim]:
    def against(name: str) -> dict[str, Interval]:
        return {p: ratio(results, runs[p], runs["themis"], name) for p in runs if p in PAPER and p != "themis"}

    def span(found: dict[str, Interval]) -> str:
        low, high = min(found, key=lambda p: found[p].mean), max(found, key=lambda p: found[p].mean)
        return f"{text(found[low])} ({low}) to {text(found[high])} ({high})"

    n = workload[-1]
    paper, exact = against("rho_paper_max"), against("rho_exact_max")
    gpu = against("gpu_seconds")
    claims = [
        Claim(
            section="6.2, fig " + ("9" if n == "1" else "10"),
            claim=f"workload {n}: max ρ of each baseline over Themis'",
            paper="2.2 to 3.25",
            ours=f"paper's ρ {span(paper)}; exact ρ {span(exact)}",
            holds=all(x.mean - x.half > 1 for x in paper.values()),
        ),
    ]
    if n == "1":
        claims.append(
            Claim(
                section="6.2, fig 11",
                claim="workload 1: GPU time equal",
                paper="about 1",
                ours=span(gpu),
                holds=all(abs(x.mean - 1) < 0.05 for x in gpu.values()),
            )
        )
    else:
        claims.append(
            Claim(
                section="6.2, fig 12",
                claim="workload 2: GPU time of the baselines over Themis'",
                paper="1.048 (gandiva), about 3.5 (slaq)",
                ours=span(gpu),
                holds=all(x.mean > 1 for x in gpu.values()),
            )
        )
        scores = {p: over_seeds(results, runs[p], number("placement")).mean for p in runs if p in PAPER}
        best = max(scores, key=scores.__getitem__)
        claims.append(
            Claim(
                section="6.2.1, fig 13",
                claim="workload 2: best placement scores",
                paper="Themis best",
                ours=f"Themis {scores['themis']:.3f}, best {best} {scores[best]:.3f}",
                holds=best == "themis",
            )
        )
    return claims


# ---- contention: Figure 14 ------------------------------------------------------------------------------------------

CLUSTERS = (("sim-256", "1x"), ("sim-128", "2x"), ("sim-64", "4x"))


def contention_cells(size: Size) -> list[Cell]:
    policies = CLOSE if size.full else ("themis", "tiresias")
    return [
        c
        for cluster, _ in size.some(CLUSTERS)
        for p in policies
        for c in size.cells(replace(size.base("themis1", cluster, gpus=256, load=0.9), policy=p))
    ]


def contention(size: Size, results: Results) -> tuple[str, list[Claim]]:
    policies = CLOSE if size.full else ("themis", "tiresias")
    rows, themis_max = [], []
    fair: dict[str, bool] = {}
    for policy in policies:
        row = [policy]
        for cluster, _ in size.some(CLUSTERS):
            cells = size.cells(replace(size.base("themis1", cluster, gpus=256, load=0.9), policy=policy))
            paper, exact = (over_seeds(results, cells, number(f"rho_{f}_max")) for f in ("paper", "exact"))
            row += [text(paper), text(exact)]
            fair[policy] = fair.get(policy, True) and paper.mean <= 1
            if policy == "themis":
                themis_max.append(f"{paper.mean:.2f}")
        rows.append(row)
    head = ["policy"]
    for cluster, name in size.some(CLUSTERS):
        head += [f"{name} ({cluster}) max ρ", f"{name} exact"]
    others = [p for p in policies if not p.startswith("themis") and fair[p]]
    claim = Claim(
        section="6.2.2, fig 14",
        claim="Themis alone keeps max ρ at 1 or below, at 1x, 2x and 4x contention",
        paper="yes",
        ours=f"Themis {', '.join(themis_max)}; others that keep it: {', '.join(others) or 'none'}",
        holds=fair["themis"] and not others,
    )
    return table(head, rows) + "\n", [claim]


# ---- network-intensive apps: Figures 15 and 16 ----------------------------------------------------------------------


def network_cells(size: Size) -> list[Cell]:
    policies = CLOSE if size.full else ("themis", "gandiva")
    return [
        c
        for share in size.some(SHARES)
        for p in policies
        for c in size.cells(replace(size.base("themis2", network=share), policy=p))
    ]


def network(size: Size, results: Results) -> tuple[str, list[Claim]]:
    policies = CLOSE if size.full else ("themis", "gandiva")
    shares = size.some(SHARES)

    def cells(policy: str, share: float) -> list[Cell]:
        return size.cells(replace(size.base("themis2", network=share), policy=policy))

    parts = []
    for title, name, scale, digits in (
        ("max ρ", "rho_paper_max", 1.0, 2),
        ("max ρ, exact form", "rho_exact_max", 1.0, 2),
        ("GPU time, h", "gpu_seconds", HOUR, 0),
    ):
        rows = [
            [p, *(text(over_seeds(results, cells(p, s), number(name)), digits, scale) for s in shares)]
            for p in policies
        ]
        parts.append(table([title, *(f"{100 * s:.0f} %" for s in shares)], rows) + "\n")
    gains = {
        p: ratio(results, cells(p, 1.0), cells("themis", 1.0), "rho_exact_max")
        for p in policies
        if not p.startswith("themis")
    }
    gains_paper = {
        p: ratio(results, cells(p, 1.0), cells("themis", 1.0), "rho_paper_max")
        for p in policies
        if not p.startswith("themis")
    }
    gandiva = ratio(results, cells("gandiva", 1.0), cells("themis", 1.0), "gpu_seconds")
    claims = [
        Claim(
            section="6.3, fig 15",
            claim="all apps network-intensive: max ρ of the baselines over Themis'",
            paper="1.24 to 1.77",
            ours="; ".join(f"{p} {text(gains_paper[p])} (exact {text(gains[p])})" for p in gains),
            holds=all(x.mean - x.half > 1 for x in gains_paper.values()),
        ),
        Claim(
            section="6.3, fig 16",
            claim="all apps network-intensive: Gandiva's GPU time over Themis'",
            paper="1.088 (8.1 % below)",
            ours=text(gandiva, 3),
            holds=gandiva.mean > 1,
        ),
    ]
    return "\n".join(parts), claims


# ---- errors: Figure 17 ----------------------------------------------------------------------------------------------


def error_cells(size: Size) -> list[Cell]:
    return [c for e in size.some(ERRORS) for c in size.cells(size.base("themis1", error=e))]


def _true_rho(cell: Cell, result: Result, form: str) -> float:
    """Max ρ by the true work: the core's T_id carries the error of the app's estimate, which is undone here."""
    return max(rho * (1 + work_error(cell, name)) for rho, name in zip(result.apps[f"rho_{form}"], result.apps["name"]))


def errors(size: Size, results: Results) -> tuple[str, list[Claim]]:
    rows, change = [], {}
    exact_runs = size.cells(size.base("themis1", error=0.0))
    for e in size.some(ERRORS):
        cells = size.cells(size.base("themis1", error=e))
        values = {f: [_true_rho(c, results[c], f) for c in cells] for f in ("paper", "exact")}
        before = [_true_rho(c, results[c], "paper") for c in exact_runs]
        change[e] = t_interval([100 * (v / b - 1) for v, b in zip(values["paper"], before)])
        rows.append(
            [
                f"±{100 * e:.0f} %",
                text(t_interval(values["paper"])),
                text(t_interval(values["exact"])),
                text(change[e], 1),
            ]
        )
    holds = all(abs(x.mean) <= 20 for x in change.values())
    claim = Claim(
        section="6.3, fig 17",
        claim="errors of ±20 % in work and slowdown change max ρ",
        paper="10.76 %",
        ours="; ".join(f"±{100 * e:.0f} %: {text(x, 1)} %" for e, x in change.items() if e),
        holds=holds,
    )
    return table(["error", "max ρ", "max ρ exact", "change of max ρ, %"], rows) + "\n", [claim]


# ---- truth-telling: Figure 18 ---------------------------------------------------------------------------------------


def truth_base(size: Size) -> Cell:
    return Cell(policy="themis", workload=ALIKE, cluster="truth-64", seed=size.seeds[0], apps=8, lie=0.0)


def truth_seeds(size: Size) -> list[int]:
    return list(range(20 if size.full else 2))


def truth_cells(size: Size) -> list[Cell]:
    return [replace(truth_base(size), seed=seed, lie=lie) for lie in size.some(LIES) for seed in truth_seeds(size)]


def truth(size: Size, results: Results) -> tuple[str, list[Claim]]:
    rows, liar, gain = [], {}, {}
    for lie in size.some(LIES):
        cells = [replace(truth_base(size), seed=s, lie=lie) for s in truth_seeds(size)]
        own = [results[c].apps["jct"][results[c].apps["name"].index("a0")] for c in cells]
        rest = [
            float(np.mean([j for j, n in zip(results[c].apps["jct"], results[c].apps["name"]) if n != "a0"]))
            for c in cells
        ]
        liar[lie] = own
        gain[lie] = t_interval([100 * (a / b - 1) for a, b in zip(own, liar[0.0])])
        rows.append(
            [f"{100 * lie:.0f} %", text(t_interval(own), 2, HOUR), text(t_interval(rest), 2, HOUR), text(gain[lie], 1)]
        )
    beyond = {x: g for x, g in gain.items() if x >= 0.34}
    claim = Claim(
        section="6.3, fig 18",
        claim="one of 8 identical apps overstates its slowdown by X: no gain, a loss beyond 34 %",
        paper="no gain; loss beyond 34 %",
        ours="change of the liar's time: "
        + ", ".join(f"X = {100 * x:.0f} %: {text(g, 1)} %" for x, g in gain.items() if x),
        holds=all(g.high >= 0 or g.mean >= 0 for g in gain.values()) and any(g.low > 0 for g in beyond.values()),
    )
    head = ["overstated by", "liar's time h", "others' mean time h", "change for the liar, %"]
    return table(head, rows) + "\n", [claim]


# ---- the knobs: Figure 19 -------------------------------------------------------------------------------------------


def knob_cells(size: Size) -> list[Cell]:
    base = size.base("themis1")
    return [
        *(c for f in size.some(KNOBS) for c in size.cells(replace(base, policy=_with_f(f)))),
        *(c for lease in size.some(LEASES) for c in size.cells(replace(base, lease_s=lease))),
    ]


def _with_f(f: float) -> str:
    return "themis" if f == Themis().f else f"themis:f={f}"


def knobs(size: Size, results: Results) -> tuple[str, list[Claim]]:
    base = size.base("themis1")

    def row(label: str, cell: Cell) -> list[str]:
        cells = size.cells(cell)
        names = (("rho_paper_max", 1.0, 2), ("rho_exact_max", 1.0, 2), ("gpu_seconds", HOUR, 0), ("restarts", 1.0, 0))
        return [label, *(text(over_seeds(results, cells, number(n)), d, s) for n, s, d in names)]

    head = ["max ρ", "max ρ exact", "GPU time h", "restarts"]
    by_f = [row(f"{f}", replace(base, policy=_with_f(f))) for f in size.some(KNOBS)]
    by_lease = [row(f"{lease / 60:.0f} min", replace(base, lease_s=lease)) for lease in size.some(LEASES)]

    def mean(cell: Cell, name: str) -> float:
        return over_seeds(results, size.cells(cell), number(name)).mean

    rho = {f: mean(replace(base, policy=_with_f(f)), "rho_paper_max") for f in size.some(KNOBS)}
    fair = {lease: mean(replace(base, lease_s=lease), "rho_paper_max") for lease in size.some(LEASES)}
    cost = {lease: mean(replace(base, lease_s=lease), "gpu_seconds") for lease in size.some(LEASES)}
    first, last = size.some(LEASES)[0], size.some(LEASES)[-1]
    best = min(rho, key=rho.__getitem__)
    claims = [
        Claim(
            section="6.4, fig 19",
            claim="f = 0.8 is fairest; f = 1 is worse by 1.5",
            paper="0.8; 1.5",
            ours=f"fairest {best}" + (f"; f = 1 over f = 0.8: {rho[1.0] / rho[0.8]:.2f}" if 0.8 in rho else ""),
            holds=best == 0.8 if 0.8 in rho else None,
        ),
        Claim(
            section="6.4, fig 19",
            claim="shorter leases are fairer, longer ones cheaper",
            paper="yes",
            ours=f"max ρ {fair[first]:.2f} at {first / 60:.0f} min, {fair[last]:.2f} at {last / 60:.0f} min; GPU time "
            f"{cost[first] / HOUR:,.0f} h and {cost[last] / HOUR:,.0f} h",
            holds=fair[first] < fair[last] and cost[last] < cost[first],
        ),
    ]
    return f"{table(['f', *head], by_f)}\n\n{table(['lease', *head], by_lease)}\n", claims


# ---- overheads: §6.2.3 ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Themis with a clock: how long agents take to bid and the arbiter to clear (never part of a decision)."""

    inner: Themis
    asked: list[tuple[float, int]]
    bids: list[float]
    clears: list[float]

    claims = Themis.claims
    needs = Themis.needs
    level = Themis.level

    @property
    def pace(self) -> Any:
        """On free GPUs."""
        return self.inner.pace

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Any:
        """Decide, and take the time."""
        began = time.process_time()
        if snapshot.bids is not None:
            at, bidders = self.asked[-1]
            self.bids.append((began - at) / bidders)
        solved = self.inner(snapshot, bench)
        ended = time.process_time()
        if snapshot.bids is None:
            self.asked.append((ended, max(len(getattr(solved.answer, "apps", ())), 1)))
        else:
            self.clears.append(ended - began)
        return solved


def overheads(size: Size) -> tuple[str, list[Claim]]:
    cell = size.base("themis1", "sim-256", gpus=256, load=2.0)
    inner = make_policy("themis")
    assert isinstance(inner, Themis)
    timed = Timed(inner=inner, asked=[], bids=[], clears=[])
    replace(build(cell), policy=timed).run()

    def ms(x: list[float]) -> str:
        return f"{1000 * np.median(x):.1f} / {1000 * np.percentile(x, 95):.1f} ms"

    claims = [
        Claim(
            section="6.2.3",
            claim="an agent's bid, median / 95th percentile",
            paper="29 / 334 ms",
            ours=ms(timed.bids),
            holds=None,
        ),
        Claim(
            section="6.2.3",
            claim="one auction with its payments, median / 95th percentile",
            paper="354 / 1398 ms (Gurobi)",
            ours=ms(timed.clears),
            holds=None,
        ),
    ]
    words = (
        f"{len(timed.clears):,} auctions of workload 1 on sim-256, CPU time of one core of the machine that ran this.\n"
    )
    return words, claims


EXPERIMENTS = (
    Experiment(name="macro", title="Fairness, GPU time and placement (figures 9 to 13)", cells=macro_cells, say=macro),
    Experiment(name="contention", title="Contention (figure 14)", cells=contention_cells, say=contention),
    Experiment(name="network", title="Network-intensive apps (figures 15 and 16)", cells=network_cells, say=network),
    Experiment(name="errors", title="Errors in estimates (figure 17)", cells=error_cells, say=errors),
    Experiment(name="truth", title="Truth-telling (figure 18)", cells=truth_cells, say=truth),
    Experiment(name="knobs", title="Fairness knob and lease (figure 19)", cells=knob_cells, say=knobs),
)


def page(size: Size, results: Results, notes: dict[str, str], picture: str) -> str:
    """The whole page."""
    sections, claims = [], []
    for experiment in EXPERIMENTS:
        body, found = experiment.say(size, results)
        claims += found
        shown = f"![Distribution of ρ]({picture})\n\n" if experiment.name == "macro" and picture else ""
        sections.append(f"## {experiment.title}\n\n{shown}{body}\n{notes.get(experiment.name, '')}")
    body, found = overheads(size)
    sections.append(f"## Overheads (§6.2.3)\n\n{body}\n{notes.get('overheads', '')}")
    claims += found
    marks = {True: "yes", False: "**no**", None: "–"}
    summary = table(
        ["§", "claim", "paper", "ours", "reproduced"],
        [[c.section, c.claim, c.paper, c.ours, marks[c.holds]] for c in claims],
    )
    given = (
        f"Simulated with themis {package.__version__} on code `{CODE}`: {size.apps} apps a run, {size.scale:g} of their work, "
        f"seeds {', '.join(map(str, size.seeds))}, mean ± half of the 95 % interval over seeds, ratios by common seeds."
    )
    intro = notes.get("intro", "")
    return f"# Reproducing Themis (NSDI'20)\n\n{intro}\n{given}\n\n{summary}\n\n" + "\n".join(sections).rstrip() + "\n"


def read_notes(path: Path) -> dict[str, str]:
    """Sections of hand-written text by name: ``<!-- name -->`` begins one."""
    out: dict[str, str] = {}
    for part in path.read_text().split("<!-- ")[1:]:
        name, _, body = part.partition(" -->\n")
        out[name] = body.strip() + "\n"
    return out


def write_readings(given: argparse.Namespace) -> None:
    """Measure the claims under both readings of the baselines, and write their section of the page."""
    seeds = given.seeds or ("0-1" if given.quick else "0-19")
    extent = readings.Extent(seeds=tuple(parse_seeds(seeds)), apps=given.apps or 40, scale=given.scale)
    extent = readings.quick(extent) if given.quick else extent
    cells = extent.cells()
    if given.measured:
        code, results = readings.of_one_code(extent, stored_by_code(given.store, cells))
    else:
        code, results = CODE, measure(cells, build, given.store, processes=given.jobs, batch=given.jobs)
    here = Path(__file__).parent
    out = given.out or (
        Path("out/reproduction/themis.md") if given.quick else here.parent / "docs/reproduction/themis.md"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    made = readings.described(extent, code, {"seeds": seeds, "scale": f"{given.scale:g}"})
    readings.put(
        out, readings.section(extent, results, made), read_notes(here / "notes" / "themis.md").get("readings", "")
    )
    print(f"Wrote {out}")


def main() -> None:
    """Measure and write."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few apps, two seeds, the ends of each sweep")
    parser.add_argument("--seeds", default="")
    parser.add_argument("--apps", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", choices=["readings"], help="this section of the page alone")
    parser.add_argument("--scale", type=float, default=0.25, help="of every app's work (--quick: 0.1)")
    parser.add_argument("--store", type=Path, default=Path("out/reproduction/readings.jsonl"), help="of readings' runs")
    parser.add_argument("--measured", action="store_true", help="run nothing: write what the store of readings holds")
    given = parser.parse_args()
    if given.only:
        write_readings(given)
        return
    seeds = tuple(parse_seeds(given.seeds or ("0-1" if given.quick else "0-19")))
    size = Size(
        apps=given.apps or (6 if given.quick else 24),
        seeds=seeds,
        full=not given.quick,
        scale=QUICK_SCALE if given.quick else given.scale,
    )
    out = given.out or (
        Path("out/reproduction/themis.md") if given.quick else here.parent / "docs/reproduction/themis.md"
    )
    cells = [cell for experiment in EXPERIMENTS for cell in experiment.cells(size)]
    results = measure(cells, build, Path("out/reproduction/themis.jsonl"), processes=given.jobs)
    out.parent.mkdir(parents=True, exist_ok=True)
    picture = out.with_name("themis-rho.svg")
    panels = {
        f"workload {w[-1]}, {label}": {
            p: [x for c in size.cells(replace(size.base(w), policy=p)) for x in results[c].apps[name]]
            for p in _policies(size, results, w)
            if p in PAPER
        }
        for w in ("themis1", "themis2")
        for name, label in (("rho_paper", "paper's form"), ("rho_exact", "exact form"))
    }
    distributions(picture, panels)
    old = readings.found_in(out)
    out.write_text(page(size, results, read_notes(here / "notes" / "themis.md"), picture.name))
    if old:
        readings.put(out, old, "")
    print(f"Wrote {out}")


if __name__ == "__main__":
    main()
