"""Shared by all tests: real traces and a Ray cluster if there are any, the order of tests, what failed."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import costs
from raycluster import NO_RAY, RayCluster, ray_cluster
from tiers import tier_of, unsteady

# A busy machine is no fault of a test: how long drawing an example takes says nothing here.
settings.register_profile("themis", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("themis")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces, or skip."""
    here = Path(os.environ.get("THEMIS_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not here.is_dir():
        pytest.skip(f"no real traces at {here}; set THEMIS_DATA to their folder")
    return here


@pytest.fixture(scope="session")
def ray_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two machines of two logical GPUs, one Ray cluster for all tests of a session; or skip."""
    pytest.importorskip("ray", reason=NO_RAY)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Two workers with a cluster each disturb each other in ways that are hard to find.
        taken = tmp_path_factory.getbasetemp().parent / "ray"
        assert not taken.exists(), (
            "another worker has a Ray cluster too: does --dist loadgroup keep its group together?"
        )
        taken.touch()
    with ray_cluster(2, 2) as cluster:
        yield cluster


@pytest.fixture
def ray_nodes(ray_session: RayCluster) -> RayCluster:
    """The same, as it was in the beginning, also where the test before failed."""
    ray_session.settle()
    return ray_session


@pytest.fixture(autouse=True)
def _journals_fold(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every journal that a test leaves in its folder is folded whole and compared; ``unfoldable`` : it damages one on purpose."""
    if "tmp_path" not in request.fixturenames or request.node.get_closest_marker("unfoldable"):
        yield
        return
    # Asked for here, so that whatever runs in the folder has ended when this goes on.
    folder: Path = request.getfixturevalue("tmp_path")
    yield
    from audit import audit_below

    audit_below(folder)


FIRST = ("ray", "netns", "long", "slow")
"""Groups, a tier and a marker whose files come first, so that no worker is left alone with a long test at the end."""


def _rank(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    names = {*(group.args if group else ()), tier_of(item), *(mark.name for mark in item.iter_markers())}
    return next((n for n, name in enumerate(FIRST) if name in names), len(FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and sort the files by the first of `FIRST` that one of their tests has.

    Tests that share a fixture of their module form a group of pytest-xdist, which makes the fixture once instead of once a worker.
    """
    ranks: dict[Path, int] = {}
    for item in items:
        ranks[item.path] = min(ranks.get(item.path, len(FIRST)), _rank(item))
    items.sort(key=lambda item: ranks[item.path])
    for item in items:
        item.add_marker(tier_of(item))
        definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
        if not item.get_closest_marker("xdist_group") and any(d.scope == "module" for ds in definitions for d in ds):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """What a failed test, or a foreign library in one, left open is closed without a word: it must not fail a later test."""
    try:
        return (yield)
    finally:
        group = item.get_closest_marker("xdist_group")
        if hasattr(sys, "last_value") or (group is not None and group.args[0] == "ray"):
            for name in ("last_type", "last_value", "last_traceback", "last_exc"):
                vars(sys).pop(name, None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gc.collect()


AGAIN = Path(__file__).parents[1] / ".pytest_cache" / "unsteady"
"""Names of the failed tests, one a line, if all of them are in ``tests/unsteady.txt``; `make test` runs them a second time."""


class Telling:
    """What failed is told when it fails: of a run that is cut off nobody sees the summary."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self.reporter = reporter
        self.crashed = False
        self.failed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.crashed |= str(report.when) == "???"  # how pytest-xdist marks the test of a worker that died
        if report.failed:
            # pytest-xdist appends the group of a test to its name.
            self.failed[re.sub(r"@\w+$", "", report.nodeid)] = None
            self.reporter.ensure_newline()
            self.reporter.write_line(f"FAILED {report.nodeid} ({report.when})\n{report.longreprtext}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep the failed tests' names for a second run, except where a worker died or tests were not collected."""
        if not session.config.getoption("collectonly"):
            AGAIN.parent.mkdir(exist_ok=True)
            names = self.failed if {name.partition("[")[0] for name in self.failed} <= unsteady() else ()
            AGAIN.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        if self.crashed or (session.exitstatus == pytest.ExitCode.TESTS_FAILED and not self.failed):
            session.exitstatus = pytest.ExitCode.INTERRUPTED


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Report failures where the run is shown, which is not in xdist's workers; measure costs if asked for."""
    try:
        unsteady()
    except ValueError as wrong:
        raise pytest.UsageError(str(wrong)) from wrong
    costs.measure(config)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # As in a shell's background job; the programs that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Telling(reporter))
