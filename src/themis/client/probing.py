"""Speeds of a program, measured by probes: short runs of it on GPUs that are idle.

A probe gives way: it is submitted only where its GPUs are idle and no app waits for GPUs, and is cancelled at the next look once
one does, within ``LOOK_S``; later it begins again. Its speed is that between its first and its last report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from themis.client.client import OVER, Client
from themis.errors import InputError
from themis.model.units import Locality, Seconds
from themis.schema import messages as schema
from themis.schema.wire import changed

LOOK_S = 0.5
"""Seconds between two looks at what waits."""
STEPS, WEIGHT = 1e12, 1e-6
"""Work of a probe, which none finishes, and its weight: the least there is."""
FEWEST = 3
"""Least number of reports that make a speed."""
SILENT_S: Seconds = 120.0
"""A probe that has reported nothing after its time and this one reports no steps."""
GRACE_S: Seconds = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A gang to measure, and the speed that was found, in steps/s.

    Attributes
    ----------
    together : its GPUs were on one machine. ``seconds`` : between its first report and its last.
    failed : why it did not run, in words; empty if it did.
    """

    gpu_type: str
    gpus: int
    rate: float = 0.0
    together: bool = True
    seconds: Seconds = 0.0
    failed: str = ""


def measure(
    client: Client,
    request: schema.SubmitRequest,
    gpu_type: str,
    gpus: int,
    seconds: Seconds,
    tell: Callable[[str], object] = lambda _: None,
) -> Probe:
    """Measure a program alone on so many GPUs of a type, for so long.

    ``tell`` : called with a sentence when the probe waits or gives way.

    Raises
    ------
    InputError : the service has not so many such GPUs, or the program reports no steps.
    """
    there = sum(node.gpus for node in client.nodes() if node.gpu_type == gpu_type)
    if there < gpus:
        raise InputError(f"the service has {there} GPUs of type {gpu_type}, expected at least {gpus}; lower --gpus.")
    while True:
        _until_idle(client, gpu_type, gpus, tell)
        after = client.info().records
        made = client.submit(_probe(request, gpu_type, gpus))
        try:
            found = _followed(client, made.app, gpu_type, gpus, seconds, after)
        finally:
            if client.show(made.app).app.state not in OVER:
                client.cancel(made.app)
                client.wait(made.app, poll_s=LOOK_S)
        if found is not None:
            return found
        tell(f"{gpus} {gpu_type}: gave way to an app that waits, and begins again when GPUs are idle.")


def _probe(request: schema.SubmitRequest, gpu_type: str, gpus: int) -> schema.SubmitRequest:
    job = request.jobs[0]
    program = changed(job.program, work_is_time=False, grace_s=GRACE_S)
    probe = changed(
        job,
        gpus_min=gpus,
        gpus_max=gpus,
        gpu_types=[gpu_type],
        program=program,
        regimes=[schema.Regime(steps=STEPS, batch=job.regimes[0].batch)],
    )
    name = f"probe-{request.name[:40]}-{gpus}"
    return changed(
        request, name=name, key="", weight=WEIGHT, jobs=[probe], brackets=None, curve=None, retries=0, walltime_s=None
    )


def _until_idle(client: Client, gpu_type: str, gpus: int, tell: Callable[[str], object]) -> None:
    told = False
    while True:
        idle = sum(
            node.gpus - node.leased - node.withheld
            for node in client.nodes()
            if node.gpu_type == gpu_type and node.state == "up"
        )
        if idle >= gpus and not _waiting(client, -1):
            return
        if not told:
            tell(f"{gpus} {gpu_type}: waits until its GPUs are idle and no app waits for GPUs.")
            told = True
        time.sleep(LOOK_S)


def _waiting(client: Client, mine: int) -> bool:
    """True if an app other than this one could use more GPUs, and waits for its first ones."""
    return any(app.id != mine and app.waits == "gpus" and not app.gpus for app in client.queue())


def _followed(client: Client, app: int, gpu_type: str, gpus: int, seconds: Seconds, after: int) -> Probe | None:
    """Follow a probe's records after this one; None if it had to give way."""
    begun = time.monotonic()
    of_app = schema.JobOfApp(app=app)
    found, reports = Probe(gpu_type=gpu_type, gpus=gpus), list[tuple[Seconds, float]]()
    while True:
        time.sleep(LOOK_S)
        if _waiting(client, app):
            return None
        ended = client.show(app).app
        for record in client.events(after):
            after = record.number
            if record.kind == "Grant" and of_app in record.jobs:
                found = replace(found, together=record.record["locality"] <= Locality.MACHINE)
            elif record.kind == "JobProgress" and of_app in record.jobs:
                reports.append((record.time, record.record["steps"]))
        if len(reports) >= FEWEST:
            took = reports[-1][0] - reports[0][0]
            found = replace(found, rate=(reports[-1][1] - reports[0][1]) / took, seconds=took)
        if found.seconds >= seconds:
            return found
        if ended.state in OVER:
            failed = "" if found.rate else ended.reason or f"it {ended.state} before it reported its speed"
            return replace(found, failed=failed)
        if not found.rate and time.monotonic() > begun + seconds + SILENT_S:
            raise InputError(
                f"the program reported no steps on {gpus} {gpu_type} within {seconds + SILENT_S:.0f} s; it has to use themis.train."
            )
