"""An app's story on the terminal: a table of its steps, equal ones together, with a caption that says what its columns are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.table import Table
from rich.text import Text

from themis.model.units import Seconds
from themis.report.explain import Explanation, Step
from themis.report.sentences import delivered


def collapse(steps: Sequence[Step]) -> list[list[Step]]:
    """Neighbouring steps with the same outcome, together."""
    out: list[list[Step]] = []
    for step in steps:
        if out and out[-1][-1].outcome == step.outcome and out[-1][-1].auction == step.auction and not step.note:
            out[-1].append(step)
        else:
            out.append([step])
    return out


def table(story: Explanation, *, every: bool = False) -> Table:
    """An app's steps for the terminal; runs of equal ones are one line, unless ``every``."""
    auctions = bool(story.form)
    out = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=Text(_title(story)),
        title_justify="left",
        title_style="bold",
        caption=Text(_caption(story)),
        caption_justify="left",
        caption_style="dim",
    )
    out.add_column("time", no_wrap=True)
    out.add_column("round", justify="right", no_wrap=True)
    if auctions:
        for name in ("GPUs\noffered", f"ρ\n{story.form}", "rank", "part", "won", "kept\n%", "left-\nover"):
            out.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    planned = any(not math.isnan(step.ends) for step in story.steps)
    if planned:
        out.add_column("next\nstart", no_wrap=True)
        out.add_column("forecast\nend", no_wrap=True)
    out.add_column("leases")
    out.add_column("GPUs\nheld", justify="right")
    for group in [[s] for s in story.steps] if every else collapse(story.steps):
        out.add_row(*_cells(group, auctions, planned))
    return out


def _cells(group: Sequence[Step], auctions: bool, planned: bool) -> list[Text | str]:
    first, last = group[0], group[-1]
    times = _clock(first.time) if len(group) == 1 else f"{_clock(first.time)} – {_clock(last.time)}"
    rounds = [s.round for s in group if s.round >= 0]
    number = "" if not rounds else str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}–{rounds[-1]}"
    middle = _auction_cells(group) if auctions else []
    if planned:
        middle += [
            _forecast(last.starts, last.starts_low, last.starts_high),
            _forecast(last.ends, last.ends_low, last.ends_high),
        ]
    return [times, number, *middle, _leases(group), str(last.held)]


def _forecast(then: Seconds, low: Seconds, high: Seconds) -> str:
    """A forecast time, and its interval beneath."""
    if math.isnan(then):
        return ""
    return _clock(then) if math.isnan(low) or low == high else f"{_clock(then)}\n[{_clock(low)}, {_clock(high)}]"


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
        _span([x.offered for x in group]),
        _span([x.rho for x in group], 2),
        f"{s.rank or '?'}/{s.of}"
        if len(group) == 1
        else f"{_span([x.rank for x in group])}/{_span([x.of for x in group])}",
        part,
        str(s.won) if s.won else "",
        kept,
        str(s.leftover) if s.leftover else "",
    ]


def _leases(group: Sequence[Step]) -> Text:
    """Changes of the app's leases, in a few words."""
    s, words = group[0], []
    if s.note:
        words.append(Text(s.note, style="bold"))
    if s.late:
        words.append(Text(f"deadline given up{f' ({s.unproven})' if s.unproven else ''}", style="yellow"))
    if s.granted:
        words.append(Text(f"+{s.granted} granted", style="green"))
    if s.renewed:
        words.append(Text(f"{s.renewed} renewed"))
    if s.revoked:
        words.append(
            Text(f"−{s.revoked} {', '.join(s.causes)}", style="red" if {"failed", "machine lost"} & {*s.causes} else "")
        )
    if len(group) > 1:
        words.append(Text(f"× {len(group)}", style="dim"))
    stopped = [Text(f"stopped {job}", style="yellow") for job in s.stopped]
    return Text("\n").join([*stopped, Text(", ").join(words)] if words else stopped)


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
        return f"{who}: still active.{expected_text(story)}{_reference(story)}"
    rho = f"ρ {story.rho_paper:.2f} paper, {story.rho_exact:.2f} exact"
    return f"{who}: JCT {story.jct / 3600:.1f} h, {rho}.{_reference(story)}"


def _reference(story: Explanation) -> str:
    """Sentence on the time that the app would take on its own share of the cluster."""
    if not math.isfinite(story.reference):
        return ""
    would = "would have taken" if story.jct == story.jct else "would end"
    after = "" if story.jct == story.jct else " after it came"
    return f" On its own share of the cluster it {would} {_clock(story.reference)}{after}.{_lent(story)}"


def _lent(story: Explanation) -> str:
    """Sentence on the GPU time that an active app lent or borrowed, and whether it can still end as on its own share."""
    if story.jct == story.jct or not math.isfinite(story.lent):
        return ""
    hours, text = abs(story.lent) / 3600, ""
    if hours >= 0.05:
        what = f"lent {hours:.1f} GPU hours to" if story.lent > 0 else f"borrowed {hours:.1f} GPU hours from"
        named = ", ".join(f"{name} {part / 3600:.1f}" for name, part in story.loans if part >= 0.05 * 3600)
        text = f" It {what} other apps{f' ({named})' if named else ''}."
    if story.stretch >= 60.0:
        text += f" It ends at least {_clock(story.stretch)} later than on its own share."
    return text


def expected_text(story: Explanation) -> str:
    """Expected start and end of an active app, counted from its arrival, with 80 % intervals."""
    e, sentence = story.expected, ""
    for what, at, low, high in (
        ("starts", e.starts, e.starts_low, e.starts_high),
        ("ends", e.ends, e.ends_low, e.ends_high),
    ):
        if not math.isnan(at):
            within = "no interval yet" if math.isnan(low) else f"80 %: {_after(story, low)} to {_after(story, high)}"
            sentence += f" It {what} about {_after(story, at)} after it came ({within})."
    return sentence


def _after(story: Explanation, time: Seconds) -> str:
    return _clock(max(time - story.arrival, 0.0))


def _caption(story: Explanation) -> str:
    early = delivered(story.entitled, story.received, asdict(story.missing))
    early = f" {early}" if early else ""
    if any(s.stopped for s in story.steps):
        early = " stopped: job, its forecast final loss, the one it had to beat, its chance to."
    if not math.isnan(story.first_start_off):
        when = "later" if story.first_start_off >= 0 else "sooner"
        early += f" It first got GPUs {abs(story.first_start_off):.0f} s {when} than the first plan said."
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
