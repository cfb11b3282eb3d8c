"""Shockwave (NSDI'23): its recorded trace, and generated ones on 64 to 256 GPUs. Writes docs/reproduction/shockwave.md.

    python reproduction/shockwave_nsdi23.py [--quick] [--out PAGE]
    python reproduction/shockwave_nsdi23.py --only recorded,market    # these sections alone, the others stay

Simulated, machines of 4 V100, rounds of 120 s, 20 s for every start of a job and no other cost of a change, speed
independent of placement, as the published simulator has it. Jobs that change their batch size are forecast; nobody knows
their schedules. The trace and results are looked for in ``THEMIS_DATA`` or ``../shared/data``; ``--quick`` runs 24 generated
jobs and needs neither.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from grid import CODE, marker
from pictures import against
from shockwave_runs import (
    DATA,
    PUBLISHED_BUDGETS,
    World,
    at_once,
    example_4,
    generated,
    later,
    pollux,
    recorded,
    rhos,
    shuffled,
    simulate,
    target_job,
)
from themis.model.units import Float
from themis.report.intervals import ratio_interval, t_interval

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduction" / "shockwave.md"
NOTES = ROOT / "reproduction" / "notes" / "shockwave.md"
PUBLISHED = (
    "shockwave",
    "finish_time_fairness",
    "max_min_fairness",
    "allox",
    "max_sum_throughput_perf",
    "min_total_duration",
    "gandiva_fair",
)
MADE = f"Simulated on code `{CODE}`."
ROUNDS = "round_s=120"
POLICIES = (
    "shockwave",
    f"finish_time_fairness:{ROUNDS}",
    f"max_min_fairness:{ROUNDS}",
    f"max_min_fairness:{ROUNDS},resolve_interval=1000,backfill=false",
    f"allox:{ROUNDS}",
    f"max_throughput:{ROUNDS}",
    "ossp",
    f"gandiva_fair:{ROUNDS},tickets_by_size=true",
    "themis",
)
VARIANTS = (
    *(f"shockwave:patience={factor}" for factor in (1.5, 2, 5)),
    *(f"shockwave:window={rounds}" for rounds in (20, 30, 60, 120)),
    *(f"shockwave:window=60,makespan={price}" for price in (0.001, 0.01, 1.0, 10.0)),
    "shockwave:window=60,power=1",
    "shockwave:window=60,power=10",
    "shockwave:forecast=greedy",
    *(f"shockwave:noise={share}" for share in (0.2, 0.4, 1)),
    "shockwave:reactive=false",
    "shockwave:backfill=false",
)
MARKET = (
    "shockwave",
    "shockwave:plan=market",
    *(f"shockwave:plan=market,makespan={price}" for price in (0.001, 0.01, 1, 10)),
    "shockwave:plan=market,power=1",
    "shockwave:plan=market,power=10",
    "shockwave:plan=market,window=30",
    "shockwave:plan=market,window=60",
    "shockwave:plan=market,forecast=greedy",
    "shockwave:plan=market,power=12,makespan=200",
    "shockwave:plan=market,power=12,makespan=0.2",
    f"shockwave:plan=market,power=12,makespan=0.2{PUBLISHED_BUDGETS}",
)
"""The paper's planner: its settings, each parameter varied; the published code's settings in the paper's units; another price
of the makespan, and the published code's budgets.
"""
MARKET_SCALES = ((220, 64, 5), (460, 128, 3), (900, 256, 2))
"""Jobs, GPUs, seeds."""
BESIDE = ("shockwave", f"max_min_fairness:{ROUNDS}", f"finish_time_fairness:{ROUNDS}", f"allox:{ROUNDS}", "ossp")
SCALES = (
    (220, 64, 0.2, 5, BESIDE[:4]),
    (220, 64, 0.5, 3, BESIDE[:2]),
    (220, 64, 1.0, 5, (*BESIDE[:2], "shockwave:patience=2")),
    (460, 128, 0.2, 3, BESIDE[:2]),
    (460, 128, 1.0, 2, BESIDE[:2]),
    (900, 256, 0.2, 2, BESIDE[:2]),
    (900, 256, 1.0, 2, BESIDE[:2]),
)
"""Jobs, GPUs, share of the recipe's GPU-hours, seeds, policies."""
EXAMPLES_HEAD = (
    "| figure | policy | rho_static of the job | rho_contention of the job | makespan s |\n|---|---|---|---|---|"
)
UNMOVED_HEAD = (
    "| jobs | policy | what is changed | makespan s | mean JCT s | worst rho_static | unfair > 1 / 1.05 / 1.1 % |\n"
    "|---|---|---|---|---|---|---|"
)
EXACT = "shockwave:window=60,gap=1e-05"
"""A plan of this many rounds often needs the integer program for such a gap, so that the solver's choices matter."""
MARKET_HEAD = (
    "| jobs, GPUs, GPU-hours, seeds | planner | makespan s | mean JCT s | worst rho_static | unfair > 1.05 % | CPU s |\n"
    "|---|---|---|---|---|---|---|"
)
THRESHOLDS = (1.0, 1.05, 1.1)
HEAD = (
    "| policy | makespan s | mean JCT s | worst rho_static | unfair > 1 / 1.05 / 1.1 % | worst rho_contention | "
    "unfair > 1 / 1.05 / 1.1 % | starts | CPU s |\n|---|---|---|---|---|---|---|---|---|"
)
SEEDS_HEAD = (
    "| jobs, GPUs, GPU-hours, seeds | policy | makespan s | mean JCT s | worst rho_static | unfair > 1 % | > 1.05 % | > 1.1 % | "
    "rho_contention > 1.05 % | CPU s |\n|---|---|---|---|---|---|---|---|---|---|"
)


