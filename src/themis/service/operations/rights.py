"""Explanation of the account that jobs run as: when a service starts, in ``themis doctor``, and when users are
added."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from themis.client.home import user_name
from themis.service.engine.config import Config

log = logging.getLogger("themis.service")

SHARED = (
    "so a job of any user can read the administrator's token in the data directory, and with it do all that "
    "administrators can; read and "
    "change all users' checkpoints, logs and variables; and stop or replace the service"
)
"""Consequences of one account for all jobs."""
WARNINGS = {
    "single": f"all jobs run as one system user, {SHARED}; start the service as root to separate users",
    "root": "jobs may run as root, so a user who may submit as root, or as an administrator, controls the machine; "
    "leave out --allow-root",
}
"""Warnings by the account that jobs run as (``machines.agent.messages.Hello``)."""


def explained(config: Config, others: int) -> str:
    """Sentences on the rights of jobs for a service with these settings; empty if each job runs as its submitter.

    Parameters
    ----------
    others : number of users with their own token.
    """
    account = user_name()
    if os.geteuid() != 0:
        where = " on this machine" if config.engine != "local" else ""
        return f"jobs{where} run as {account}, the account of this service, {SHARED}. {_tokens(others)}"
    if config.single_trust and config.allow_root:
        return f"jobs run as root (single_trust, allow_root), {SHARED}. {_tokens(others)}"
    if config.single_trust:
        return (
            "single_trust runs all jobs as this service's own user, root, which jobs may not use without allow_root: every job is "
            "refused. Start the service as another user, or without single_trust."
        )
    if config.allow_root:
        return (
            "jobs that are submitted as root, or as any account with uid 0, run as root (allow_root): an administrator's token "
            "controls the machine."
        )
    return (
        "this service runs as root: jobs run as their submitters' system users, and those of root are refused. Submit as another "
        "user (`themis user add NAME` makes a token, an administrator can say --user NAME), or start with --allow-root where "
        "all users may be root."
    )


def _tokens(others: int) -> str:
    have = f"{others} user{'s have' if others > 1 else ' has'} a token of their own: tokens" if others else "Tokens"
    return (
        f"{have} protect users from mistakes, not from each other. Give them to people who may use this account, or start the "
        "service as root."
    )


def let_pass(home: Path, config: Config) -> None:
    """Let submitters, as whom jobs run, reach their own jobs' folders but read no folder above."""
    if os.geteuid() != 0 or config.single_trust:
        home.chmod(0o700)
        return
    home.chmod(0o711)
    shut = [folder for folder in home.parents if not folder.stat().st_mode & 0o001]
    if shut:
        log.warning(
            "jobs run as their submitters, who cannot enter %s on the way to their folders in %s; choose another "
            "data directory, such "
            "as /var/lib/themis, or chmod o+x %s.",
            shut[-1],
            home,
            shut[-1],
        )
