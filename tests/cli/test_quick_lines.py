"""Command lines of quick verbs: read without typer, and just as typer reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command

from themis.cli import overview_verb, verb_help
from themis.cli.parse import arguments, kinds_of
from themis.cli.table import GROUPS, VERBS, name_of, verb_of
from themis.cli.typed import Verbs

LINES = (
    "queue",
    "queue --me -vw -o json",
    "queue --user=bob -obob",
    "queue --format csv",
    "show 3 -o json",
    "show -w -- 3",
    "best sweep -l 2",
    "submit job.sh -- --lr 0.1",
    "submit --user bob job.yaml",
    "run -d -g 2 -e A=1 --env B=2 python train.py -d --gpus 8",
    "run --shell -- a b",
    "run --hours 2.5 --retries 3 --checkpoints here --grace 1 x",
    "cancel 1 2 three -o yaml",
    "drain node0 --deadline 10m",
    "undrain node0 node1",
    "nodes",
    "share -v",
    "share --home there",
    "up --gpus 8 -p drf --set lease=2m --set tick=1s --leave-jobs --port 0",
    "set lease=5m policy=drf -o json",
    "set --reload",
    "user add bob --admin",
    "user list -w",
    "audit --limit 5",
    "usage --since 30d --by user",
    "simulate -w demo -p themis --seeds 0-4 -o out",
    "compare a b --anyway",
    "trace describe x.csv -c 8x4",
    "profiles from-run out --name lab",
    "forecast evaluate x --points 5",
    "check a.yaml b.yaml",
)
LEFT = (
    "queue --mee",
    "queue x",
    "show",
    "show 1 2",
    "run",
    "run -g",
    "best x -l y",
    "best x -l 0",
    "cancel",
    "queue -h",
    "audit --limit 5000",
    "report home",
    "simulate --no-report",
    "up --gpus many",
)
"""Lines that typer must read: it knows what is wrong with them."""


def split(line: str) -> tuple[Callable[..., None], list[str]]:
    """The verb's function and the rest of a line."""
    words = line.split()
    name = name_of(words)
    return verb_of(name), words[len(name.split()) :]


@pytest.mark.parametrize("line", LINES)
def test_a_line_means_the_same_to_typer(line: str) -> None:
    function, words = split(line)
    found = arguments(function, words)
    assert found is not None
    seen: list[dict[str, Any]] = []
    group = Verbs()
    group.command()(_recording(function, seen))
    group(args=words, standalone_mode=False)
    (said,) = seen
    assert {name: value for name, value in said.items() if name in found} == found
    assert {name for name in said if name not in found}.isdisjoint(found)


def _recording(function: Callable[..., None], seen: list[dict[str, Any]]) -> Callable[..., None]:
    """The same parameters, but only written down."""
    from functools import wraps

    @wraps(function)
    def call(**values: Any) -> None:
        seen.append(values)

    return call


@pytest.mark.parametrize("line", LEFT)
def test_a_line_that_is_not_plainly_right_is_left_to_typer(line: str) -> None:
    assert arguments(*split(line)) is None


@pytest.mark.parametrize("verb", [*VERBS, *GROUPS])
def test_every_verb_has_help_with_all_its_options(verb: str) -> None:
    assert any(f" {verb.split()[0]} " in line for line in overview_verb.lines())
    text = "\n".join(verb_help.lines(verb))
    assert f"themis {verb} " in text
    names = [name for key, kind in kinds_of(verb_of(verb)).items() for name in kind.names(key)] if verb in VERBS else []
    assert not [name for name in names if name not in text]


@pytest.mark.parametrize("verb", ["queue", "nodes", "share"])
def test_a_verb_alone_is_a_whole_line(themis: Command, verb: str) -> None:
    ended = themis(verb)
    assert (ended.code, "no service was started" in ended.err) == (2, True)


def test_the_overview_has_all_verbs_and_fits(themis: Command) -> None:
    done = themis("--help")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    for verb in ("up", "queue", "user", "simulate", "profiles"):
        assert f"│ {verb} " in done.out
    assert themis().out == done.out
    assert "[cyan]" not in done.out


@pytest.mark.parametrize("line", ["que", "queue --usr x", "sbumit x"])
def test_wrong_verbs_and_options_come_with_a_suggestion(themis: Command, line: str) -> None:
    done = themis(*line.split())
    assert done.code == 2
    assert "Did you mean" in done.err or "Possible options" in done.err


def test_up_needs_no_option_of_a_setting(themis: Command, tmp_path: Path) -> None:
    done = themis("up", "--gpus", "1", "--address", "127.0.0.1:0", "--data-dir", tmp_path)
    assert (done.code, "--address is '127.0.0.1:0', but the engine is local" in done.err) == (2, True)
