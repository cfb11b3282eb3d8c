"""Gangs of one process: all GPUs on one machine, whatever the policy plans, and no wait without end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from themis.core.place import _Placer
from themis.core.placed_gangs import Placed, WantedGang
from themis.core.state import EPS
from themis.errors import ClusterError
from themis.model.events import AppFinished, Grant
from themis.model.settings import Settings
from themis.model.units import Int
from themis.model.workload import Workload
from themis.policies.api import make_policy, policy_names
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job, machines, random_simulation

SOME = ("themis", "fair_finish", "srsf", "tiresias", "max_min_fairness", "shockwave")


@pytest.mark.parametrize("name", [name for name in policy_names() if name in SOME])
def test_gangs_of_one_process_lie_on_one_machine_and_all_of_them_end(name: str) -> None:
    simulation = random_simulation(make_policy(name), 3)
    apps = tuple(
        replace(one, jobs=tuple(replace(j, one_machine=True) for j in one.jobs)) if i % 4 != 1 else one
        for i, one in enumerate(simulation.workload.apps)
    )
    out: list[Record] = []
    replace(simulation, workload=replace(simulation.workload, apps=apps)).run(lambda _, record: out.append(record))
    ended = [record.outcome for record in out if isinstance(record, AppFinished)]
    # ``validate`` checks after each step that such a gang has GPUs of one machine.
    assert ended == ["completed"] * len(apps)


@pytest.mark.parametrize("name", ["srsf", "tiresias", "fifo", "themis", "fair_finish"])
def test_a_gang_of_one_process_starts_although_single_gpus_of_every_machine_end_one_after_the_other(name: str) -> None:
    small = [app(f"s{i}", [job(1700.0)], 100.0 * i, user=f"u{i % 4}") for i in range(90)]
    whole = app("whole", [job(400.0, 4, one_machine=True)], 1000.0, user="v")
    log: list[tuple[float, Record]] = []
    Simulation(
        workload=Workload(name="w", apps=(*small, whole)),
        cluster=machines(4, 4),
        book=BOOK,
        policy_name=name,
        policy=make_policy(name),
        settings=Settings(validate=True, lease_s=300.0),
    ).run(lambda time, record: log.append((time, record)))
    began = [time for time, record in log if isinstance(record, Grant) and len(record.gpus) == 4]
    last = max(time for time, record in log if isinstance(record, Grant))
    assert began[0] < last / 2, f"{name} started it at {began[0]:.0f} s of {last:.0f} s"
    (grant,) = [record for _, record in log if isinstance(record, Grant) and len(record.gpus) == 4][:1]
    assert grant.gpus in ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_gang_of_one_process_that_no_machine_can_hold_is_refused_with_the_way_out() -> None:
    wide = app("wide", [job(100.0, 6, one_machine=True)])
    with pytest.raises(
        ClusterError, match=r"is one process with 6 GPUs, and the largest machine has 4\. .*launch: gpu"
    ):
        Simulation(
            workload=Workload(name="w", apps=(wide,)),
            cluster=machines(4, 4),
            book=BOOK,
            policy_name="srsf",
            policy=make_policy("srsf"),
            settings=Settings(),
        ).run(lambda _, __: None)


def test_machines_for_whole_gangs_and_their_reservations_are_those_of_a_search_through_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same arithmetic, machine by machine and lease by lease, on random gangs and machines of two types."""
    chosen, run = _Placer._machine_for, _Placer.run
    seen = {"chosen": 0, "reserved": 0}
    rng = np.random.default_rng(3)

    def may(placer: _Placer, gang: WantedGang, n: int) -> bool:
        kinds = [gang.gpu_type] if gang.gpu_type >= 0 else placer.s.allowed(_one(placer._job_of(gang)))[0].nonzero()[0]
        return placer.s.machine_type[n] in kinds

    def machine_for(placer: _Placer, gang: WantedGang, planned: Int) -> tuple[int, int] | None:
        room = placer.room.tolist()
        there = [n for n in range(len(room)) if may(placer, gang, n)]
        gpus = min(gang.gpus, max((room[n] for n in there), default=0))
        least = gang.gpus if gpus == gang.gpus else placer.s.jobs.one.gpus_min[placer._job_of(gang)]
        want = None
        if gpus >= least:
            keys = [(max(gpus - room[n] + int(planned[n]), 0), room[n], n) for n in there if room[n] >= gpus]
            want = min(keys)[2], gpus
        assert chosen(placer, gang, planned) == want
        seen["chosen"] += want is not None
        return want

    def reserve(placer: _Placer, gangs: Sequence[WantedGang]) -> list[Placed]:
        placed = run(placer, gangs)
        s, other = placer.s, _Placer(placer.s, placer.offer)
        jobs = rng.choice(s.present(), 6)
        other.unplaced = [WantedGang(int(s.jobs.app[j]), int(rng.integers(1, 5)), 1e9, int(j)) for j in jobs]
        # What is placed where need not fit here: only its machines count.
        other.out = [Placed(0, tuple(rng.choice(len(s.gpu_machine), 2).tolist()), 0, s.now + 400.0) for _ in range(9)]
        out, ends = list(other.out), dict[int, float]()
        for j, gpus in s.job_gpus.items():
            if s.jobs.one.until[j] > placer.offer.by + EPS:
                for g in gpus:
                    ends[s.machine_of[g]] = max(ends.get(s.machine_of[g], 0.0), s.jobs.one.until[j])
        for gang in other.unplaced:
            fits = [(end, n) for n, end in ends.items() if may(other, gang, n) and s.machine_size[n] >= gang.gpus]
            if fits:
                _, best = min(fits)
                end = ends.pop(best)
                out = [
                    p._replace(until=min(p.until, end)) if best in {s.machine_of[g] for g in p.gpus} else p for p in out
                ]
        seen["reserved"] += out != other.out
        other._reserve()
        assert other.out == out
        return placed

    monkeypatch.setattr(_Placer, "_machine_for", machine_for)
    monkeypatch.setattr(_Placer, "run", reserve)
    simulation = random_simulation(make_policy("max_min_fairness"), 5, mixed=True)
    apps = tuple(
        replace(one, jobs=tuple(replace(j, one_machine=True) for j in one.jobs)) for one in simulation.workload.apps
    )
    replace(simulation, workload=replace(simulation.workload, apps=apps)).run(lambda _, __: None)
    assert min(seen.values()) > 20, seen


def _one(job: int) -> Int:
    return np.array([job])
