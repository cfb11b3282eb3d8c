"""The pages of the reference that are generated from the code, so that they cannot be older than it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path

import typer
import typer.main
from typer.cli import get_docs_for_click

from docstrings import as_markdown
from themis.cli.lists import about
from themis.cli.root import app
from themis.limits import (
    DEEPEST,
    LONGEST_JOB_FILE,
    MOST_DOCUMENTS,
    MOST_JOB_VALUES,
    MOST_JSON_VALUES,
    MOST_VALUES,
    TABLE,
    Count,
    Number,
    Text,
)
from themis.model.forecast import Ahead
from themis.model.snapshot import Snapshot
from themis.model.snapshot_columns import AXES, columns_of
from themis.policies.api import params, policy_class, policy_names
from themis.report.columns import ComparisonColumn, definitions_of
from themis.report.numbers import FORMS, METRICS
from themis.report.rho import STATISTICS
from themis.report.rows import AppRow, JobTable
from themis.report.users import UserRow
from themis.schema.routes import ROUTES
from themis.traces.formats import registered


def command_line() -> str:
    """Every verb of ``themis`` with its arguments, options and defaults."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="themis")
    text = get_docs_for_click(obj=command, ctx=context, name="themis")
    text = re.sub(r"\[/?(?:cyan|bold|green|red|dim)\]", "`", text)  # rich's markup
    text = re.sub(r"(?<=[ |])\[([a-z_=,. A-Z0-9:|-]+)\](?=[ \n|])", r"\\[\1]", text)  # no link, but a default
    return text.replace("# `themis`", "# Command line", 1)


def policies() -> str:
    """Every policy: its parameters with their defaults, what it shares between, and when it is asked."""
    parts = [
        "# Policies\n",
        "Name a policy with `--policy NAME`, or with parameters: `--policy NAME:PARAMETER=VALUE,...`. "
        "[Which policy, and why](../which-policy.md) helps to choose.\n",
    ]
    for name in policy_names():
        kind = policy_class(name)
        made = kind()
        pace = f"every {made.pace.round_s:g} s and when GPUs are free" if made.pace.round_s else "when GPUs are free"
        parts += [f"## {name}\n", f"{about(kind)}.\n", as_markdown(inspect.getdoc(kind) or ""), ""]
        parts.append(f"- **Shares between**: {kind.level}s")
        parts.append(f"- **Decides**: {pace}")
        parts.append(f"- **Proven**: {', '.join(sorted(kind.claims)) or 'nothing'}")
        given = params(made)
        parts.append(
            "- **Parameters**: " + (", ".join(f"`{key}={_text(value)}`" for key, value in given.items()) or "none")
        )
        parts.append("")
    return "\n".join(parts)


def workloads() -> str:
    """Every generator and every format of trace files, with its options."""
    parts = [
        "# Workloads\n",
        "Generate a workload with `--workload NAME:OPTION=VALUE,...`, read a file with `--workload FILE --format NAME`. "
        "[Simulate a trace](../traces.md) describes the formats.\n",
    ]
    for name, kind in registered().items():
        parts += [f"## {name}\n", f"{about(kind)}.\n", as_markdown(inspect.getdoc(kind) or ""), ""]
        parts.append(f"- **Kind**: {'generator' if hasattr(kind, 'generate') else 'format of files'}")
        options = ", ".join(f"`{field.name}={_text(field.default)}`" for field in fields(kind))  # type: ignore[arg-type]
        parts.append(f"- **Options**: {options or 'none'}\n")
    return "\n".join(parts)


def metrics() -> str:
    """Every number of a report: its unit and definition, which direction is better, and where it is shown."""
    parts = [
        "# Metrics\n",
        "Every number of `results.json`, `results.csv` and the Parquet tables. [Metrics and the event log](../metrics.md) explains "
        "finish-time fairness and how numbers follow from the log; [Read a report](../report.md) shows the page and the tables.\n",
        "## Finish-time fairness\n",
        "A form and a statistic make a number: `rho_paper_max`, `rho_exact_median`.\n",
        _table(("form", "meaning"), [(f"`{form.name}`", form.definition) for form in FORMS]),
        _table(
            ("statistic", "meaning", "better"), [(f"`{s.name}`", s.definition, s.better or "–") for s in STATISTICS]
        ),
        "## The run as a whole\n",
        _table(
            ("name", "unit", "meaning", "better", "shown"),
            [(f"`{m.name}`", m.unit, m.definition, *_shown(m.column)) for m in METRICS],
        ),
    ]
    for title, row in (("Each app", AppRow), ("Each user", UserRow), ("Each job", JobTable)):
        found = [(f"`{name}`", text) for name, text in definitions_of(row).items()]
        parts += [f"## {title}\n", _table(("name", "meaning"), found)]
    return "\n".join(parts)


