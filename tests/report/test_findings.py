"""A table of policies begins with one plain sentence on what was found, and does not claim more than the seeds show."""

from __future__ import annotations

from dataclasses import replace

from report_cases import MINI, fold, runs

from themis.report.compare import columns_for, compare
from themis.report.findings import UNLIKE, finding
from themis.report.result import RunMetrics
from themis.report.summary import summary


def found(given: list[RunMetrics]) -> str:
    return finding(compare(given), columns_for(given))


def worst(run: RunMetrics, rho: float, **changes: object) -> RunMetrics:
    """The run with this rho of its worst-off app."""
    return replace(run, rho_reference=replace(run.rho_reference, max=rho), **changes)  # type: ignore[arg-type]


def test_each_policy_is_named_with_what_it_is_best_at() -> None:
    run = fold(MINI)
    fair = worst(run, 1.25, policy="fair", jct_mean=7200.0, makespan=9000.0, gpu_seconds=7200.0)
    quick = worst(run, 3.0, policy="quick", jct_mean=3600.0, makespan=9000.0, gpu_seconds=3600.0)
    assert found([fair, quick]) == (
        "Of 2 policies, fair is fairest to the worst-off app (1.25 times as long as on its own share of the cluster); "
        "and quick finishes apps soonest (1.0 h on average) and uses the least GPU time (1 GPU h). "
        "One seed does not show how much of this is chance."
    )


def test_two_policies_that_are_best_together_are_fairest() -> None:
    run = fold(MINI)
    pair = [worst(run, 1.25, policy=name, gpu_seconds=7200.0 + i) for i, name in enumerate(("fair", "too"))]
    slow = worst(run, 2.5, policy="slow", gpu_seconds=9000.0)
    assert found([*pair, slow]).startswith("Of 3 policies, fair and too are fairest to the worst-off app (1.25 times")


def test_intervals_that_overlap_are_said_and_those_that_do_not_are_not() -> None:
    close = [worst(run, 1.0 + 0.4 * i) for i, run in enumerate(runs(("a", "b"), seeds=4))]
    assert found(close).endswith("The 95 % intervals overlap: more seeds may change this.")
    apart = [
        worst(run, (1.0 if run.policy == "a" else 5.0) + 0.001 * run.seed, jct_mean=100.0, gpu_seconds=100.0)
        for run in runs(("a", "b"), seeds=4)
    ]
    assert "overlap" not in found(apart)
    assert "a is fairest" in found(apart)


def test_policies_that_read_alike_are_not_ranked() -> None:
    run = fold(MINI)
    assert "do not differ" in found([replace(run, policy="a"), replace(run, policy="b")])


def test_runs_that_were_given_different_apps_have_no_best() -> None:
    run = worst(fold(MINI), 1.25, policy="fair", simulated=False)
    other = worst(run, 3.0, policy="quick", apps=tuple(replace(app, name=f"of-{app.name}") for app in run.apps))
    assert found([run, worst(other, 3.0, apps=run.apps)]).startswith("Of 2 policies, fair is fairest")
    for unlike in (other, worst(other, 3.0, apps=run.apps, workload="maxi")):
        assert found([run, unlike]) == UNLIKE
        rows = compare([run, unlike])
        assert not any(mark for row in rows for mark in row.best)
        text = summary(rows, columns_for([run, unlike]))
        assert UNLIKE in text
        assert "soonest" not in text


def test_one_policy_is_described_alone_and_runs_without_a_completed_app_claim_nothing() -> None:
    assert found([fold(MINI)]).startswith("Under themis apps took 3.3 min on average, the worst-off one ")
    assert found([fold(MINI[:8])]) == "No app has completed yet."
