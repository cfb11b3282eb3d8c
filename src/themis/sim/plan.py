"""Conversion of user input to simulations: workload, cluster, policies, seeds, settings, failures.

Names take parameters after a colon, ``NAME:KEY=VALUE,KEY=VALUE``. A comma parts parameters only where ``KEY=`` follows,
so that a value may hold commas itself; in a list of policies, a part that begins with ``KEY=`` belongs to the policy
before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from themis.data_dir import default_home
from themis.errors import InputError, UnknownName
from themis.fairness.forecasts.believed import Estimation, believed_book, measured_configs
from themis.model.cluster import Cluster
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.model.workload import Workload
from themis.policies.api import Policy, check_types, make_policy
from themis.sim.many import SimulationRun
from themis.sim.runner import Outage, Simulation, outages
from themis.traces.formats import book_for, build_options, load_workload
from themis.traces.profiles.library import load_book
from themis.traces.profiles.presets import load_cluster
from themis.traces.trace_summary import app_work, check_fits, check_lengths

_PARAMETER = re.compile(r"\s*\w+\s*=")
_NAME_AND_PARAMETERS = re.compile(r"(?P<name>.*?):(?P<rest>\s*\w+\s*=.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A comparison: every policy on the same workload, for every seed.

    Attributes
    ----------
    workload : a generator or a trace file, with options after a colon, or a ``Workload``, the same for each seed.
    format : of the file; empty: by its header.
    options : of the workload, in addition to those after the colon. ``cluster`` : a preset, a shorthand, a file
        or a ``Cluster``.
    policies : names, with parameters after a colon, or policies, each with a name. ``settings`` : text by name, as in ``Settings``.
    profiles : books that speeds are from, as ``traces.profiles.library.load_book`` takes them; empty: what the workload is of.
    estimate : how much of models' speeds is known before their jobs run, as text by name
    (``fairness.forecasts.believed.Estimation``);
        None: everything.
    mtbf : mean time between failures of one machine, 0 for none. ``repair`` : how long it is away.
    """

    workload: str | Workload = "demo"
    cluster: str | Cluster = "demo-32"
    policies: Sequence[str | tuple[str, Policy]] = ("fair_finish",)
    seeds: Sequence[int] = (0,)
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    format: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    profiles: str = ""
    estimate: Mapping[str, str] | None = None
    mtbf: Seconds = 0.0
    repair: Seconds = 1800.0

    def runs(self, folder: Path | None = None) -> list[SimulationRun]:
        """All simulations, policy by policy; with a folder, each logs to its own file there.

        Raises
        ------
        InputError : anything is wrong, before anything runs.
        """
        if not (0 <= self.mtbf < math.inf and 0 < self.repair < math.inf):
            raise InputError(
                f"mtbf is {self.mtbf} s, expected 0 (no failures) or more; repair is {self.repair} s, expected more than 0."
            )
        cluster = load_cluster(self.cluster) if isinstance(self.cluster, str) else self.cluster
        policies = [(given, make_policy(given)) if isinstance(given, str) else given for given in self.policies]
        for spec, policy in policies:
            try:
                check_types(policy, cluster.gpu_types)
            except InputError as error:
                raise InputError(f"policy {spec}: {error}") from None
        make_settings(self.settings, seed=0)
        book = self.book()
        inputs = {seed: self._input(cluster, book, seed) for seed in self.seeds}
        estimated = {seed: self._believed(cluster, book, workload, seed) for seed, (workload, _) in inputs.items()}
        out = []
        for name, policy in policies:
            for seed in self.seeds:
                workload, failures = inputs[seed]
                simulation = Simulation(
                    workload=workload,
                    cluster=cluster,
                    book=book.with_profiles(workload.profiles),
                    policy_name=name,
                    policy=policy,
                    settings=make_settings(self.settings, seed=seed),
                    outages=failures,
                    estimated=estimated[seed],
                )
                log = folder / f"{re.sub(r'[^A-Za-z0-9._=,-]+', '-', name)}-seed{seed}.jsonl.gz" if folder else None
                out.append(SimulationRun(simulation=simulation, log=log))
        return out

    def book(self) -> ProfileBook:
        """The profiles of all runs."""
        name = split_parameters(self.workload)[0] if isinstance(self.workload, str) else ""
        return load_book(self.profiles or book_for(name), default_home() / "profiles")

    def _believed(self, cluster: Cluster, book: ProfileBook, workload: Workload, seed: int) -> ProfileBook | None:
        if self.estimate is None:
            return None
        book = book.with_profiles(workload.profiles)
        how = build_options("estimate", Estimation, self.estimate)
        assert isinstance(how, Estimation)
        # For jobs whose programs decide, take what is declared: their regimes are in the future.
        wanted = {config for app in workload.apps for job in app.jobs for config in job.configs}
        if wanted.isdisjoint(measured_configs(book, cluster.gpu_types)):
            raise InputError(
                f"workload {self.workload!r} trains no model whose speed next to others was measured on {cluster.gpu_types[0]}, so "
                "there is nothing to estimate; use gavel_single, or a table of your own as --profiles."
            )
        return believed_book(book, sorted(wanted), cluster.gpu_types, how, seed)

    def _input(self, cluster: Cluster, book: ProfileBook, seed: int) -> tuple[Workload, tuple[Outage, ...]]:
        """One seed's apps and machine failures, the same for every policy."""
        workload = self._workload(book, seed) if isinstance(self.workload, str) else self.workload
        book = book.with_profiles(workload.profiles)
        check_fits(workload, cluster, book)
        check_lengths(workload, book)
        if not self.mtbf:
            return workload, ()
        # It is unknown how long a run will take; ten times its work after the last arrival is long enough.
        work = sum(app_work(app, book) for app in workload.apps) / cluster.gpus
        until = workload.apps[-1].arrival + 10 * work + 86400.0
        return workload, outages(cluster, mtbf_s=self.mtbf, lasts_s=self.repair, until=until, seed=seed)

    def _workload(self, book: ProfileBook, seed: int) -> Workload:
        assert isinstance(self.workload, str)
        name, given = split_parameters(self.workload)
        options: dict[str, Any] = {**given, **self.options}
        for key in ("seed", "book", "format"):
            if key in options:
                raise InputError(f"workload {self.workload!r}: {key} is not one of its options; give it on its own.")
        workload = load_workload(name, seed=seed, book=book, format=self.format, **options)
        if not workload.apps:
            raise InputError(f"workload {self.workload!r} has no apps, expected at least one.")
        return workload


