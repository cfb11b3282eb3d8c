"""Shockwave (NSDI'23) figure 5: errors of forecasts of dynamic jobs. Writes docs/reproduction/forecast.md and its figure.

The paper's three rules, and the posterior with an unknown number of changes.

Jobs: the 116 dynamic ones of the published 120-job trace, and 200 that are drawn as the paper says (§5, §8.1): models, batch
sizes and speeds of its tables, 0.2 to 5 hours on 1, 2 or 4 GPUs, a schedule imposed by Accordion or GNS. The trace and the
speeds are looked for in ``THEMIS_DATA`` or ``../shared/data``.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

from grid import SHARED, marker
from themis.fairness.forecasts.evaluate import KINDS, RULES, Errors, evaluate
from themis.model.dynamic import Mode
from themis.model.speed import ProfileBook
from themis.model.workload import App, Job, Workload
from themis.report.forecasts import write_errors
from themis.traces.mix import ReferenceRates, stream
from themis.traces.profiles.library import load_book
from themis.traces.schedules import schedule
from themis.traces.shockwave_trace import ShockwaveTrace, dynamic_of
from themis.traces.trace_summary import paces

ROOT = Path(__file__).parents[1]
DATA = SHARED / "shockwave"
PAGE = ROOT / "docs" / "reproduction" / "forecast.md"
JOBS, SEED = 200, 0
HOURS = (0.2, 5.0)
GPUS = (1, 2, 4)
EXAMPLES = {"ResNet-18": 50_000, "ResNet-50": 100_000, "LM": 59_675, "Recommendation": 117_907, "Transformer": 10_000}
"""Examples in an epoch: so many that epochs take the seconds of the published table."""


def drawn(book: ProfileBook, count: int = JOBS, seed: int = SEED) -> Workload:
    """Jobs whose schedules Accordion or GNS imposes, by turns."""
    rng, rates = stream(seed, "forecast"), ReferenceRates(book)
    choices = sorted((model, batch) for model in EXAMPLES for _, batch in book.get(model).curves if batch)
    apps = []
    for i in range(count):
        model, batch = choices[int(rng.integers(len(choices)))]
        gpus, mode = int(rng.choice(GPUS)), (Mode.ACCORDION, Mode.GNS)[i % 2]
        seconds = 3600 * math.exp(rng.uniform(math.log(HOURS[0]), math.log(HOURS[1])))
        epochs = max(round(seconds * rates(model, gpus, batch) * batch / EXAMPLES[model]), 1)
        largest = max(size for _, size in book.get(model).curves)
        job = Job(
            name=f"j{i}",
            model=model,
            gpus_min=gpus,
            gpus_max=gpus,
            regimes=schedule(mode, model, batch, gpus, epochs),
            dynamic=dynamic_of(mode, batch, largest, lambda size, model=model: EXAMPLES[model] / size),
        )
        apps.append(App(name=f"a{i}", user="u", arrival=0.0, jobs=(job,)))
    return Workload(name=f"{count} drawn jobs, seed {seed}", apps=tuple(apps))


def told(workload: Workload) -> Workload:
    """The same where accordion jobs say how many regimes they will have had."""
    apps = []
    for app in workload.apps:
        (job,) = app.jobs
        if job.dynamic and job.dynamic.mode is Mode.ACCORDION:
            job = replace(job, dynamic=replace(job.dynamic, regimes=len(job.regimes)))
        apps.append(replace(app, jobs=(job,)))
    return replace(workload, apps=tuple(apps))


def rows(name: str, errors: Errors) -> list[str]:
    """The table's rows of one set of jobs: all dynamic ones, then those that change."""
    out = []
    for changing in (False, True):
        jobs = int(errors.changes.sum()) if changing else len(errors.jobs)
        for rule in RULES:
            cells = [f"{100 * errors.mean(rule, kind, changing=changing):.1f} %" for kind in KINDS]
            which = f"{name}, {f'the {jobs} that change' if changing else f'all {jobs}'}"
            out.append(f"| {which} | {rule} | {' | '.join(cells)} |")
    return out


def beliefs(name: str, errors: Errors) -> list[str]:
    """Of the jobs that are believed to change when they come, those that never do."""
    out = []
    for rule in RULES:
        some = int(errors.change_expected[RULES.index(rule), :, 0].sum())
        if some:
            out.append(
                f"| {name} | {rule} | {some} of {len(errors.jobs)} | {100 * errors.wrongly_believed(rule):.1f} % |"
            )
    return out


def main() -> None:
    """Measure, draw and write the page."""
    if not DATA.exists():
        sys.exit(f"No traces in {DATA}; set THEMIS_DATA to the folder that holds shockwave/.")
    book = load_book(str(DATA / "throughputs" / "tacc_throughputs.json"))
    reader = ShockwaveTrace(schedules=str(DATA / "bs_schedules" / "dynamic_120jobs_32gpu.json"))
    trace = reader.read(DATA / "traces" / "dynamic_120jobs_32gpu.trace", book=book)
    command = "python reproduction/forecast.py"
    lines = [
        f"{marker('forecast', command)}| jobs | rule | regimes' shares | epochs at a wrong batch size | run time |",
        "|---|---|---|---|---|",
    ]
    jobs = drawn(book)
    of_trace, of_drawn, of_told = (evaluate(paces(workload, book)) for workload in (trace, jobs, told(jobs)))
    lines += [*rows("trace", of_trace), *rows("drawn", of_drawn), *rows("drawn, K told", of_told)]
    untaught = [evaluate(paces(workload, book), learning=False) for workload in (trace, jobs)]
    for name, errors in zip(("trace", "drawn"), untaught):
        lines += [
            f"{row.replace('| posterior |', '| posterior, nothing learned |')}"
            for row in rows(name, errors)
            if "| posterior |" in row
        ]
    lines += [
        "",
        f"{marker('forecast-beliefs', command)}| jobs | rule | believed to change when they come | of these never change |",
        "|---|---|---|---|",
    ]
    lines += [*beliefs("trace", of_trace), *beliefs("drawn", of_drawn)]
    print("\n".join(lines))
    write_errors(PAGE.with_name("forecast.svg"), of_drawn, title=f"{JOBS} drawn jobs, seed {SEED}")
    notes = (ROOT / "reproduction" / "notes" / "forecast.md").read_text()
    PAGE.write_text(notes.replace("{{rows}}", "\n".join(lines)))


if __name__ == "__main__":
    main()
