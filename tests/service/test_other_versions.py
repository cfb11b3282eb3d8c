"""Data directories that this version does not read are refused in a sentence, and stay as they are."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from fake import world

from themis.cli.report import replay_home
from themis.errors import InputError
from themis.service.engine.journal import READERS, SCHEMA, Journal


@pytest.mark.unfoldable
@pytest.mark.parametrize(
    ("schema", "said"), [(SCHEMA - 1, f"the commit {READERS[SCHEMA - 1]} reads it"), (SCHEMA + 1, "use the version")]
)
def test_a_journal_of_another_schema_is_refused_and_stays_as_it_is(tmp_path: Path, schema: int, said: str) -> None:
    with world(tmp_path, 2) as w:
        w.arbiter.close()
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (str(schema),))
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"has journal schema {schema}, this Themis reads {SCHEMA}; {said}"):
        Journal(path)
    assert path.read_bytes() == before


@pytest.mark.unfoldable
@pytest.mark.parametrize(
    ("text", "said"), [("", "{} is empty"), ("no journal\n" * 100, "cannot read {} ")], ids=["empty", "foreign"]
)
def test_a_home_that_cannot_be_read_is_said_by_its_own_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "journal.db").write_text(text)
    with pytest.raises(InputError, match=re.escape(said.format(tmp_path / "journal.db"))):
        replay_home(tmp_path, None)
    assert (tmp_path / "journal.db").read_text() == text
