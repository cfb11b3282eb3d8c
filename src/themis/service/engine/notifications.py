"""Messages to apps' own agents after a decision is on disk: their winnings, and all leases of their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from themis.core.state import State
from themis.model.answers import Proof
from themis.model.events import Command, Grant, Renew, Revoke
from themis.model.units import Seconds
from themis.schema import messages as schema
from themis.service.engine.agents import AgentRegistry


def notify(
    agents: AgentRegistry, state: State, epoch: Seconds, decided: Sequence[Proof], commands: Sequence[Command]
) -> Iterator[tuple[int, Callable[[], object]]]:
    """Awards and leases for the agents that are connected: the app, and what sends it.

    ``epoch`` : begin of the journal, in seconds since 1970.
    """
    here = agents.connected()
    if not here:
        return
    for proof in decided:
        for i in np.flatnonzero(np.isin(proof.app, list(here))).tolist():
            yield int(proof.app[i]), partial(_award, agents, proof, i)
    for command in commands:
        if isinstance(command, Grant | Renew | Revoke):
            for job in command.jobs if isinstance(command, Renew) else (command.job,):
                if (app := int(state.jobs.app[job])) in here:
                    yield app, partial(_leased, agents, state, epoch, app, job, command)


def _award(agents: AgentRegistry, proof: Proof, i: int) -> None:
    award = schema.Award(
        round=agents.round,
        bid=bool(proof.bid[i]) if len(proof.bid) else False,
        won=int(proof.won[i]) if len(proof.won) else 0,
        kept=float(proof.kept[i]) if len(proof.kept) else 1.0,
        leftover=int(proof.leftover[i]) if len(proof.leftover) else 0,
    )
    agents.send(int(proof.app[i]), schema.AgentEvent(award=award))


def _leased(
    agents: AgentRegistry, state: State, epoch: Seconds, app: int, job: int, command: Grant | Renew | Revoke
) -> None:
    agents.send(app, schema.AgentEvent(lease=_lease(state, epoch, app, job, command)))


def _lease(state: State, epoch: Seconds, app: int, job: int, command: Grant | Renew | Revoke) -> schema.Lease:
    gpus = command.gpus if isinstance(command, Grant) else state.job_gpus.get(job, ())
    what = {Grant: "granted", Renew: "renewed", Revoke: "revoked"}[type(command)]
    revoked = isinstance(command, Revoke)
    out = schema.Lease(
        what=what,
        job=job - int(state.apps.first_job[app]),
        gpus=[] if revoked else list(gpus),
        nodes=[] if revoked else sorted({state.machines[state.gpu_machine[g]].name for g in gpus}),
        cause=command.cause if isinstance(command, Revoke) else "",
    )
    if not isinstance(command, Revoke):
        out.until = epoch + command.until
    return out
