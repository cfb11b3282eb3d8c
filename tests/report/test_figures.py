"""Figures as files: complete, labelled, the same each time, and refused where they cannot be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from report_cases import MINI, fold, runs

from themis.errors import InputError
from themis.report import figures, timeline
from themis.report.compare import compare
from themis.report.figures import draw, gpu_time, write_figures
from themis.report.series import Series
from themis.report.sketch import Axis
from themis.report.style import FILE, PAGE, Drawing, Reading, colour, dash, inline_svg, mark, panel, save

NAMES = {
    "rho-reference",
    "rho-paper",
    "rho-exact",
    "jct",
    "contention",
    "gpu-use",
    "placement",
    "localities",
    "gpu-time",
    "lost-gpu-time",
    "restarts",
    "users",
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_every_figure_becomes_a_file_the_same_each_time(kind: str, magic: bytes, tmp_path: Path) -> None:
    rows = compare(runs(("themis:f=0.8,rho=exact", "drf"), seeds=2))
    first, again = (write_figures(tmp_path / name, rows, kind) for name in ("one", "two"))
    gantts = {"gantt-themis-f=0.8-rho=exact", "gantt-drf"}
    assert {path.stem for path in first} == NAMES | gantts
    for a, b in zip(first, again):
        assert a.read_bytes().startswith(magic)
        assert a.read_bytes() == b.read_bytes(), a.name


def test_a_file_says_what_it_shows_and_that_it_is_simulated(tmp_path: Path) -> None:
    paths = write_figures(tmp_path, compare(runs(("themis", "drf"))))
    for path in paths:
        text = "".join(ET.parse(path).getroot().itertext())
        assert "Simulated: workload mini" in text, path.name
    said = {path.stem: "".join(ET.parse(path).getroot().itertext()) for path in paths}
    assert "ρ, exact T_id" in said["rho-exact"]
    assert "JCT (minutes)" in said["jct"]
    assert "drf" in said["rho-exact"]
    assert "minutes since the first arrival" in said["contention"]
    assert "cross-rack" in said["localities"]
    assert not any("#010203" in path.read_text(encoding="utf-8") for path in paths)  # a page's stand-in colour


def test_figures_of_a_page_and_of_files_are_the_same_ones() -> None:
    rows = compare(runs())
    assert [d.name for d in draw(rows, PAGE)] == [d.name for d in draw(rows, FILE)]
    assert all("var(--ink)" in inline_svg(d) for d in draw(rows, PAGE))


def test_a_wrong_format_or_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="figure format is 'pdf', expected one of svg, png"):
        write_figures(tmp_path, compare(runs()), "pdf")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write figures into"):
        write_figures(tmp_path / "file", compare(runs()))


def test_bars_take_the_room_that_they_need() -> None:
    rows = compare(runs(("themis",), seeds=1))
    drawn = [gpu_time(rows * n, PAGE)[0].figure for n in (2, 4, 12)]
    heights = [figure.height for figure in drawn]
    assert heights == sorted(set(heights))
    assert [abs(np.subtract(*figure.axes[0].get_ylim())) for figure in drawn] == pytest.approx([2.2, 4.2, 12.2])


def test_policies_beyond_the_colours_differ_in_dashes() -> None:
    looks = {(colour(i), str(dash(i))) for i in range(15)}
    assert len(looks) == 15


def test_a_long_tail_is_drawn_on_a_log_scale_that_is_named() -> None:
    run = fold(MINI)
    values = [0.1] * 50 + [90.0]
    apps = tuple(replace(run.apps[0], app=i, rho_paper=v, jct=v) for i, v in enumerate(values))
    drawn = {d.name: d.figure.axes[0] for d in figures.distributions(compare([replace(run, apps=apps)]), FILE)}
    assert drawn["rho-paper"].get_xlabel() == "ρ, paper's T_id, log scale"
    assert drawn["rho-exact"].get_xlabel() == "ρ, exact T_id"


def test_the_lines_of_contention_are_demand_over_capacity() -> None:
    run = fold(MINI)
    axis = timeline.contention([("themis", run)], FILE).figure.axes[0]
    [stairs] = [patch for patch in axis.patches if hasattr(patch, "get_data")]
    values, edges, _ = stairs.get_data()
    minutes = (edges[:-1] + edges[1:]) / 2
    # 1 of 6 GPUs before B comes at 100 s, 3 of 6 then, 3 of 4 from 190 s to A's end at 200 s.
    assert values[minutes < 99 / 60].tolist() == pytest.approx([1 / 6] * (minutes < 99 / 60).sum())
    assert values[(minutes > 101 / 60) & (minutes < 189 / 60)] == pytest.approx(0.5)
    assert values[(minutes > 191 / 60) & (minutes < 199 / 60)] == pytest.approx(0.75)


def test_rebinning_keeps_areas() -> None:
    rng = np.random.default_rng(0)
    series = Series(start=5.0, width=2.0, end=1004.0, value=rng.uniform(0, 9, 500))
    edges, value = timeline.rebin(series, 60)
    assert len(value) == 60
    assert (value * np.diff(edges)).sum() == pytest.approx(series.area)


def test_users_beyond_the_most_are_left_to_the_table() -> None:
    run = fold(MINI)
    apps = tuple(replace(run.apps[0], app=i, user=f"user{i}", gpu_seconds=float(i)) for i in range(30))
    axis = figures.users([("themis", replace(run, apps=apps))], FILE).figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [f"user{i}" for i in range(29, 21, -1)]


def test_names_in_any_script_are_drawn_without_a_warning(tmp_path: Path) -> None:
    for kind in ("svg", "png"):
        figure = Figure()
        figure.text(0.1, 0.1, "\u96c6\u7fa4")
        save(Drawing(name="x", title="\u96c6", figure=figure), tmp_path / f"x.{kind}", "")
    assert "\u96c6\u7fa4" in (tmp_path / "x.svg").read_text(encoding="utf-8")
    drawing, axis = panel("\u96c6", "", PAGE)
    axis.set_xlabel("\u96c6\u7fa4")
    assert "\u96c6\u7fa4" in inline_svg(drawing)


def test_a_page_is_drawn_without_matplotlib() -> None:
    code = "import sys; from themis.report import html, figures; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_marks_of_a_page_lie_where_their_values_are() -> None:
    drawing, axis = panel("x", "", PAGE)
    mark(
        axis.step([0.0, 1.0, 3.0], [0.0, 0.5, 1.0], where="post", color="#123456", ls="-", lw=1, zorder=1)[0],
        "p0",
        PAGE,
    )
    axis.set_xlim(0, 4)
    axis.set_ylim(0, 1)
    drawing = replace(drawing, reads=(Reading(name="x"),))
    root = ET.fromstring(inline_svg(drawing))
    left, top, width, height = json.loads(root.attrib["data-axes"])[0]["box"]
    [path] = next(g for g in root.iter("g") if g.get("data-series") == "p0").iter("path")
    points = [tuple(map(float, point)) for point in re.findall(r"([\d.]+) ([\d.]+)", path.attrib["d"])]
    for (x, y), (a, b) in zip(points, [(0, 0), (1, 0), (1, 0.5), (3, 0.5), (3, 1)], strict=True):
        assert (x - left) / width * 4 == pytest.approx(a, abs=0.01)
        assert 1 - (y - top) / height == pytest.approx(b, abs=0.01)


@pytest.mark.parametrize(
    ("low", "high", "most", "texts"),
    [(0, 1, 5, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]), (0, 37, 4, ["0", "10", "20", "30"]), (-3, 3, 8, None)],
)
def test_ticks_are_round_and_within_the_limits(low: float, high: float, most: int, texts: list[str] | None) -> None:
    found = Axis(most=most, limits=(low, high)).ticks()
    assert all(low <= value <= high for value, _ in found)
    assert 2 <= len(found) <= most + 1
    assert texts is None or [text for _, text in found] == texts


def test_names_of_files_hold_no_odd_characters(tmp_path: Path) -> None:
    paths = write_figures(tmp_path, compare([replace(fold(MINI), policy="../a b/ü:c")]))
    assert all(re.fullmatch(r"[A-Za-z0-9._=-]+\.svg", path.name) for path in paths)
    assert all(path.parent == tmp_path for path in paths)
