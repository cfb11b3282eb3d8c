"""Themis' claims under two readings of its baselines: apps with our packer, and jobs placed blindly (decision 30).

Paired seeds; what a baseline's number is over Themis' is a geometric mean over the seeds, its 95 % interval that of
Student's t on the ratios' logarithms. Beside the worst app of a run stand its 95th percentile and the share of apps above 1.1,
because a run's maximum is a single app: three seeds know a ratio of maxima to a factor of 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from grid import Cell, Result, Results, table
from themis.report.intervals import Interval, ratio_interval, t_interval

BASELINES = ("gandiva", "tiresias", "optimus", "slaq", "srtf", "srsf")
"""The paper's (§6.1)."""
READINGS = {"apps, packed": "", "jobs, blind": ":clients=jobs,placement=blind"}
LEVELS = {"1x": "sim-256", "4x": "sim-64"}
"""Contention: the same apps on a cluster of 256 GPUs and of a quarter of it."""
PAPER = (2.2, 3.25)
"""Maxima of the baselines over Themis' (figures 9 and 10)."""
START, END = "## Readings of the baselines", "\n## "


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured."""

    seeds: tuple[int, ...]
    apps: int = 40
    scale: float = 0.25
    quick: bool = False

    @property
    def levels(self) -> Mapping[str, str]:
        """Contention by name."""
        return {"4x": LEVELS["4x"]} if self.quick else LEVELS

    @property
    def baselines(self) -> tuple[str, ...]:
        """The baselines compared."""
        return ("tiresias",) if self.quick else BASELINES

    def cell(self, policy: str, level: str, seed: int) -> Cell:
        """One run."""
        return Cell(
            policy=policy,
            workload="themis1",
            cluster=LEVELS[level],
            seed=seed,
            apps=self.apps,
            load=0.9,
            gpus=256,
            scale=self.scale,
        )

    def of_seed(self, level: str, seed: int) -> list[Cell]:
        """All runs of a seed at one contention, Themis first."""
        named = ["themis", *(p + reading for reading in READINGS.values() for p in self.baselines)]
        return [self.cell(policy, level, seed) for policy in named]

    def cells(self) -> list[Cell]:
        """All runs, seed after seed, so that an interrupted measurement has whole seeds."""
        return [c for seed in self.seeds for level in self.levels for c in self.of_seed(level, seed)]

    def complete(self, level: str, results: Results) -> list[int]:
        """The seeds of which every run is there."""
        return [seed for seed in self.seeds if all(c in results for c in self.of_seed(level, seed))]


def worst(form: str) -> Callable[[Result], float]:
    """A run's largest rho."""
    return lambda result: float(np.max(result.apps[f"rho_{form}"]))


def p95(form: str) -> Callable[[Result], float]:
    """The 95th percentile of rho over a run's apps."""
    return lambda result: float(np.percentile(result.apps[f"rho_{form}"], 95))


def above(form: str) -> Callable[[Result], float]:
    """Percent of a run's apps whose rho is above 1.1."""
    return lambda result: 100 * float(np.mean(np.array(result.apps[f"rho_{form}"]) > 1.1))


def mean_jct(result: Result) -> float:
    """Mean over a run's apps."""
    return float(np.mean(result.apps["jct"]))


RATIOS: Mapping[str, Callable[[Result], float]] = {
    "max ρ": worst("paper"),
    "p95 ρ": p95("paper"),
    "max ρ exact": worst("exact"),
    "p95 ρ exact": p95("exact"),
    "mean JCT": mean_jct,
}
SHARES: Mapping[str, Callable[[Result], float]] = {"ρ > 1.1, %": above("paper"), "exact > 1.1, %": above("exact")}


