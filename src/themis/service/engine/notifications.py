"""What apps' own agents are told of a decision, after it is on disk: what they won, and every lease of their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from themis.client import themis_pb2 as pb
from themis.model.answers import Proof
from themis.model.events import Command, Grant, Renew, Revoke

if TYPE_CHECKING:
    from themis.service.engine.arbiter import Arbiter


def notify(arbiter: Arbiter, decided: Sequence[Proof], commands: Sequence[Command]) -> None:
    """Tell those who attend."""
    desk = arbiter.desk
    here = desk.attended()
    if not here:
        return
    for proof in decided:
        for i in np.flatnonzero(np.isin(proof.app, list(here))).tolist():
            award = pb.Award(
                round=arbiter.desk.round, bid=bool(proof.bid[i]) if len(proof.bid) else False,
                won=int(proof.won[i]) if len(proof.won) else 0, kept=float(proof.kept[i]) if len(proof.kept) else 1.0,
                leftover=int(proof.leftover[i]) if len(proof.leftover) else 0,
            )  # fmt: skip
            desk.tell(int(proof.app[i]), pb.AgentEvent(award=award))
    for command in commands:
        if isinstance(command, Grant | Renew | Revoke) and command.app in here:
            desk.tell(command.app, pb.AgentEvent(lease=_lease(arbiter, command)))


def _lease(arbiter: Arbiter, command: Grant | Renew | Revoke) -> pb.Lease:
    state = arbiter.state
    gpus = command.gpus if isinstance(command, Grant) else state.job_gpus.get(command.job, ())
    what = {Grant: "granted", Renew: "renewed", Revoke: "revoked"}[type(command)]
    out = pb.Lease(
        what=what, job=command.job - int(state.apps.first_job[command.app]), gpus=() if what == "revoked" else gpus,
        nodes=sorted({state.machines[state.gpu_machine[g]].name for g in gpus}) if what != "revoked" else (),
        cause=command.cause if isinstance(command, Revoke) else "",
    )  # fmt: skip
    if not isinstance(command, Revoke):
        out.until = arbiter.epoch + command.until
    return out