def varied_head(what: str) -> str:
    """Of a table over something that is varied."""
    return f"| {what} | policy | makespan s | mean JCT s | worst rho_static | unfair > 1 % |\n|---|---|---|---|---|---|"


def figures(world: World, jct: Float) -> list[str]:
    """Cells of a row, by both definitions of rho."""
    end, static, live = rhos(world, jct)
    cells = [f"{end.max():,.0f}", f"{jct.mean():,.0f}"]
    for rho in (static, live):
        cells += [f"{rho.max():.2f}", " / ".join(f"{100 * (rho > limit).mean():.1f}" for limit in THRESHOLDS)]
    return cells


def rows(world: World, policies: tuple[str, ...]) -> Iterator[str]:
    """A row a policy, as soon as it is known."""
    for policy in policies:
        jct, starts, cpu = simulate(world, policy)
        line = "| " + " | ".join([f"`{policy}`", *figures(world, jct), str(starts), f"{cpu:.1f}"]) + " |"
        print(line, flush=True)
        yield line


def name_of(policy: str) -> str:
    """Without the length of a round, which all have."""
    return policy.replace(f":{ROUNDS},", ":").removesuffix(f":{ROUNDS}")


def over_seeds(head: str, worlds: list[World], policies: tuple[str, ...]) -> Iterator[str]:
    """A row a policy: mean and half width of the 95 % interval over worlds."""
    for policy in policies:
        found = []
        for world in worlds:
            jct, _, cpu = simulate(world, policy)
            end, static, live = rhos(world, jct)
            unfair = [100 * (static > limit).mean() for limit in THRESHOLDS]
            found.append([end.max(), jct.mean(), static.max(), *unfair, 100 * (live > 1.05).mean(), cpu])
        cells = [t_interval(list(map(float, column))) for column in zip(*found)]
        text = [f"{c.mean:,.{d}f} ± {c.half:,.{d}f}" for c, d in zip(cells, (0, 0, 2, 1, 1, 1, 1))]
        line = "| " + " | ".join([head, f"`{name_of(policy)}`", *text, f"{cells[-1].mean:.1f}"]) + " |"
        print(line, flush=True)
        yield line


def market_over_promises(scales: Iterable[tuple[int, int, int]]) -> Iterator[str]:
    """Rows of both planners on generated traces, and the market's figures over those of promises by paired seeds."""
    for jobs, gpus, seeds in scales:
        head = f"{jobs}, {gpus}, 0.2, {seeds}"
        found: dict[str, list[list[float]]] = {}
        for policy in ("shockwave", "shockwave:plan=market"):
            for world in (generated(jobs, gpus, seed) for seed in range(seeds)):
                jct, _, cpu = simulate(world, policy)
                end, static, _ = rhos(world, jct)
                unfair = 100 * float((static > 1.05).mean())
                row = [float(end.max()), float(jct.mean()), float(static.max()), unfair, cpu]
                found.setdefault(policy, []).append(row)
            cells = [t_interval(list(column)) for column in zip(*found[policy])]
            text = [f"{c.mean:,.{d}f} ± {c.half:,.{d}f}" for c, d in zip(cells, (0, 0, 2, 1))]
            yield "| " + " | ".join([head, f"`{policy}`", *text, f"{cells[-1].mean:.1f}"]) + " |"
        ours, theirs = (list(zip(*found[p])) for p in ("shockwave:plan=market", "shockwave"))
        ratios = [ratio_interval(a, b) for a, b in zip(ours[:3], theirs[:3])]
        more = t_interval([a - b for a, b in zip(ours[3], theirs[3])])
        text = [f"{r.mean:.2f} [{r.low:.2f}, {r.high:.2f}]" for r in ratios]
        yield (
            "| "
            + " | ".join([head, "market over promises", *text, f"{more.mean:+.1f} ± {more.half:.1f} points", ""])
            + " |"
        )


