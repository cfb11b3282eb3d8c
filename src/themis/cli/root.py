"""The ``themis`` command: one function per verb, each a thin layer over the library.

Exit codes: 2 for wrong input, 1 for a run that failed or a replay that differs, 70 for a bug in Themis, 130 after Ctrl-C.
``THEMIS_DEBUG=1`` shows tracebacks. Heavy imports are inside the functions, so that ``themis --help`` is fast.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Never, TextIO

import typer

from themis.cli import demo, forecast, lists, profiles, report, service, simulate, trace
from themis.console import debugging, err, out, print_json, print_whole, say_notes, say_red
from themis.errors import InputError, InvariantBroken, Renamed, ThemisError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

app = typer.Typer(
    name="themis",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
SIMULATION = "Simulations and logs"
"""A heading of ``themis --help``."""
app.command(help=demo.DEMO, rich_help_panel=service.SERVICE)(demo.demo)
service.register(app)
app.command(help=simulate.SIMULATE, rich_help_panel=SIMULATION)(simulate.simulate)
app.command(help=report.COMPARE, rich_help_panel=SIMULATION)(report.compare)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; prints every expected error as one sentence on stderr."""
    try:
        with _notes():
            app(args=None if argv is None else list(argv), prog_name="themis")
    except InvariantBroken as error:
        _fail(error, f"This is a bug in Themis, please report it: {error}", 70)
    except (ThemisError, OSError) as error:
        _fail(error, _sentence(error), 2)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer prints nothing
            err.print("[red]Interrupted.[/red]")
        raise
    except KeyboardInterrupt:
        err.print("[red]Interrupted.[/red]")
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:  # users see a traceback only with THEMIS_DEBUG=1
        _fail(error, f"This is a bug in Themis, please report it: {type(error).__name__}: {error}", 70)


@contextmanager
def _notes() -> Iterator[None]:
    """Print warnings about renamed keys as notes."""

    with warnings.catch_warnings():
        warnings.simplefilter("default", Renamed)
        show_other = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, Renamed):
                say_notes([str(message)])
            else:
                show_other(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def _fail(error: Exception, sentence: str, code: int) -> Never:
    if debugging():
        raise error
    say_red(sentence)
    raise SystemExit(code) from None


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return str(error)


@app.callback(invoke_without_command=True)
def themis(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Share GPUs fairly between the users of a cluster.

    Try it: [bold]themis demo[/bold]

    Run it with eight virtual GPUs: [bold]themis up --gpus 8[/bold], then in another terminal
    [bold]themis run --gpus 2 -- python train.py[/bold]

    Compare policies on a workload: [bold]themis simulate --workload demo --policy themis,drf --out out/demo[/bold]
    """
    if version:
        from themis.version import sentence

        print(sentence())
        raise typer.Exit


# ---- logs ----------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel=SIMULATION)
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
    from themis.client.home import default_home
    from themis.profiles.library import load_book
    from themis.sim.replay import replay as replay_log

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


@app.command(rich_help_panel=SIMULATION)
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


for listing in (lists.policies, lists.workloads, lists.clusters):
    app.command(rich_help_panel=SIMULATION)(listing)
for name, group in (("trace", trace.app), ("forecast", forecast.app), ("profiles", profiles.app)):
    app.add_typer(group, name=name, rich_help_panel=SIMULATION)
