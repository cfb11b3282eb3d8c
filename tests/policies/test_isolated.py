"""Isolated: everybody's private share, never more than all of a job's time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from themis.model.answers import TimeShare
from themis.policies.api import Workbench
from themis.policies.isolated import Isolated
from themis.testing.builders import app, job, machines, snapshot_of
from themis.testing.policies import check_answer


def test_a_job_that_no_type_can_hold_whole_gets_no_more_than_all_of_the_time() -> None:
    both = (*machines(2).machines, replace(machines(2).machines[0], name="f", gpu_type="fast"))
    snapshot = snapshot_of(replace(machines(1), machines=both), [app("a", [job(900.0, (1, 4))])])
    answer = Isolated()(snapshot, Workbench()).answer
    assert isinstance(answer, TimeShare)
    check_answer(snapshot, answer)
    assert answer.gpus.tolist() == [2]
    np.testing.assert_allclose(answer.x, [[0.5, 0.5]])
