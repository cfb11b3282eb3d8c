"""What the golden cases of policies share: who got how many GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from themis.model.answers import GpuGrant
from themis.model.snapshot import Snapshot
from themis.policies.api import Policy, Workbench


def dealt(policy: Policy, snapshot: Snapshot) -> list[int]:
    """GPUs that the policy deals to each app, in order of arrival."""
    answer = policy(snapshot, Workbench()).answer
    assert isinstance(answer, GpuGrant)
    rows = np.searchsorted(snapshot.app_id, answer.app)
    counts: list[int] = np.bincount(rows, weights=answer.gpus, minlength=snapshot.apps).astype(int).tolist()
    return counts


def after(snapshot: Snapshot, **columns: Any) -> Snapshot:
    """The snapshot with these columns as lists."""
    return replace(snapshot, **{name: np.array(values, dtype=float) for name, values in columns.items()})
