"""Time shares become rounds: who runs when, who moves, what a share is worth after many rounds. Gavel §3.2, §5."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from themis.core.rounds import Rounds, pick
from themis.errors import InputError
from themis.model.answers import Solved, TimeShare
from themis.model.cluster import Cluster, Machine
from themis.model.events import Allocated, AppFinished, Grant, Renew, Revoke
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.speed import ProfileBook, linear
from themis.model.units import NONE
from themis.model.workload import App, Workload
from themis.policies.api import Cadence, Granularity, Policy, Workbench, make_policy
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job, leased_twice

ROUND = 100.0
FOREVER = 1e6
Log = list[tuple[float, Record]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """These shares, whoever asks: row j belongs to job j."""

    x: tuple[tuple[float, ...], ...]
    gpus: tuple[int, ...] = ()
    resolve_interval: float | None = 0.0
    backfill: bool = True
    spare: bool = False
    asked: list[float] = field(default_factory=list)
    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.JOB

    @property
    def pace(self) -> Cadence:
        return Cadence(ROUND, self.resolve_interval, self.backfill, spare=self.spare)

    def __call__(self, s: Snapshot, bench: Workbench) -> Solved:
        self.asked.append(s.now)
        combos = np.stack([s.job_id, np.full(s.jobs, NONE)], axis=1)
        gpus = np.array(self.gpus)[s.job_id] if self.gpus else np.ones(s.jobs, dtype=np.int64)
        return Solved(answer=TimeShare(combos=combos, gpus=gpus, x=np.array(self.x)[s.job_id], round_s=ROUND))


def cluster(*gpus: int) -> Cluster:
    """One machine a GPU type."""
    return Cluster(
        name="c", machines=tuple(Machine(name=f"m{k}", gpus=n, gpu_type=f"t{k}") for k, n in enumerate(gpus))
    )


class Over(Exception):
    """The test has seen enough."""


def run(
    policy: Policy,
    apps: Sequence[App],
    on: Cluster,
    until: float = np.inf,
    container_s: float = 0.0,
    book: ProfileBook = BOOK,
) -> Log:
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)),
        cluster=on,
        book=book,
        policy_name="given",
        policy=policy,
        settings=Settings(container_s=container_s, validate=True),
    )
    log: Log = []

    def watch(time: float, record: Record) -> None:
        if time > until:
            raise Over
        log.append((time, record))

    with suppress(Over):
        simulation.run(watch)
    assert not leased_twice(log)
    return log


def received(log: Log, on: Cluster, now: float) -> dict[tuple[int, int], float]:
    """Seconds that each job held GPUs of each type, from grants and revocations alone."""
    kind = [k for k, machine in enumerate(on.machines) for _ in range(machine.gpus)]
    out: dict[tuple[int, int], float] = defaultdict(float)
    since: dict[int, tuple[float, int]] = {}
    for time, record in log:
        if isinstance(record, Grant):
            since[record.job] = time, kind[record.gpus[0]]
        elif isinstance(record, Revoke):
            start, k = since.pop(record.job)
            out[record.job, k] += time - start
    for j, (start, k) in since.items():
        out[j, k] += now - start
    return out


def fluid(seed: int, types: int) -> tuple[tuple[tuple[float, ...], ...], Cluster]:
    """Random shares of single-GPU jobs that use all of the cluster: a mixture of ways to put jobs on its GPUs."""
    rng = np.random.default_rng(seed)
    gpus = rng.integers(1, 4, types)
    jobs = int(gpus.sum() + rng.integers(1, 6))
    kind = np.repeat(np.arange(len(gpus)), gpus)
    x = np.zeros((jobs, len(gpus)))
    for weight in rng.dirichlet(np.ones(6)):
        x[rng.permutation(jobs)[: len(kind)], kind] += weight
    return tuple(map(tuple, x.tolist())), cluster(*gpus.tolist())


def most_off(seed: int, types: int, rounds: int = 60) -> float:
    """How far a job's time on a type ever is from the integral of its share at a round's end, in rounds."""
    x, on = fluid(seed, types)
    apps = [app(f"a{j}", [job(FOREVER)]) for j in range(len(x))]
    log = run(Given(x=x), apps, on, until=rounds * ROUND - 1)
    worst = 0.0
    for upto in range(1, rounds + 1):
        now = upto * ROUND
        got = received([(t, r) for t, r in log if t < now - 1], on, now)
        off = [got[j, k] - share * now for j, row in enumerate(x) for k, share in enumerate(row)]
        worst = max(worst, float(np.abs(off).max()) / ROUND)
    return worst


@pytest.mark.parametrize("seed", range(8))
def test_single_gpu_jobs_are_at_most_a_round_off_their_shares_of_one_type(seed: int) -> None:
    assert most_off(seed, types=1) <= 1.0


@pytest.mark.parametrize("seed", range(8))
def test_on_several_types_jobs_stay_within_two_rounds_of_their_shares(seed: int) -> None:
    """Who is owed two types at once can have only one of them; see ``test_round_bounds``."""
    assert most_off(seed, types=3) <= 2.0


def test_accounts_are_carried_over_when_shares_are_solved_anew() -> None:
    """Three jobs on two GPUs; another one comes and goes often. Nobody loses what it was promised before."""
    x = (*(((2 / 3),),) * 3, *((0.0,),) * 8)
    apps = [app(f"a{j}", [job(FOREVER)]) for j in range(3)]
    apps += [app(f"b{i}", [job(1.0)], arrival=130.0 + 250.0 * i) for i in range(8)]
    on = cluster(2)
    policy = Given(x=x)
    log = run(policy, apps, on, until=3000.0)
    assert len(policy.asked) > 1
    got = received(log, on, 3000.0)
    assert [got[j, 0] for j in range(3)] == pytest.approx([2000.0] * 3, abs=ROUND + 1e-6)


def test_larger_gangs_are_placed_first() -> None:
    on = Cluster(name="c", machines=tuple(Machine(name=f"m{i}", gpus=2, gpu_type="t0") for i in range(2)))
    apps = [app("small", [job(FOREVER)]), app("large", [job(FOREVER, 2)]), app("other", [job(FOREVER)])]
    log = run(Given(x=((1.0,),) * 3, gpus=(1, 2, 1)), apps, on, until=50.0)
    at = {r.job: r.gpus for _, r in log if isinstance(r, Grant)}
    assert [len(at[j]) for j in range(3)] == [1, 2, 1]
    assert at[1] in ((0, 1), (2, 3)), "the large gang is on one machine"


def test_small_jobs_do_not_break_up_the_machines_of_large_gangs() -> None:
    """Smallest first, the two small ones fill one machine so far that the second gang of four is spread."""
    on = Cluster(name="c", machines=tuple(Machine(name=f"m{i}", gpus=5, gpu_type="t0") for i in range(2)))
    sizes = (1, 1, 4, 4)
    apps = [app(f"a{j}", [job(FOREVER, size)]) for j, size in enumerate(sizes)]
    log = run(Given(x=((1.0,),) * 4, gpus=sizes), apps, on, until=50.0)
    at = {r.job: {gpu // 5 for gpu in r.gpus} for _, r in log if isinstance(r, Grant)}
    assert [len(at[j]) for j in range(4)] == [1, 1, 1, 1]


def test_no_job_is_picked_in_two_combinations() -> None:
    combos = np.array([[0, 1], [2, 1], [2, NONE], [1, NONE], [0, 2]])
    priority, gpus = np.array([[5.0], [4.0], [3.0], [2.0], [1.0]]), np.ones(5, np.int64)
    assert pick(priority, combos, gpus, [5]) == [(0, 0), (2, 0)]
    assert pick(priority, combos, gpus, [5], lambda c, k: c != 0) == [(1, 0)]


def test_whoever_runs_on_is_renewed_where_it_is_and_does_not_restart() -> None:
    log = run(
        Given(x=((1.0,), (0.5,), (0.5,))), [app(f"a{j}", [job(FOREVER)]) for j in range(3)], cluster(2), until=1050.0
    )
    assert [r.gpus for _, r in log if isinstance(r, Grant) and r.job == 0] == [(0,)]
    assert [t for t, r in log if isinstance(r, Renew) and 0 in r.jobs] == [ROUND * i for i in range(1, 11)]
    assert {r.gpus for _, r in log if isinstance(r, Grant) and r.job > 0} == {(1,)}


def test_gpus_freed_in_mid_round_are_backfilled_or_idle_to_its_end() -> None:
    for backfill, start in ((True, 130.0), (False, 200.0)):
        apps = [app("a", [job(130.0)]), app("b", [job(50.0)], arrival=10.0)]
        log = run(Given(x=((1.0,), (1.0,)), backfill=backfill), apps, cluster(1))
        assert [t for t, r in log if isinstance(r, AppFinished)] == [130.0, start + 50.0]


def test_gpus_that_no_share_claims_idle_or_go_to_who_waits_on_top_of_its_share() -> None:
    """Two GPU types, all of job 0's share on the first: the other job waits, or runs on the second."""
    for spare, end in ((False, 150.0), (True, 100.0)):
        policy = Given(x=((1.0, 0.0), (1.0, 0.0)), gpus=(1, 1), spare=spare)
        log = run(policy, [app("a", [job(50.0)]), app("b", [job(100.0)])], cluster(1, 1))
        assert [t for t, r in log if isinstance(r, AppFinished) and r.app == 1] == [end]


