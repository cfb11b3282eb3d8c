"""Why did this app get what it got? One app's story, read from the log: every round, bid, payment and lease.

In a log of auctions each round in which the app was active is a line; otherwise each decision or event that changed its
leases. The proof that the policy logged is shown as it is; nothing is solved again.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import orjson
from rich import box
from rich.table import Table
from rich.text import Text

from themis.errors import InputError, ThemisError, UnknownName
from themis.model.events import Allocated, AppFinished, CurveStopped, Grant, Header, Renew, Revoke
from themis.model.log import Fields, read_lines, to_record
from themis.model.units import Seconds


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
    late : its deadline was given up, for this decision.
    starts, ends : of a plan: when the first of the app's jobs is to run next, and when the last is forecast to end; NaN: no plan.
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
    starts: Seconds = math.nan
    ends: Seconds = math.nan

    @property
    def outcome(self) -> tuple[object, ...]:
        """What makes two steps alike for a reader."""
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
            )
        return (self.bid, self.won, round(self.kept, 3), self.leftover, self.granted, self.renewed, self.revoked,
                self.causes, self.held, self.note, self.stopped)  # fmt: skip


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
    steps: tuple[Step, ...]

    @property
    def first_forecast_off(self) -> float:
        """By what share of the completion time the first plan's forecast of the app's end was too late; NaN without one."""
        ends = [step.ends for step in self.steps if not math.isnan(step.ends)]
        return (ends[0] - self.arrival - self.jct) / self.jct if ends else math.nan

    def to_json(self) -> str:
        """Everything as JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2).decode()

    def table(self, *, every: bool = False) -> Table:
        """For the terminal; runs of equal rounds are one line, unless ``every``."""
        return _table(self, every)


def explain(path: str | Path, app: str) -> Explanation:
    """Read an app's story from a log.

    Raises
    ------
    UnknownName : the log has no app of this name.
    InputError : the log is missing or broken.
    """
    reader = _Reader(app)
    for number, line in read_lines(path):
        try:
            reader.take(line)
        except (ThemisError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    return reader.story()


@dataclass(slots=True)
class _Reader:
    """Follows one app through the log; the values of the step under way are gathered in ``now``."""

    name: str
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
    round: int = -1
    auctions: bool = False
    gpus: dict[int, int] = field(default_factory=dict)
    """GPUs that each of the app's jobs holds."""
    now: Fields = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def take(self, line: Fields) -> None:
        kind = line["kind"]
        if kind == "AppSubmitted":
            self._submitted(line)
        elif kind == "Allocated":
            self.round += 1
            if self.active:
                self._decided(line)
        elif kind in ("Grant", "Renew", "Revoke", "CurveStopped", "AppFinished"):
            if line.get("app") == self.app:
                self._command(*to_record(line))
        elif kind == "Header":
            header = to_record(line)[1]
            assert isinstance(header, Header)
            self.header = header

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
        self._flush()
        self.now = {"time": time, "round": self.round}
        proof = record.solved.proof
        planned = np.isin(proof.job, np.arange(self.first_job, self.first_job + len(self.jobs)))
        if planned.any():
            self.now |= {"starts": float(proof.starts[planned].min()), "ends": float(proof.ends[planned].max())}
        if np.isin(proof.late, np.arange(self.first_job, self.first_job + len(self.jobs))).any():
            self.now["late"] = True
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
                now["granted"] = now.get("granted", 0) + len(command.gpus)
            case Renew():
                now["renewed"] = now.get("renewed", 0) + self.gpus.get(command.job, 0)
            case Revoke():
                now["revoked"] = now.get("revoked", 0) + self.gpus.pop(command.job, 0)
                now["causes"] = tuple(sorted({*now.get("causes", ()), command.cause}))
            case CurveStopped():
                now["stopped"] = (*now.get("stopped", ()), _given_up(self.jobs[command.job - self.first_job], command))
            case AppFinished():
                self.end = command
                now["note"] = command.outcome

    def _at(self, time: Seconds) -> None:
        """What follows belongs to this instant's step; a new one begins if there is none."""
        if self.now.get("time") != time:
            self._flush()
            self.now = {"time": time}

    def _flush(self) -> None:
        """The step under way is over; it is kept if it says anything."""
        if self.now:
            step = Step(held=sum(self.gpus.values()), **self.now)
            told = step.note or step.stopped or step.granted or step.renewed or step.revoked or step.of
            told = told or step.late or not math.isnan(step.ends)
            self.steps += [step] if told else []
        self.now = {}

    def story(self) -> Explanation:
        self._flush()
        if self.app < 0 or self.header is None:
            close = difflib.get_close_matches(self.name, self.names, n=10, cutoff=0.0)
            raise UnknownName("app", self.name, self.names if len(self.names) <= 40 else close)
        h, end = self.header, self.end
        return Explanation(
            app=self.name, user=self.user, policy=h.policy, seed=h.seed, simulated=h.simulated,
            form=str(h.params.get("rho", "paper")) if self.auctions else "", arrival=self.arrival,
            jct=end.jct if end else math.nan, rho_paper=end.rho_paper if end else math.nan,
            rho_exact=end.rho_exact if end else math.nan, steps=tuple(self.steps),
        )  # fmt: skip


# ---- on the terminal ------------------------------------------------------------------------------------------------


def collapse(steps: Sequence[Step]) -> list[list[Step]]:
    """Neighbouring steps with the same outcome, together."""
    out: list[list[Step]] = []
    for step in steps:
        if out and out[-1][-1].outcome == step.outcome and out[-1][-1].auction == step.auction and not step.note:
            out[-1].append(step)
        else:
            out.append([step])
    return out


def _table(story: Explanation, every: bool) -> Table:
    auctions = bool(story.form)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=Text(_title(story)), title_justify="left", title_style="bold",
                  caption=Text(_caption(story)), caption_justify="left", caption_style="dim")  # fmt: skip
    table.add_column("time", no_wrap=True)
    table.add_column("round", justify="right", no_wrap=True)
    if auctions:
        for name in ("GPUs\noffered", f"ρ\n{story.form}", "rank", "part", "won", "kept\n%", "left-\nover"):
            table.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    planned = any(not math.isnan(step.ends) for step in story.steps)
    if planned:
        table.add_column("next\nstart", no_wrap=True)
        table.add_column("forecast\nend", no_wrap=True)
    table.add_column("leases")
    table.add_column("GPUs\nheld", justify="right")
    for group in [[s] for s in story.steps] if every else collapse(story.steps):
        table.add_row(*_cells(group, auctions, planned))
    return table


