"""The report is one file that stands alone, says what it shows, and is the same for equal runs."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_cases import MINI, app, fold, runs

from themis.errors import InputError
from themis.model import events as e
from themis.report import course, gantt
from themis.report.definitions import DEFINITIONS
from themis.report.html import render, write_report
from themis.report.look.palette import APP_COLOURS
from themis.report.result import RunMetrics
from themis.report.series import Gantt, Series
from themis.report.style import PAGE, inline_svg

VOID = {"meta", "input", "br"}


class Nesting(HTMLParser):
    """Every element that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page() -> str:
    return render(runs(("themis", "drf", "fifo"), seeds=2))


def test_it_refers_to_nothing_outside(page: str) -> None:
    assert not re.search(r"https?:|//\w+\.|@import|url\((?!#)", page)
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    for tag, attributes in nesting.tags:
        assert tag not in ("link", "iframe", "object")
        assert "src" not in attributes
        assert (attributes.get("href") or attributes.get("xlink:href") or "#")[0] == "#", tag


def test_it_says_what_it_shows(page: str) -> None:
    for word in (
        "simulated",
        "themis",
        "drf",
        "fifo",
        "mini",
        "4+2",
        "seeds 0, 1",
        "checkpoint_every_s=30",
        "f=0.8",
        "1.2",
    ):
        assert word in page
    for text in DEFINITIONS.values():
        assert text.replace("'", "&#39;").replace(">", "&gt;") in page


def test_equal_runs_give_equal_pages(page: str) -> None:
    assert render(runs(("themis", "drf", "fifo"), seeds=2)) == page


def test_ids_of_figures_do_not_clash(page: str) -> None:
    clips = re.findall(r'<clipPath id="([^"]+)"', page)
    assert clips
    assert len(clips) == len(set(clips))


def test_names_cannot_break_the_page() -> None:
    evil = '<script>alert("x")</script>&amp;'
    log = [(t, app(evil, t, 1, evil) if isinstance(r, e.AppSubmitted) and r.app.name == "A" else r) for t, r in MINI]
    text = render([replace(fold(log), policy=evil, workload=evil)])
    assert evil not in text
    assert text.count("<script>") == 1
    Nesting().feed(text)


def test_unfinished_and_empty_runs_can_be_shown() -> None:
    for length in (3, 5, 9):
        assert "</html>" in render([fold(MINI[:length])])


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one run"):
        write_report(tmp_path / "x.html", [])
    path = write_report(tmp_path / "new" / "x.html", runs())
    assert path.read_text(encoding="utf-8").endswith("</html>")
    with pytest.raises(InputError, match="cannot write"):
        write_report(tmp_path, runs())


