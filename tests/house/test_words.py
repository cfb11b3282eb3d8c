"""The patterns of the lint step for plain words find what they should, and no more."""

from __future__ import annotations

from words import found, in_page

ORDINARY = (
    "the arbiter keeps the journal",
    "homogeneous clusters",
    "the lease is over 10 minutes long",
    "most GPUs are idle",
    "bagging",
    "GPUs besides these",
    "so many users",
    "tell the policies apart",
    "its home directory",
)
"""Phrases that must pass."""
STUMBLED = (
    "Answers so many at once; whoever comes beside them is hung up on",
    "of policies that draw lots (0)",
    "most of it that a job may ask for (1h)",
    "'x' is no field of a submission",
    "it has the key 'gpus' twice",
    "The newest so many; 0: 1000.",
    "Nothing is wrong with 8.yaml.",
    "Went on from 309 records of the journal.",
    "only administrators may drain, and user dora is none",
    "told to stop; step 30 is saved: True",
)
"""Sentences that readers stumbled over."""


def test_ordinary_english_is_allowed() -> None:
    assert [problem for text in ORDINARY for problem in found(text)] == []


def test_the_sentences_that_readers_stumbled_over_are_found() -> None:
    assert [text for text in STUMBLED if not found(text)] == []


def test_a_phrase_over_two_lines_of_a_page_is_found_and_code_is_not() -> None:
    page = "# Page\n\nIt comes of\nage.\n\n```sh\nanew\n```\n`anew`, [a](anew.md)\n"
    assert list(in_page("page.md", page)) == ["page.md:3: 'comes of\\nage' -> no limit, permanently"]