def test_a_spare_round_is_on_the_fastest_type_that_is_left() -> None:
    book = ProfileBook.of([linear("m", 1.0, type_speed={"t0": 3.0, "t1": 1.0, "t2": 2.0})])
    apps = [app(name, [job(FOREVER, model="m")]) for name in "ab"]
    log = run(Given(x=((1.0, 0.0, 0.0), (0.0,) * 3), spare=True), apps, cluster(1, 1, 1), until=50.0, book=book)
    assert {r.job: r.gpus for _, r in log if isinstance(r, Grant)} == {0: (0,), 1: (2,)}


def test_a_spare_round_goes_to_who_has_no_share_then_to_who_stands_there() -> None:
    """One GPU, a quarter and half of it promised. Nobody is owed the fourth round: job 1 had the third, job 0 came first."""
    log = run(
        Given(x=((0.25,), (0.5,)), spare=True), [app("a", [job(FOREVER)]), app("b", [job(FOREVER)])], cluster(1), 399
    )
    assert [(t, r.job) for t, r in log if isinstance(r, Grant)] == [(0.0, 1), (ROUND, 0), (2 * ROUND, 1)]
    assert [(t, r.jobs) for t, r in log if isinstance(r, Renew)] == [(3 * ROUND, (1,))]
    apps = [app(name, [job(FOREVER)]) for name in "abc"]
    log = run(Given(x=((0.25,), (0.5,), (0.0,)), spare=True), apps, cluster(1), 399)
    assert [(t, r.job) for t, r in log if isinstance(r, Grant)] == [(i * ROUND, j) for i, j in enumerate((1, 0, 1, 2))]