def split_policies(texts: Iterable[str]) -> list[str]:
    """Policies from lists: ``["themis:f=0.7,payment=floor,drf", "fifo"]`` are three. Doubles are dropped."""
    specs: list[str] = []
    for text in texts:
        for i, part in enumerate(text.split(",")):
            if i and _PARAMETER.match(part):
                specs[-1] += f",{part.strip()}"
            elif part.strip():
                specs.append(part.strip())
    for spec in specs:
        if "=" in spec and ":" not in spec:
            name, _, rest = spec.partition(",")
            hint = f"{name}:{rest}" if rest else "NAME:KEY=VALUE, as in themis:f=0.7"
            raise InputError(f"policy {spec!r}: parameters follow a colon; write {hint}.")
    if not specs:
        raise InputError("no policy is named; give at least one, as in themis,drf.")
    return list(dict.fromkeys(specs))


def split_parameters(text: str) -> tuple[str, dict[str, str]]:
    """``NAME:KEY=VALUE,KEY=VALUE`` as name and parameters; a colon that no ``KEY=`` follows belongs to the name."""
    match = _NAME_AND_PARAMETERS.fullmatch(text)
    if match is None:
        return text, {}
    given: dict[str, str] = {}
    for key, value in map(key_value, re.split(r",(?=\s*\w+\s*=)", match["rest"])):
        if key in given:
            raise InputError(f"{text!r}: {key} is there twice, expected each parameter once.")
        given[key] = value
    return match["name"], given


def key_value(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` as a pair."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"got {text!r}, expected KEY=VALUE, as in lease_s=300.")
    return key.strip(), value.strip()


def parse_seeds(text: str) -> list[int]:
    """``0``, ``0-4``, ``0,2,7`` or a mixture, as whole numbers in the order given, each once."""
    expected = "expected whole numbers from 0 up or rising ranges, as in 0-4 or 0,2,7, at most 10,000 in all"
    seeds: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(-\s*(\d{1,9})\s*)?", part)
        first, last = (int(match[1]), int(match[3] or match[1])) if match else (1, 0)
        if not first <= last < first + 10_000 - len(seeds):
            raise InputError(f"seeds are {text!r}, {expected}.")
        seeds |= dict.fromkeys(range(first, last + 1))
    return list(seeds)


def make_settings(values: Mapping[str, str], *, seed: int) -> Settings:
    """Settings from text; the seed comes from elsewhere."""
    types = {f.name: f.type for f in fields(Settings) if f.name != "seed"}
    converted: dict[str, float | bool | str] = {}
    for key, value in values.items():
        if key not in types:
            raise UnknownName("setting", key, types)
        default = getattr(Settings(), key)
        if isinstance(default, str):
            converted[key] = value
            continue
        kind = bool if isinstance(default, bool) else FiniteFloat
        try:
            converted[key] = TypeAdapter[float | bool](kind).validate_python(value)
        except ValidationError:
            wanted = "true or false" if kind is bool else "a number of seconds"
            raise InputError(f"setting {key} is {value!r}, expected {wanted}.") from None
    return Settings(**converted, seed=seed)  # type: ignore[arg-type]
