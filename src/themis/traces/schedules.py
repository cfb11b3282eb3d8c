"""The batch sizes that Shockwave's jobs go through, by mode, model, first batch size, GPUs and epochs (NSDI'23; MIT licence).

What its authors measured and put into their traces, as rules. They give every schedule of its 120-job trace exactly
(``tests/traces/test_schedules.py``).

Accordion: small for 30 % of the epochs, but 10 at least, then large; ResNets go back to small for 10 epochs after each
decay of the learning rate. GNS: doubles at epochs that were measured; one that had three sizes or more spends its last
epoch at the first size again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from themis.errors import InputError
from themis.model.dynamic import Mode
from themis.model.workload import Regime

ACCORDION_LARGE: Mapping[str, int] = MappingProxyType(
    {"ResNet-50": 128, "ResNet-18": 256, "LM": 80, "Recommendation": 8192}
)
"""The large size of each model; models that are not here never change theirs under Accordion."""
DECAYS: Mapping[str, tuple[int, ...]] = MappingProxyType({"ResNet-50": (30, 60, 80), "ResNet-18": (150, 250)})
"""Epochs at which the learning rate decays."""
CRITICAL = 10
"""Epochs of a critical phase: at the start at least, and after each decay."""

DOUBLINGS: Mapping[tuple[str, int, int], tuple[int, ...]] = MappingProxyType(
    {
        ("LM", 5, 1): (31, 41, 61, 71),
        ("LM", 5, 2): (31, 51, 61, 71),
        ("LM", 5, 4): (11, 31, 71, 91),
        ("LM", 10, 1): (11, 21, 41),
        ("LM", 10, 2): (11, 31, 41),
        ("LM", 10, 4): (11, 31, 61),
        ("LM", 20, 1): (11, 41),
        ("LM", 20, 2): (31, 41),
        ("LM", 20, 4): (11, 61),
        ("LM", 40, 1): (11,),
        ("LM", 40, 2): (11,),
        ("LM", 40, 4): (61,),
        ("Recommendation", 512, 1): (21, 41, 71, 91),
        ("Recommendation", 1024, 1): (21, 51, 91),
        ("Recommendation", 2048, 1): (21, 41),
        ("Recommendation", 4096, 1): (41,),
        ("ResNet-18", 16, 1): (31, 41, 51, 71),
        ("ResNet-18", 16, 2): (21, 31, 91, 111),
        ("ResNet-18", 16, 4): (11, 21, 81, 91),
        ("ResNet-18", 32, 1): (21, 31, 51),
        ("ResNet-18", 32, 2): (11, 21, 41),
        ("ResNet-18", 32, 4): (21, 31, 61),
        ("ResNet-18", 64, 1): (11, 31),
        ("ResNet-18", 64, 2): (21, 41),
        ("ResNet-18", 64, 4): (11, 61),
        ("ResNet-18", 128, 1): (11,),
        ("ResNet-18", 128, 2): (41,),
        ("ResNet-18", 128, 4): (11,),
        ("ResNet-50", 32, 2): (101, 111),
        ("ResNet-50", 32, 4): (131, 221),
        ("ResNet-50", 64, 1): (101,),
        ("ResNet-50", 64, 2): (81,),
        ("ResNet-50", 64, 4): (191,),
    }
)
"""Epochs at which GNS doubles the batch size, by model, first batch size and GPUs; without any it never does."""


def schedule(mode: Mode, model: str, batch: int, gpus: int, epochs: int) -> tuple[Regime, ...]:
    """The regimes of a job that begins at ``batch``, in epochs.

    Raises
    ------
    InputError : fewer than one epoch, or a mode without rules.
    """
    if epochs < 1:
        raise InputError(f"a schedule is to have {epochs} epochs, expected at least 1.")
    match mode:
        case Mode.ACCORDION:
            return _cut(_accordion(model, batch, epochs), epochs)
        case Mode.GNS:
            starts = [
                (0, batch),
                *((at, batch << i) for i, at in enumerate(DOUBLINGS.get((model, batch, gpus), ()), 1)),
            ]
            regimes = _cut(starts, epochs)
            return _cut([*starts, (epochs - 1, batch)], epochs) if len(regimes) > 2 else regimes
        case _:
            raise InputError(f"there are no schedules of mode {mode!r}, expected accordion or gns.")


def _accordion(model: str, batch: int, epochs: int) -> list[tuple[int, int]]:
    large = ACCORDION_LARGE.get(model, batch)
    first = max(int(0.3 * epochs) + 1, CRITICAL)
    starts = [(0, batch), (first, large)]
    for decay in DECAYS.get(model, ()):
        if decay >= first:
            starts += [(decay, batch), (decay + CRITICAL, large)]
    return starts if batch < large else starts[:1]


def _cut(starts: list[tuple[int, int]], epochs: int) -> tuple[Regime, ...]:
    """Regimes from (first epoch, batch size): of two that begin late, the later one counts."""
    out: list[Regime] = []
    starts = [start for start in sorted(starts, key=lambda start: start[0]) if start[0] < epochs]
    for (begin, batch), (end, _) in zip(starts, [*starts[1:], (epochs, 0)]):
        if out and end > begin and out[-1].batch == batch:
            out[-1] = Regime(steps=out[-1].steps + end - begin, batch=batch)
        elif end > begin:
            out.append(Regime(steps=float(end - begin), batch=batch))
    return tuple(out)
