"""The demo: sixteen apps of three users that fill a 32-GPU cluster for about a day.

Made to be looked at. Long sweeps arrive before short jobs (so first-come-first-served hurts the short), gangs of
4 and 8 that suffer when spread run next to jobs that do not, and more work arrives than the cluster can do in
the arrival window (load 1.3), so someone always waits. Users, models and sizes are made up; speeds are the profiles'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from themis.errors import InputError
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.model.workload import App, Workload
from themis.traces.mix import ReferenceRates, stream
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.shapes import AppDraw, bag_app, describe_parameters, halving_app

Kind: TypeAlias = Literal["bag", "halving"]

# name, user, kind, model, jobs, GPUs per job, arrival as a share of the window, relative work
_APPS: tuple[tuple[str, str, Kind, str, int, tuple[int, int], float, float], ...] = (
    ("wavenet-grid", "bob", "bag", "WaveNet", 20, (1, 1), 0.00, 9.0),
    ("transformer-sweep", "carol", "halving", "Transformer", 8, (2, 4), 0.03, 7.0),
    ("resnet-tuning", "alice", "bag", "ResNet50", 6, (1, 2), 0.07, 4.0),
    ("vgg16-final", "alice", "bag", "VGG16", 1, (4, 8), 0.14, 3.0),
    ("inception-try", "alice", "bag", "Inception-v3", 1, (1, 2), 0.18, 0.6),
    ("langmodel-sweep", "carol", "halving", "LangModel", 16, (1, 4), 0.25, 6.0),
    ("deepspeech-final", "bob", "bag", "DeepSpeech", 1, (4, 8), 0.32, 4.0),
    ("wavenet-try", "bob", "bag", "WaveNet", 1, (1, 1), 0.36, 0.4),
    ("gnmt-sweep", "carol", "halving", "GNMT", 4, (4, 4), 0.43, 6.0),
    ("resnet-final", "alice", "bag", "ResNet50", 1, (8, 8), 0.50, 5.0),
    ("deepspeech-tuning", "bob", "bag", "DeepSpeech", 4, (2, 4), 0.57, 5.0),
    ("bidaf-try", "carol", "bag", "Bi-Att-Flow", 1, (1, 1), 0.64, 0.3),
    ("transformer-final", "carol", "bag", "Transformer", 1, (4, 4), 0.71, 2.5),
    ("wavenet-tuning", "bob", "bag", "WaveNet", 12, (1, 1), 0.79, 6.0),
    ("langmodel-try", "carol", "bag", "LangModel", 1, (2, 2), 0.86, 1.0),
    ("alexnet-final", "alice", "bag", "AlexNet", 1, (2, 4), 1.00, 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Parameters of the demo; the seed moves arrivals by up to a quarter of an hour and sizes by some 15 %.

    Attributes
    ----------
    load : GPU-seconds that arrive in the window, per GPU-second of the cluster in the window; exact, above 0.
    gpus : GPUs of the cluster that ``load`` speaks of, made for the preset demo-32.
    hours : length of the arrival window, above 0; work grows with it.
    """

    load: float = 1.3
    gpus: int = 32
    hours: float = 14.0

    name: ClassVar[str] = "demo"

    def __post_init__(self) -> None:
        for key in ("load", "gpus", "hours"):
            value = getattr(self, key)
            if not 1e-6 <= value <= 1e9:
                raise InputError(f"workload 'demo': {key} is {value}, expected more than 0, 1e-6 to 1e9.")

    def generate(self, *, seed: int, book: ProfileBook = DEFAULT_BOOK) -> Workload:
        """Draw the workload; the same seed and parameters give the same one."""
        window: Seconds = self.hours * 3600.0
        shift = stream(seed, "demo/arrivals").uniform(-900.0, 900.0, len(_APPS)) * (self.hours / 14.0)
        shift[[0, -1]] = 0.0  # the window, and with it the load, stays exact
        size = np.array([row[-1] for row in _APPS]) * stream(seed, "demo/sizes").lognormal(0.0, 0.15, len(_APPS))
        work = size / size.sum() * self.load * self.gpus * window
        rates = ReferenceRates(book)
        apps = []
        for i, (name, user, kind, model, jobs, gpus, share, _) in enumerate(_APPS):
            draw = AppDraw(
                name=name,
                user=user,
                arrival=float(np.clip(share * window + shift[i], 0.0, window)),
                jobs=jobs,
                work=float(work[i]),
                model=model,
                steps_per_gpu_s=rates(model),
            )
            apps.append(_shape(kind, draw, gpus, stream(seed, f"demo/{name}")))
        return Workload(name=self.name, apps=tuple(apps), source=describe_parameters(self.name, self, seed))


def _shape(kind: Kind, draw: AppDraw, gpus: tuple[int, int], rng: np.random.Generator) -> App:
    if kind == "halving":
        return halving_app(draw, gpus=gpus, jitter=0.1, rng=rng)
    return bag_app(draw, gpus=[gpus] * draw.jobs, skew=0.4, rng=rng)
