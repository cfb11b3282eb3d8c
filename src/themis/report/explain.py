"""Explanation of one app's allocation, read from the log: every round, bid, payment and lease.

In a log of auctions each round in which the app was active is a line; otherwise each decision or event that changed its
leases. The proof that the policy logged is shown as it is; nothing is solved again.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import orjson

from themis.errors import InputError, ThemisError, UnknownName
from themis.model.answers import CUT, UNCONTESTED
from themis.model.events import Allocated, AppFinished, CurveStopped, Grant, Header, Revoke
from themis.model.log import read_lines, to_record
from themis.model.log_decisions import Fields
from themis.model.units import Float, GpuSeconds, Seconds
from themis.report.delivery import Missing
from themis.report.metrics import FOLDED, Fold
from themis.report.outlook import ExpectedTimes, Followed
from themis.report.plans import Plans

LOANS = 3
"""Apps that are named in a loan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One round, or one event between rounds, as the app saw it.

    Attributes
    ----------
    round : number of the decision, or -1 for what happened between decisions.
    auction : the app had unmet demand in an auction, so the next fields say something.
    offered : GPUs on offer. ``rho`` : the app's finish-time fairness then. ``rank`` : its place among the ``of`` apps with
        unmet demand, worst rho first (0: the log does not say). ``bid`` : it took part; False: it was filtered out.
    won : GPUs won before payment. ``kept`` : share kept after the hidden payment, with its interval.
    leftover : GPUs from leftovers.
    stopped : jobs that curve stopping gave up, each in a few words.
    granted, renewed : GPUs. ``revoked`` : GPUs. ``causes`` : of the revocations.
    held : GPUs held after it all. ``note`` : arrived | completed | cancelled.
    cut : the log keeps only part of this proof, without this app: it did not bid and got no leftovers.
    late : its deadline was given up, for this decision. ``unproven`` : why another choice might have kept it; empty where none can.
    starts, ends : of a plan: when the first of the app's jobs is to run next, and when the last is forecast to end; NaN: no plan.
    starts_low, starts_high, ends_low, ends_high : their intervals, from 10th to 90th percentile (``themis.report.plans``); NaN
        while too few jobs have started or ended to tell.
    """

    time: Seconds
    round: int = -1
    auction: bool = False
    offered: int = 0
    rho: float = math.nan
    rank: int = 0
    of: int = 0
    bid: bool = False
    won: int = 0
    kept: float = 1.0
    kept_low: float = 1.0
    kept_high: float = 1.0
    leftover: int = 0
    stopped: tuple[str, ...] = ()
    granted: int = 0
    renewed: int = 0
    revoked: int = 0
    causes: tuple[str, ...] = ()
    held: int = 0
    note: str = ""
    cut: bool = False
    late: bool = False
    unproven: str = ""
    starts: Seconds = math.nan
    starts_low: Seconds = math.nan
    starts_high: Seconds = math.nan
    ends: Seconds = math.nan
    ends_low: Seconds = math.nan
    ends_high: Seconds = math.nan

    @property
    def outcome(self) -> tuple[object, ...]:
        """Key that is equal for steps that look equal to a reader."""
        if not self.auction:
            return (
                self.round < 0,
                self.cut,
                self.granted,
                self.renewed,
                self.revoked,
                self.causes,
                self.held,
                self.note,
                self.stopped,
                self.late,
                self.unproven,
            )
        return (
            self.bid,
            self.won,
            round(self.kept, 3),
            self.leftover,
            self.granted,
            self.renewed,
            self.revoked,
            self.causes,
            self.held,
            self.note,
            self.stopped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An app's story and how it ended (NaN while it is active)."""

    app: str
    user: str
    policy: str
    seed: int
    simulated: bool
    form: str
    """Form of rho that the auctions used; empty where there were none."""
    arrival: Seconds
    jct: Seconds
    rho_paper: float
    rho_exact: float
    reference: Seconds
    """Duration of the app on its own share of the cluster from arrival (``rho_reference``); NaN of a compacted log."""
    lent: GpuSeconds
    """GPU time due on its own share by now, minus what it received; < 0: it borrowed; NaN for a compacted log."""
    stretch: Seconds
    """Unavoidable delay of its end beyond its own share, as of the last decision; 0 where that can be kept."""
    steps: tuple[Step, ...]
    loans: tuple[tuple[str, GpuSeconds], ...] = ()
    """Largest loans, at most ``LOANS``, the largest first. For an active app that lent: the apps that have had more
    than on their own share by now, and the part of its loan that each has. For one that borrowed: the apps that have
    had less.
    """
    started: Seconds = math.nan
    """Time of its first job's first GPUs."""
    entitled: GpuSeconds = math.nan
    """GPU-seconds that it was entitled to by now; NaN of a compacted log."""
    received: GpuSeconds = math.nan
    """Useful GPU-seconds that it had."""
    missing: Missing = field(default_factory=Missing)
    """The difference by cause."""
    time: Seconds = math.nan
    """Time of the log's last record."""
    expected: ExpectedTimes = field(default_factory=ExpectedTimes)
    """Expected start and end of the app as of then, with 80 % intervals from the run's own past."""

    @property
    def first_start_off(self) -> Seconds:
        """Delay of its first GPUs after the time of the first plan; NaN without a plan that had it wait."""
        first = next((step for step in self.steps if not math.isnan(step.starts)), None)
        return self.started - first.starts if first is not None and first.starts > first.time else math.nan

    @property
    def first_forecast_off(self) -> float:
        """Error of the first plan's forecast of the app's end over its completion time, > 0 if late; NaN without."""
        ends = [step.ends for step in self.steps if not math.isnan(step.ends)]
        return (ends[0] - self.arrival - self.jct) / self.jct if ends else math.nan

    def to_json(self) -> str:
        """The explanation as JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2).decode()


def explain(path: str | Path, app: str, *, reference: bool = True, now: Seconds = -math.inf) -> Explanation:
    """Read an app's story from a log; without ``reference`` it leaves out the app's own share, which others know already.

    ``now`` : time of the story, where it is later than the log's last record.

    Raises
    ------
    UnknownName : the log has no app of this name.
    InputError : the log is missing or broken.
    """
    reader = _Reader(app, reference=reference)
    for number, line in read_lines(path):
        try:
            reader.take(line)
            reader.count(line)
        except (ThemisError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    reader.until(now)
    return reader.story()


@dataclass(slots=True)
class _Reader:
    """Follows one app through the log; the values of the step under way are gathered in ``now``."""

    name: str
    reference: bool = True
    header: Header | None = None
    names: list[str] = field(default_factory=list)
    app: int = -1
    user: str = ""
    arrival: Seconds = math.nan
    end: AppFinished | None = None
    job_count: int = 0
    """Jobs submitted so far, of all apps; they are numbered in this order."""
    first_job: int = 0
    jobs: list[str] = field(default_factory=list)
    started: Seconds = math.nan
    stretch: Seconds = 0.0
    plans: Plans = field(default_factory=Plans)
    """Plans of all apps: past forecast errors give the intervals."""
    followed: Followed = field(default_factory=Followed)
    """State followed over all apps, under any policy."""
    round: int = -1
    auctions: bool = False
    gpus: dict[int, int] = field(default_factory=dict)
    """GPUs that each of the app's jobs holds."""
    now: Fields = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    away: str = ""
    """Why the revocations that follow say ``failed``: their machine left service. Empty: their job failed."""
    fold: Fold = field(default_factory=Fold)
    """GPU time that all apps were entitled to and received."""
    whole: bool = True
    """True if the log has all of its records; a compacted log cannot say who received what."""

    def take(self, line: Fields) -> None:
        kind = line["kind"]
        if kind == "MachineFailed":
            self.away = "drained" if line.get("drained") else "machine lost"
        elif kind != "Revoke":
            self.away = ""
        if kind in Followed.KINDS:
            self.followed.add(*to_record(line))
        self.followed.now = float(line["t"])
        if kind == "AppSubmitted":
            self._submitted(line)
        elif kind == "Allocated":
            self.round += 1
            if self.active or "ends" in line.get("proof", {}):
                self._decided(line)
        elif kind == "JobEnded" and self.plans.forecasts:
            if line["outcome"] == "completed":
                self.plans.end(line["job"], float(line["t"]))
        elif kind == "Renew":
            if renewed := sum(self.gpus.get(job, 0) for job in line["jobs"]):
                self._at(float(line["t"]))
                self.now["renewed"] = self.now.get("renewed", 0) + renewed
        elif kind in ("Grant", "Revoke", "CurveStopped", "AppFinished"):
            if kind == "Grant" and self.plans.forecasts:
                self.plans.start(line["job"], float(line["t"]))
            if line.get("app") == self.app:
                self._command(*to_record(line))
        elif kind == "Header":
            header = to_record(line)[1]
            assert isinstance(header, Header)
            self.header = header

    def count(self, line: Fields) -> None:
        """Add a record to what all apps received; a log without its beginning, or a compacted one, does not say that."""
        self.whole &= line["kind"] != "Compacted"
        if self.whole and line["kind"] in FOLDED:
            try:
                self.fold.add(*to_record(line))
            except (IndexError, KeyError):
                self.whole = False

    def until(self, now: Seconds) -> None:
        """Nothing more happened up to ``now``."""
        self.followed.now = max(self.followed.now, now)
        if now > self.fold.levels.now:
            self.fold.levels.advance(now)

    @property
    def active(self) -> bool:
        return self.app >= 0 and self.end is None

    def _submitted(self, line: Fields) -> None:
        spec = line["app"]
        if spec["name"] == self.name:
            self.app, self.user, self.arrival = len(self.names), spec["user"], float(line["t"])
            self._at(self.arrival)
            self.now["note"] = "arrived"
            self.first_job, self.jobs = self.job_count, [job["name"] for job in spec["jobs"]]
        self.names.append(spec["name"])
        self.job_count += len(spec["jobs"])

    def _decided(self, line: Fields) -> None:
        time, record = to_record(line)
        assert isinstance(record, Allocated)
        proof = record.solved.proof
        self.plans.add(time, proof)
        if not self.active:
            return
        self._flush()
        if not proof.method.startswith(UNCONTESTED):
            self.stretch = float(proof.stretch[proof.stretched == self.app].sum())
        self.now = {"time": time, "round": self.round}
        planned = np.isin(proof.job, np.arange(self.first_job, self.first_job + len(self.jobs)))
        if planned.any():
            starts, ends = float(proof.starts[planned].min()), float(proof.ends[planned].max())
            within = (*self.plans.start_within(time, starts), *self.plans.end_within(time, ends))
            self.now |= dict(zip(("starts_low", "starts_high", "ends_low", "ends_high"), within))
            self.now |= {"starts": starts, "ends": ends}
        if np.isin(proof.late, np.arange(self.first_job, self.first_job + len(self.jobs))).any():
            self.now["late"] = True
            if proof.method.startswith(CUT):
                self.now["unproven"] = proof.method.removeprefix(f"{CUT}: ")
        if not proof.bid.any():
            return
        self.auctions = True
        self.now["offered"] = proof.offered
        logged = line.get("proof", {})
        self.now["of"] = logged.get("rows", len(proof.app))
        at = np.flatnonzero(proof.app == self.app)
        self.now["cut"] = "at" in logged and not len(at)
        if len(at):
            i = int(at[0])
            # A cut proof says which of its rows are left; rows are in order of rank.
            self.now |= {"auction": True, "rank": int(logged["at"][i] if "at" in logged else i) + 1}
            for name in ("rho", "bid", "won", "kept", "kept_low", "kept_high", "leftover"):
                self.now[name] = getattr(proof, name)[i].item()

    def _command(self, time: Seconds, command: object) -> None:
        self._at(time)
        now = self.now
        match command:
            case Grant():
                self.gpus[command.job] = len(command.gpus)
                self.started = time if math.isnan(self.started) else self.started
                now["granted"] = now.get("granted", 0) + len(command.gpus)
            case Revoke():
                now["revoked"] = now.get("revoked", 0) + self.gpus.pop(command.job, 0)
                cause = (self.away or command.cause) if command.cause == "failed" else command.cause
                now["causes"] = tuple(sorted({*now.get("causes", ()), cause}))
            case CurveStopped():
                now["stopped"] = (*now.get("stopped", ()), _given_up(self.jobs[command.job - self.first_job], command))
            case AppFinished():
                self.end = command
                now["note"] = command.outcome

    def _at(self, time: Seconds) -> None:
        """Begin a step at this instant if none is open; later records belong to it."""
        if self.now.get("time") != time:
            self._flush()
            self.now = {"time": time}

    def _flush(self) -> None:
        """The step under way is over; it is kept if it says anything."""
        if self.now:
            step = Step(held=sum(self.gpus.values()), **self.now)
            notable = step.note or step.stopped or step.granted or step.renewed or step.revoked or step.of
            notable = notable or step.late or not math.isnan(step.ends)
            self.steps += [step] if notable else []
        self.now = {}

    def story(self) -> Explanation:
        self._flush()
        if self.app < 0 or self.header is None:
            close = difflib.get_close_matches(self.name, self.names, n=10, cutoff=0.0)
            raise UnknownName("app", self.name, self.names if len(self.names) <= 40 else close)
        h, end = self.header, self.end
        none = (math.nan, math.nan, Missing())
        entitled, received, missing = self.fold.delivered(self.app) if self.whole else none
        own = self.whole and self.reference
        lent = self._lent() if own else np.zeros(0)
        return Explanation(
            app=self.name,
            user=self.user,
            policy=h.policy,
            seed=h.seed,
            simulated=h.simulated,
            form=str(h.params.get("rho", "paper")) if self.auctions else "",
            arrival=self.arrival,
            jct=end.jct if end else math.nan,
            rho_paper=end.rho_paper if end else math.nan,
            rho_exact=end.rho_exact if end else math.nan,
            reference=float(self.fold.reference.lasted()[self.app]) if own else math.nan,
            lent=float(lent[self.app]) if own else math.nan,
            stretch=self.stretch,
            steps=tuple(self.steps),
            loans=self._loans(lent) if own and not end else (),
            started=self.started,
            entitled=entitled,
            received=received,
            missing=missing,
            time=self.followed.now,
            expected=self.followed.outlook.of(self.app, self.followed.now),
        )

    def _lent(self) -> Float:
        """[A], GPU-seconds that each app would have had on its own share by now, less those that it had."""
        due = self.fold.reference.received(self.followed.now)
        out: Float = due - np.array(self.fold.received())
        return out

    def _loans(self, lent: Float) -> tuple[tuple[str, GpuSeconds], ...]:
        """The app's present lenders or borrowers: all on the other side, each in proportion to its distance."""
        others = np.maximum(-lent if lent[self.app] > 0 else lent, 0.0)
        total = float(others.sum())
        if total <= 0:
            return ()
        part = others * min(abs(float(lent[self.app])) / total, 1.0)
        order = np.argsort(-part, kind="stable")[:LOANS].tolist()
        return tuple((self.names[a], float(part[a])) for a in order if part[a] > 0)


def _given_up(job: str, why: CurveStopped) -> str:
    chance = f"{why.chance:.1%}" if why.chance >= 5e-4 else "<0.1%"
    return f"{job}: {why.forecast:.3g} ± {why.deviation:.1g} against {why.standard:.3g} ({chance})"