def section(extent: Extent, results: Results, made: str) -> str:
    """The page's section in Markdown; ``made`` says of what code."""
    parts, verdicts = [], []
    for level, cluster in extent.levels.items():
        seeds = extent.complete(level, results)
        if not seeds:
            parts.append(f"**{level} contention**: no seed is measured yet.\n")
            continue

        def over(
            number: Callable[[Result], float], policy: str, level: str = level, seeds: list[int] = seeds
        ) -> Interval:
            runs = ([number(results[extent.cell(p, level, seed)]) for seed in seeds] for p in (policy, "themis"))
            return ratio_interval(*runs)

        def share(
            number: Callable[[Result], float], policy: str, level: str = level, seeds: list[int] = seeds
        ) -> Interval:
            return t_interval([number(results[extent.cell(policy, level, seed)]) for seed in seeds])

        rows = [_row("themis", "", (), (share(n, "themis") for n in SHARES.values()))]
        for reading, given in READINGS.items():
            for policy in extent.baselines:
                ratios = [over(n, policy + given) for n in RATIOS.values()]
                rows.append(_row(policy, reading, ratios, (share(n, policy + given) for n in SHARES.values())))
            verdicts += [
                _verdict(level, reading, name, [over(RATIOS[name], policy + given) for policy in extent.baselines])
                for name in RATIOS
                if name != "mean JCT"
            ]
        own = " · ".join(
            f"{name} {_number(t_interval([n(results[extent.cell('themis', level, s)]) for s in seeds]))}"
            for name, n in RATIOS.items()
            if name != "mean JCT"
        )
        parts.append(f"**{level} contention** (`{cluster}`, {len(seeds)} paired seeds). Themis itself: {own}.\n")
        parts.append(table(["policy", "reading", *(f"{name}, over Themis'" for name in RATIOS), *SHARES], rows) + "\n")
    head = ["contention", "reading", "number", "baselines over Themis'", "every baseline above Themis"]
    return f"{START}\n\n{made}\n\n{table(head, verdicts)}\n\n" + "\n".join(parts)


def _row(policy: str, reading: str, ratios: Iterable[Interval], shares: Iterable[Interval]) -> list[str]:
    cells = [_number(x) for x in ratios] or ["1"] * len(RATIOS)
    return [policy, reading or "–", *cells, *(_number(_percent(x), 0) for x in shares)]


def _number(x: Interval, digits: int = 2) -> str:
    """``mean [low, high]``; without an interval where there is one seed."""
    if math.isnan(x.low):
        return f"{x.mean:.{digits}f}"
    return f"{x.mean:.{digits}f} [{x.low:.{digits}f}, {x.high:.{digits}f}]"


def _percent(x: Interval) -> Interval:
    """An interval of percents has none below 0 and none above 100."""
    return replace(x, low=max(x.low, 0.0), high=min(x.high, 100.0)) if not math.isnan(x.low) else x


def _verdict(level: str, reading: str, name: str, found: Sequence[Interval]) -> list[str]:
    if all(x.low > 1 for x in found):
        holds = "yes"
    elif any(x.high < 1 for x in found):
        holds = "**no**: " + f"{sum(x.high < 1 for x in found)} of {len(found)} are below"
    else:
        holds = (
            f"not decided: {sum(x.low > 1 for x in found)} of {len(found)} are above by their intervals, none is below"
        )
    means = [x.mean for x in found]
    return [level, reading, name, f"{min(means):.2f} to {max(means):.2f}", holds]


def put(page: Path, text: str, note: str) -> None:
    """Replace the page's section, or put it before the first one."""
    body = f"{text}\n{note}\n"
    whole = page.read_text() if page.exists() else "# Reproducing Themis (NSDI'20)\n"
    if START in whole:
        before, _, rest = whole.partition(START)
        after = rest[rest.index(END) :] if END in rest else ""
    else:
        at = whole.find(END)
        before, after = (whole[: at + 1], whole[at:]) if at >= 0 else (whole + "\n", "")
    page.write_text(before + body.rstrip() + "\n" + (after or ""))


def found_in(page: Path) -> str:
    """The page's section as it stands, or nothing."""
    whole = page.read_text() if page.exists() else ""
    if START not in whole:
        return ""
    rest = whole[whole.index(START) :]
    return rest[: rest.index(END) + 1] if END in rest else rest


def described(extent: Extent, code: str, options: Mapping[str, Any]) -> str:
    """The paragraph that says what was measured, on which code, by which command."""
    given = " ".join(f"--{name} {value}" for name, value in options.items())
    return (
        f"Workload 1, {extent.apps} apps a run at scale {extent.scale:g} (load 0.9 of 256 GPUs); ratios are geometric means over "
        f"paired seeds with 95 % intervals (t on logarithms), above 1 where Themis is better. The paper reports {PAPER[0]} to "
        f"{PAPER[1]} for the maxima. Simulated on code `{code}` by `python reproduction/themis_nsdi20.py --only readings {given}`."
    )


def of_one_code(extent: Extent, found: Mapping[str, Results]) -> tuple[str, Results]:
    """Of results by code, those of the code with most runs of this extent."""
    if not found:
        return "", {}
    code = max(found, key=lambda c: sum(cell in found[c] for cell in extent.cells()))
    return code, found[code]


def quick(extent: Extent) -> Extent:
    """The quick form: it shows that everything runs."""
    return replace(extent, apps=min(extent.apps, 3), scale=min(extent.scale, 0.05), quick=True)
