"""Environment variables of a rank: the names that PyTorch, torchrun and Lightning expect, and those of Themis.

Jobs get a short list of the agent's own environment, and what the operator names (``inherits``). No ``SLURM_*`` name is ever
passed on: frameworks that find one believe that Slurm started them.
"""

from __future__ import annotations

import math
import os
import pwd
from collections.abc import Mapping

from themis.machines.agent.messages import TaskSpec

INHERITED = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    # Two jobs on one GPU run side by side through NVIDIA's multi-process service where its daemon runs.
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
)
OWN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")
"""Inherited where jobs run as the agent's own user."""
CLEAN_PATH = "/usr/local/bin:/usr/bin:/bin"
"""PATH of jobs under another account: the agent is root's there, and root's own folders are of no use to them."""


def rank_env(spec: TaskSpec, number: int, run: str, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of the task's ``number``-th process, without MASTER_ADDR and MASTER_PORT.

    Parameters
    ----------
    run : the task's folder, with the ``stop`` file and the reports.
    inherited : the agent's environment.
    """
    outer = os.environ if inherited is None else inherited
    env = {"PYTHONUNBUFFERED": "1"}
    env |= {name: outer[name] for name in (*INHERITED, *(() if spec.user else OWN), *spec.inherits) if name in outer}
    env |= _user(spec.user) | {k: v for k, v in spec.env.items() if not k.startswith("SLURM_")}
    env |= {
        "CUDA_VISIBLE_DEVICES": ",".join(filter(None, spec.devices)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "RANK": str(spec.ranks[number]),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": str(number),
        "LOCAL_WORLD_SIZE": str(len(spec.ranks)),
        "GROUP_RANK": str(spec.machine),
        "NODE_RANK": str(spec.machine),
        "THEMIS_APP_ID": str(spec.app),
        "THEMIS_JOB_ID": str(spec.job),
        "THEMIS_ATTEMPT": str(spec.attempt),
        "THEMIS_GPUS": str(spec.gpus),
        "THEMIS_CHECKPOINT_DIR": spec.checkpoint_dir,
        "THEMIS_GRACE_S": f"{spec.grace_s:g}",
        "THEMIS_STOP_SIGNAL": spec.stop_signal,
        "THEMIS_TARGET_STEPS": repr(spec.target),
        "THEMIS_RUN_DIR": run,
        "THEMIS_TASK": spec.task,
    }
    return env | (_torchrun(spec) if spec.per_machine else {})


def exports(spec: TaskSpec, env: Mapping[str, str]) -> dict[str, str]:
    """Exported variables that ranks get: those that neither the job nor Themis sets."""
    yields = {*OWN, *INHERITED, *spec.inherits} - spec.env.keys()
    return {name: value for name, value in spec.exports.items() if name in yields or name not in env}


def gang_env(address: str, port: int, per_machine: bool) -> dict[str, str]:
    """Variables that are known once every machine is prepared: the address where rank 0 listens."""
    env = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    return env | ({"PET_MASTER_ADDR": address, "PET_MASTER_PORT": str(port)} if per_machine else {})


def _torchrun(spec: TaskSpec) -> dict[str, str]:
    """torchrun takes its options from PET_* variables, so that plain ``torchrun train.py`` starts one worker a GPU."""
    return {
        "PET_NNODES": str(spec.machines),
        "PET_NODE_RANK": str(spec.machine),
        "PET_NPROC_PER_NODE": str(len(spec.devices)),
        # Its own default of 30 s would cut a longer grace short.
        "PET_SHUTDOWN_TIMEOUT": str(max(math.ceil(spec.grace_s), 1)),
    }


def _user(name: str) -> dict[str, str]:
    if not name:
        return {}
    user = pwd.getpwnam(name)
    return {"PATH": CLEAN_PATH, "HOME": user.pw_dir, "USER": name, "LOGNAME": name, "SHELL": user.pw_shell}
