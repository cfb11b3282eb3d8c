"""docs/how-a-decision-is-made.md: each number of the worked example is what the code computes."""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from processes import PATIENCE_S
from themis.fairness.finish_time import FinishTime
from themis.model.answers import GpuGrant, Solved
from themis.model.bids import MACHINE, RACK, Bids
from themis.model.events import Allocated, Grant, Renew
from themis.model.log import Record
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.api import Workbench
from themis.policies.themis import Themis
from themis.sim.plan import Plan

PAGE = (Path(__file__).parents[2] / "docs" / "how-a-decision-is-made.md").read_text(encoding="utf-8")
NAMES = "ABC"


@dataclass
class Example:
    """The simulation of the page's trace: what the policy saw first, and the log."""

    snapshot: Snapshot
    bids: Bids
    records: list[tuple[Seconds, Record]]
    trace: Path

    @property
    def decisions(self) -> list[Solved]:
        """What the policy decided, without the questions to the apps' agents."""
        found = (r.solved for _, r in self.records if isinstance(r, Allocated))
        return [solved for solved in found if isinstance(solved.answer, GpuGrant)]

    @property
    def first(self) -> Solved:
        return self.decisions[0]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    trace = tmp_path_factory.mktemp("example") / "three.csv"
    found = re.search(r'```csv title="three.csv"\n(.*?)```', PAGE, re.DOTALL)
    assert found
    trace.write_text(found[1], encoding="utf-8")
    simulation = Plan(workload=str(trace), cluster="2x4", policies=["themis:f=0"]).runs()[0].simulation
    seen: list[Snapshot] = []
    records: list[tuple[Seconds, Record]] = []
    before = Themis.__call__

    def spy(policy: Themis, snapshot: Snapshot, bench: Workbench) -> Solved:
        seen.append(snapshot)
        return before(policy, snapshot, bench)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Themis, "__call__", spy)
        simulation.run(sink=lambda time, record: records.append((time, record)))
    priced = next(s for s in seen if s.bids is not None)
    assert priced.now == 0.0
    assert priced.bids is not None
    return Example(priced, priced.bids, records, trace)


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    part = PAGE[PAGE.index(f"## {heading}") :]
    lines = itertools.takewhile(lambda line: line.startswith("|"), part[part.index("\n|") + 1 :].splitlines())
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in list(lines)[2:]]


def numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"\d+(?:\.\d+)?", text)]


def test_what_each_app_would_have_alone(example: Example) -> None:
    s, finish = example.snapshot, FinishTime.of(example.snapshot)
    for a, (name, work, on_all, t_id) in enumerate(rows_of("1. ")):
        assert name == NAMES[a]
        assert float(work) == pytest.approx(s.app_budget[a])
        budget, demand, seconds = numbers(on_all)
        assert (budget, demand) == pytest.approx((s.app_budget[a], s.app_demand[a]))
        assert seconds == pytest.approx(budget / demand)
        assert float(t_id) == pytest.approx(finish.t_id[a])
        assert float(t_id) == pytest.approx(seconds * s.app_contention[a])


def test_how_well_off_each_app_is(example: Example) -> None:
    finish = FinishTime.of(example.snapshot)
    for a, (name, left, rho) in enumerate(rows_of("2. ")):
        terms, total = left.split(" = ")
        assert name == NAMES[a]
        assert float(total) == pytest.approx(finish.left[a])
        assert eval(terms.replace("×", "*")) == pytest.approx(finish.left[a])
        assert float(rho) == pytest.approx(finish.rho[a], abs=5e-5)
    order = [NAMES[a] for a in np.argsort(-finish.rho)]
    assert order == ["C", "A", "B"]
    assert [NAMES[a] for a in example.first.proof.app] == order


def bid_rows(bids: Bids, span: int = MACHINE) -> dict[tuple[str, tuple[int, ...]], float]:
    """rho of every row of this span: (app, sizes of its gangs)."""
    return {
        (NAMES[b], tuple(size for size, count in bids.gangs(r).items() for _ in range(count))): math.exp(-value)
        for r, (b, value) in enumerate(zip(bids.row_bidder.tolist(), bids.row_value.tolist(), strict=True))
        if bids.row_span[r] == span
    }


def test_the_bids(example: Example) -> None:
    counts = {"one": 1, "two": 2, "three": 3}
    written = {}
    for name, row, rho in rows_of("3. "):
        many, size = row.split()[0], int(row.split()[-1])
        written[name, (size,) * counts[many]] = float(rho)
    assert written == pytest.approx(bid_rows(example.bids), abs=5e-5)
    apart = bid_rows(example.bids, RACK)["B", (4,)]
    assert f"would have {apart:.4f}" in PAGE


def fits(gangs: list[int]) -> bool:
    """Whether gangs fit on two machines of four GPUs, each on one."""
    return any(
        all(sum(g for g, m in zip(gangs, where, strict=True) if m == n) <= 4 for n in (0, 1))
        for where in itertools.product((0, 1), repeat=len(gangs))
    )