def test_a_spare_rest_of_a_round_is_not_given_to_who_could_only_start_in_it() -> None:
    for work, start in ((40.0, 60.0), (75.0, ROUND)):
        apps = [app("a", [job(work)]), app("b", [job(FOREVER)])]
        log = run(Given(x=((1.0,), (0.0,)), spare=True), apps, cluster(1), until=150.0, container_s=20.0)
        assert [t for t, r in log if isinstance(r, Grant) and r.job == 1] == [start]


def test_spare_gpus_are_for_those_who_are_owed_first() -> None:
    """Two machines of two GPUs: the large gang that is owed nothing must not take the place of a small one that is."""
    on = Cluster(name="c", machines=tuple(Machine(name=f"m{n}", gpus=2, gpu_type="t") for n in range(2)))
    apps = [app(name, [job(FOREVER, gpus)]) for name, gpus in (("a", 2), ("b", 1), ("c", 1))]
    log = run(Given(x=((0.0,), (1.0,), (1.0,)), gpus=(2, 1, 1), spare=True), apps, on, until=50.0)
    assert sorted(r.job for _, r in log if isinstance(r, Grant)) == [0, 1, 2]
    assert {r.gpus for _, r in log if isinstance(r, Grant) and r.job == 0} == {(2, 3)}


def test_gpus_do_not_idle_while_jobs_wait_unless_they_are_paid_for() -> None:
    for name, spare in (
        ("max_min_fairness", True),
        ("finish_time_fairness", True),
        ("gandiva_packing", True),
        ("min_cost", False),
    ):
        assert make_policy(name).pace.spare is spare
    assert make_policy("min_cost_slo:spare=true").pace.spare


def test_shares_are_solved_when_jobs_come_or_go_and_not_at_every_round() -> None:
    policy = Given(x=((1.0,), (1.0,)))
    run(policy, [app("a", [job(950.0)]), app("b", [job(50.0)], arrival=410.0)], cluster(2))
    assert policy.asked == [0.0, 410.0, 500.0], "at 460 nobody is waiting"


