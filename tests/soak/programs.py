"""What is killed, and who starts it again."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from limpet.lab.command import LabError
from limpet.lab.process import Daemon
from limpet.lab.world.machine import Machine
from limpet.lab.world.tunnels import ipsec_pid, tunnel_pid
from limpet.lab.world.world import World

_LONGEST_REST_S = 0.2
"""Before a program that has ended is started again: systemd's default is half of it."""
_LOOK_EVERY_MS = 50


class Kind(StrEnum):
    AGENT = "agent"
    RELAY = "relay"
    """The agent of a node that relays."""
    CONTROLLER = "controller"
    TUNNEL = "tunnel"
    """wireguard-go, or strongSwan's charon: its agent starts it again."""


@dataclass(slots=True)
class Program:
    kind: Kind
    name: str
    pid: Callable[[], int | None]
    """Now; None: it does not run."""
    told: dict[int, list[signal.Signals]] = field(default_factory=dict)
    """Signals that were sent, by pid."""

    def aim(self) -> Hit | None:
        """At it as it runs now; None: it does not."""
        pid = self.pid()
        if pid is None:
            return None
        try:
            hit = Hit(self, pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None
        if self.pid() == pid:
            return hit
        hit.close()  # it has ended, and the number may be another's
        return None


@dataclass(frozen=True, slots=True)
class Hit:
    """One run of a program; who is asleep cannot be asked for its pid."""

    program: Program
    pid: int
    descriptor: int

    def send(self, number: signal.Signals) -> bool:
        """False: it has ended already."""
        self.program.told.setdefault(self.pid, []).append(number)  # before it can end of it
        try:
            signal.pidfd_send_signal(self.descriptor, number)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        os.close(self.descriptor)


class Keeper(threading.Thread):
    """Starts a program again when it has ended, and judges how it ended."""

    def __init__(
        self, program: Program, daemon: Daemon, start: Callable[[], None], chance: random.Random
    ) -> None:
        super().__init__(name=f"keeper of {program.name}", daemon=True)
        self.faults: list[str] = []
        """What no kill excuses."""
        self._is_ready = threading.Event()
        self._is_ready.set()
        self.program = program
        self._judged: tuple[int, int] | None = None
        self._was_ready = daemon.pid
        """The last run that said so."""
        self._daemon = daemon
        self._start = start
        self._chance = chance
        self._stopped = threading.Event()

    @property
    def is_settled(self) -> bool:
        """It runs, and was not told to end."""
        pid = self._daemon.pid
        told = self.program.told.get(pid, []) if pid is not None else [signal.SIGTERM]
        return self._is_ready.is_set() and signal.SIGTERM not in told

    def stop(self) -> None:
        """What runs goes on."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        while not self._stopped.is_set():
            pid = self._daemon.pid
            if pid is not None and not _ends_within(pid, _LOOK_EVERY_MS):
                continue
            self._is_ready.clear()
            self._daemon.kill()  # it has ended: only what is left of it goes
            self._judge()
            self._stopped.wait(self._chance.uniform(0, _LONGEST_REST_S))
            try:
                self._start()
            except LabError as error:
                if self._daemon.ended == self._judged:  # it did not even begin
                    self.faults.append(str(error))
            else:
                self._was_ready = self._daemon.pid
                self._is_ready.set()

    def _judge(self) -> None:
        ended = self._daemon.ended
        if ended is None or ended == self._judged:
            return
        self._judged = ended
        pid, code = ended
        told = self.program.told.pop(pid, [])
        # Who is told to end ends well, unless it is killed before it is done.
        right = {{signal.SIGTERM: 0, signal.SIGKILL: -signal.SIGKILL}.get(each) for each in told}
        if pid != self._was_ready and signal.SIGTERM in told:
            right.add(-signal.SIGTERM)  # before it could hear of it
        if code not in right:
            words = " and ".join(each.name for each in told) or "nothing"
            self.faults.append(
                f"{self.program.name} ended with {code} after {words}: {self._daemon.tail()}"
            )


def _ends_within(pid: int, patience_ms: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(_poll(descriptor, patience_ms))
    finally:
        os.close(descriptor)


def _poll(descriptor: int, patience_ms: int) -> list[tuple[int, int]]:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll(patience_ms)


def keepers(world: World, chance: random.Random) -> list[Keeper]:
    """Of the controller and of all agents; none has begun."""
    controller = world.controller
    found = [
        Keeper(
            Program(Kind.CONTROLLER, "controller", lambda: controller.process.pid),
            controller.process,
            controller.start,
            random.Random(chance.getrandbits(32)),
        )
    ]
    for machine in world.machines.values():
        kind = Kind.RELAY if "relay" in machine.node.roles else Kind.AGENT
        found.append(
            Keeper(
                Program(kind, f"agent of {machine.label}", _pid_of_agent(machine)),
                machine.agent,
                machine.start_agent,
                random.Random(chance.getrandbits(32)),
            )
        )
    return found


def _pid_of_agent(machine: Machine) -> Callable[[], int | None]:
    return lambda: machine.agent.pid


def tunnels(world: World) -> list[Program]:
    """Programs of the nodes' tunnels."""
    find = ipsec_pid if world.topology.ipsec else tunnel_pid
    return [
        Program(Kind.TUNNEL, f"tunnel of {machine.label}", partial(find, machine.name))
        for machine in world.machines.values()
    ]
