"""The promise in words, and the share of a run's apps for which it held."""

from __future__ import annotations

import math

import pytest
from report_cases import MINI, fold

from themis.cli.table_columns import SHARES
from themis.report.promise import PROMISE, holds
from themis.report.table import BRIEF_NOTE


@pytest.mark.parametrize(
    ("took", "own", "kept"),
    [
        (11_000.0, 10_000.0, True),
        (11_001.0, 10_000.0, False),
        (360.0, 60.0, True),
        (361.0, 60.0, False),
        (math.nan, 60.0, False),
    ],
)
def test_an_app_may_take_a_tenth_longer_or_five_minutes_more(took: float, own: float, kept: bool) -> None:
    assert holds(took, own) is kept


def test_a_report_counts_the_apps_for_which_the_promise_held() -> None:
    run = fold(MINI)
    late = [app.jct - max(app.t_reference, app.t_alone) for app in run.completed]
    kept = [x <= max(0.1 * max(app.t_reference, app.t_alone), 300.0) for x, app in zip(late, run.completed)]
    assert run.promise_kept == sum(kept) / len(kept)
    assert PROMISE in BRIEF_NOTE


def test_share_says_of_how_many_apps_the_promise_holds() -> None:
    assert SHARES["promise kept"]({"promise_known": 3, "promise_kept": 2}) == "2 of 3"
    assert SHARES["promise kept"]({}) == ""