def many(leases: int, gpus: int) -> RunMetrics:
    """A run of so many leases, one after the other on each GPU."""
    i = np.arange(leases)
    start = 10.0 + (i // gpus) * 300.0 / (leases // gpus)
    gantt = Gantt(gpu=i % gpus, app=i % 2, job=i, start=start, end=start + 300.0 / (leases // gpus))
    return replace(fold(MINI), gantt=gantt, gpus=gpus)


def test_a_gantt_of_many_leases_is_a_small_image() -> None:
    svg = inline_svg(gantt.gantt("x", many(100_000, 2000), PAGE))
    assert "data:image/png;base64" in svg
    assert len(svg) < 1_000_000


@pytest.mark.slow
def test_the_page_stays_below_5_megabytes_however_much_was_run() -> None:
    """9 policies on 14,521 apps of 1,500 users and 2,000 GPUs, all of it noise, which packs worst."""
    rng, base = np.random.default_rng(0), fold(MINI)
    n, leases, day = 14_521, 100_000, 86_400.0
    rho, start = rng.lognormal(-0.5, 0.8, n), rng.uniform(0, 75 * day, leases)
    apps = tuple(
        replace(
            base.apps[0],
            app=i,
            name=f"application_15066384720{i}",
            user=f"user{i % 1500}",
            rho_paper=r,
            rho_exact=2 * r,
        )
        for i, r in enumerate(rho.tolist())
    )
    noise = Series(start=0.0, width=75 * day / 2000, end=75 * day, value=rng.uniform(0, 2000, 2000))
    gantt = Gantt(
        gpu=rng.integers(2000, size=leases),
        app=rng.integers(n, size=leases),
        job=np.arange(leases),
        start=start,
        end=start + rng.exponential(day / 4, leases),
    )
    run = replace(
        base,
        apps=apps,
        gantt=gantt,
        gpus=2000,
        gpus_in_use=noise,
        gpus_in_service=noise,
        gpus_starting=noise,
        gpus_wanted=noise,
        active_apps=noise,
    )
    page = render([replace(run, policy=f"policy{i}:f=0.{i}") for i in range(9)])
    assert len(page.encode()) < 5_000_000
    assert "14,299 more are left out" in page  # of the apps, 222 a policy are shown
    assert "1,389 more are left out" in page  # of the users, 111


def test_the_image_of_a_gantt_has_the_colour_of_who_held_the_gpu() -> None:
    image, span = gantt._raster(many(12, 6), 10.0)
    assert span == 300.0
    assert image.shape == (6, gantt.PIXELS[0], 4)
    colours = [tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in gantt.APP_COLOURS[:2]]
    for gpu in range(6):
        assert {tuple(p) for p in image[gpu, :, :3].tolist()} == {colours[gpu % 2]}


def test_neighbouring_gpus_of_a_lease_are_one_rectangle() -> None:
    app, gpu, count, start, end = gantt._blocks(fold(MINI).gantt)
    at = np.flatnonzero(app == 0)
    assert (gpu[at].tolist(), count[at].tolist()) == ([0], [4])
    assert (end - start)[at].tolist() == [200.0]


def test_hovering_a_lease_names_its_app() -> None:
    run = fold(MINI)
    svg = gantt.inline_gantt(gantt.gantt("x", run, PAGE), run)
    assert "<title>B of bob: 2 jobs, 6.7 GPU minutes, 95 s later than on its own share</title>" in svg


def test_the_timeline_of_gpus_names_of_each_colour_the_app_with_the_most_gpu_time() -> None:
    run = fold(MINI)
    drawn = gantt.gantt("x", run, PAGE)
    assert [(name, colour) for name, colour, _ in drawn.key] == [("A", APP_COLOURS[0]), ("B", APP_COLOURS[1])]
    assert re.search(r'id="gantts-1".*?class="key">\s*<span>.*?var\(--a0\).*?</svg>A</span>', render([run]), re.DOTALL)
    apps = tuple(replace(run.apps[0], app=i, name=f"app{i}", gpu_seconds=100.0 + i) for i in range(40))
    names = [name for name, _, _ in gantt.gantt("x", replace(run, apps=apps), PAGE).key]
    assert names == [*(f"app{i}" for i in range(39, 31, -1)), "32 more apps"]


def test_the_page_of_one_run_begins_with_its_apps_by_name_and_has_no_bars_of_one_bar() -> None:
    page = render(runs(("themis",), seeds=1))
    text = re.sub(r"(?s)<style>.*?</style>|<script>.*?</script>", "", page)
    order = re.findall(r'<section[^>]* id="(\w+)"|<section id="(\w+)"', text)
    assert [a or b for a, b in order][:3] == ["course", "policies", "apps"]
    assert 'id="lost"' not in text
    assert "Policies side by side" not in text
    assert re.search(r'(?s)id="course".*?class="key">.*?bob.*?<svg.*?>A<.*?>B<.*?<svg class="phone"', text)
    assert "95 s later" in text, "fairness in words"
    assert "ρ" not in re.sub(r'(?s)title="[^"]*"|<div class="extra".*?</div>|<section id="glossary".*', "", text)


def test_the_page_of_several_policies_compares_them() -> None:
    page = render(runs(("themis", "drf"), seeds=1))
    assert 'id="course"' not in page
    assert "Policies side by side" in page
    assert 'id="lost"' in page


def test_a_row_of_an_app_is_as_thick_as_the_gpus_that_it_held() -> None:
    first, last, half = course._thick(np.array([0.0, 1.0, 1.0, 0.5, 0.0]))
    assert (first, last) == ([1, 3], [3, 4])
    assert half.tolist() == pytest.approx([0.42, 0.25])
