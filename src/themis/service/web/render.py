"""Templates of the console, and how they write numbers and times. All text is escaped."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from themis.model.units import Seconds
from themis.report.sentences import against_own_share, sooner
from themis.service.web.charts import legend
from themis.service.web.static import Static
from themis.version import __version__


class Renderer:
    """The templates of ``templates/``."""

    def __init__(self, static: Static) -> None:
        self.environment = Environment(
            loader=PackageLoader("themis.service.web", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.globals.update(
            static=static.url,
            version=__version__,
            when=when,
            left=left,
            lasting=lasting,
            now=time.time,
            percent=percent,
            bar=bar,
            legend=legend,
        )
        self.environment.filters.update(
            duration=duration,
            number=number,
            hours=hours,
            balance=balance,
            sentence=sentence,
            sooner=sooner,
            against_own_share=against_own_share,
        )

    def text(self, template: str, **values: Any) -> str:
        """A template with its values."""
        return self.environment.get_template(template).render(**values)


def number(value: float) -> str:
    """A number with separators, and with decimals where it is small."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def sentence(text: str) -> str:
    """Begins with a capital letter."""
    return text[:1].upper() + text[1:]


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{share:.0%}" if math.isfinite(share) else "–"


def duration(seconds: Seconds) -> str:
    """A duration as ``2 d 3 h``, ``5 min 10 s``."""
    if not math.isfinite(seconds):
        return "–"
    left = max(round(seconds), 0)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts = []
    for name, size in units:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def hours(value: float) -> str:
    """GPU hours; minutes or seconds where it is less."""
    for unit, size in (("h", 1.0), ("min", 1 / 60)):
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{value * 3600:.0f} s"


def balance(value: float) -> str:
    """GPU hours with their sign; what rounds to 0 has none."""
    text = hours(abs(value))
    return text if text == "0 s" else f"{'+' if value > 0 else '−'}{text}"


def when(moment: Seconds) -> Markup:
    """A time in the past; a script writes how long ago it is. ``moment`` : seconds since 1970."""
    return _time(moment, "ago")


def lasting(moment: Seconds) -> Markup:
    """Time elapsed since then; a script updates it."""
    return _time(moment, "for")


def left(moment: Seconds) -> Markup:
    """A time to come; a script writes how far it is."""
    return _time(moment, "left")


def _time(moment: Seconds, kind: str) -> Markup:
    try:
        at = datetime.fromtimestamp(moment, UTC)
    except (OverflowError, ValueError, OSError):
        return Markup("–")
    return Markup('<time datetime="{}" data-{}="{}">{}</time>').format(
        at.isoformat(timespec="seconds"), kind, f"{moment:.1f}", f"{at:%d %b %H:%M:%S} UTC"
    )


def bar(share: float, mark: float | None, css: str, label: str) -> Markup:
    """A horizontal bar. ``share`` : its length, 0 to 1. ``mark`` : a line across, 0 to 1; None: none."""
    length = min(max(share, 0.0), 1.0) * 100 if math.isfinite(share) else 0.0
    line = ""
    if mark is not None and math.isfinite(mark):
        at = min(max(mark, 0.0), 1.0) * 99 + 0.5
        line = Markup('<rect class="mark" x="{:.1f}%" y="0" width="2" height="12"/>').format(at)
    return Markup(
        '<svg class="bar {}" width="100%" height="12" role="img" aria-label="{}"><rect class="ground" y="2" width="100%" '
        'height="8" rx="2"/><rect y="2" width="{:.1f}%" height="8" rx="2"/>{}</svg>'
    ).format(css, label, length, line)
