"""The simulated network between the arbiter and the agents: connections that delay, hold back, repeat and lose messages.

Within one connection messages stay in order and none is missing but at its end, as with the stream sockets of the real service.
A message may come twice, and those of a connection that was replaced may come late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from themis.machines.agent.channel import Channel, ChannelClosed
from themis.machines.agent.messages import Message


class End(Channel):
    """One end of a connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.inbox: deque[tuple[float, Message]] = deque()
        self.peer: End
        self.cut = False

    def send(self, message: Message) -> None:
        if self.cut:
            raise ChannelClosed("the connection was cut")
        for _ in range(2 if self.wire.repeats() else 1):
            last = self.peer.inbox[-1][0] if self.peer.inbox else 0.0
            self.peer.inbox.append((max(last, self.wire.now() + self.wire.delay()), message))

    def due(self) -> bool:
        """Whether ``receive`` would return or raise something."""
        ready = bool(self.inbox) and self._at(self.inbox[0][0]) <= self.wire.now()
        return ready or (self.cut and not self.inbox)

    def receive(self, timeout_s: float) -> list[Message]:
        messages = []
        while self.inbox and self._at(self.inbox[0][0]) <= self.wire.now():
            messages.append(self.inbox.popleft()[1])
        if not messages and self.cut and not self.inbox:
            raise ChannelClosed("the connection was cut")
        return messages

    def close(self) -> None:
        """This end is closed; the other notices once it has read what was on its way."""
        self.cut = self.peer.cut = True
        self.inbox.clear()

    def _at(self, planned: float) -> float:
        return max(planned, self.wire.held_until)


class Wire:
    """The way between one machine's agent and the arbiter."""

    def __init__(self, now: Callable[[], float], rng: np.random.Generator) -> None:
        self.now, self.rng = now, rng
        self.calls: list[End] = []
        """The arbiter's ends of connections that it has not accepted yet."""
        self.ends: list[End] = []
        self.listening = False
        self.held_until = self.broken_until = self.slow_until = self.repeating_until = 0.0

    def dial(self) -> End | None:
        """A connection, where the arbiter listens and the network carries it."""
        if not self.listening or self.now() < self.broken_until:
            return None
        mine, theirs = End(self), End(self)
        mine.peer, theirs.peer = theirs, mine
        self.calls.append(theirs)
        self.ends = [end for end in self.ends if not end.cut] + [mine, theirs]
        return mine

    def accept(self) -> list[End]:
        """Connections that came in."""
        calls, self.calls = self.calls, []
        return calls

    def cut(self) -> None:
        """Every connection is lost, with a part of what is on its way."""
        for end in self.ends:
            kept = int(self.rng.integers(len(end.inbox) + 1))
            while len(end.inbox) > kept:
                end.inbox.pop()
            end.cut = True
        self.ends = []

    def unplug(self) -> None:
        """The arbiter's process ended."""
        self.listening = False
        for end in [*self.ends]:
            end.cut = True
        self.calls, self.ends = [], []

    def delay(self) -> float:
        """Seconds that a message takes."""
        slow = self.now() < self.slow_until
        return float(self.rng.exponential(1.0 if slow else 0.02))

    def repeats(self) -> bool:
        """Whether a message comes twice."""
        return self.now() < self.repeating_until and bool(self.rng.random() < 0.4)
