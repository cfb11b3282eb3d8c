"""Jobs as processes of this machine: a thread that stands between the core and the node agents it starts.

    core --submit--> LocalExecutor --messages--> node agent --> supervisor --> ranks
    core <--emit---- (events)      <--messages--            <-- status, reports

Each machine of the cluster gets its own agent process here, so a cluster of several small machines can be tried on
one. An agent that dies is started again and finds its gangs running; jobs die with an arbiter that does not come back
within the lease.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from themis.core.executor import Executor
from themis.errors import InputError
from themis.machines.agent.channel import ChannelClosed, ServedChannel, listen, readable
from themis.machines.agent.gpus import Claim, release
from themis.machines.agent.locks import locked
from themis.machines.agent.means import AUTO
from themis.machines.agent.messages import (
    PROTOCOL,
    Fetch,
    FindCopy,
    Hello,
    Message,
    NodeFound,
    NodeLeaves,
    NodeLies,
    ProtocolError,
    Rejected,
    Upload,
)
from themis.machines.agent.system import clock, passable
from themis.machines.agent.tasks import user_for
from themis.machines.bundles.store import Store
from themis.machines.engines.copies import Copies
from themis.machines.engines.depot import Depot
from themis.machines.engines.endings import Pace
from themis.machines.engines.gangs import Gangs, Out, Send
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.open_files import as_given
from themis.machines.engines.program import ExecutorBroke, Note, Programs
from themis.machines.engines.renewer import Renewer, before, note_lease, socket_file
from themis.model.cluster import Machine
from themis.model.events import Command, Event, Grant
from themis.model.workload import App

AGENT, CLAIM = ["-m", "themis.machines.agent"], "--claim"
TICK_S = 0.1
RESPAWN_S, RESPAWN_MOST_S = 0.5, 10.0
"""Between two starts of an agent that does not come; doubled each time."""

_LEFT: list[subprocess.Popen[bytes]] = []
"""Agents that outlive the executor of this process which started them."""

log = logging.getLogger("themis.service")


def ignored(note: Note) -> None:
    """Drop a note."""


class LocalExecutor(Executor):
    """Gangs as real processes.

    Parameters
    ----------
    root : folder of sockets, tasks, logs and checkpoints; one executor each, not shared with other users.
    hosts : the cluster's machines in the order of their ids.
    programs : what each job runs.
    emit : gets every event, in order, from the executor's own thread; ``note`` likewise what is no event.
    pace : believed steps per second, for jobs that report nothing.
    allow_root : let jobs run as root where this process is.
    claims : the machine's GPUs, claimed; agents and what they start keep them so.
    bundles : the files that jobs are sent with, for the agents to fetch. ``copies`` : of checkpoints and outputs.
    containment : of gangs, as ``machines.agent.means.find`` takes it. ``clock`` : seconds, never set back.
    renewer : answers agents until ``start``. ``version`` : of Themis; agents that another one left are replaced.
    """

    one_host = True
    """All agents are on this machine, and may share a disk."""

    def __init__(
        self,
        root: Path,
        hosts: Sequence[Host],
        programs: Programs,
        emit: Callable[[Event], None],
        note: Callable[[Note], None] = ignored,
        *,
        settings: NodeSettings | None = None,
        pace: Pace | None = None,
        allow_root: bool = False,
        respawn: bool = True,
        claims: Sequence[Claim] = (),
        containment: str = AUTO,
        bundles: Store | None = None,
        copies: Copies | None = None,
        clock: Callable[[], float] = clock,
        renewer: Renewer | None = None,
        version: str = "",
    ) -> None:
        self.clock, self.renewer, self.version = clock, renewer, version
        self.containment = containment
        self.depot = Depot(bundles, copies, self._answer)
        self.devices: Mapping[str, tuple[str, ...]] = {}
        self.claims = claims
        self.root, self.emit, self.note = root.resolve(), emit, note
        self._before = before(self.root)
        self.settings = settings or NodeSettings()
        self.allow_root, self.respawn = allow_root, respawn
        self.gangs = Gangs(
            hosts,
            programs,
            self.settings,
            now=clock(),
            checkpoints=str(self.root / "checkpoints"),
            pace=pace,
            lease_before_s=self._before.lease_s,
        )
        self.gangs.disks.one_host = self.one_host
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self._dismissed: list[subprocess.Popen[bytes]] = []
        """Agents of machines that were removed, which end."""
        self._machine = {host.machine.name: n for n, host in enumerate(hosts)}
        self._todo: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._channels: dict[int, ServedChannel] = {}
        self._unidentified: list[ServedChannel] = []
        """Connected, not yet introduced."""
        self._barred: dict[int, ServedChannel] = {}
        """Channels of machines that are barred for a while. They stay open because a machine would reconnect
        immediately after a close."""
        self._control: ServedChannel | None = None
        """A bridge's own connection, where machines are an engine's."""
        self._patience: dict[int, tuple[float, float]] = {}
        """Time of the last restart of an agent that is not back yet, and the wait of the next one."""
        self._closing = threading.Event()
        self._broken: BaseException | None = None
        passable(self.root)
        self._server = renewer.server if renewer is not None else listen(socket_file(self.root))
        self._thread = threading.Thread(target=self._run, name="themis-executor", daemon=True)

    # ---- for the arbiter ------------------------------------------------------------------------------------------

    def start(self) -> LocalExecutor:
        """Start the agents and the thread."""
        self._start_agents()
        if self.renewer is not None:
            # Before the thread connects the machines, whose leases count from then.
            self.renewer.hand_over()
        note_lease(self.root, self.settings.lease_s, self.version)
        self._thread.start()
        return self

    def admit(self, first_job: int, app: App) -> None:
        """Learn about an app's jobs."""
        self._do(lambda: self.gangs.admit(first_job, app))

    def submit(self, command: Command) -> None:
        """Carry out a command; the answer comes as events."""
        self._do(lambda: self._carry_out(self.gangs.command(command, self.clock())))

    def dismiss(self, jobs: Sequence[int]) -> None:
        """Nothing of these jobs will start again."""
        self._do(lambda: self.gangs.dismiss(jobs))

    def restore(self, grant: Grant, steps: float, *, started: bool = True) -> None:
        """Take back a gang that was granted before this arbiter started; call it before ``start``, after ``admit``."""
        self._do(lambda: self._carry_out(self.gangs.restore(grant, steps, self.clock(), started=started)))

    def recorded(self, job: int, attempt: int) -> None:
        """Acknowledge that the caller has this attempt's ending on disk; until then machines report it again."""
        self._do(lambda: self._carry_out(self.gangs.recorded(job, attempt, self.clock())))

    def restore_lost(self, machine: int) -> None:
        """A machine that had failed when the arbiter before this one ended; call it before ``start``."""
        self._do(lambda: self.gangs.restore_lost(machine))

    def restore_withheld(self, machine: int) -> None:
        """Restore GPUs that were withheld when the previous arbiter ended; call it before ``start``."""
        self._do(lambda: self.gangs.restore_withheld(machine))

    def equip(self, devices: Mapping[str, tuple[str, ...]]) -> None:
        """The real GPUs of machines that join, by the machine's name; call it before they do."""
        self._do(lambda: setattr(self, "devices", dict(devices)))

    def join(self, machine: Machine) -> None:
        """One more machine, with an agent here."""
        self._do(lambda: self._join(machine))

    def resize(self, machine: int, gpus: int) -> None:
        """Set a machine's number of GPUs; 0: it is removed, its agent ends as soon as nothing runs there."""
        self._do(lambda: self._carry_out(self.gangs.resize(machine, self._host_of(machine, gpus), self.clock())))

    def leave(self, name: str) -> None:
        """Remove a machine for good, from any thread.

        Raises
        ------
        InputError : it did not join over the network, or no machine has this name.
        """
        raise InputError(
            f"node {name!r} did not join over the network, so it cannot be removed; `themis drain {name}` takes it out of "
            f"service, and `themis set machines.{name}.gpus=0` removes it where the settings name it."
        )

    def pardon(self, machine: int) -> None:
        """An administrator returns a machine to service: its messages are read again."""
        self._do(lambda: self.gangs.pardon(machine))

    def rejected(self, machine: int) -> str:
        """Why nothing that a machine sends is accepted; empty where it is."""
        return self.gangs.nodes[machine].rejected if machine < len(self.gangs.nodes) else ""

    def check_user(self, user: str) -> None:
        """Raise InputError if no agent would start jobs of this system user ("": the agents' own)."""
        user_for(user, allow_root=self.allow_root)

    def niceness(self, machine: int) -> int:
        """Niceness of jobs on this machine, as its agent last reported it."""
        # A machine of an engine is known to the core a moment before it is here.
        return self.gangs.nodes[machine].niceness if machine < len(self.gangs.nodes) else 0

    def trust(self, machine: int) -> str:
        """Trust level of this machine (which account jobs run as), as its agent last reported it; empty before the
        first report."""
        return self.gangs.nodes[machine].trust if machine < len(self.gangs.nodes) else ""

    def containment_of(self, machine: int) -> tuple[str, tuple[str, ...]]:
        """Containment of gangs on this machine, and the enforced limits, as its agent reported last; empty before."""
        nodes = self.gangs.nodes
        return (nodes[machine].containment, nodes[machine].limits) if machine < len(nodes) else ("", ())

    def close(self, *, stop_jobs: bool = True, timeout_s: float = 120.0) -> None:
        """Stop all gangs, or leave them to an arbiter that comes back within the lease; then end the agents."""
        if stop_jobs and self._thread.is_alive():
            done = threading.Event()
            self._do(lambda: self._carry_out(self.gangs.stop_all("shutdown")))
            self._do(lambda: done.set())
            done.wait(timeout_s)
            until = self.clock() + timeout_s
            while self.gangs.running and self._thread.is_alive() and self.clock() < until:
                self._closing.wait(0.05)
        self._closing.set()
        self._poke()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._end_agents(timeout_s, leave_busy=not stop_jobs)
        self.depot.close()
        self._server.close()
        # Once: a descriptor's number is soon another's.
        claims, self.claims = self.claims, []
        release(claims)
        if self._broken is not None and self.note is ignored:
            raise self._broken

    def __enter__(self) -> LocalExecutor:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, action: Callable[[], object]) -> None:
        if self._broken is not None:
            raise self._broken
        self._todo.put(action)
        self._poke()

    def _join(self, machine: Machine) -> None:
        self._machine[machine.name] = len(self.gangs.hosts)
        devices = self.devices.get(machine.name, ())
        self.gangs.join(Host(machine=machine, devices=devices if len(devices) == machine.gpus else ()), self.clock())

    def _host_of(self, n: int, gpus: int) -> Host | None:
        """A machine with this many GPUs; a removed one is connected to its agent again."""
        known = self.gangs.hosts[n]
        if not gpus:
            return None
        self._machine[known.machine.name] = n
        machine = replace(known.machine, gpus=gpus, gpus_per_slot=min(known.machine.gpus_per_slot, gpus))
        return replace(known, machine=machine, devices=self.devices.get(machine.name, ())[:gpus])

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._turn()
        except BaseException as error:
            # Nothing is renewed or started any more: whoever hears the notes has to end, and the next start goes on.
            self._broken = error
            self.note(ExecutorBroke(error=error))
        finally:
            for channel in (*self._channels.values(), *self._unidentified, *self._barred.values()):
                channel.close()

    def _turn(self) -> None:
        ready = self._wait()
        with contextlib.suppress(Empty):
            while True:
                self._todo.get_nowait()()
        for channel in ready:
            try:
                if channel is self._control:
                    self._obey(self._receive(channel))
                elif channel in self._unidentified:
                    self._introduce(channel)
                else:
                    self._listen(channel)
                if channel.wrong is not None:
                    raise channel.wrong
            except ProtocolError as error:
                self._reject(channel, str(error))
        for n, channel in [*self._barred.items()]:
            if self.clock() >= self.gangs.nodes[n].barred_until:
                channel.close()
                del self._barred[n]
        self._carry_out(self.gangs.tick(self.clock()))
        self._revive()

    def _wait(self) -> list[ServedChannel]:
        """Wait for something to do; returns the channels with something to read. Connections that came in are accepted."""
        control = [self._control] if self._control else []
        channels = {c.socket.fileno(): c for c in (*self._unidentified, *self._channels.values(), *control)}
        waits = [channel for channel in channels.values() if channel.unsent]
        ready = readable([self._woken, self._server, *channels], TICK_S, [channel.socket for channel in waits])
        for channel in waits:
            try:
                channel.flush()
            except ChannelClosed:
                channel.wrong = ProtocolError("it reads nothing of what it is sent.")
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._server.fileno() in ready:
            try:
                self._unidentified.append(ServedChannel(self._server.accept()[0], self.clock))
            except OSError as error:
                # Callers have opened as many files as we may have; who waits here is let in when some are closed again.
                log.warning("a node agent is kept waiting: %s", error)
                self._closing.wait(TICK_S)
        return [channels[file] for file in ready if file in channels]

    def _introduce(self, channel: ServedChannel) -> None:
        """The first message names the machine; a new connection of a machine replaces its old one."""
        messages = self._receive(channel)
        if messages == []:
            return  # not a whole line yet
        self._unidentified.remove(channel)
        if messages and isinstance(messages[0], NodeFound | NodeLeaves | NodeLies):
            self._control = channel
            self._obey(messages)
            return
        if not messages or not isinstance(messages[0], Hello) or messages[0].node not in self._machine:
            channel.close()
            return
        n = self._machine[messages[0].node]
        if self.clock() < self.gangs.nodes[n].barred_until:
            self._bar(n, channel)
            return
        if self._is_outdated(n, messages[0]) and self._replace(n):
            channel.close()
            return
        self._hang_up(n)
        self._patience.pop(n, None)
        self._channels[n] = channel
        self._handle_messages(n, messages)

    def _obey(self, messages: list[Message] | None) -> None:
        """Handle the messages of a bridge; without a bridge, close its connection."""
        if self._control is not None:
            self._control.close()
        self._control = None

    def _listen(self, channel: ServedChannel) -> None:
        n = next((n for n, c in self._channels.items() if c is channel), None)
        if n is None:
            return  # a new connection took its place a moment ago
        messages = self._receive(channel)
        if messages is None:
            self._hang_up(n)
        else:
            self._handle_messages(n, messages)

    def _receive(self, channel: ServedChannel) -> list[Message] | None:
        try:
            return channel.receive(0.0)
        except ChannelClosed:
            return None

    def _reject(self, channel: ServedChannel, reason: str) -> None:
        """Reject invalid data: close the connection that it came from, and take its machine out of service."""
        n = next((n for n, c in self._channels.items() if c is channel), None)
        if n is not None:
            self._shut_out(n, reason)
            return
        log.warning("a connection of a machine or a bridge is closed: %s", reason)
        if channel is self._control:
            self._obey(None)
        else:
            self._unidentified = [other for other in self._unidentified if other is not channel]
            channel.close()

    def _shut_out(self, n: int, reason: str) -> None:
        log.warning("machine %s is out of service: %s", self.gangs.hosts[n].machine.name, reason)
        channel = self._channels.get(n)
        self._carry_out(self.gangs.reject(n, reason, self.clock()))
        if channel is not None:
            with contextlib.suppress(ChannelClosed):
                channel.send(Rejected(reason=self.gangs.nodes[n].rejected))
        self._hang_up(n)

    def _bar(self, n: int, channel: ServedChannel) -> None:
        """Leave a connection unread until its machine may come back."""
        with contextlib.suppress(ChannelClosed):
            channel.send(Rejected(reason=self.gangs.nodes[n].rejected))
        if (before := self._barred.pop(n, None)) is not None:
            before.close()
        self._barred[n] = channel

    def _handle_messages(self, n: int, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case Fetch():
                    self.depot.fetch(n, message, self.gangs.specs_on(n))
                    continue
                case FindCopy(task=task):
                    for spec in self.gangs.specs_on(n):
                        if spec.task == task:
                            self.depot.find(n, message, spec, self.gangs.hosts[n].machine.name, self._connected)
                    continue
                case Upload():
                    self.depot.keep(n, self.gangs.hosts[n].machine.name, message)
                    continue
                case Hello():
                    self.depot.connected(self.gangs.hosts[n].machine.name, [state.task for state in message.tasks])
                case _:
                    pass
            self._carry_out(self._taken_in(n, message))

    def _taken_in(self, n: int, message: Message) -> list[Out]:
        """Handle a machine's message and return the results; an error in handling affects only that machine."""
        try:
            return self.gangs.handle_message(n, message, self.clock())
        except ProtocolError:
            raise
        except Exception as error:
            kind, name = type(message).__name__, self.gangs.hosts[n].machine.name
            log.exception("machine %s: a message %s cannot be handled", name, kind)
            raise ProtocolError(
                f"its message {kind} cannot be handled ({type(error).__name__}); the log has the traceback."
            ) from error

    def _connected(self, name: str) -> bool:
        n = self._machine.get(name)
        return n is not None and self.gangs.nodes[n].connected

    def _answer(self, n: int, message: Message) -> None:
        """Answer a machine's request, from any thread."""
        with contextlib.suppress(Exception):  # the executor broke; its own thread says how
            self._do(lambda: self._carry_out([Send(machine=n, message=message)]))

    def _hang_up(self, n: int) -> None:
        channel = self._channels.pop(n, None)
        if channel is not None:
            channel.close()
            self.gangs.disconnected(n)

    def _carry_out(self, out: list[Out]) -> None:
        for item in out:
            if isinstance(item, Send):
                channel = self._channels.get(item.machine)
                try:
                    if channel is not None:
                        channel.send(item.message)
                except ChannelClosed:
                    self._hang_up(item.machine)
            elif isinstance(item, Note):
                self.note(item)
            else:
                self.emit(item)

    # ---- the agents: here, one process of this machine for each -----------------------------------------------------

    def _start_agents(self) -> None:
        for n in range(len(self.gangs.hosts)):
            if not self._leaves(n):
                self._spawn(n)

    def _leaves(self, n: int) -> bool:
        """A machine that was removed and has nothing on it any more: it needs no agent."""
        return self.gangs.nodes[n].leaving and self.gangs.is_empty(n)

    def _is_outdated(self, n: int, hello: Hello) -> bool:
        """True if an agent that outlived its arbiter is of another version, or was started with other settings."""
        if hello.protocol < PROTOCOL or n in self.agents:
            return hello.protocol < PROTOCOL
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{self._agent_pid(n)}/cmdline").read_bytes().decode().split("\0")[1:-1]
            given = words[: words.index(CLAIM)] if CLAIM in words else words
            return words[:2] == AGENT and (self._before.version != self.version or given != self._agent_words(n))
        return False

    def _agent_pid(self, n: int) -> int:
        """Raises OSError, ValueError where no agent holds the machine's lock."""
        lock = self.root / "nodes" / self.gangs.hosts[n].machine.name / "agent.lock"
        if not locked(lock):
            raise ValueError("no agent holds it")
        return int(lock.read_text())

    def _replace(self, n: int) -> bool:
        """End an agent that outlived its arbiter, so that one of this version and these settings takes over its jobs."""
        with contextlib.suppress(OSError, ValueError):
            os.kill(self._agent_pid(n), signal.SIGTERM)
            return True
        return False

    def _dismiss_agent(self, n: int) -> None:
        """End the agent of a machine that was removed; one that outlived an arbiter ends by itself, having no lease."""
        name = self.gangs.hosts[n].machine.name
        if self._machine.get(name) == n:
            del self._machine[name]
        if (agent := self.agents.pop(n, None)) is not None and agent.poll() is None:
            agent.terminate()
            self._dismissed.append(agent)
        self._hang_up(n)

    def _end_agents(self, timeout_s: float, *, leave_busy: bool = False) -> None:
        """``leave_busy`` : those with gangs stay, so that the next service can renew their leases before it has started any."""
        for n in [n for n in self.agents if leave_busy and not self.gangs.is_empty(n)]:
            _LEFT.append(self.agents.pop(n))
        for agent in self.agents.values():
            agent.terminate()
        for agent in (*self.agents.values(), *self._dismissed):
            agent.wait(timeout_s)

    def _spawn(self, n: int) -> None:
        """Start a machine's agent, unless one that outlived the arbiter before this one serves."""
        name = self.gangs.hosts[n].machine.name
        if locked(self.root / "nodes" / name / "agent.lock"):
            return
        locks = [held.lock for held in self.claims]
        # The last words: their numbers are this process's, and say nothing of how the agent is to run.
        claims = [word for lock in locks for word in (CLAIM, str(lock))]
        self.agents[n] = subprocess.Popen(
            [sys.executable, *self._agent_words(n), *claims],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=locks,
        )
        as_given(self.agents[n].pid)

    def _agent_words(self, n: int) -> list[str]:
        """Module and arguments of a machine's agent."""
        name = self.gangs.hosts[n].machine.name
        return [
            *AGENT,
            "--node",
            name,
            "--root",
            str(self.root / "nodes" / name),
            "--leave",
            "--connect",
            str(socket_file(self.root)),
            *self.agent_options(),
            *(word for device in self.gangs.hosts[n].devices for word in ("--device", device)),
        ]

    def agent_options(self) -> list[str]:
        """Options of the agents on all machines, wherever they are."""
        settings = self.settings
        times = ["--renew-s", str(settings.renew_s), "--cache-bytes", str(settings.cache_bytes)]
        return [*times, "--containment", self.containment, *["--allow-root"] * self.allow_root]

    def _revive(self) -> None:
        """Start agents that died, or that were adopted and died since."""
        for n in range(len(self.gangs.hosts)):
            if self._leaves(n):
                if n in self.agents or n in self._channels:
                    self._dismiss_agent(n)
                continue
            agent = self.agents.get(n)
            gone = agent is None or agent.poll() is not None
            if self.respawn and gone and n not in self._channels and not self._closing.is_set():
                at, wait = self._patience.get(n, (-math.inf, RESPAWN_S / 2))
                if self.clock() >= at + wait:
                    # One that cannot even start is not started over and over.
                    self._patience[n] = self.clock(), min(2 * wait, RESPAWN_MOST_S)
                    try:
                        self._spawn(n)
                    except OSError as error:
                        log.warning(
                            "the node agent of %s cannot be started: %s", self.gangs.hosts[n].machine.name, error
                        )