def test_within_the_resolve_interval_a_new_job_waits_beside_an_idle_gpu() -> None:
    policy = Given(x=((1.0,), (1.0,)), resolve_interval=700.0)
    log = run(policy, [app("a", [job(950.0)]), app("b", [job(50.0)], arrival=410.0)], cluster(2))
    assert policy.asked == [0.0, 700.0]
    assert [t for t, r in log if isinstance(r, Grant) and r.job == 1] == [700.0]


def test_a_job_that_comes_to_an_empty_cluster_within_the_resolve_interval_is_not_forgotten() -> None:
    policy = Given(x=((1.0,), (1.0,)), resolve_interval=700.0)
    log = run(policy, [app("a", [job(50.0)]), app("b", [job(50.0)], arrival=110.0)], cluster(1))
    assert [t for t, r in log if isinstance(r, AppFinished)] == [50.0, 750.0]


EXAMPLES = {
    "figure 3 and 5: three jobs, one GPU of each of three types": (
        ((0.6, 0.4, 0.0), (0.2, 0.6, 0.2), (0.2, 0.0, 0.8)),
        (1, 1, 1),
    ),
    "§4.1's example": (((0.4545, 0.0), (0.4545, 0.0909), (0.0909, 0.9091)), (1, 1)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_papers_example_allocations_come_out_of_the_rounds(name: str) -> None:
    x, gpus = EXAMPLES[name]
    on = cluster(*gpus)
    log = run(Given(x=x), [app(f"a{j}", [job(FOREVER)]) for j in range(3)], on, until=100 * ROUND - 1)
    got = received(log, on, 100 * ROUND)
    for j, row in enumerate(x):
        assert [got[j, k] / ROUND for k in range(len(row))] == pytest.approx([100 * s for s in row], abs=1.0 + 1e-9)


def test_what_the_objective_needs_goes_first_where_gangs_do_not_pack() -> None:
    """Gangs of 2 on 3 GPUs, all promised more than packs; one job needs every round, the gangs two thirds of it."""
    combos, x = np.array([[0, NONE], [1, NONE], [2, NONE]]), np.array([[1.0], [0.5], [0.5]])
    account = Rounds()
    due = np.array([1.0, 0.6, 0.6])
    account.adopt(TimeShare(combos=combos, gpus=np.array([1, 2, 2]), x=x, round_s=ROUND, due=due), 0.0, 0)
    able = np.ones(3, dtype=bool)
    for r in range(20):
        picked = pick(account.priority(r * ROUND, (r + 1) * ROUND, able), combos, np.array([1, 2, 2]), [3])
        assert (0, 0) in picked
        for c, k in picked:
            account.add_received(c, k, ROUND)


def test_what_the_objective_needs_is_carried_over_with_the_rest() -> None:
    """Two jobs of which the first comes and stays; half of its share is due. After 300 s it is owed the due of all of them."""
    rounds, both = Rounds(), np.array([[0, NONE], [1, NONE]])
    one = TimeShare(combos=both[:1], gpus=np.ones(1, np.int64), x=np.ones((1, 1)), round_s=ROUND, due=np.array([0.5]))
    two = TimeShare(
        combos=both, gpus=np.ones(2, np.int64), x=np.full((2, 1), 0.5), round_s=ROUND, due=np.array([0.5, 1.0])
    )
    rounds.adopt(one, 0.0, 1)
    rounds.adopt(two, 200.0, 2)
    rounds.priority(300.0, 400.0, np.ones(2, bool))
    assert rounds.entitled.ravel() == pytest.approx([250.0, 50.0])
    assert rounds.due.ravel() == pytest.approx([100.0 + 25.0, 50.0])


def test_settings_of_rounds_are_checked() -> None:
    for wrong in ({"resolve_interval": -1.0}, {"round_s": 0.0}, {"resolve_interval": float("nan")}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Cadence(**{"round_s": 360.0, **wrong})
    policy = make_policy("max_min_fairness:resolve_interval=1920,backfill=false")
    assert policy.pace == Cadence(360.0, 1920.0, False, spare=True)


def test_a_log_keeps_what_the_objective_needs() -> None:
    log = run(make_policy("makespan"), [app("a", [job(500.0)]), app("b", [job(900.0)])], cluster(1))
    answers = [r.solved.answer for _, r in log if isinstance(r, Allocated)]
    assert answers
    assert all(isinstance(a, TimeShare) and a.due is not None for a in answers)