def limits() -> str:
    """Every limit on a value that users, machines, agents and files give."""
    rows: list[tuple[str, str, str]] = []
    for limit in TABLE:
        match limit:
            case Number():
                rows.append((f"`{limit.name}`", limit.what, limit.expected))
            case Text():
                rows.append((f"`{limit.name}`", limit.what, f"text of at most {limit.longest} characters"))
            case Count():
                rows.append((f"`{limit.name}`", limit.what, f"at most {limit.most} entries"))
    return "\n".join(
        [
            "# Limits\n",
            "Values beyond these are refused in one sentence that names the place, the value and the range, whichever way they "
            "come: HTTP, job files, settings, or machines. Numbers are finite; texts have no control characters.\n",
            _table(("name", "value", "limit"), rows),
            f"JSON and YAML have at most {DEEPEST} levels. A JSON body has at most {MOST_JSON_VALUES:,} values, a job file "
            f"{MOST_JOB_VALUES:,} in {MOST_DOCUMENTS} documents, another YAML file {MOST_VALUES:,}; a job file over the API has "
            f"at most {LONGEST_JOB_FILE:,} characters. Limits that administrators set are [settings](../settings.md).\n",
        ]
    )


def _shown(column: ComparisonColumn | None) -> tuple[str, str]:
    """Which direction is better, and which tables show it."""
    where = {"short": "every table", "compare": "comparisons", "all": "`--all`, the page"}
    return (column.better or "–", where[column.shown]) if column else ("–", "files")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def client() -> str:
    """The Python client."""
    return (
        "# Python client\n\n[Submit from Python](../sdk.md) has examples. Its answers are messages of the [API](api.md).\n\n"
        "::: themis.client.client.Client\n\n::: themis.client.aio.AsyncClient\n\n::: themis.client.calls.Calls\n\n"
        "::: themis.client.command.RunOptions\n\n::: themis.client.calls.JobKeys\n"
    )


def library() -> str:
    """What a policy's author needs."""
    modules = ("themis.policies.api", "themis.model.snapshot", "themis.model.answers")
    parts = [
        "# Policies' and snapshots' API\n",
        "What the author of a policy needs; [Contributing](../contributing.md) says where it goes.\n",
    ]
    return "\n".join([*parts, *(f"::: {module}\n" for module in modules)])


def columns() -> str:
    """Every column of a snapshot, with its axes and its unit."""
    parts = [
        "# Columns of a snapshot\n",
        "What a policy decides on (`themis.model.snapshot.Snapshot`). Axes: "
        + ", ".join(f"{letter} = {meaning}" for letter, meaning in AXES.items())
        + ". A column without axes is one value.\n",
        'Columns with "optional" are there where a policy asks for them, or where the setting makes them.\n',
        "| column | axes | unit | meaning |",
        "|---|---|---|---|",
    ]
    optional = {f.name for f in fields(Snapshot) if f.default is not MISSING}
    for name, column in columns_of(Snapshot).items():
        shown = f"`{name}`" + (" (optional)" if name in optional else "")
        parts.append(f"| {shown} | {' '.join(column.axes) or '-'} | {column.unit.name} | {column.meaning} |")
    parts += ["", "Of the column `ahead`, with R over the expected stretches of training of all jobs:\n"]
    parts += ["| column | axes | unit | meaning |", "|---|---|---|---|"]
    for name, column in columns_of(Ahead).items():
        parts.append(f"| `{name}` | {' '.join(column.axes) or '-'} | {column.unit.name} | {column.meaning} |")
    return "\n".join([*parts, ""])


def api() -> str:
    """Every call of the API, from the table of routes, and the fields of each message."""
    parts = [
        "# API\n",
        "HTTP on the port of the service. Every call but the public ones has the header `Authorization: Bearer TOKEN`, where "
        "TOKEN is the content of the file `token` in the data directory, or a user's own. Errors are statuses with one sentence: "
        '`{"error": "..."}`. `/openapi.json` of a running service describes all of it as OpenAPI 3.1.\n',
        "## Calls\n",
    ]
    for route in ROUTES:
        stream = "a stream of " if route.stream else ""
        reply = route.reply or route.media
        part = f", its `{route.part}` alone" if route.part else ""
        parts += [
            f"### {route.name}\n",
            f"`{route.method} {route.path}`: `{route.request}` -> {stream}`{reply}`{part}\n",
        ]
        parts += [f"{route.text}\n"]
    source = Path(str(resources.files("themis.schema").joinpath("messages.py"))).read_text(encoding="utf-8")
    shown = source[source.index("class Nothing(") : source.index("def what(")].rstrip()
    return "\n".join([*parts, "## Messages\n", "```python", shown, "```\n"])


PAGES = {
    "reference/api.md": api,
    "reference/command-line.md": command_line,
    "reference/policies.md": policies,
    "reference/workloads.md": workloads,
    "reference/metrics.md": metrics,
    "reference/limits.md": limits,
    "reference/client.md": client,
    "reference/library.md": library,
    "reference/columns.md": columns,
}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if value == "" else str(value)
