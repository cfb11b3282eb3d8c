"""``themis replay`` and ``themis explain``: what logs say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from themis.cli import report
from themis.cli.output import out, print_json, print_whole, say_red
from themis.errors import InputError


def replay(
    log: Annotated[
        Path,
        typer.Argument(
            help="A log of [cyan]themis simulate --out[/cyan], a service's data directory, or a state of [cyan]themis dump[/cyan]."
        ),
    ],
    policy: Annotated[str, typer.Option("--policy", "-p", help="For a state: the policy that decides.")] = "",
    profiles: Annotated[str, typer.Option("--profiles", help="The value that the run used, if any.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Repeat a run from its log and check that the scheduler makes the same decisions.

    Exit code 1 and the first difference if they are not equal. For a state of [cyan]themis dump[/cyan], the policy decides
    once, and the decision is shown.

    Example: [cyan]themis replay out/demo/themis-seed0.jsonl.gz[/cyan]
    """
    from themis.sim import dump

    if not log.is_dir() and dump.is_dump(log):
        report.decide_on_state(log, policy, as_json)
        return
    if policy:
        raise InputError(
            f"--policy is only for a state of `themis dump`; {log} is a log, which is replayed with its own policy."
        )
    from themis.data_dir import default_home
    from themis.sim.replay import replay as replay_log
    from themis.traces.profiles.library import load_book

    book = load_book(profiles, default_home() / "profiles") if profiles else None
    done = report.replay_home(log, book) if log.is_dir() else replay_log(log, book)
    header, state = done.header, done.core.state
    if as_json:
        print_json(
            {
                "log": str(log),
                "policy": header.policy,
                "seed": header.seed,
                "workload": header.workload,
                "cluster": header.cluster,
                "records": done.records,
                "events": done.events,
                "commands": done.commands,
                "apps": state.apps.size,
                "jobs": state.jobs.size,
                "seconds": state.now,
                "equal": done.difference is None,
                "difference": str(done.difference) if done.difference else None,
            }
        )
    elif done.difference is None:
        active = int(state.apps.active[: state.apps.size].sum())
        cut = f" Apps still active at the end: {active}." if active else ""
        out.print(
            f"{header.policy}, seed {header.seed}, {header.workload} on {header.cluster}: {state.apps.size} apps of "
            f"{state.jobs.size} jobs in {state.now / 3600:.1f} h. {done.events} events gave the same {done.commands} "
            f"commands.{cut}",
            markup=False,
            soft_wrap=True,
        )
    if done.difference is not None:
        say_red(f"{log} does not replay: {done.difference}.")
        raise typer.Exit(1)


def explain(
    name: Annotated[str, typer.Argument(metavar="APP", help="Name of the app in the workload.")],
    log: Annotated[
        Path,
        typer.Option("--log", "-l", help="A log of [cyan]themis simulate --out[/cyan], or a service's data directory."),
    ],
    every: Annotated[bool, typer.Option("--all", "-a", help="Show every round, also equal ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every round as JSON.")] = False,
) -> None:
    """Show from a log why an app got its GPUs: its auctions, bids, payments and leases.

    Example: [cyan]themis explain langmodel-sweep --log out/demo/themis-seed0.jsonl.gz[/cyan]
    """
    from themis.report.explain import explain as explain_app
    from themis.report.explain_tables import table

    story = report.explain_home(log, name) if log.is_dir() else explain_app(log, name)
    if as_json:
        print(story.to_json())
    else:
        print_whole(table(story, every=every))