def _cells(group: Sequence[Step], auctions: bool, planned: bool) -> list[Text | str]:
    first, last = group[0], group[-1]
    times = _clock(first.time) if len(group) == 1 else f"{_clock(first.time)} – {_clock(last.time)}"
    rounds = [s.round for s in group if s.round >= 0]
    number = "" if not rounds else str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}–{rounds[-1]}"
    middle = _auction_cells(group) if auctions else []
    if planned:
        middle += ["" if math.isnan(t) else _clock(t) for t in (last.starts, last.ends)]
    return [times, number, *middle, _leases(group), str(last.held)]


def _auction_cells(group: Sequence[Step]) -> list[Text | str]:
    s = group[0]
    if not s.auction:
        why = "" if not s.of else "no bid" if s.cut else "content"
        return [_span([x.offered for x in group]) if s.of else "", "", "", why, "", "", ""]
    part = Text("bid", style="bold green") if s.bid else Text("filtered", style="yellow")
    kept = ""
    if s.won:
        kept = f"{100 * s.kept:.1f}"
        if s.kept_high - s.kept_low > 5e-4:
            kept += f" [{100 * s.kept_low:.1f}, {100 * s.kept_high:.1f}]"
    return [
        _span([x.offered for x in group]), _span([x.rho for x in group], 2), f"{s.rank or '?'}/{s.of}" if len(group) == 1
        else f"{_span([x.rank for x in group])}/{_span([x.of for x in group])}", part,
        str(s.won) if s.won else "", kept, str(s.leftover) if s.leftover else "",
    ]  # fmt: skip


def _leases(group: Sequence[Step]) -> Text:
    """What happened to the app's leases, in a few words."""
    s, words = group[0], []
    if s.note:
        words.append(Text(s.note, style="bold"))
    if s.late:
        words.append(Text("deadline given up", style="yellow"))
    if s.granted:
        words.append(Text(f"+{s.granted} granted", style="green"))
    if s.renewed:
        words.append(Text(f"{s.renewed} renewed"))
    if s.revoked:
        words.append(Text(f"−{s.revoked} {', '.join(s.causes)}", style="red" if "failed" in s.causes else ""))
    if len(group) > 1:
        words.append(Text(f"× {len(group)}", style="dim"))
    stopped = [Text(f"stopped {job}", style="yellow") for job in s.stopped]
    return Text("\n").join([*stopped, Text(", ").join(words)] if words else stopped)


def _given_up(job: str, why: CurveStopped) -> str:
    chance = f"{why.chance:.1%}" if why.chance >= 5e-4 else "<0.1%"
    return f"{job}: {why.forecast:.3g} ± {why.deviation:.1g} against {why.standard:.3g} ({chance})"


def _span(values: Sequence[float], digits: int = 0) -> str:
    low, high = (f"{v:.{digits}f}" for v in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def _clock(time: Seconds) -> str:
    """1 d 02:03:04."""
    whole = int(time)
    days, clock = whole // 86400, f"{whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{days} d {clock}" if days else clock


def _title(story: Explanation) -> str:
    kind = "simulated" if story.simulated else "measured"
    who = f"{story.app} of {story.user} under {story.policy}, seed {story.seed} ({kind})"
    if math.isnan(story.jct):
        return f"{who}: still active."
    rho = f"ρ {story.rho_paper:.2f} paper, {story.rho_exact:.2f} exact"
    return f"{who}: JCT {story.jct / 3600:.1f} h, {rho}."


def _caption(story: Explanation) -> str:
    early = ""
    if any(s.stopped for s in story.steps):
        early = " stopped: job, its forecast final loss, the one it had to beat, its chance to."
    if not math.isnan(story.first_forecast_off):
        early += f" The first forecast of its end was {abs(story.first_forecast_off):.0%} of its completion time too "
        early += "late." if story.first_forecast_off > 0 else "early."
    if not story.form:
        return f"Every grant, renewal and revocation; held: GPUs under lease afterwards.{early}"
    cut = " no bid: filtered out or content, the log was cut." if any(s.cut for s in story.steps) else ""
    return (
        "rank: among apps with unmet demand, the worst ρ first; the first ones bid, others are filtered out and may get "
        f"leftovers; content: no unmet demand.{cut} kept: share of the GPUs won that is left after the hidden payment."
        f"{early}"
    )
