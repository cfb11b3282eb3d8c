"""The Themis paper's workloads 1 and 2, generated from their published distributions (Themis §6.1, Figures 3 and 8).

Both draw an app's GPU-seconds, jobs and GPUs per job from ``themis.traces.cdf`` and let apps arrive at random
(Poisson) at the rate that offers ``load``:

    rate = load * gpus / mean GPU-seconds per app

so load 1 on 256 GPUs is one app every 3,240 s. With one seed, both workloads have the same arrivals, as in the paper.

Assumptions, where the paper and the distributions are silent: apps with more jobs tend to do more work (a Gaussian
copula of ``correlation``, which leaves either distribution as published; independent draws give one-job apps of
weeks); GPUs per job depend on nothing; users are equally active; work is split over jobs and losses are shaped as
the classes say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.model.speed import ProfileBook
from themis.model.units import Float, Int
from themis.model.workload import App, CurveStopping, Workload
from themis.traces.cdf import GPUS_1, GPUS_2, JOBS_1, JOBS_2, SERVICE, Cdf
from themis.traces.mix import ReferenceRates, model_mix, stream
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.shapes import CHECKS, AppDraw, curve_app, describe_parameters, halving_app


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paper:
    """Options common to both workloads.

    Attributes
    ----------
    apps : number of apps, at least 1.
    load : offered load, GPU-seconds arriving per GPU-second of the cluster, above 0 (the evaluation uses 0.9, 1.4, 2).
    gpus : GPUs of the cluster that ``load`` speaks of; the jobs themselves do not depend on it.
    users : apps belong to one of these many users, drawn evenly.
    scale : factor on every app's GPU-seconds; arrivals close up in step, so the load stays.
    correlation : of an app's work and its number of jobs, 0 to 1.
    models, network_intensive : see ``themis.traces.mix.model_mix``.
    arrivals : seconds; when given, one app for each, and ``apps`` and ``load`` do not apply.
    """

    apps: int = 300
    load: float = 0.9
    gpus: int = 256
    users: int = 16
    scale: float = 1.0
    correlation: float = 0.8
    models: str = ""
    network_intensive: float | None = None
    arrivals: tuple[float, ...] = ()

    name: ClassVar[str]
    jobs_per_app: ClassVar[Cdf]

    def __post_init__(self) -> None:
        for key in ("apps", "load", "gpus", "users", "scale"):
            value = getattr(self, key)
            if not 0 < value < float("inf"):
                raise InputError(f"workload {self.name!r}: {key} is {value}, expected more than 0.")
        if not 0 <= self.correlation <= 1:
            raise InputError(f"workload {self.name!r}: correlation is {self.correlation}, expected 0 to 1.")
        if any(not 0 <= time < float("inf") for time in self.arrivals):
            raise InputError(f"workload {self.name!r}: arrivals are seconds, expected each to be 0 or more.")

    def generate(self, *, seed: int, book: ProfileBook = DEFAULT_BOOK) -> Workload:
        """Draw the workload; the same seed and parameters give the same one."""
        arrivals = np.sort(np.array(self.arrivals)) if self.arrivals else self._poisson(seed)
        count = len(arrivals)
        service, jobs = self._sizes(count, seed)
        users = stream(seed, "users").integers(self.users, size=count)
        rates = ReferenceRates(book)
        mix = model_mix(book, self.models, self.network_intensive)
        names = [f"a{i:04d}" for i in range(count)]
        apps = [
            self._app(
                AppDraw(
                    name=names[i],
                    user=f"u{users[i]:02d}",
                    arrival=float(arrivals[i]),
                    jobs=int(jobs[i]),
                    work=float(service[i]),
                    model=(model := mix.draw(seed, names[i])),
                    steps_per_gpu_s=rates(model),
                ),
                stream(seed, f"app/{names[i]}"),
            )
            for i in range(count)
        ]
        return Workload(name=self.name, apps=tuple(apps), source=describe_parameters(self.name, self, seed))

    def _poisson(self, seed: int) -> Float:
        """Arrival times, the first at 0."""
        gap = SERVICE.mean * self.scale / (self.load * self.gpus)
        gaps = stream(seed, "arrivals").exponential(gap, size=self.apps)
        gaps[0] = 0.0
        times: Float = np.cumsum(gaps)
        return times

    def _sizes(self, count: int, seed: int) -> tuple[Float, Int]:
        """GPU-seconds and number of jobs of each app."""
        size, other = stream(seed, "service").normal(size=count), stream(seed, "jobs").normal(size=count)
        mixed = self.correlation * size + np.sqrt(1.0 - self.correlation**2) * other
        from scipy.special import ndtr  # takes longer to load than everything else here

        jobs = np.rint(self.jobs_per_app.smooth(ndtr(mixed))).astype(np.int64)
        return SERVICE.smooth(ndtr(size)) * self.scale, np.maximum(jobs, 1)

    def _app(self, draw: AppDraw, rng: np.random.Generator) -> App:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload1(_Paper):
    """Sweeps under curve stopping, as by HyperDrive: jobs of equal steps, of which the poor ones end early.

    An app's GPU-seconds are what is left after stopping, as in the trace behind the distribution: the steps are chosen
    so that a dry run of the tuner comes to them. Loss curves differ by a factor of 1 to 2 in their floor and a lognormal
    one in their pace, seconds per step by a lognormal one whose logarithm deviates by ``jitter``. Jobs report their
    loss twenty times, off by ``noise`` of it, and stop below a chance of 1 - ``confidence`` to end best.
    """

    jitter: float = 0.2
    noise: float = 0.01
    confidence: float = 0.95

    name: ClassVar[str] = "themis1"
    jobs_per_app: ClassVar[Cdf] = JOBS_1

    def _app(self, draw: AppDraw, rng: np.random.Generator) -> App:
        most = GPUS_1.stepped(rng.random(draw.jobs))
        tuner = CurveStopping(check_steps=1 / CHECKS, noise=self.noise, confidence=self.confidence)
        return curve_app(draw, gpus=[(1, int(gpus)) for gpus in most], tuner=tuner, jitter=self.jitter, rng=rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload2(_Paper):
    """Successive halving (Hyperband's pattern) with larger gangs.

    Rungs of J, J/2, ..., 1 jobs share the app's GPU-seconds evenly. The jobs of a sweep have equal GPUs, and their
    seconds per step differ by a lognormal factor whose logarithm deviates by ``jitter`` (batch size, quantisation;
    Themis footnote 4). Loss curves differ by a factor of 1 to 2 in their floor and a lognormal one in their pace.
    """

    jitter: float = 0.2

    name: ClassVar[str] = "themis2"
    jobs_per_app: ClassVar[Cdf] = JOBS_2

    def _app(self, draw: AppDraw, rng: np.random.Generator) -> App:
        gpus = int(GPUS_2.stepped(rng.random(1))[0])
        return halving_app(draw, gpus=(1, gpus), jitter=self.jitter, rng=rng)
