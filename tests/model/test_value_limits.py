"""Limits on values: everything within them passes unchanged, everything else is refused in one sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from themis import limits
from themis.errors import InputError
from themis.limits import Count, Number, Text

WRONG: list[Any] = [math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e300, True, None, "1", "x" * 1_000_000, [1]]


@pytest.mark.parametrize("limit", limits.TABLE, ids=lambda limit: limit.name)
def test_a_limit_takes_its_ends_and_refuses_what_is_beyond(limit: Number | Text | Count) -> None:
    match limit:
        case Number():
            ends = [limit.least, limit.most] if not limit.whole else [int(limit.least), int(limit.most)]
            assert [limit.check(end) for end in ends] == ends
            assert math.isfinite(limit.least)
            beyond: list[Any] = [*WRONG, math.nextafter(limit.least, -math.inf), limit.most * 1.001 + 1]
        case Text():
            assert limit.check("x" * limit.longest)
            beyond = ["x" * (limit.longest + 1), "a\0b", "\x1b[31m", "\u202e", "\ud800", 7]
        case Count():
            assert limit.check([0] * limit.most)
            beyond = [[0] * (limit.most + 1)]
    for value in beyond:
        with pytest.raises(InputError) as error:
            limit.check(value, "jobs[0].x")
        sentence = str(error.value)
        assert sentence.startswith("jobs[0].x ")
        assert sentence.endswith(".")
        assert "expected" in sentence
        assert len(sentence) < 300
        assert sentence.isprintable()


def test_text_that_explains_is_cut_and_made_printable() -> None:
    assert limits.REASON.cut("disk \x1b[31mfull\r\n" + "x" * 5000) == "disk \ufffd[31mfull\ufffd\n" + "x" * 984


@pytest.mark.parametrize(
    "data", [b"[" * 10_000, b'{"a":' * 41, b"[0" + b",0" * 200_000, b"[" + b"{}," * 100_000 + b"1]"]
)
def test_json_too_deep_or_too_large_is_refused_before_it_is_parsed(data: bytes) -> None:
    with pytest.raises(InputError, match=r"the body (is nested deeper than 40 levels|has about 20.... values)"):
        limits.check_json(data)


@pytest.mark.parametrize(
    "data", [b'["' + b"[" * 100 + b'"]', rb'["\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["]', b"[[],[]]"]
)
def test_brackets_in_texts_are_not_levels(data: bytes) -> None:
    assert limits.check_json(data) is data
