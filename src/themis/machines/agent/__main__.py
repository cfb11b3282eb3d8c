"""``python -m themis.machines.agent``: start a node agent on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from themis.errors import ThemisError
from themis.machines.agent.channel import connect
from themis.machines.agent.gpus import device_nodes
from themis.machines.agent.keeper import PR_SET_CHILD_SUBREAPER
from themis.machines.agent.means import AUTO, find
from themis.machines.agent.node_agent import AgentSettings, NodeAgent
from themis.machines.agent.system import UMASK, prctl


def main(arguments: list[str] | None = None) -> int:
    """Run until asked to end; exit code 2 and a sentence where it cannot."""
    parser = argparse.ArgumentParser(
        prog="python -m themis.machines.agent", description="Keep the jobs of this machine."
    )
    parser.add_argument("--node", required=True, help="name of this machine in the cluster")
    parser.add_argument("--root", required=True, type=Path, help="folder for tasks and logs")
    parser.add_argument("--connect", required=True, type=Path, help="the arbiter's socket")
    parser.add_argument("--renew-s", type=float, default=10.0, help="seconds between renewals of the machine's lease")
    parser.add_argument("--allow-root", action="store_true", help="let jobs run as root")
    parser.add_argument("--leave", action="store_true", help="end once the lease is over and nothing runs")
    parser.add_argument("--notice-s", type=float, default=0.0, help="seconds for jobs to save after SIGTERM")
    parser.add_argument("--claim", type=int, action="append", default=[], help="open file to keep open")
    parser.add_argument("--device", action="append", default=[], help="UUID of a GPU of this machine, in their order")
    parser.add_argument("--containment", default=AUTO, help="of jobs: auto, cgroup, namespace or none")
    parser.add_argument("--cache-bytes", type=int, default=50 << 30, help="size of bundles and environments to keep")
    given = parser.parse_args(arguments)
    os.umask(UMASK)
    try:
        settings = AgentSettings(
            node=given.node,
            root=given.root.resolve(),
            renew_s=given.renew_s,
            allow_root=given.allow_root,
            leave=given.leave,
            notice_s=given.notice_s,
            claims=tuple(given.claim),
            means=replace(find(given.containment), nodes=device_nodes(given.device) if given.device else {}),
            reaper=True,
            devices=tuple(given.device),
            cache_bytes=given.cache_bytes,
        )
        # What a supervisor that dies leaves comes to the agent.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        NodeAgent(settings=settings, dial=lambda: connect(given.connect)).run()
    except ThemisError as error:
        print(f"themis node: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
