"""``themis policies``, ``workloads``, ``clusters``: the registered names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from themis.cli.output import escape, out
from themis.cli.table_columns import Output, check_output, dump

AsJson = Annotated[bool, typer.Option("--json", help="Same as -o json.")]


def policies(output: Output = "table", as_json: AsJson = False) -> None:
    """List the policies with their parameters and proven properties.

    Example: [cyan]themis policies -o json[/cyan]
    """
    from themis.policies.api import params, policy_class, policy_names

    rows = []
    for name in policy_names():
        kind = policy_class(name)
        made = kind()
        pace = made.pace.round_s
        rows.append(
            {
                "name": name,
                "about": about(kind),
                "level": str(kind.level),
                "pace": f"rounds of {pace:g} s" if pace else "when GPUs are free",
                "parameters": params(made),
                "claims": sorted(kind.claims),
            }
        )
    _list(rows, "json" if as_json else output)


def workloads(output: Output = "table", as_json: AsJson = False) -> None:
    """List workload generators and trace formats with their options.

    Example: [cyan]themis workloads[/cyan], then [cyan]themis simulate -w themis1:apps=100,load=1.4[/cyan]
    """
    from dataclasses import fields

    from themis.traces.formats import registered

    _list(
        [
            {
                "name": name,
                "about": about(kind),
                "kind": "generator" if hasattr(kind, "generate") else "format",
                "options": {f.name: f.default for f in fields(kind)},
            }
            for name, kind in registered().items()
        ],
        "json" if as_json else output,
    )


def clusters(output: Output = "table", as_json: AsJson = False) -> None:
    """List the named clusters.

    Others can be given as machines x GPUs ([cyan]8x4[/cyan], [cyan]2x8/2@V100+4x1@K80[/cyan]) or as a YAML file.

    Example: [cyan]themis clusters -o yaml[/cyan], then [cyan]themis simulate -c sim-64[/cyan]
    """
    from collections import Counter

    from themis.errors import ThemisError
    from themis.traces.profiles.openb_cluster import openb
    from themis.traces.profiles.presets import PRESETS

    rows: list[dict[str, Any]] = []
    for name, build in {**PRESETS, "openb": openb}.items():
        try:
            cluster = build()
        except ThemisError as error:
            rows.append({"name": name, "about": f"Alibaba, 2023: 1,213 machines and 6,212 GPUs of 7 types. {error}"})
            continue
        sizes = Counter(m.gpus for m in cluster.machines)
        rows.append(
            {
                "name": name,
                "about": " + ".join(f"{n} x {gpus}" for gpus, n in sorted(sizes.items(), reverse=True)),
                "gpus": cluster.gpus,
                "machines": len(cluster.machines),
                "racks": len(cluster.racks),
                "gpu_types": list(cluster.gpu_types),
            }
        )
    _list(rows, "json" if as_json else output)


def about(kind: type) -> str:
    """The first sentence of a class's docstring, or of its module's if the module has one public class."""
    import inspect
    import sys

    module = sys.modules[kind.__module__]
    public = [
        v for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__ and n[0] != "_"
    ]
    text = (inspect.getdoc(module) if len(public) == 1 else inspect.getdoc(kind)) or ""
    sentence, *_ = text.split("\n\n")[0].replace("\n", " ").split(". ")
    return sentence.rstrip(".").replace("``", "")


def _list(rows: Sequence[dict[str, Any]], output: str) -> None:
    """Print rows as JSON or YAML, or a paragraph for each: name, description, details."""
    check_output(output)
    if output != "table":
        dump(json.loads(json.dumps(rows)), output)  # enum members become plain text
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row in rows:
        name, about, *rest = row.items()
        details = "; ".join(f"{key}: {_cell(value)}" for key, value in rest)
        table.add_row(f"[bold cyan]{escape(name[1])}[/]", f"{escape(_cell(about[1]))}\n[dim]{escape(details)}[/dim]")
    out.print(table, highlight=False)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={_cell(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower()  # as in YAML
    return f"{value:g}" if isinstance(value, float) else str(value) or "''"
