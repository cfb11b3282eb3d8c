"""What Now shows: computed only while somebody looks, the same bytes for all, and right against a plain count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import pytest
from fake import World, request, world

from themis.service.api import overview
from themis.service.api.access import Access
from themis.service.api.methods import Api
from themis.service.api.submission import submit
from themis.service.web import now_parts
from themis.service.web.live import EVERY_S, Live
from themis.service.web.render import Renderer
from themis.service.web.static import Static


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[World, Live]]:
    with world(tmp_path, 4, 4) as w:
        access = Access(tmp_path, "token", "u")
        api = Api(w.arbiter, tmp_path, access)
        for n in range(3):
            w.ask(lambda a, n=n: submit(a, request(f"app{n}"), access.owner))
        w.arbiter.start()
        try:
            yield w, Live(api, Renderer(Static()))
        finally:
            api.ending.set()
            w.arbiter.close()


async def _first(live: Live, count: int) -> list[bytes]:
    """The first pieces of a follower, after the line that says when to come back."""
    stream, out = live.follow(live.api.caller, lambda: True), []
    async for piece in stream:
        if piece.startswith(b"event"):
            out.append(piece)
        if len(out) == count:
            break
    await stream.aclose()  # type: ignore[attr-defined]
    return out


def _data(piece: bytes) -> dict[str, object]:
    return dict(orjson.loads(piece.split(b"data: ")[1]))


def test_fifty_followers_cost_one_look_and_get_the_same_bytes(live: tuple[World, Live]) -> None:
    async def all_of_them() -> list[list[bytes]]:
        return list(await asyncio.gather(*(_first(live[1], 1) for _ in range(50))))

    pieces = asyncio.run(all_of_them())
    assert len({piece for one in pieces for piece in one}) == 1
    assert live[1].looks == 1


def test_nothing_is_computed_while_nobody_looks(live: tuple[World, Live]) -> None:
    async def one_then_none() -> int:
        await _first(live[1], 1)
        before = live[1].looks
        await asyncio.sleep(3 * EVERY_S)
        return live[1].looks - before

    assert asyncio.run(one_then_none()) <= 1


def test_a_change_after_the_whole_has_only_what_changed(live: tuple[World, Live]) -> None:
    w, hub = live

    async def both() -> list[bytes]:
        reading = asyncio.ensure_future(_first(hub, 2))
        while hub._look is None:
            await asyncio.sleep(0.05)
        await asyncio.sleep(EVERY_S)
        app = request("another")
        owner = hub.api.access.owner
        await asyncio.to_thread(lambda: w.arbiter.ask(lambda: submit(w.arbiter, app, owner)))
        return await asyncio.wait_for(reading, 60)

    whole, change = asyncio.run(both())
    assert whole.startswith(b"event: whole")
    assert change.startswith(b"event: change")
    assert "another" in str(_data(change).get("running", "")) + str(_data(change).get("waiting", ""))
    assert "machines" not in _data(change)


def test_changes_applied_to_the_whole_give_the_next_whole(live: tuple[World, Live]) -> None:
    w, hub = live
    api, day = hub.api, hub.api.last_day()
    before = now_parts.parts(api.overview()[0], day, hub.render)
    w.arbiter.ask(lambda: w.arbiter.cancel(0))
    after = now_parts.parts(api.overview()[0], day, hub.render)
    change = now_parts.difference(before, after)
    merged = {**before, **change, "cells": {**before["cells"], **change.get("cells", {})}}
    assert merged == after
    assert now_parts.difference(after, {**after, "record": -1}) == {}, "nothing to see"


def test_the_map_has_the_app_of_each_leased_gpu(live: tuple[World, Live]) -> None:
    w, hub = live
    seen, _ = hub.api.overview()
    held = {gpu: w.arbiter.state.jobs.app[job] for job, gpus in w.arbiter.state.job_gpus.items() for gpu in gpus}
    flat = [apps for machine in seen.machines for apps in machine.apps]
    assert {gpu: apps[0] for gpu, apps in enumerate(flat) if apps} == held
    assert seen.leased == len(held) > 0
    assert sum(row.gpus for row in seen.run_rows) == len(held)


def test_leased_gpus_of_a_day_equal_a_plain_sum_over_leases() -> None:
    rng = np.random.default_rng(0)
    since = rng.uniform(0, 900, 40)
    ended = np.where(rng.random(40) < 0.2, np.nan, since + rng.uniform(0, 400, 40))
    gpus = rng.integers(1, 9, 40).astype(float)
    edges = np.linspace(100.0, 1000.0, 10)
    found = np.diff(overview._before(edges, since, gpus) - overview._before(edges, ended, gpus))
    ends = np.where(np.isnan(ended), np.inf, ended)
    plain = [
        sum(g * max(min(e, high) - max(s, low), 0.0) for s, e, g in zip(since, ends, gpus))
        for low, high in pairwise(edges)
    ]
    assert found == pytest.approx(plain)


def test_the_day_of_a_service_reads_its_journal(live: tuple[World, Live]) -> None:
    w, _ = live
    epoch = w.arbiter.epoch
    day = overview.last_day(w.arbiter.journal.path, epoch, epoch + w.arbiter.now() + 50.0)
    records = w.arbiter.ask(
        lambda: w.arbiter.journal.db.execute("SELECT count(*) FROM records WHERE kind = 'Allocated'").fetchone()[0]
    )
    assert sum(day.decisions) == records > 0
    assert day.leased[-1] > 0
    assert len(day.leased) == len(day.decisions) <= overview.BINS
