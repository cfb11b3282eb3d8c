"""The pages of the reference that are generated from the code, so that they cannot be older than it."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from importlib import resources

import typer
import typer.main
from typer.cli import get_docs_for_click

from docstrings import as_markdown
from themis.cli.lists import about
from themis.cli.root import app
from themis.policies.api import params, policy_class, policy_names
from themis.traces.api import registered


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


def client() -> str:
    """The Python client."""
    return "# Python client\n\nIts answers are messages of the [API](api.md).\n\n::: themis.client.client.Client\n"


def library() -> str:
    """What a policy's author needs."""
    modules = ("themis.policies.api", "themis.model.snapshot", "themis.model.answers")
    parts = [
        "# Policies' and snapshots' API\n",
        "What the author of a policy needs; [Contributing](../contributing.md) says where it goes.\n",
    ]
    return "\n".join([*parts, *(f"::: {module}\n" for module in modules)])


def api() -> str:
    """Every method of the gRPC API with its messages, from ``themis.proto``."""
    text = resources.files("themis.client").joinpath("themis.proto").read_text(encoding="utf-8")
    head = "\n".join(line.removeprefix("//").strip() for line in text.partition("\nsyntax")[0].splitlines())
    parts = [
        "# gRPC and HTTP API\n",
        head,
        "\nOver HTTP, `/openapi.json` of a running service describes the read-only pages.\n",
        "## Methods\n",
    ]
    for comment, name, request, stream, reply in re.findall(
        r"((?:  //.*\n)+)  rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\);", text
    ):
        about_it = " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
        parts += [f"### {name}\n", f"`{name}({request}) returns {stream}{reply}`\n", f"{about_it}\n"]
    return "\n".join([*parts, "## Messages\n", "```proto", text[text.index("\nmessage ") + 1 :].rstrip(), "```\n"])


PAGES = {
    "reference/api.md": api,
    "reference/command-line.md": command_line,
    "reference/policies.md": policies,
    "reference/workloads.md": workloads,
    "reference/client.md": client,
    "reference/library.md": library,
}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if value == "" else str(value)