def varied(path: Path, label: str, worlds: dict[float, list[World]]) -> Iterator[str]:
    """Rows and a picture over something that is varied, for the policies of the paper's figures 10 and 16."""
    lines: dict[str, dict[str, list[float]]] = {"makespan": {}, "unfair": {}, "worst": {}}
    for policy in BESIDE[:4]:
        for at, some in worlds.items():
            ends, shares, worst, mean = [], [], [], []
            for world in some:
                jct, _, _ = simulate(world, policy)
                end, static, _ = rhos(world, jct)
                ends.append(end.max())
                shares.append(100 * (static > 1.0).mean())
                worst.append(static.max())
                mean.append(jct.mean())
            for key, values in (("makespan", ends), ("unfair", shares), ("worst", worst)):
                lines[key].setdefault(name_of(policy), []).append(float(np.mean(values)))
            cells = [
                f"{np.mean(ends):,.0f}",
                f"{np.mean(mean):,.0f}",
                f"{np.mean(worst):.2f}",
                f"{np.mean(shares):.1f}",
            ]
            line = "| " + " | ".join([f"{at:g}", f"`{name_of(policy)}`", *cells]) + " |"
            print(line, flush=True)
            yield line
    panels = (
        ("makespan, s", lines["makespan"]),
        ("jobs with rho_static above 1, %", lines["unfair"]),
        ("worst rho_static", lines["worst"]),
    )
    against(path, label, list(worlds), panels)


def examples() -> Iterator[str]:
    """Figures 2 and 4: what forecasting is worth to one job, and to a makespan."""
    for policy in (
        "shockwave",
        "shockwave:forecast=greedy",
        f"finish_time_fairness:{ROUNDS}",
        f"max_min_fairness:{ROUNDS}",
    ):
        world = target_job()
        jct, _, _ = simulate(world, policy)
        _, static, live = rhos(world, jct)
        yield f"| 2 | `{name_of(policy)}` | {static[0]:.2f} | {live[0]:.2f} | |"
    for policy in ("ossp", "ossp:forecast=greedy"):
        world = example_4()
        jct, _, _ = simulate(world, policy)
        yield f"| 4 | `{policy}` | | | {rhos(world, jct)[0].max():,.0f} |"


def unmoved(world: World) -> Iterator[str]:
    """What must not matter: when the trace begins, in which order its jobs are written down, the solver's seed."""
    together = at_once(world)
    changes = (
        (
            "as recorded",
            "shockwave",
            [
                ("nothing", world),
                *((f"{seconds:,} s later", later(world, seconds)) for seconds in (37.5, 1_000_013)),
                *((f"order {seed}", shuffled(world, seed)) for seed in (1, 2, 3)),
            ],
        ),
        (
            "all at once",
            "shockwave",
            [
                ("nothing", together),
                *((f"order {seed}", shuffled(together, seed)) for seed in range(1, 6)),
            ],
        ),
        *(("as recorded", f"{EXACT},seed={seed}", [(f"solver's seed {seed}", world)]) for seed in range(4)),
    )
    for jobs, policy, worlds in changes:
        for what, changed in worlds:
            jct, _, _ = simulate(changed, policy)
            line = "| " + " | ".join([jobs, f"`{policy}`", what, *figures(changed, jct)[:4]]) + " |"
            print(line, flush=True)
            yield line


def published(world: World) -> Iterator[str]:
    """What the published simulator gave, in the same figures."""
    for name in PUBLISHED:
        jct = np.array(json.loads((DATA / "results_32gpu" / f"{name}.json").read_text())["jct_list"])
        yield "| " + " | ".join([f"published {name}", *figures(world, jct), "", ""]) + " |"