def best(rows: dict[tuple[str, tuple[int, ...]], float], apps: str) -> dict[str, tuple[float, int]]:
    """By trying all: (rho, GPUs) of each app served; as many apps as can be, then the smallest product of rho."""
    choices: list[list[tuple[str, tuple[int, ...]] | None]] = [[None, *(k for k in rows if k[0] == a)] for a in apps]
    found = [
        [key for key in chosen if key]
        for chosen in itertools.product(*choices)
        if fits([g for key in chosen if key for g in key[1]])
    ]
    taken = min(found, key=lambda keys: (-len(keys), math.prod(rows[k] for k in keys)))
    return {key[0]: (rows[key], sum(key[1])) for key in taken}


def test_the_winners_have_the_best_product(example: Example) -> None:
    rows, proof = bid_rows(example.bids), example.first.proof
    winners = best(rows, NAMES)
    won = dict(zip((NAMES[a] for a in proof.app), proof.won.tolist(), strict=True))
    assert {name: gpus for name, (_, gpus) in winners.items()} == won
    product = math.prod(rho for rho, _ in winners.values())
    assert proof.objective == pytest.approx(-math.log(product))
    assert proof.bound == pytest.approx(proof.objective)
    assert f"{proof.objective:.4f}" in PAGE
    assert f"**{product:.4f}**" in PAGE
    for row, gpus, said in rows_of("4. "):
        if "×" not in said:
            continue
        wanted = [(text.split()[0], int(text.split()[1]), "across" in text) for text in row.split(", ")]
        factors = []
        for name, n, across in wanted:
            table = bid_rows(example.bids, RACK if across else MACHINE)
            factors.append(next(rho for (app, gangs), rho in table.items() if app == name and sum(gangs) == n))
        *parts, total = numbers(said)
        assert parts == pytest.approx(factors, abs=5e-5)
        assert total == pytest.approx(math.prod(factors), abs=5e-5)
        assert int(gpus) == sum(n for _, n, _ in wanted)
        assert total >= round(product, 4)


def test_the_hidden_payments(example: Example) -> None:
    rows, proof = bid_rows(example.bids), example.first.proof
    winners = best(rows, NAMES)
    kept = dict(zip((NAMES[a] for a in proof.app), proof.kept.tolist(), strict=True))
    for name, others, _, said in rows_of("5. "):
        rest = NAMES.replace(name, "")
        without = best(rows, rest)
        assert others == ", ".join(f"{n} {without[n][1]}" for n in rest)
        share = math.prod(without[n][0] / winners[n][0] for n in rest)
        assert numbers(said)[-1] == pytest.approx(share, abs=1e-6)
        assert share == pytest.approx(kept[name], abs=1e-6)


def test_the_leases(example: Example) -> None:
    answer = example.first.answer
    assert isinstance(answer, GpuGrant)
    due = {NAMES[a]: until for a, until in zip(answer.app.tolist(), answer.until.tolist(), strict=True)}
    given = {NAMES[r.app]: (t, r) for t, r in reversed(example.records) if isinstance(r, Grant) and t == 0.0}
    for name, paid, end in rows_of("6. "):
        assert numbers(paid)[0] == pytest.approx(due[name], abs=1e-3)
        assert numbers(end)[0] == given[name][1].until
    gpus: dict[str, list[int]] = {}
    for time, record in example.records:
        if isinstance(record, Grant) and time == 0.0:
            gpus.setdefault(NAMES[record.app], []).extend(record.gpus)
    for name, number, place, lease in rows_of("The answer"):
        assert int(number.split()[0]) == len(gpus[name])
        assert {g // 4 for g in gpus[name]} == {0 if place.startswith("first") else 1}
        assert numbers(lease)[0] == given[name][1].until
    again = next((t, r) for t, r in example.records if isinstance(r, Renew))
    second = example.decisions[1].proof
    share = second.kept[second.app.tolist().index(1)]
    assert again[0] == 180.0
    assert f"a share of {share:.4f}" in PAGE
    assert f"ends at {again[1].until:.0f} s" in PAGE


@pytest.mark.slow
def test_explain_prints_what_the_page_shows(example: Example, tmp_path: Path) -> None:
    block = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    command = re.search(r"^themis simulate .*$", PAGE, re.MULTILINE)
    ask = re.search(r"^themis explain .*$", PAGE, re.MULTILINE)
    assert block
    assert command
    assert ask
    for line in (command[0], ask[0]):
        done = subprocess.run(
            [sys.executable, "-m", "themis.cli", *line.split()[1:]],
            cwd=example.trace.parent,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "COLUMNS": "100"},
        )
        assert done.returncode == 0, done.stderr
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert block[1].splitlines() == printed[: len(block[1].splitlines())]
