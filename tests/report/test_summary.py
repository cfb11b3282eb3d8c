"""The report's first paragraph says what the numbers say, and changes with them."""

from __future__ import annotations

import math
from dataclasses import replace

from report_cases import MINI, fold, runs

from themis.report.compare import columns_for, compare
from themis.report.findings import finding
from themis.report.html import render
from themis.report.result import RunMetrics
from themis.report.summary import lateness, summary


def said(given: list[RunMetrics]) -> str:
    return summary(compare(given), columns_for(given))


def with_rho(run: RunMetrics, *rho: float, **changes: object) -> RunMetrics:
    """The run, its completed apps with these values of rho_reference, each an hour long on its own share."""
    values = iter(rho)
    apps = tuple(
        replace(app, rho_reference=next(values), t_reference=3600.0) if app.outcome == "completed" else app
        for app in run.apps
    )
    return replace(run, apps=apps, **changes)  # type: ignore[arg-type]


def test_where_nobody_is_late_it_says_so_and_else_who_is_and_by_how_much() -> None:
    run = fold(MINI)
    assert len(run.completed) == 2
    text = said(
        [
            with_rho(run, 0.8, 1.0, policy="fair", makespan=9000.0),
            with_rho(run, 0.9, 2.5, policy="quick", makespan=9000.0),
        ]
    )
    worst = run.completed[1]
    assert text.startswith(
        "Under fair no app finished later than on its own share of the cluster; under quick 1 of 2 apps of 1 user did, "
        f"{worst.name} of {worst.user} by the largest factor: 2.50 times as long, 1.5 h more."
    )


def test_a_difference_that_would_be_printed_as_none_is_not_late() -> None:
    run = with_rho(fold(MINI), 1.004, 1.0)
    assert lateness(compare([run])[0]).late == 0


def test_the_quickest_and_the_slowest_are_named_with_their_times() -> None:
    run = fold(MINI)
    one = replace(run, policy="one", jct_mean=3600.0, gpu_seconds=7200.0, makespan=9000.0)
    two = replace(run, policy="two", jct_mean=7200.0, gpu_seconds=7200.0, makespan=9000.0)
    text = said([two, one])
    assert "Apps finished soonest under one, after 1.0 h on average; last under two, after 2.0 h." in text
    assert "GPU time" not in text  # equal


def test_of_many_policies_the_ends_are_told_and_the_rest_counted() -> None:
    run = fold(MINI)
    many = [with_rho(run, 0.5, 0.5 + i, policy=f"p{i}") for i in range(5)]
    text = said(many)
    assert "under p0 no app" in text.lower()
    assert "under p4 1 of 2 apps" in text
    assert "under the other 3 policies is between these" in text


def test_simulated_measured_and_both_are_told_apart() -> None:
    run = fold(MINI)
    live = replace(run, policy="live", simulated=False)
    assert said([run]).endswith("All of this is simulated: no GPU ran.")
    assert said([live]).endswith("All of this was measured on a running cluster.")
    assert "Simulated: themis; the rest was measured on a running cluster." in said([run, live])


def test_a_log_without_a_completed_app_claims_nothing() -> None:
    text = said([fold(MINI[:8])])
    assert "No app has completed yet." in text
    assert "later than" not in text


def test_apps_of_unknown_work_completed_all_the_same() -> None:
    run = with_rho(fold(MINI), math.nan, math.nan)
    unknown = replace(
        run,
        rho_reference=replace(run.rho_reference, max=math.nan),
        apps=(*run.apps, replace(run.apps[0], outcome="active")),
    )
    assert "No app has completed yet." not in said([unknown])
    assert "worst-off" not in finding(compare([unknown]), columns_for([unknown]))


def test_chance_is_named_where_it_may_be_the_reason() -> None:
    assert "One seed does not show how much of this is chance." in said([fold(MINI), replace(fold(MINI), policy="x")])
    assert "One seed" not in said(list(runs(("a", "b"), seeds=3)))


def test_the_page_begins_with_the_paragraph() -> None:
    page = render(runs(("a", "b")))
    text = said(list(runs(("a", "b")))).split(",")[0].split(";")[0]
    assert text
    assert page.index(text) < page.index("Policies side by side</h2>")
