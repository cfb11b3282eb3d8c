"""Workloads of traces and generators -> submit requests, so that a service runs them as real jobs, at another scale of time.

The rule of ``scale`` s: arrivals, deadlines and durations are s times shorter, so a day takes 1440/s minutes. A stand-in does
the declared steps s times faster, and the scheduler believes so: a step of the job is 1/s steps of its model. A real training
cannot go faster, so it does the s-th part of its steps at its model's own speed. The service's lease, tick and start of a
container are its settings, and are not scaled; nor is the time that the scheduler believes a checkpoint to take.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from themis.client.submit_requests import dynamic_message, regimes_of, tell_tuner
from themis.errors import InputError, closest
from themis.jobs.readers import NAME, NAMED
from themis.model.cluster import Cluster, Machine
from themis.model.speed import ProfileBook
from themis.model.units import Locality
from themis.model.workload import App, Job, Workload
from themis.schema import messages as schema
from themis.schema.same import same
from themis.schema.wire import told
from themis.traces.scale import Scale, scale
from themis.traces.trace_summary import check_fits, check_lengths

PLACES = ("model", "batch", "steps", "epochs", "gpus", "app", "job", "user")
"""Placeholders of a command."""
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_WRONG = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_NAME = 54


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """How a workload is played.

    Attributes
    ----------
    name : of the play: one name submits each app once.
    scale : factor by which time is shorter. ``pace`` : factor by which a step of a stand-in takes longer than believed.
    command : template of the jobs' command; empty for stand-ins. ``python`` : interpreter of the stand-ins.
    folder : absolute, where commands run.
    owner : of all apps; empty: the workload's users.
    """

    name: str
    scale: float = 1.0
    pace: float = 1.0
    command: str = ""
    python: str = "python"
    folder: str = "/"
    owner: str = ""

    def __post_init__(self) -> None:
        for key in ("scale", "pace"):
            value = getattr(self, key)
            if not 1e-9 <= value <= 1e9:
                raise InputError(f"--{key} is {value:g}, expected a factor of 1e-9 to 1e9.")
        for key, value in (("name", self.name), ("user", self.owner or "any")):
            if not NAMED.fullmatch(value):
                raise InputError(f"--{key} is {value[:100]!r}, expected {NAME}.")
        if self.command and self.pace != 1.0:
            raise InputError("--pace is for stand-ins, and --command gives real programs; drop one of them.")


def requests_of(
    workload: Workload, machines: Sequence[schema.Node], book: ProfileBook, play: Play
) -> list[tuple[float, schema.SubmitRequest]]:
    """Arrival in seconds from the beginning, and submission, of each app.

    Parameters
    ----------
    machines : of the service. ``book`` : the true speeds of the models.

    Raises
    ------
    InputError : the workload has no apps, a job does not fit the machines, or the command is wrong.
    """
    if not workload.apps:
        raise InputError(f"workload {workload.name!r} has no apps, expected at least one.")
    cluster = Cluster(
        name="of the service",
        machines=tuple(Machine(name=m.name, gpus=m.gpus, gpu_type=m.gpu_type) for m in machines if m.gpus),
    )
    check_fits(workload, cluster, book)
    check_lengths(workload, book)
    words = _words(play.command)
    first = workload.apps[0].arrival
    if words:
        # A real training does fewer steps, so all of the workload is made shorter at once.
        workload = scale(workload, Scale(time=1 / play.scale))
        first /= play.scale
    faster = 1.0 if words else play.scale
    types, most = cluster.gpu_types, sum(m.gpus for m in cluster.machines)
    names = dict(zip((app.name for app in workload.apps), _names(workload.apps)))
    requests = []
    for app in workload.apps:
        with told(f"app {app.name!r}"):
            request = _request(app, names[app.name], workload.weight(app), faster, play)
        for job, message in zip(app.jobs, request.jobs):
            argv = _filled(words, app, job) if words else _stand_in(job, book, types, most, play)
            message.program = schema.Program(argv=argv, cwd=play.folder, launch="machine")
        requests.append(((app.arrival - first) / faster, request))
    return requests


def _names(apps: Sequence[App]) -> Iterator[str]:
    """Names that a service takes, one for each app."""
    seen: set[str] = set()
    for app in apps:
        name = _WRONG.sub("-", app.name).strip("-._")[:LONGEST_NAME]
        name = name if name and not name.isdecimal() else f"app-{name}".rstrip("-")
        number, made = 1, name
        while made in seen:
            number += 1
            made = f"{name}-{number}"
        seen.add(made)
        yield made


def _request(app: App, name: str, weight: float, faster: float, play: Play) -> schema.SubmitRequest:
    request = schema.SubmitRequest(
        key=f"play/{play.name}/{name}",
        name=name,
        user=play.owner or _WRONG.sub("-", app.user).strip("-._")[:LONGEST_NAME],
        weight=weight,
        jobs=[_job(job, f"{name}-{i}" if len(app.jobs) > 1 else name, faster) for i, job in enumerate(app.jobs)],
        at_once=app.at_once,
        deadline_s=None if app.deadline is None else (app.deadline - app.arrival) / faster,
    )
    tell_tuner(request, app)
    return request


def _job(job: Job, name: str, faster: float) -> schema.Job:
    regimes, dynamic = regimes_of(job.expected_regimes), dynamic_message(job.dynamic)
    scale = job.step_scale / faster
    return schema.Job(**same(schema.Job, job, name=name, regimes=regimes, dynamic=dynamic, step_scale=scale))


def _stand_in(job: Job, book: ProfileBook, types: Sequence[str], most: int, play: Play) -> list[str]:
    """The command of ``themis.train.paced`` for a job."""
    profile, batches = book.get(job.model), dict.fromkeys(r.batch for r in job.regimes)
    allowed = [kind for kind in types if not job.gpu_types or kind in job.gpu_types]
    rates = {
        kind: {
            str(batch): {
                str(gpus): book.rate(job.model, batch, kind, gpus, Locality.SLOT)
                * profile.slowdown[Locality.SLOT]
                * play.scale
                / job.scale(batch)
                for gpus in range(job.gpus_min, max(job.gpus_min, min(job.gpus_max, most)) + 1)
            }
            for batch in batches
        }
        for kind in allowed
    }
    pace = {
        "regimes": [
            (r.steps, r.batch, job.dynamic.steps_per_epoch(r.batch) if job.dynamic else 1.0, r.pace * play.pace)
            for r in job.regimes
        ],
        "rates": rates,
        "slowdown": list(profile.slowdown),
        "loss": [job.loss.a, job.loss.b, job.loss.c],
        "epochs": job.dynamic is not None,
        "resume_s": profile.checkpoint_s / play.scale,
    }
    return [play.python, "-m", "themis.train.paced", json.dumps(pace)]


def _words(command: str) -> list[str]:
    """The words of a template, with known placeholders only."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--command is {command!r}, which cannot be split into words: {error}.") from None
    if command and not words:
        raise InputError("--command is empty, expected a program and its arguments.")
    for found in _PLACE.finditer(command):
        if found[0] not in ("{{", "}}") and found[1] not in PLACES:
            raise InputError(
                f"--command has {found[0]!r}, expected one of {', '.join(f'{{{name}}}' for name in PLACES)}, or {{{{ and }}}} for "
                f"braces.{closest(found[1] or '', PLACES)}"
            )
    return words


def _filled(words: Sequence[str], app: App, job: Job) -> list[str]:
    values: Mapping[str, object] = {
        "model": job.model,
        "batch": job.regimes[0].batch,
        "steps": math.ceil(
            sum(r.steps * (job.dynamic.steps_per_epoch(r.batch) if job.dynamic else 1.0) for r in job.regimes)
        ),
        "epochs": math.ceil(job.steps),
        "gpus": job.gpus_min,
        "app": app.name,
        "job": job.name,
        "user": app.user,
    }

    def fill(found: re.Match[str]) -> str:
        return found[0][0] if found[0] in ("{{", "}}") else str(values[found[1]])

    return [_PLACE.sub(fill, word) for word in words]
