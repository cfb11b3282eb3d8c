"""Speeds of a program, alone and beside another on one GPU, measured by probes: short runs of it on GPUs that are idle.

A probe gives way: it is submitted only where its GPUs are idle and no app waits for GPUs, and is cancelled at the next look once
one does, within ``LOOK_S``; later it begins again. Its speed is that between its first and its last report.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from themis.client.client import OVER, Client
from themis.errors import InputError
from themis.model.units import Locality, Seconds
from themis.schema import messages as schema
from themis.schema.wire import changed
from themis.traces.profiles.models import GENERIC

LOOK_S = 0.5
"""Seconds between two looks at what waits."""
STEPS, WEIGHT = 1e12, 1e-6
"""Work of a probe, which none finishes, and its weight: the least there is."""
FEWEST = 3
"""Least number of reports that make a speed."""
SILENT_S: Seconds = 120.0
"""A probe that has reported nothing after its time and this one reports no steps."""
ENDS_S: Seconds = 120.0
"""A probe whose client is gone ends this long after all that a client waits for."""
GRACE_S: Seconds = 2.0
BESIDE = """\
there=$THEMIS_RUN_DIR/reports/neighbour
mkdir -p "$there/reports" "$there/checkpoints"
(THEMIS_RUN_DIR=$there; THEMIS_CHECKPOINT_DIR=$there/checkpoints; {neighbour}; kill $$) &
until [ -s "$there/reports/reports.jsonl" ]; do sleep 0.1; done
exec "$@"
"""
"""A program that begins once its neighbour trains on the same GPU, and ends with it; what the neighbour reports goes nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """GPUs to measure on: so many of a type, on a machine of this name if one is given."""

    gpu_type: str
    gpus: int
    node: str = ""

    def __str__(self) -> str:
        return f"{self.gpus} {self.gpu_type}{f' of {self.node}' if self.node else ''}"

    def of(self, client: Client) -> list[schema.Node]:
        """The machines whose GPUs it may have."""
        return [n for n in client.nodes() if n.gpu_type == self.gpu_type and self.node in ("", n.name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The speed that was found, in steps/s.

    Attributes
    ----------
    together : its GPUs were on one machine. ``seconds`` : between its first report and its last.
    failed : why it did not run, in words; empty if it did.
    """

    rate: float = 0.0
    together: bool = True
    seconds: Seconds = 0.0
    failed: str = ""


def measure(
    client: Client,
    request: schema.SubmitRequest,
    gang: Gang,
    seconds: Seconds,
    tell: Callable[[str], object] = lambda _: None,
    beside: schema.SubmitRequest | None = None,
) -> Probe:
    """Measure a program on these GPUs for so long, alone or beside another one, which trains all the while on the same GPU.

    ``tell`` : called with a sentence when the probe waits or gives way.

    Raises
    ------
    InputError : the service has not so many such GPUs, or the two programs run in different environments.
    """
    check(client, gang)
    probe = _probe(request, gang, seconds, beside)
    while True:
        _until_idle(client, gang, tell)
        after = client.info().records
        made = client.submit(probe)
        try:
            found = _followed(client, made.app, seconds, after)
        finally:
            if client.show(made.app).app.state not in OVER:
                client.cancel(made.app)
                client.wait(made.app, poll_s=LOOK_S)
        if found is not None:
            return found
        tell(f"{gang}: gave way to an app that waits, and begins again when GPUs are idle.")


def check(client: Client, gang: Gang) -> None:
    """Raise InputError if the service has not so many such GPUs."""
    there = sum(node.gpus for node in gang.of(client))
    if there < gang.gpus:
        of = (
            f"machine {gang.node} has {there}" if gang.node else f"the service has {there} GPUs of type {gang.gpu_type}"
        )
        raise InputError(f"{of}, expected at least {gang.gpus}; lower --gpus.")


def _probe(
    request: schema.SubmitRequest, gang: Gang, seconds: Seconds, beside: schema.SubmitRequest | None
) -> schema.SubmitRequest:
    job = request.jobs[0]
    # A folder of its own for checkpoints: one that the user named is of the real training.
    program = changed(job.program, work_is_time=False, grace_s=GRACE_S, checkpoint_dir="", checkpoint_url="")
    if beside is not None:
        program = changed(program, argv=_both(program, beside.jobs[0].program, request.name, beside.name))
    probe = changed(
        job,
        # No policy pairs a job of no known model with another one, and what it does teaches nothing.
        model=GENERIC,
        step_scale=None,
        dynamic=None,  # its speed is of steps, not of epochs
        gpus_min=gang.gpus,
        gpus_max=gang.gpus,
        gpu_types=[gang.gpu_type],
        program=program,
        regimes=[schema.Regime(steps=STEPS, batch=job.regimes[0].batch)],
    )
    name = f"probe-{request.name[:40]}-{gang.gpus}"
    return changed(
        request,
        name=name,
        key="",
        weight=WEIGHT,
        jobs=[probe],
        profile=None,
        machine=gang.node,
        brackets=None,
        curve=None,
        retries=0,
        walltime_s=seconds + SILENT_S + ENDS_S,
    )


def _both(program: schema.Program, other: schema.Program, name: str, neighbour: str) -> list[str]:
    """The command of a program that trains beside another one."""
    for what in ("launcher", "packages", "modules", "bundle"):
        if getattr(program, what) != getattr(other, what):
            raise InputError(f"{name} and {neighbour} differ in {what}, expected the same for two programs on one GPU.")
    variables = [f"{key}={value}" for key, value in other.env.items()]
    command = f"cd {shlex.quote(other.cwd or '/')} && {shlex.join(['env', *variables, *other.argv])}"
    return ["sh", "-c", BESIDE.format(neighbour=command), "sh", *program.argv]


def _until_idle(client: Client, gang: Gang, tell: Callable[[str], object]) -> None:
    told = False
    while True:
        idle = sum(node.gpus - node.leased - node.withheld for node in gang.of(client) if node.state == "up")
        if idle >= gang.gpus and not _waiting(client, -1):
            return
        if not told:
            tell(f"{gang}: waits until its GPUs are idle and no app waits for GPUs.")
            told = True
        time.sleep(LOOK_S)


def _waiting(client: Client, mine: int) -> bool:
    """True if an app other than this one could use more GPUs, and waits for its first ones."""
    return any(app.id != mine and app.waits == "gpus" and not app.gpus for app in client.queue())


def _followed(client: Client, app: int, seconds: Seconds, after: int) -> Probe | None:
    """Follow a probe's records after this one; None if it had to give way, or its GPUs went to others when its lease ended."""
    begun = time.monotonic()
    of_app = schema.JobOfApp(app=app)
    found, reports = Probe(), list[tuple[Seconds, float]]()
    while True:
        time.sleep(LOOK_S)
        if _waiting(client, app):
            return None
        ended = client.show(app).app
        for record in client.events(after):
            after = record.number
            if record.kind == "Grant" and of_app in record.jobs:
                found = replace(found, together=record.record["locality"] <= Locality.MACHINE)
            elif record.kind == "Revoke" and of_app in record.jobs and record.record["cause"] in ("expired", "moved"):
                return None
            elif record.kind == "JobProgress" and of_app in record.jobs:
                reports.append((record.time, record.record["steps"]))
        if len(reports) >= FEWEST:
            took = reports[-1][0] - reports[0][0]
            found = replace(found, rate=(reports[-1][1] - reports[0][1]) / took, seconds=took)
        if found.seconds >= seconds:
            return found
        if ended.state in OVER:
            right = found.rate and ended.state != "failed"
            failed = "" if right else ended.reason or f"it {ended.state} before it reported its speed"
            return replace(found, failed=failed)
        if not found.rate and time.monotonic() > begun + seconds + SILENT_S:
            silent = f"it reported no steps within {seconds + SILENT_S:.0f} s; it has to use themis.train"
            return replace(found, failed=silent)
