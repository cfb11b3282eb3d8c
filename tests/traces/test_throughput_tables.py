"""Tables of throughputs: the shipped one, a user's CSV, what a run measured, and books made of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from themis.errors import InputError, UnknownName
from themis.model.units import Locality
from themis.traces.profiles.csv_file import read_csv, write_csv
from themis.traces.profiles.gavel_table import read_throughputs
from themis.traces.profiles.library import add, load_book
from themis.traces.profiles.measured import gavel_book, gavel_throughputs
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.throughputs import profiles_of

GOOD = """\
# measured on Monday
model,batch,gpu_type,gpus,steps_per_s,placement,partner,partner_batch
net,64,V100,1,4.0,,,
net,64,V100,2,6.0,together,,
net,64,V100,2,4.0,apart,,
net,64,V100,,3.0,,other,
other,,V100,1,10,,,
other,,V100,1,2.5,,net,64
"""


def test_the_shipped_table_is_gavels_to_four_digits(shared_data: Path) -> None:
    ours = gavel_throughputs()
    theirs = read_throughputs(shared_data / "gavel" / "tables" / "simulation_throughputs.json")
    for kind in ("V100", "P100", "K80"):
        assert ours.together[kind] == pytest.approx(theirs.together[kind], rel=5.1e-4)
        gangs = {key: rate for key, rate in theirs.apart[kind].items() if key[2] > 1}
        assert ours.apart[kind] == pytest.approx(gangs, rel=5.1e-4)
        shares = {key: rate / theirs.together[kind][*key[:2], 1] for key, rate in theirs.beside[kind].items()}
        found = {key: rate / ours.together[kind][*key[:2], 1] for key, rate in ours.beside[kind].items()}
        assert found == pytest.approx(shares, abs=5.1e-5)


def test_the_shipped_table_has_26_models_and_batch_sizes_on_three_types() -> None:
    table = gavel_throughputs()
    assert {kind: len({key[:2] for key in jobs}) for kind, jobs in table.together.items()} == {
        "V100": 26,
        "P100": 26,
        "K80": 26,
    }
    assert gavel_book().rate("ResNet-50", 64, "V100", 1, Locality.MACHINE) == pytest.approx(4.395)
    assert gavel_book().rate("A3C", 0, "V100", 1, Locality.MACHINE, ("A3C", 0)) == pytest.approx(7.176 * 0.5097)
    assert gavel_book().rate("ResNet-50", 128, "K80", 1, Locality.MACHINE, ("ResNet-50", 128)) == 0.0


def test_a_csv_gives_rates_slowdown_and_shares(tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    path.write_text(GOOD)
    net, other = profiles_of(read_csv(path), "lab")
    assert net.curves["V100", 64].rate == (4.0, 6.0)
    assert net.slowdown[Locality.RACK] == 1.5
    assert net.share_beside("V100", 64, ("other", 0)) == 0.75
    assert other.share_beside("V100", 0, ("net", 64)) == 0.25


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    (tmp_path / "lab.csv").write_text(GOOD)
    rates = read_csv(tmp_path / "lab.csv")
    write_csv(tmp_path / "again.csv", rates)
    assert read_csv(tmp_path / "again.csv") == rates
    write_csv(tmp_path / "gavel.csv", gavel_throughputs())
    assert read_csv(tmp_path / "gavel.csv") == gavel_throughputs()


HEAD = "model,batch,gpu_type,gpus,steps_per_s,placement,partner,partner_batch\n"
FAULTS = {
    "model,gpu,steps_per_s\na,V100,1\n": "unknown column 'gpu'; did you mean 'gpus'?",
    "model,gpu_type\na,V100\n": "column 'steps_per_s' is missing",
    "": "column 'model' is missing",
    HEAD: "has no rate of a model on GPUs together",
    HEAD + "a,,V100,1\n": "line 2: 4 cells, expected 8",
    HEAD + ",,V100,1,2,,,\n": "line 2, column 'model': got '', expected a name",
    HEAD + "a,big,V100,1,2,,,\n": "line 2, column 'batch': got 'big', expected a whole number",
    HEAD + "a,,V100,0,2,,,\n": "line 2, column 'gpus': got '0', expected a whole number from 1",
    HEAD + "a,,V100,1,fast,,,\n": "line 2, column 'steps_per_s': got 'fast', expected steps per second above 0",
    HEAD + "a,,V100,1,nan,,,\n": "got 'nan'",
    HEAD + "a,,V100,1,-1,,,\n": "got '-1'",
    HEAD + "a,,V100,1,2,apar,,\n": "got 'apar', expected one of together, apart, or nothing; did you mean 'apart'?",
    HEAD + "a,,V100,1,2,,,\n# twice\na,,V100,,3,,,\n": "line 4: measured in line 2 already",
    HEAD + "a,,V100,1,2,,b,\n": "expected a row too for a alone on one V100",
    HEAD + "a,,V100,2,2,,b,\n": "column 'gpus': got '2', expected 1 for a job that shares its GPU",
    "model;gpu_type;steps_per_s\na;V100;2\n": "cells are parted by ';', expected commas",
    "model,gpu_type,model,steps_per_s\na,V100,b,2\n": "column 'model' appears twice",
    HEAD
    + "a,,V100,1,2,,,\na,,V100,1,1,apart,b,\n": "column 'placement': got 'apart', expected together for a job that shares",
    HEAD + "a" * 140_000 + ",,V100,1,2,,,\n": "field larger than field limit",
    HEAD + "a,,V100,1,2,,,7\n": "expected nothing where partner is empty",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_wrong_csv_is_answered_with_line_column_and_expected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(FAULTS[text])) as caught:
        read_csv(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_csv(tmp_path / "absent.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="UTF-8"):
        read_csv(tmp_path / "bytes.csv")


def test_books_are_joined_and_the_last_one_wins(tmp_path: Path) -> None:
    (tmp_path / "lab.csv").write_text("model,gpu_type,steps_per_s\nA3C,V100,100\nmine,A100,2\n")
    rates = read_csv(tmp_path / "lab.csv")
    add(tmp_path / "profiles", "lab", rates)
    book = load_book("gavel,lab", tmp_path / "profiles")
    assert book.rate("A3C", 0, "V100", 1, Locality.SLOT) == pytest.approx(100)
    assert book.rate("mine", 0, "A100", 2, Locality.SLOT) == pytest.approx(4)
    assert book.rate("LM", 5, "V100", 1, Locality.SLOT) == pytest.approx(109.2)
    assert load_book(str(tmp_path / "lab.csv")).get("mine") == load_book("lab", tmp_path / "profiles").get("mine")
    assert load_book("") is DEFAULT_BOOK


def test_names_that_are_wrong_or_taken_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(GOOD)
    rates, folder = read_csv(tmp_path / "x.csv"), tmp_path / "profiles"
    add(folder, "lab", rates)
    with pytest.raises(InputError, match="exists; name it otherwise or give --force"):
        add(folder, "lab", rates)
    add(folder, "lab", rates, force=True)
    for name, sentence in (("gavel", "shipped book"), ("../lab", "1 to 64 letters"), ("", "1 to 64 letters")):
        with pytest.raises(InputError, match=sentence):
            add(folder, name, rates)
    with pytest.raises(UnknownName, match="Did you mean 'lab'"):
        load_book("labs", folder)
