"""State of a machine, of a gang, and of the gang's ranks on one machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from themis.machines.agent.messages import Occupied, TaskReport, TaskSpec, TaskState
from themis.machines.engines.gang_lifecycle import GangState, Goal, PartState
from themis.machines.engines.hosts import Host
from themis.machines.engines.idle_gangs import IdleGang
from themis.machines.engines.program import Program
from themis.model.events import Grant, MetricsReported
from themis.model.units import Seconds
from themis.model.workload import App, Job


@dataclass(slots=True)
class Node:
    """A machine, and how its agent is reached."""

    host: Host
    lease_until: Seconds
    connected: bool = False
    ready: bool = False
    """Connected, and its lease renewed on this connection: it may start gangs."""
    failed: bool = False
    awaited: int | None = None
    """Its connection outlasted its lease, so what its agent sent before may still be on the way: the machine returns once the agent
    has heard the answer to this renewal, the first after that. -1 until it comes; None where nothing is to be awaited."""
    leaving: bool = False
    """Its engine removes it; it counts as failed until it is found again."""
    away: bool = False
    """Its agent said that it leaves; it is back with its agent's next ``Hello``."""
    ends_at: Seconds = math.inf
    """Time of its removal; graces end there."""
    niceness: int = 0
    """Niceness of its agent, and thus of jobs."""
    trust: str = ""
    """The trust level that its agent reported (``machines.agent.messages.Hello``)."""
    containment: str = ""
    limits: tuple[str, ...] = ()
    """Containment method of its agent, and the limits that it enforces on gangs."""
    protocol: int = 1
    """Protocol version that its agent speaks."""
    occupied: tuple[Occupied, ...] | None = ()
    """GPUs that are not free though no gang holds them, as the core knows it; None while that is to be found out."""
    rejected: str = ""
    """Why nothing that it sends is accepted; empty once it is back in service."""
    rejections: int = 0
    """Number of successive rejections within ``gangs.FORGET_S``; the last was at ``rejected_at``."""
    rejected_at: Seconds = -math.inf
    barred_until: Seconds = -math.inf
    """Time before which none of its messages are read."""
    orphan_tasks: set[str] = field(default_factory=set)
    """Tasks that live there and should not: given up as lost with their machine, or of another journal. They may be on any GPU,
    so nothing starts on the machine until they ended."""


@dataclass(slots=True)
class GangPart:
    """A gang's ranks on one machine."""

    spec: TaskSpec
    state: TaskState | None = None
    known: bool = False
    """True if the agent ever confirmed it; what is gone after that was lost."""
    sent: Goal | None = None
    """The goal that its agent was sent last on this connection."""

    @property
    def phase(self) -> PartState:
        """The phase that its agent reported last."""
        return PartState(self.state.phase) if self.state is not None else PartState.UNREPORTED

    @property
    def ended(self) -> bool:
        """True if nothing of it is left on its machine."""
        return self.phase is PartState.ENDED


@dataclass(slots=True, eq=False)
class Gang:
    """One attempt of a job: what was granted, where it is in its life, and what was reported last."""

    app: App
    job: Job
    grant: Grant
    program: Program
    parts: dict[int, GangPart]
    since: Seconds
    base: float
    """Steps in the checkpoint when this attempt began."""
    state: GangState = GangState.PREPARING
    cause: str = ""
    """Why it is stopped; empty while it is not."""
    why: str = ""
    """The same in a sentence for its owner, if details are known."""
    started: bool = False
    """True if its ``JobStarted`` is written, by this arbiter or an earlier one."""
    report: TaskReport | None = None
    last: TaskReport | None = None
    """The last report, including one from a program whose steps are not the app's."""
    idle: IdleGang = field(default_factory=IdleGang)
    progress_at: Seconds = -math.inf
    metrics_at: Seconds = -math.inf
    metrics: MetricsReported | None = None
    """Its metrics as they were recorded last, and when."""
    batch: int = 0
    """Batch size that a dynamic job reported last in this attempt; 0 for none yet."""
    check: int = 0
    """Last check of curve stopping that was passed on."""
    reported_at: Seconds = -math.inf
    runs: set[str] = field(default_factory=set)
    """Runs of trackers that it reported."""
    intrudes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """GPUs that its processes are on and that it does not hold, by machine."""
    neighbours_at: Seconds = -math.inf
    """Time at which another gang last joined or left its GPUs."""

    @property
    def goal(self) -> Goal:
        """The goal for the agents of its machines."""
        return self.state.goal

    @property
    def ended(self) -> bool:
        """True if nothing of it is left on any machine."""
        return self.state.ended

    @property
    def part_states(self) -> list[TaskState]:
        """The last reported state of each of its parts."""
        return [part.state for part in self.parts.values() if part.state is not None]

    def progress(self, report: TaskReport) -> tuple[float, float]:
        """Progress done and progress saved, in the unit of the job: epochs for a dynamic job, else steps."""
        return (report.epochs, report.saved_epochs) if self.job.dynamic else (report.steps, report.saved)

    @property
    def training_batch(self) -> int:
        """Its batch size: as reported, or by its steps."""
        if self.job.dynamic and self.job.dynamic.hidden:
            reported = self.report.batch if self.report is not None else 0
            return reported or self.batch or self.job.regimes[0].batch
        done, end = self.progress(self.report)[0] if self.report is not None else self.base, 0.0
        for regime in self.job.regimes:
            end += regime.steps
            if done < end - 1e-9:
                return regime.batch
        return self.job.regimes[-1].batch

    @property
    def model_steps(self) -> float:
        """Steps that a program counts in one of its job's: programs count their own, also where the job counts epochs."""
        dynamic = self.job.dynamic
        return dynamic.steps_per_epoch(self.training_batch) if dynamic else 1.0


def too_old(node: Node, spec: TaskSpec) -> str:
    """Why a machine's agent may not have a task."""
    return (
        f"the agent of {node.host.machine.name} speaks protocol {node.protocol}, and this job's files, packages, launcher or "
        f"checkpoints need {spec.protocol}; install the service's version of Themis there, and restart the agent"
    )


def went_wrong(state: TaskState) -> bool:
    """True if the ranks ended by themselves, or were lost: then the whole gang has to end."""
    return state.first is not None or state.cause in (
        "lease",
        "lost",
        "keeper",
        "machine",
        "not_started",
        "absent",
        "broken",
        "peer",
        "memory",
    )


def could_not_save(report: TaskReport | None) -> str:
    """Sentence on the work that a preempted job lost because its save failed; empty if it reported no such failure."""
    if report is None or report.unsaved <= report.saved:
        return ""
    lost = report.unsaved - report.saved
    return (
        f"preempted at step {report.unsaved:.0f}, it could not save: {lost:.0f} steps are lost, and the next attempt "
        f"begins at step {report.saved:.0f}; its log says why"
    )


def lost_work(asked: bool, gang: Gang, states: Sequence[TaskState]) -> str:
    """Sentence on the work that a preempted job lost because it wrote no checkpoint; empty if it wrote one or never
    ran."""
    seconds = max((state.seconds for state in states), default=0.0)
    if not asked or not seconds or any(state.saved for state in states):
        return ""
    spec = next(iter(gang.parts.values())).spec
    where = "its checkpoint folder" if spec.checkpoint_url else spec.checkpoint_dir
    return f"preempted after {seconds:.0f} s, it wrote nothing to {where}: this work is lost"
