"""Dynamic jobs as text, in the ``dynamic`` column of the generic CSV; what is written is read back exactly.

gns 64=781.25 128=390.6             mode, then batch sizes with the model's steps in an epoch at each
accordion 32=1562 256=195 regimes=4 maximum number of regimes; 6 by default
"""

from __future__ import annotations

from themis.model.dynamic import ACCORDION_REGIMES, Dynamic, Mode

DYNAMICS = (
    "a mode (gns, accordion or declared) and batch sizes with their steps per epoch, as in 'gns 64=782 128=391'; "
    "its 'steps' are epochs at one of these sizes, as in '10@64 5@128'"
)
"""Expected content of the column."""


def read_dynamic(text: str) -> Dynamic | None:
    """Parse a cell; None if it is empty.

    Raises
    ------
    ValueError : the text has another form. InputError : it is, but its numbers make no dynamic job.
    """
    if not text.strip():
        return None
    mode, *parts = text.split()
    pairs = [part.split("=") for part in parts]
    regimes = [int(value) for key, value in pairs if key == "regimes"]
    sizes = tuple((int(key), float(value)) for key, value in pairs if key != "regimes")
    if len(regimes) > 1:
        raise ValueError(text)
    return Dynamic(mode=Mode(mode), epoch_steps=sizes, regimes=regimes[0] if regimes else ACCORDION_REGIMES)


def write_dynamic(dynamic: Dynamic | None) -> str:
    """The cell; empty for a job that is not dynamic."""
    if dynamic is None:
        return ""
    sizes = " ".join(f"{batch}={float(steps)!r}" for batch, steps in dynamic.epoch_steps)
    more = "" if dynamic.regimes == ACCORDION_REGIMES else f" regimes={dynamic.regimes}"
    return f"{dynamic.mode} {sizes}{more}"