def main() -> None:
    """Measure, and write the page again after every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="24 generated jobs on 8 GPUs; seconds")
    parser.add_argument("--only", metavar="SECTIONS", help=f"of {', '.join(PARTS)}, joined by commas; the others stay")
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    if not given.quick and not DATA.exists():
        parser.exit(2, f"No trace in {DATA}; set THEMIS_DATA to the folder that holds shockwave/, or use --quick.\n")
    if given.only:
        wrong = [part for part in given.only.split(",") if part not in PARTS]
        if wrong:
            parser.error(f"--only has {wrong[0]!r}, expected of {', '.join(PARTS)}.")
        only(given.only.split(","), given.out)
        return
    given.out.parent.mkdir(parents=True, exist_ok=True)
    page = NOTES.read_text(encoding="utf-8").replace("{{made}}", MADE)
    for name, lines in (few if given.quick else everything)(given.out.parent):
        page = filled(page, name, lines)
        given.out.write_text(page, encoding="utf-8")


def filled(page: str, name: str, lines: Sequence[str]) -> str:
    """The page with a table below the comment that names it."""
    command = "python reproduction/shockwave_nsdi23.py"
    return page.replace("{{" + name + "}}", marker(f"shockwave-{name}", command) + "\n".join(lines))


def few(beside: Path) -> Iterator[tuple[str, list[str]]]:
    """Every kind of table, of few jobs."""
    small = generated(24, 8)
    yield "examples", [EXAMPLES_HEAD, *examples()]
    yield "recorded", [HEAD, *rows(small, POLICIES[:3])]
    yield "variants", [HEAD]
    yield "market", [HEAD, *rows(small, MARKET[:2])]
    yield "market_scales", [MARKET_HEAD, *market_over_promises(((24, 8, 2),))]
    yield "unmoved", [UNMOVED_HEAD, *unmoved(small)]
    worlds = [generated(12, 8, seed) for seed in range(2)]
    yield "seeds", [SEEDS_HEAD, *over_seeds("12, 8, 0.2, 2", worlds, POLICIES[:1])]
    yield "mixes", [varied_head("dynamic"), *varied(beside / "shockwave-mixes.svg", "dynamic jobs", {1.0: [small]})]
    yield "contention", [varied_head("jobs per GPU")]
    yield "pollux", [SEEDS_HEAD]


def everything(beside: Path) -> Iterator[tuple[str, list[str]]]:
    """The page's tables, and its pictures beside it."""
    yield "examples", [EXAMPLES_HEAD, *examples()]
    world = recorded()
    yield from trace(world)
    yield from variants(world)
    yield from markets(world)
    yield "unmoved", [UNMOVED_HEAD, *unmoved(world)]
    mixes = {share: [generated(120, 32, seed, 0.2, share) for seed in range(2)] for share in (0.0, 0.4, 0.6, 1.0)}
    picture = beside / "shockwave-mixes.svg"
    yield "mixes", [varied_head("dynamic"), *varied(picture, "share of dynamic jobs", mixes)]
    per_gpu = {n: [generated(round(14 * n), 14, seed, 0.2) for seed in range(3)] for n in (1.5, 2.0, 3.0)}
    picture = beside / "shockwave-contention.svg"
    yield "contention", [varied_head("jobs per GPU"), *varied(picture, "jobs per GPU", per_gpu)]
    yield from workloads_of_pollux()
    lines = [SEEDS_HEAD]
    for jobs, gpus, scale, seeds, policies in SCALES:
        worlds = [generated(jobs, gpus, seed, scale) for seed in range(seeds)]
        lines += over_seeds(f"{jobs}, {gpus}, {scale:g}, {seeds}", worlds, policies)
    yield "seeds", lines


def trace(world: World) -> Iterator[tuple[str, list[str]]]:
    """The recorded trace under all policies."""
    yield "recorded", [HEAD, *published(world), *rows(world, POLICIES)]


def variants(world: World) -> Iterator[tuple[str, list[str]]]:
    """The recorded trace under other parameters of Shockwave."""
    yield "variants", [HEAD, *rows(world, VARIANTS)]


def markets(world: World) -> Iterator[tuple[str, list[str]]]:
    """The paper's planner on the recorded trace, and on generated ones beside promises."""
    yield "market", [HEAD, *list(published(world))[:1], *rows(world, MARKET)]
    yield "market_scales", [MARKET_HEAD, *market_over_promises(MARKET_SCALES)]


def workloads_of_pollux() -> Iterator[tuple[str, list[str]]]:
    """Figure 17."""
    yield "pollux", [SEEDS_HEAD, *over_seeds("160, 32, -, 2", [pollux(n) for n in (1, 3)], BESIDE[:4])]


PARTS = {
    "recorded": lambda: trace(recorded()),
    "variants": lambda: variants(recorded()),
    "market": lambda: markets(recorded()),
    "pollux": workloads_of_pollux,
}
"""Sections that can be measured alone."""


def only(parts: Iterable[str], page: Path) -> None:
    """Measure these sections, and put them into the page as it stands."""
    whole, notes = page.read_text(encoding="utf-8"), NOTES.read_text(encoding="utf-8").split("\n## ")
    for part in parts:
        tables = dict(PARTS[part]())
        (section,) = [text for text in notes if "{{" + part + "}}" in text]
        for name, lines in tables.items():
            section = filled(section, name, lines)
        section = section.replace("{{made}}", MADE)
        title = section.partition("\n")[0]
        sections = whole.split("\n## ")
        at = [i for i, text in enumerate(sections) if text.partition("\n")[0] == title]
        if at:
            sections[at[0]] = section
        else:
            sections.insert(min(3, len(sections)), section)
        whole = "\n## ".join(sections)
        page.write_text(whole.rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
