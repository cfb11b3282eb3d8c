"""Sizes as people write them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from themis import sizes
from themis.sizes import Array, Unreadable, Work


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("90s", 90),
        ("45m", 2700),
        ("2h30m", 9000),
        ("2h 30 min", 9000),
        ("1d12h", 129_600),
        ("1w", 604_800),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("02:30:00", 9000),
        ("1-12:00:00", 129_600),
    ],
)
def test_a_time_is_read_in_seconds(written: object, seconds: float) -> None:
    assert sizes.duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "2x", "h", "2h30", "-5m", 0, -1, True, None, [], "1h1h", "1e5h", float("inf"), 10**400]
)
def test_what_is_no_time_is_refused(written: object) -> None:
    with pytest.raises(Unreadable, match="a time such as 90s"):
        sizes.duration(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("16 GiB", 16 << 30),
        ("16G", 16 << 30),
        ("16GB", 16 * 10**9),
        ("1.5 gib", 3 << 29),
        ("500 MB", 5 * 10**8),
        ("7B", 7),
    ],
)
def test_memory_is_read_in_bytes(written: str, size: int) -> None:
    assert sizes.memory(written) == size


@pytest.mark.parametrize("written", [16, "16", "16 Gi B", "0 GiB", "-1 GiB", "GiB", "9999999999 PiB", None])
def test_memory_without_a_unit_or_size_is_refused(written: object) -> None:
    with pytest.raises(Unreadable, match="memory with its unit"):
        sizes.memory(written)


@pytest.mark.parametrize(("written", "low", "high"), [(4, 4, 4), ("2..8", 2, 8), ("2 .. 8", 2, 8)])
def test_gpus_are_a_number_or_a_range(written: object, low: int, high: int) -> None:
    assert sizes.gpus(written) == (low, high)


@pytest.mark.parametrize("written", [0, -1, 1.5, True, "4", "8..2", "0..4", "2-8", "2..", [2, 8], None])
def test_what_is_no_number_of_gpus_is_refused(written: object) -> None:
    with pytest.raises(Unreadable, match=r"2\.\.8"):
        sizes.gpus(written)


@pytest.mark.parametrize(
    ("written", "indices", "at_once"),
    [
        (1, (0,), 0),
        (3, (0, 1, 2), 0),
        ("0-3%2", (0, 1, 2, 3), 2),
        ("1,4,7-9", (1, 4, 7, 8, 9), 0),
        ("0-20:5", (0, 5, 10, 15, 20), 0),
        ("7", (7,), 0),
    ],
)
def test_an_array_lists_its_indices(written: object, indices: tuple[int, ...], at_once: int) -> None:
    assert sizes.array(written) == Array(indices=indices, at_once=at_once)


@pytest.mark.parametrize(
    "written", [0, "", "3-1", "1,1", "0-3%0", "0-3%", "a", "0-9:0", "0-999999999", True, None, "5,1"]
)
def test_what_is_no_array_is_refused(written: object) -> None:
    with pytest.raises(Unreadable, match="indices such as"):
        sizes.array(written)


@pytest.mark.parametrize(
    ("written", "work"),
    [
        (90_000, Work(amount=90_000)),
        ("9e4 steps", Work(amount=90_000)),
        ("1 step", Work(amount=1)),
        ("90 epochs", Work(amount=90, unit="epoch")),
        ("40 GPU-hours", Work(amount=144_000, unit="gpu-second")),
    ],
)
def test_work_has_a_unit(written: object, work: Work) -> None:
    assert sizes.work(written) == work


@pytest.mark.parametrize("reader", [sizes.duration, sizes.memory, sizes.gpus, sizes.array, sizes.work])
@given(st.one_of(st.text(max_size=30), st.integers(), st.floats(), st.none(), st.lists(st.integers(), max_size=3)))
def test_whatever_is_written_is_read_or_refused(reader: Callable[[object], object], value: object) -> None:
    with contextlib.suppress(Unreadable):
        assert reader(value) is not None


@pytest.mark.parametrize(
    ("read", "text", "most"), [(sizes.duration, "9999w", "ten years"), (sizes.work, "1e16", "1e15")]
)
def test_what_is_too_large_is_told_with_the_most(read: Callable[[object], object], text: str, most: str) -> None:
    with pytest.raises(sizes.Unreadable, match=f"at most {most}"):
        read(text)


@pytest.mark.parametrize(
    "seconds", [0.5, 1, 59, 60, 90, 600, 3600, 9000, 13500, 86400, 129600, 2592000, 0.1 + 0.2, 1e6 + 1]
)
def test_a_time_is_written_as_it_is_read(seconds: float) -> None:
    assert sizes.duration(sizes.duration_words(seconds)) == pytest.approx(seconds, rel=1e-5)
    assert sizes.duration_words(0) == "0"
