"""Machines and apps as plain dicts, as the log holds them: fields that have their default are left out.

``read_app(to_fields(app)) == app``. A tuner says its kind; a bag, the default, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, TypeAlias

from themis.model.cluster import Machine
from themis.model.dynamic import Dynamic, Mode
from themis.model.goodput import Adaptive
from themis.model.workload import App, Bag, CurveStopping, Halving, Hyperband, Job, LossCurve, Regime, Rung, Tuner

Fields: TypeAlias = dict[str, Any]

_DEFAULTS: Mapping[type[Any], tuple[tuple[str, Any], ...]] = MappingProxyType(
    {
        kind: tuple((f.name, f.default) for f in fields(kind))
        for kind in (
            Machine,
            App,
            Job,
            Regime,
            LossCurve,
            Bag,
            Halving,
            Rung,
            Hyperband,
            CurveStopping,
            Dynamic,
            Adaptive,
        )
    }
)
_TUNERS: Mapping[type[Any], str] = MappingProxyType(
    {Halving: "halving", Hyperband: "hyperband", CurveStopping: "curve"}
)


def to_fields(value: Any) -> Any:
    """A machine, an app or a part of one as a dict; anything else as it is."""
    if isinstance(value, tuple):
        return [to_fields(v) for v in value]
    names = _DEFAULTS.get(type(value))
    if names is None:
        return value
    out: Fields = {"kind": kind} if (kind := _TUNERS.get(type(value))) else {}
    for name, default in names:
        v = getattr(value, name)
        if default is MISSING or v != default:
            out[name] = to_fields(v)
    return out


def read_app(d: Fields) -> App:
    """The app of a dict.

    Raises
    ------
    InputError : its figures make no app. ValueError, KeyError, TypeError : it is no app at all.
    """
    app = dict(d)
    app["jobs"] = tuple(_job(job) for job in app["jobs"])
    if "tuner" in app:
        app["tuner"] = _tuner(app["tuner"])
    return App(**app)


def _job(d: Fields) -> Job:
    job = dict(d)
    job["regimes"] = tuple(Regime(**r) for r in job["regimes"])
    if "gpu_types" in job:
        job["gpu_types"] = tuple(job["gpu_types"])
    if "loss" in job:
        job["loss"] = LossCurve(**job["loss"])
    if "adaptive" in job:
        job["adaptive"] = Adaptive(**{**job["adaptive"], "local": tuple(job["adaptive"]["local"])})
    if "dynamic" in job:
        job["dynamic"] = _dynamic(job["dynamic"])
    return Job(**job)


def _dynamic(d: Fields) -> Dynamic:
    sizes = tuple((int(batch), float(steps)) for batch, steps in d["epoch_steps"])
    return Dynamic(**{**d, "mode": Mode(d["mode"]), "epoch_steps": sizes})


def _tuner(d: Fields) -> Tuner:
    match d.get("kind"):
        case "halving":
            return _halving(d)
        case "hyperband":
            return Hyperband(brackets=tuple(map(_halving, d["brackets"])))
        case "curve":
            return CurveStopping(**{name: v for name, v in d.items() if name != "kind"})
    raise ValueError(f"unknown tuner {d.get('kind')!r}")


def _halving(d: Fields) -> Halving:
    return Halving(rungs=tuple(Rung(**r) for r in d["rungs"]))
