"""The page ``/metrics``: the service's figures in Prometheus' text format; docs/monitoring.md has the meaning and unit of each.

No figure has a label for an app or a job, so their number does not grow with use. What is counted over time begins at zero with
each start of the service, except users' GPU seconds, which the journal keeps.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from themis.core.state import State
from themis.core.tables import Status
from themis.model.units import NONE, Bool
from themis.service.api import views, wait_reasons
from themis.service.api.methods import Api
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.pending_calls import Closed
from themis.service.engine.tallies import Tally
from themis.version import __version__

STATISTICS = {"min": 0.0, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
"""Quantiles; a label ``quantile`` is reserved for summaries, which count over time."""
PATIENCE_S = 8.0
"""Seconds to wait for the arbiter's thread; Prometheus waits for 10 s by default."""

_STATUS = {Status.WAITING: "waiting", Status.RUNNING: "running", Status.PAUSED: "paused", Status.HELD: "held"}
Rows = Iterable[tuple[tuple[str, ...], float]]
Figure = tuple[str, str, str, tuple[str, ...], Rows]
"""Kind (gauge, counter), name, meaning, labels, and the values of each combination of labels."""


def metrics(api: Api) -> bytes:
    """All figures, without those of the arbiter's thread while it does not answer."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families(api)))
    return generate_latest(registry)


class _Once:
    """A collector of families that are there already."""

    def __init__(self, families: list[Any]) -> None:
        self.families = families

    def collect(self) -> Iterable[Any]:
        """All of them."""
        return self.families


def families(api: Api) -> list[Any]:
    """The metric families of ``prometheus_client``."""
    from prometheus_client import ProcessCollector
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    a = api.arbiter
    try:
        figures, tallies = a.ask(lambda: _of_state(a), PATIENCE_S, changes=False), a.engine.tallies
        ready = 1.0
    except Closed:
        figures, ready = [], 0.0
        tallies = a.engine.tallies
    made = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    out: list[Any] = []
    for kind, name, text, labels, rows in itertools.chain([_ready(ready)], figures, _outside(api)):
        family = made[kind](name, text, labels=labels)
        for names, value in rows:
            family.add_metric(names, value)
        out.append(family)
    out += [
        _histogram("themis_decision_seconds", "Time that the policy ran for a decision.", [((), tallies.decision_s)]),
        _histogram("themis_decision_gap", "Proven gap of a decision, in the objective's unit.", [((), tallies.gap)]),
        _histogram("themis_finished_app_rho", "Finish-time fairness (rho) of apps that ended.", [((), tallies.rho)]),
        _histogram("themis_journal_commit_seconds", "Time of a commit to the journal.", [((), a.journal.commit_s)]),
        _histogram(
            "themis_api_call_seconds",
            "Time of a call of the API, without streams.",
            sorted(api.meter.seconds.copy().items()),
            ("api", "method"),
        ),
        *ProcessCollector(registry=None).collect(),
    ]
    return out


def _histogram(
    name: str, text: str, rows: Iterable[tuple[tuple[str, ...], Tally]], labels: tuple[str, ...] = ()
) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    for names, tally in rows:
        edges = [*(str(float(edge)) for edge in tally.edges), "+Inf"]
        buckets = list(zip(edges, itertools.accumulate(map(float, tally.counts))))
        family.add_metric(names, buckets, tally.total)
    return family


def _one(value: float) -> Rows:
    return [((), float(value))]


def _counted(counts: Mapping[str, float]) -> Rows:
    return [((name,), float(count)) for name, count in sorted(counts.items())]


def _ready(ready: float) -> Figure:
    text = "1 while the arbiter's thread answers; otherwise figures of the cluster are missing."
    return ("gauge", "themis_arbiter_ready", text, (), _one(ready))


# ---- what the arbiter's thread has -----------------------------------------------------------------------------------


def _of_state(a: Arbiter) -> list[Figure]:
    s = views.state_now(a)
    return [*_cluster(a, s), *_queue(a, s), *_fairness(a, s), *_service(a)]


def _cluster(a: Arbiter, s: State) -> Iterator[Figure]:
    drained = a.journal.drained()
    states = Counter(views.machine_state(s, n, drained) for n, machine in enumerate(s.machines) if n not in s.removed)
    known = dict.fromkeys(("up", "draining", "drained", "away", "lost"), 0.0)
    yield "gauge", "themis_nodes", "Machines by state.", ("state",), _counted({**known, **states})
    yield "gauge", "themis_gpus", "GPUs by type and state.", ("gpu_type", "state"), _gpus(s)
    demand = float(s.apps.demand[: s.apps.size][_active(s) & (s.apps.held[: s.apps.size] == 0)].sum())
    yield "gauge", "themis_gpus_demanded", "GPUs that the runnable jobs of all active apps could use.", (), _one(demand)


def _active(s: State) -> Bool:
    out: Bool = s.apps.active[: s.apps.size] > 0
    return out


def _gpus(s: State) -> Rows:
    leased, open_ = (s.gpu_job != NONE).any(axis=1), s.machine_up[s.gpu_machine]
    there = s.gpu_there | leased  # GPUs that a machine no longer has
    withheld = np.zeros(len(leased), dtype=bool)
    for gpus, _, _ in s.withheld.values():
        withheld[list(gpus)] = True
    kind = s.machine_type[s.gpu_machine]
    rest = ~leased
    parts = {
        "leased": leased,
        "withheld": rest & withheld,
        "out_of_service": rest & ~withheld & ~open_,
        "idle": rest & ~withheld & open_,
    }
    for state, here in parts.items():
        counts = np.bincount(kind[here & there], minlength=len(s.gpu_types))
        for gpu_type, count in zip(s.gpu_types, counts.tolist()):
            yield (gpu_type, state), count


def _queue(a: Arbiter, s: State) -> Iterator[Figure]:
    status = s.jobs.status[: s.jobs.size]
    active = _active(s)
    app_of = s.jobs.app[: s.jobs.size]
    runs = np.bincount(app_of[status == Status.RUNNING], minlength=s.apps.size) > 0
    may = np.bincount(app_of[status <= Status.RUNNING], minlength=s.apps.size) > 0
    held = active & ~may & (np.bincount(app_of[status == Status.HELD], minlength=s.apps.size) > 0)
    left_out, after = wait_reasons.left_out(s), a.housekeeping.waiting
    stopping = set(app_of[list(a.engine.core.stopping)].tolist())
    states = {"running": int((active & runs).sum()), "waiting": 0, "stopping": 0, "held": 0}
    reasons = dict.fromkeys(("after", "at_once", "backoff", "budget", "gpus", "machines_away", "quota"), 0)
    for app in np.flatnonzero(active & ~runs).tolist():
        if held[app] and (app not in after or after[app].held):
            states["held"] += 1
            continue
        if app in stopping and app not in after:
            states["stopping"] += 1
            continue
        states["waiting"] += 1
        reasons["after" if app in after else left_out.get(app, "") or "gpus"] += 1
    yield "gauge", "themis_apps", "Apps that have not ended, by state.", ("state",), _counted(states)
    text = "Waiting apps by pending reason."
    yield "gauge", "themis_apps_waiting", text, ("reason",), _counted(reasons)
    jobs = {name: float((status[active[app_of]] == code).sum()) for code, name in _STATUS.items()}
    yield "gauge", "themis_jobs", "Jobs of apps that have not ended, by state.", ("state",), _counted(jobs)


def _fairness(a: Arbiter, s: State) -> Iterator[Figure]:
    rho = views.rho_now(s)
    if rho:
        values = np.quantile(np.array(list(rho.values())), list(STATISTICS.values()))
        rows = [((name,), float(value)) for name, value in zip(STATISTICS, values)]
    else:
        rows = []
    text = "Quantiles of finish-time fairness (rho) over the apps that compete now."
    yield "gauge", "themis_rho", text, ("statistic",), rows
    users = views.share(a, rho=rho).users
    for name, text, field in (
        ("themis_user_entitled_share", "The user's part of the weight of all active apps.", "fair"),
        ("themis_user_received_share", "The user's part of the GPUs in service, now.", "share"),
        ("themis_user_gpus", "GPUs that the user's apps hold.", "gpus"),
        ("themis_user_apps", "The user's apps that have not ended.", "apps"),
    ):
        yield "gauge", name, text, ("user",), [((row.user,), float(getattr(row, field))) for row in users]
    seconds: dict[str, float] = {}
    for spec, had in zip(s.app_specs, s.apps_attained().tolist()):
        seconds[spec.user] = seconds.get(spec.user, 0.0) + had
    yield "counter", "themis_user_gpu_seconds", "GPU seconds that the user's apps held.", ("user",), _counted(seconds)


def _service(a: Arbiter) -> Iterator[Figure]:
    rows = [((__version__, a.config.policy, a.config.engine), 1.0)]
    yield "gauge", "themis_info", "Version and policy of the service.", ("version", "policy", "engine"), rows
    records = a.journal.last()[0]
    yield "gauge", "themis_journal_records", "Number of the journal's last record.", (), _one(records)
    problem = float(bool(a.engine.problem))
    text = "1 if the fallback made the last decision, because the policy could not."
    yield "gauge", "themis_policy_failed", text, (), _one(problem)


# ---- what any thread has ---------------------------------------------------------------------------------------------


def _outside(api: Api) -> Iterator[Figure]:
    a, tallies = api.arbiter, api.arbiter.engine.tallies
    home = a.journal.path.parent
    yield "gauge", "themis_start_time_seconds", "When the service started, seconds since 1970.", (), _one(a.started)
    stuck = float(bool(a.journal.stuck or a.journal.vanished()))
    yield "gauge", "themis_journal_stuck", "1 while the journal cannot be written.", (), _one(stuck)
    files = {"journal.db": "database", "journal.db-wal": "log"}
    sizes = [((name,), _size(home / file)) for file, name in files.items()]
    yield "gauge", "themis_journal_bytes", "Size of the journal's files.", ("file",), sizes
    disk = os.statvfs(home)
    free, text = disk.f_bavail * disk.f_frsize, "Free bytes on the disk of the data directory."
    yield "gauge", "themis_disk_free_bytes", text, (), _one(free)
    text = "Bytes of the user's checkpoints, logs, files and copies in the data directory."
    users = a.disk.found.users if a.disk.found is not None else {}
    yield "gauge", "themis_user_disk_bytes", text, ("user",), _counted(dict(users))
    text = "Agents of apps that are connected."
    yield "gauge", "themis_app_agents", text, (), _one(len(a.agents.connected()))
    text = "Calls under way that follow events or logs."
    yield "gauge", "themis_streams", text, (), _one(api.streams.taken.total())
    text = "Decisions by result: policy, cut (stopped at its time limit), fallback or forced (nothing to decide)."
    results = {**dict.fromkeys(("policy", "cut", "fallback", "forced"), 0.0), **tallies.decisions}
    yield "counter", "themis_decisions", text, ("result",), _counted(results)
    text = "Apps that ended, by outcome."
    known = dict.fromkeys(("completed", "cancelled", "failed"), 0.0)
    yield "counter", "themis_apps_ended", text, ("outcome",), _counted({**known, **tallies.apps})
    text = "Attempts of jobs that ended, by ending."
    yield "counter", "themis_attempts_ended", text, ("ending",), _counted(tallies.attempts.copy())
    levels = {"warning": 0.0, "error": 0.0, **api.meter.messages.copy()}
    yield "counter", "themis_log_messages", "Messages in the service's log.", ("level",), _counted(levels)
    calls = [(names, float(count)) for names, count in sorted(api.meter.calls.copy().items())]
    ends = {"server": api.tls.facts.expires, "authority": api.tls.expires} if api.tls else {}
    left = [((name,), end - time.time()) for name, end in ends.items() if end is not None]
    text = "Seconds until a certificate of the service expires; nothing without TLS."
    yield "gauge", "themis_certificate_expiry_seconds", text, ("certificate",), left
    text = "Calls of the API; status is of HTTP."
    yield "counter", "themis_api_calls", text, ("api", "method", "status"), calls


def _size(path: Path) -> float:
    try:
        return float(path.stat().st_size)
    except OSError:
        return 0.0
