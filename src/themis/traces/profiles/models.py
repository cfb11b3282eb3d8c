"""The eleven models of Themis Table 4, as profiles: measured and assumed figures, stated for each model.

Scaling is linear with a slowdown (Themis eq. 1). The reference placement is one machine, as in Themis Table 1, so
slot and machine cost nothing; "rack" is several machines of one rack. Figures were carried over from:

- Themis (NSDI'20) Table 1, four P100 on one server and across two;
- Gavel (OSDI'20, MIT licence), measured steps/s on P100, consolidated and unconsolidated, four GPUs;
- Pollux (OSDI'21, Apache-2.0), measured step times on T4, four GPUs on one server and two on each of two.

For an unmeasured model, ``source`` begins with "assumption". Leaves out the sublinear scaling of real gangs,
which measured ``Curve`` profiles express.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from themis.model.speed import DEFAULT_SLOWDOWN, Profile, ProfileBook, linear
from themis.model.units import Locality, Seconds
from themis.model.workload import LossCurve

NETWORK_INTENSIVE = 1.2
"""Least slowdown across machines of a rack of a model that counts as network-intensive."""

GENERIC = "generic"
IDEAL = "ideal"

CATEGORY_SHARE: Mapping[str, float] = MappingProxyType({"CV": 0.10, "NLP": 0.60, "Speech": 0.30})
"""Share of apps per category (Themis §6.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """One row of the table of models.

    Attributes
    ----------
    serial_s : seconds per step on one reference GPU, above 0.
    rack_slowdown : S across machines of one rack, at least 1.
    checkpoint_s : seconds for a checkpoint, 5-10 (Themis §6.1); within that range an assumption, by model size.
    loss_start, loss_floor : training loss at step 0 and in the limit; assumptions.
    """

    name: str
    category: str
    serial_s: Seconds
    rack_slowdown: float
    checkpoint_s: Seconds
    loss_start: float
    loss_floor: float
    source: str

    @property
    def slowdown(self) -> tuple[float, float, float, float]:
        """Slot, machine, rack, cross-rack.

        Cross-rack is an assumption: rack times 1.3 / 1.1, the ratio of Themis footnote 3, for a model that feels the
        network between machines at all, and nothing for one that does not.
        """
        rack = self.rack_slowdown
        cross = rack * DEFAULT_SLOWDOWN[Locality.CROSS_RACK] / DEFAULT_SLOWDOWN[Locality.RACK] if rack > 1.0 else rack
        return (1.0, 1.0, rack, round(cross, 3))


def _figures(
    name: str,
    category: str,
    serial_s: Seconds,
    rack_slowdown: float,
    checkpoint_s: Seconds,
    loss: tuple[float, float],
    source: str,
) -> ModelFigures:
    return ModelFigures(
        name=name,
        category=category,
        serial_s=serial_s,
        rack_slowdown=rack_slowdown,
        checkpoint_s=checkpoint_s,
        loss_start=loss[0],
        loss_floor=loss[1],
        source=source,
    )


TABLE_4: tuple[ModelFigures, ...] = (
    _figures(
        "Inception-v3",
        "CV",
        1.058,
        1.0,
        6.0,
        (6.9, 1.1),
        "measured: Themis Table 1, 242 -> 243 images/s on 4 P100 (S = 1); a step is 64 images",
    ),
    _figures(
        "AlexNet",
        "CV",
        0.110,
        1.50,
        7.0,
        (6.9, 2.0),
        "assumption: little work per step and 61 M parameters, so the network weighs more than for VGG16",
    ),
    _figures(
        "ResNet50",
        "CV",
        0.382,
        1.0,
        6.0,
        (6.9, 1.0),
        "measured: Gavel, ResNet-50 batch 64 on P100: 2.619 steps/s alone, 10.365 on 4 together against 10.564 apart"
        " (S = 1)",
    ),
    _figures(
        "VGG16",
        "CV",
        2.471,
        1.289,
        10.0,
        (6.9, 1.3),
        "measured: Themis Table 1, 103.6 -> 80.4 images/s on 4 P100 (S = 1.289); a step is 64 images",
    ),
    _figures(
        "VGG19",
        "CV",
        3.130,
        1.25,
        10.0,
        (6.9, 1.3),
        "assumption: VGG16 with 1.27 times the arithmetic and 1.04 times the parameters",
    ),
    _figures(
        "Bi-Att-Flow",
        "NLP",
        0.350,
        1.05,
        5.0,
        (10.0, 2.0),
        "assumption: recurrent, 3 M parameters, so bound by computation",
    ),
    _figures(
        "LangModel",
        "NLP",
        0.01719,
        2.292,
        8.0,
        (9.2, 4.4),
        "measured: Gavel, LM batch 20 on P100: 58.17 steps/s alone, 93.81 on 4 together against 40.94 apart"
        " (S = 2.292)",
    ),
    _figures(
        "GNMT",
        "NLP",
        0.450,
        1.30,
        10.0,
        (10.4, 2.1),
        "assumption: 160 M parameters with heavy recurrent steps, like VGG16 across machines",
    ),
    _figures(
        "Transformer",
        "NLP",
        0.1964,
        1.478,
        8.0,
        (10.4, 1.8),
        "measured: Gavel, Transformer batch 64 on P100: 5.092 steps/s alone, 13.313 on 4 together against 9.007 apart"
        " (S = 1.478)",
    ),
    _figures(
        "WaveNet",
        "Speech",
        0.900,
        1.05,
        5.0,
        (5.5, 1.9),
        "assumption: convolutions over long waveforms, 5 M parameters, so bound by computation",
    ),
    _figures(
        "DeepSpeech",
        "Speech",
        0.681,
        1.419,
        8.0,
        (7.0, 0.6),
        "measured: Pollux, DeepSpeech2 local batch 20 on T4: step 0.681 s alone, 0.830 s on 4 of one server, 1.178 s on"
        " 2 + 2 of two (S = 1.419)",
    ),
)
"""The models of Themis Table 4, in its order."""

TABLE_4_MODELS: tuple[str, ...] = tuple(m.name for m in TABLE_4)

LOSS_DECAY = 20.0
"""``b * steps`` of a job's loss curve: the part above the floor falls to 1/21 by the end. An assumption."""


def table_4_mix() -> dict[str, float]:
    """Probability of each model: the category's share (Themis §6.1), spread evenly over its models (an assumption)."""
    sizes = {c: sum(m.category == c for m in TABLE_4) for c in CATEGORY_SHARE}
    return {m.name: CATEGORY_SHARE[m.category] / sizes[m.category] for m in TABLE_4}


def is_network_intensive(profile: Profile) -> bool:
    """True if spreading over machines of one rack costs at least ``NETWORK_INTENSIVE`` (Themis §6.3's two kinds)."""
    return profile.slowdown[Locality.RACK] >= NETWORK_INTENSIVE


def loss_curve(model: str, steps: float, *, difficulty: float = 1.0, speed: float = 1.0) -> LossCurve:
    """An assumed training-loss curve ``a / (b i + 1) + c`` for a job that is meant to run ``steps`` steps.

    Parameters
    ----------
    steps : above 0; the curve is scaled to it, since traces say nothing of real step counts.
    difficulty : factor on the model's floor c; the lower, the better the configuration ends.
    speed : factor on b; the higher, the sooner it gets there.
    """
    known = next((m for m in TABLE_4 if m.name == model), None)
    start, floor = (known.loss_start, known.loss_floor) if known else (1.0, 0.1)
    end = min(floor * difficulty, start)
    return LossCurve(a=start - end, b=LOSS_DECAY * speed / steps, c=end)


def _profile(figures: ModelFigures) -> Profile:
    return linear(
        figures.name,
        figures.serial_s,
        slowdown=figures.slowdown,
        checkpoint_s=figures.checkpoint_s,
        category=figures.category,
        source=figures.source,
    )


DEFAULT_BOOK: ProfileBook = ProfileBook.of(
    [
        *map(_profile, TABLE_4),
        linear(GENERIC, 1.0, source="assumption: one step a second, the slowdowns of Themis footnote 3"),
        linear(IDEAL, 1.0, slowdown=(1.0, 1.0, 1.0, 1.0), source="assumption: indifferent to placement"),
    ]
)
"""The eleven models, ``generic`` (one step a second, default slowdown) and ``ideal`` (no slowdown at all)."""
