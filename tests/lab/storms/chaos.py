"""Faults at random, many at once, and what must be true of a world when they are over."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from limpet.lab.command import LabError, run_command
from limpet.lab.world.machine import UPLINK, Machine
from limpet.lab.world.wires import batch
from limpet.lab.world.world import World
from tests.lab.bed import Pinging, everybody_reaches_everybody, vtep_macs
from tests.lab.storms.leftovers import Usage, leaks, usage_of
from tests.lab.strangers import tunnel_key

_BUSY = 0.2
"""Of a core: an agent that has nothing to do takes some thousandths."""
_IDLE_REASONS = ("why=timer", 'why="a path changed"')
"""Of rounds while nothing happens: the one of every minute, and a better path that was proven."""
_NOT_LOSSY = ("nft", "delete", "table", "bridge", "lossy")


@dataclass(slots=True)
class Chaos:
    """A world that things happen to. The same seed chooses the same ones."""

    world: World
    random: Random
    faults: Sequence[Callable[[Chaos], str]]
    """Each does something to the world and says what, or nothing where it makes no sense now."""
    tell: Callable[[str], None] = print
    bystanders: list[Machine] = field(default_factory=list)
    """Nothing happens to them, and they must not notice what happens to others."""
    pauses_s: tuple[float, ...] = (0, 0, 0.1, 0.5, 1.5)
    """Between faults."""
    links_down: set[str] = field(default_factory=set)
    off: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    """Agents that do nothing, as on a node that has no memory left."""
    spare_descriptors: int = 4
    """That an agent may have open beyond what it had at first."""
    doomed: list[tuple[Machine, str]] = field(default_factory=list)
    """Pods that could not be stopped: a runtime tries again."""
    addresses: dict[str, set[str]] = field(default_factory=dict)
    """That each pod had when it was seen first."""
    identities: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """What each node was known by at first."""
    usage: dict[int, Usage] = field(default_factory=dict)
    """Of each agent, by its pid, when the world was calm the first time."""
    made: int = 0
    """Pods started so far."""

    def __post_init__(self) -> None:
        self._remember()

    # Choosing

    def machines(self) -> list[Machine]:
        return list(self.world.machines.values())

    def victims(self) -> list[Machine]:
        """Nodes with power that something may happen to."""
        return [
            each
            for each in self.machines()
            if each not in self.bystanders and each.label not in self.off | self.frozen
        ]

    def one(self) -> Machine:
        return self.random.choice(self.victims())

    def some(self) -> list[Machine]:
        """One or several."""
        every = self.victims()
        return self.random.sample(every, self.random.randint(1, len(every)))

    def storm(self, faults: int) -> None:
        """So many faults, one after the other, with little or no time between.

        Raises: AssertionError when bystanders have noticed.
        """
        self.bystanders = self._choose_bystanders()
        with ExitStack() as running:
            pinging = [
                running.enter_context(Pinging(source.netns, address.ip))
                for source, target in itertools.permutations(
                    [next(iter(each.pods.values())) for each in self.bystanders], 2
                )
                for address in target.addresses
            ]
            for _ in range(faults):
                if not self.victims():
                    break
                what = self.random.choice(self.faults)(self)
                if what:
                    self.tell(f"  {what}")
                time.sleep(self.random.choice(self.pauses_s))
            counts = [each.stop() for each in pinging]
        self.bystanders = []
        lost = [f"{sent - answered} of {sent}" for sent, answered in counts if answered < sent]
        assert lost == [], "bystanders lost pings"

    def _choose_bystanders(self) -> list[Machine]:
        """Two nodes on one LAN with pods, if there are others as well; now and then none."""
        site = self.random.choice(self.world.topology.sites)
        there = [each for each in self.world.select(site.name) if each.pods]
        if len(self.machines()) < 3 or len(there) < 2 or self.random.random() < 0.3:
            return []
        return self.random.sample(there, 2)

    # When it is over

    def calm_down(self) -> None:
        """Everything that was taken is given back: cables, power, room on the disk."""
        world = self.world
        for link in world.wires.cuts():
            world.restore(link)
        for site in world.topology.sites:
            with contextlib.suppress(LabError):
                run_command(*_NOT_LOSSY, netns=world.wires.switch(site))
        for gateway in world.gateways.values():
            if gateway.udp_blocked and not gateway.site.udp_blocked:
                gateway.allow_udp()
        for machine in self.machines():
            machine.empty_disk()
            if machine.label in self.frozen:
                os.kill(machine.agent_pid, signal.SIGCONT)
            if machine.label in self.off:
                machine.create()
            elif machine.label in self.links_down:
                link_up(machine)
        for labels in (self.links_down, self.off, self.frozen):
            labels.clear()
        world.start_controller()
        world.start_agents(self.machines())
        doomed, self.doomed = self.doomed, []
        for machine, name in doomed:
            machine.stop_pod(name)
        for machine in self.machines():
            there = {pod.name for pod in machine.pods.values()}
            for name in machine.wanted_pods:
                if name not in there:
                    machine.attach(name)

    # What must be true then

    def check(self, *, within_s: float = 60) -> float:
        """Seconds until everybody reached everybody. Raises: AssertionError."""
        took_s = everybody_reaches_everybody(self.world, within_s=within_s)
        self._remember()
        self._check_addresses()
        until_empty(self.told_wrong, within_s=60)
        self.check_identities()
        for machine in self.machines():
            until_empty(partial(leaks, self.world, machine), within_s=60)
        self._check_usage()
        assert self.complaints() == []
        return took_s

    def check_identities(self) -> None:
        """Raises: AssertionError when a node is another one than at first."""
        for machine in self.machines():
            assert identity(machine) == self.identities[machine.label]

    def complaints(self) -> list[str]:
        """Lines of the logs that no fault excuses."""
        logs = {machine.label: machine.log() for machine in self.machines()}
        logs["controller"] = Path(self.world.controller.process.log).read_text(errors="replace")
        words = ("internal error", "Traceback", "level=error", "was never retrieved")
        return [
            f"{name}: {line}"
            for name, log in logs.items()
            for line in log.splitlines()
            if any(word in line for word in words)
        ]

    def _remember(self) -> None:
        for machine in self.machines():
            for pod in machine.pods.values():
                self.addresses.setdefault(pod.name, {str(each.ip) for each in pod.addresses})
            if machine.label not in self.identities:
                self.identities[machine.label] = identity(machine)

    def _check_addresses(self) -> None:
        pods = self.world.pods
        now = {pod.name: {str(each.ip) for each in pod.addresses} for pod in pods}
        assert now == {name: self.addresses[name] for name in now}
        every = [address for each in now.values() for address in each]
        assert len(every) == len(set(every)), f"held twice: {sorted(every)}"

    def told_wrong(self) -> list[str]:
        """Pods of which the cloud knows something else than their node."""
        cloud, nodes = self._held_in_the_cloud(), self._held_on_nodes()
        return [
            f"{pod}: the cloud knows {cloud.get(pod)}, its node {nodes.get(pod)}"
            for pod in sorted(cloud.keys() | nodes.keys())
            if cloud.get(pod) != nodes.get(pod)
        ]

    def _held_in_the_cloud(self) -> dict[tuple[str, str], set[str]]:
        """Of the nodes of the world: a test may have let in others."""
        return {
            (each["node"], each["pod"]): set(each["addresses"])
            for each in self.world.controller.ask("pod.list")["pods"]
            if each["node"] in self.world.machines
        }

    def _held_on_nodes(self) -> dict[tuple[str, str], set[str]]:
        held: dict[tuple[str, str], set[str]] = {}
        for machine in self.machines():
            for record in machine.ask("ipam.list")["records"]:
                if record["state"] in ("live", "bound"):
                    key = machine.label, record["pod"]
                    held.setdefault(key, set()).add(record["address"])
        return held

    def _check_usage(self) -> None:
        for machine in self.machines():
            before = self.usage.setdefault(machine.agent_pid, usage_of(machine.agent_pid))
            until_empty(partial(self._grown, machine, before), within_s=60)

    def _grown(self, machine: Machine, before: Usage) -> list[str]:
        now = usage_of(machine.agent_pid)
        grown = {
            "descriptors": now.descriptors - before.descriptors > self.spare_descriptors,
            "threads": now.threads - before.threads > 8,
            "resident_mib": now.resident_mib - before.resident_mib > 12,
        }
        more = [name for name, is_more in grown.items() if is_more]
        return [f"{machine.label}: {name}, {before}, {now}" for name in more]

    def unrest(self, during_s: float = 2.0) -> list[str]:
        """What agents do in the next two seconds although nothing happens."""
        before = {m.label: (usage_of(m.agent_pid).cpu_s, len(m.log())) for m in self.machines()}
        began_s = time.monotonic()
        time.sleep(during_s)  # a rate is looked at over a time
        found = []
        for machine in self.machines():
            cpu_s, length = before[machine.label]
            share = (usage_of(machine.agent_pid).cpu_s - cpu_s) / (time.monotonic() - began_s)
            if share >= _BUSY:
                found.append(f"{machine.label}: {share:.2f} of a core")
            rounds = [x for x in machine.log()[length:].splitlines() if "event=round" in x]
            found += [x for x in rounds if not any(reason in x for reason in _IDLE_REASONS)]
        return found


def identity(machine: Machine) -> tuple[object, ...]:
    """uid, VTEP MACs, tunnel's key and port."""
    cluster = machine.ask("status")["cluster"]
    port = cluster["tunnel"]["port"]
    return cluster["uid"], vtep_macs(machine), tunnel_key(machine), port


def until_empty(wrong: Callable[[], list[str]], *, within_s: float) -> None:
    """Waits until nothing is wrong any more. Raises: AssertionError with what is."""
    end_s = time.monotonic() + within_s
    while found := wrong():
        assert time.monotonic() < end_s, "\n".join(found)
        time.sleep(0.2)


def link_up(machine: Machine) -> None:
    """The kernel forgot addresses and routes when the link went."""
    lines = [f"link set dev {UPLINK} up"]
    lines += [f"addr replace {each} dev {UPLINK}" for each in machine.addresses]
    lines += [
        f"route replace default via {each.ip} dev {UPLINK}"
        for each in machine.site.router_addresses
    ]
    batch(machine.name, lines)
