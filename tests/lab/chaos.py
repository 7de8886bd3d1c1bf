"""Faults at random, many at once, and what must be true of a world when they are over."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from random import Random
from typing import Any

from limpet.lab.clock import LONG_AGO, has_clock_library
from limpet.lab.command import LabError, run_command, side_by_side
from limpet.lab.machine import UPLINK, Machine
from limpet.lab.topology import CLOUD
from limpet.lab.wires import batch
from limpet.lab.world import World
from tests.lab.bed import Pinging, everybody_reaches_everybody, vtep_macs

_MOST_PODS = 3
"""Of a node, beside those of its topology."""
_FAMILIES = ("4", "6")


@dataclass(slots=True)
class Chaos:
    """A world that things happen to. The same seed chooses the same ones."""

    world: World
    random: Random
    tell: Callable[[str], None] = print
    bystanders: list[Machine] = field(default_factory=list)
    """Nothing happens to them, and they must not notice what happens to others."""
    pauses_s: tuple[float, ...] = (0, 0, 0.1, 0.5, 1.5)
    """Between faults."""
    links_down: set[str] = field(default_factory=set)
    off: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    """Agents that do nothing, as on a node that has no memory left."""
    doomed: list[tuple[Machine, str]] = field(default_factory=list)
    """Pods that could not be stopped: a runtime tries again."""
    addresses: dict[str, set[str]] = field(default_factory=dict)
    """That each pod had when it was seen first."""
    identities: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    """uid and VTEP MACs that each node had at first."""
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
                what = self.random.choice(FAULTS)(self)
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
                run_command(*_WHOLE.split(), netns=world.wires.switch(site))
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

    def check(self, *, within_s: float = 20) -> float:
        """Seconds until everybody reached everybody. Raises: AssertionError."""
        took_s = everybody_reaches_everybody(self.world, within_s=within_s)
        self._remember()
        self._check_addresses()
        until_empty(self._told_wrong, within_s=60)
        for machine in self.machines():
            uid = machine.ask("status")["cluster"]["uid"]
            assert (uid, vtep_macs(machine)) == self.identities[machine.label]
            until_empty(partial(leaks, self.world, machine), within_s=20)
        self._check_usage()
        assert self.complaints() == []
        return took_s

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
                uid = machine.ask("status")["cluster"]["uid"]
                self.identities[machine.label] = uid, vtep_macs(machine)

    def _check_addresses(self) -> None:
        pods = self.world.pods
        now = {pod.name: {str(each.ip) for each in pod.addresses} for pod in pods}
        assert now == {name: self.addresses[name] for name in now}
        every = [address for each in now.values() for address in each]
        assert len(every) == len(set(every)), f"held twice: {sorted(every)}"

    def _told_wrong(self) -> list[str]:
        """Pods of which the cloud knows something else than their node."""
        cloud, nodes = self._held_in_the_cloud(), self._held_on_nodes()
        return [
            f"{pod}: the cloud knows {cloud.get(pod)}, its node {nodes.get(pod)}"
            for pod in sorted(cloud.keys() | nodes.keys())
            if cloud.get(pod) != nodes.get(pod)
        ]

    def _held_in_the_cloud(self) -> dict[tuple[str, str], set[str]]:
        document: Any = json.loads(self.world.controller.command("pod", "list", "--output", "json"))
        return {(each["node"], each["pod"]): set(each["addresses"]) for each in document["pods"]}

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
            now = usage_of(machine.agent_pid)
            before = self.usage.setdefault(machine.agent_pid, now)
            assert now.descriptors <= before.descriptors + 4, (machine.label, before, now)
            assert now.threads <= before.threads + 8, (machine.label, before, now)
            assert now.resident_mib <= before.resident_mib + 12, (machine.label, before, now)

    def idle(self, during_s: float) -> dict[str, tuple[float, list[str]]]:
        """By node: share of a core that its agent takes when nothing happens, and its rounds."""
        before = {m.label: (usage_of(m.agent_pid).cpu_s, len(m.log())) for m in self.machines()}
        time.sleep(during_s)
        found = {}
        for machine in self.machines():
            cpu_s, length = before[machine.label]
            took_s = usage_of(machine.agent_pid).cpu_s - cpu_s
            lines = machine.log()[length:].splitlines()
            found[machine.label] = took_s / during_s, [x for x in lines if "event=round" in x]
        return found


_WHOLE = "nft delete table bridge lossy"

# Faults: each does something to the world and says what, or nothing where it makes no sense now.

Fault = Callable[[Chaos], str]


def cut(chaos: Chaos) -> str:
    links = [CLOUD, *(site.name for site in chaos.world.topology.sites)]
    link = chaos.random.choice(links)
    if link in chaos.world.wires.cuts():
        chaos.world.restore(link)
        return f"restore {link}"
    chaos.world.cut(link)
    return f"cut {link}"


def reboot(chaos: Chaos) -> str:
    machines = chaos.some()
    side_by_side(lambda machine: machine.power_off(), machines)
    chaos.doomed = [each for each in chaos.doomed if each[0] not in machines]
    side_by_side(power_on, machines)
    chaos.links_down -= {machine.label for machine in machines}
    return f"reboot {names(machines)}"


def power_on(machine: Machine) -> None:
    """A pod may not come back while the disk is full; its runtime tries again."""
    machine.create()
    machine.start_agent()
    for name in machine.wanted_pods:
        with contextlib.suppress(LabError) if machine.disk_is_full else contextlib.nullcontext():
            machine.attach(name)


def switch_off(chaos: Chaos) -> str:
    """Its power stays away until the world calms down."""
    machine = chaos.one()
    machine.power_off()
    chaos.doomed = [each for each in chaos.doomed if each[0] is not machine]
    chaos.links_down.discard(machine.label)
    chaos.off.add(machine.label)
    return f"switch {machine.label} off"


def freeze_agent(chaos: Chaos) -> str:
    machine = chaos.one()
    if machine.agent.pid is None:
        return ""
    os.kill(machine.agent_pid, signal.SIGSTOP)
    chaos.frozen.add(machine.label)
    return f"freeze the agent of {machine.label}"


def change_addresses(chaos: Chaos) -> str:
    machines = [each for each in chaos.some() if each.label not in chaos.links_down]
    chaos.world.change_addresses(machines)
    return f"other addresses for {names(machines)}" if machines else ""


def kill_agent(chaos: Chaos) -> str:
    machine = chaos.one()
    machine.stop_agent(signal.SIGKILL)
    return f"kill the agent of {machine.label}"


def kill_and_start_agents(chaos: Chaos) -> str:
    machines = chaos.some()
    chaos.world.kill_agents(machines)
    chaos.world.start_agents(machines)
    return f"kill and start the agents of {names(machines)}"


def upgrade(chaos: Chaos) -> str:
    machines = chaos.some()
    for machine in machines:
        machine.stop_agent()
        machine.start_agent()
    return f"upgrade the agents of {names(machines)}"


def kill_controller(chaos: Chaos) -> str:
    if chaos.world.controller.process.pid is None:
        chaos.world.start_controller()
        return "start the controller"
    chaos.world.controller.stop(signal.SIGKILL)
    return "kill the controller"


def fill_disk(chaos: Chaos) -> str:
    machine = chaos.one()
    if machine.disk_is_full:
        machine.empty_disk()
        return f"empty the disk of {machine.label}"
    machine.fill_disk()
    return f"fill the disk of {machine.label}"


def turn_clock(chaos: Chaos) -> str:
    if not has_clock_library():
        return ""
    machine = chaos.one()
    start = LONG_AGO if machine.clock is None else None
    chaos.world.turn_clocks_back([machine], start)
    return f"clock of {machine.label}: {start or 'right again'}"


def start_pod(chaos: Chaos) -> str:
    machine = chaos.one()
    old = [name for name in chaos.addresses if name.startswith(f"{machine.label}-")]
    gone = sorted(set(old) - set(machine.wanted_pods))
    if machine.agent.pid is None or len(machine.wanted_pods) >= machine.node.pods + _MOST_PODS:
        return ""
    chaos.made += not gone
    name = chaos.random.choice(gone) if gone else f"{machine.label}-{chaos.made}"
    try:
        pod = machine.start_pod(name)
    except LabError:
        if not machine.disk_is_full:
            raise
        return f"start pod {name}: the disk is full"
    chaos.addresses.setdefault(name, {str(each.ip) for each in pod.addresses})
    return f"start pod {name}"


def stop_pod(chaos: Chaos) -> str:
    machine = chaos.one()
    doomed = [name for each, name in chaos.doomed if each is machine]
    there = [pod.name for pod in machine.pods.values() if pod.name not in doomed]
    if machine.agent.pid is None or not there:
        return ""
    name = chaos.random.choice(there)
    try:
        machine.stop_pod(name)
    except LabError:
        if not machine.disk_is_full:
            raise
        chaos.doomed.append((machine, name))
        return f"stop pod {name}: the disk is full"
    return f"stop pod {name}"


def restart_pod(chaos: Chaos) -> str:
    machine = chaos.one()
    doomed = [name for each, name in chaos.doomed if each is machine]
    there = [pod.name for pod in machine.pods.values() if pod.name not in doomed]
    if machine.agent.pid is None or machine.disk_is_full or not there:
        return ""
    name = chaos.random.choice(there)
    machine.restart_pod(name)
    return f"restart pod {name}"


def flap_link(chaos: Chaos) -> str:
    machine = chaos.one()
    if machine.label in chaos.links_down:
        chaos.links_down.remove(machine.label)
        link_up(machine)
        return f"link of {machine.label} up"
    machine.run("ip", "link", "set", "dev", UPLINK, "down")
    chaos.links_down.add(machine.label)
    return f"link of {machine.label} down"


def lose_family(chaos: Chaos) -> str:
    """Of the uplink's addresses; a DHCP server has gone, or the router's advertisements."""
    machine, version = chaos.one(), chaos.random.choice((4, 6))
    chaos.links_down.add(machine.label)  # half of it; link_up mends it
    machine.run("ip", f"-{version}", "addr", "flush", "dev", UPLINK, "scope", "global")
    return f"{machine.label} has no address of IPv{version} any more"


def lose_packets(chaos: Chaos) -> str:
    """Of a third of the packets that a node sends and gets, nothing more is heard."""
    machine = chaos.one()
    switch = machine.wires.switch(machine.site)
    run_command("nft", "-f", "-", netns=switch, stdin=_LOSSY.format(port=machine.label))
    return f"the cable of {machine.label} is bad"


_LOSSY = """
add table bridge lossy
add chain bridge lossy forward {{ type filter hook forward priority 0; }}
add rule bridge lossy forward iifname "{port}" numgen random mod 3 == 0 drop
add rule bridge lossy forward oifname "{port}" numgen random mod 3 == 0 drop
"""


def replug(chaos: Chaos) -> str:
    """The device itself goes and another one comes, as of a USB or radio card."""
    machine = chaos.one()
    chaos.links_down.discard(machine.label)
    machine.wires.plug(machine.site, machine.label, machine.name, UPLINK, machine.node.mac)
    link_up(machine)
    return f"another uplink device for {machine.label}"


def link_up(machine: Machine) -> None:
    """The kernel forgot addresses and routes when the link went."""
    lines = [f"link set dev {UPLINK} up"]
    lines += [f"addr replace {each} dev {UPLINK}" for each in machine.addresses]
    lines += [
        f"route replace default via {each.ip} dev {UPLINK}"
        for each in machine.site.router_addresses
    ]
    batch(machine.name, lines)


_DAMAGES = (
    "ip link delete dev limvx4",
    "ip link delete dev limvx6",
    "ip link set dev limvx4 down",
    "ip link set dev limvx4 mtu 1300",
    "ip link set dev limpet0 down",
    "ip addr flush dev limvx4",
    "ip addr flush dev limpet0",
    "ip neigh flush dev limvx6 nud permanent",
    "bridge fdb flush dev limvx4",
    "ip route flush table 5148",
    "ip -6 route flush table 5148",
    "ip neigh flush dev limvx4 nud permanent",
    "ip rule delete table 5148",
    "ip -6 rule delete table 5148",
    "nft flush ruleset",
    "nft delete table inet limpet_overlay",
    "ip link delete dev limpet0",
)


def damage(chaos: Chaos) -> str:
    """What others' scripts do. Where it is done already, it fails."""
    machine, what = chaos.one(), chaos.random.choice(_DAMAGES)
    with contextlib.suppress(LabError):
        machine.run(*what.split())
    return f"{machine.label}: {what}"


FAULTS: tuple[Fault, ...] = (
    cut,
    cut,
    reboot,
    switch_off,
    freeze_agent,
    change_addresses,
    kill_agent,
    kill_and_start_agents,
    upgrade,
    kill_controller,
    fill_disk,
    turn_clock,
    start_pod,
    start_pod,
    stop_pod,
    restart_pod,
    restart_pod,
    flap_link,
    lose_family,
    lose_packets,
    replug,
    damage,
    damage,
)


def names(machines: list[Machine]) -> str:
    return ", ".join(machine.label for machine in machines)


# What is left over


def leaks(world: World, machine: Machine) -> list[str]:
    """What the node's kernel holds and nothing wants any more, in words."""
    others = [each for each in world.machines.values() if each is not machine]
    peers = {str(address.ip) for each in others for address in each.addresses}
    segments = {
        ip_network(segment["prefix"])
        for each in world.machines.values()
        for segment in each.ask("status")["segments"]
    }
    cidrs = {ip_network(cidr) for cidr in machine.ask("status")["cluster"]["pod_cidrs"]}
    firsts = {str(segment.network_address) for segment in segments}
    return [
        *_leaked_links(machine),
        *_leaked_rules(machine),
        *(
            f"route to {route['dst']}"
            for route in _json(
                machine, "ip -j route show table 5148", "ip -6 -j route show table 5148"
            )
            if ip_network(route["dst"]) not in segments | cidrs
        ),
        *(
            f"entry of {entry['mac']} to {entry['dst']}"
            for entry in _json(machine, "bridge -j fdb show")
            if "dst" in entry and entry["dst"] not in peers
        ),
        *(
            f"neighbour {entry['dst']} on {entry['dev']}"
            for entry in _json(machine, "ip -j neigh show nud permanent")
            if entry["dev"].startswith("limvx") and entry["dst"] not in firsts
        ),
        *(f"element {each} of the filter" for each in _outer_sources(machine) if each not in peers),
    ]


def _json(machine: Machine, *commands: str) -> Iterator[dict[str, Any]]:
    for command in commands:
        yield from json.loads(machine.run(*command.split()) or "[]")


def _leaked_links(machine: Machine) -> Iterator[str]:
    found = machine.links().keys() - {"lo", UPLINK, "limpet0", "limvx4", "limvx6"}
    if len(found) != len(machine.pods):
        yield f"links {sorted(found)} for {len(machine.pods)} pods"


def _leaked_rules(machine: Machine) -> Iterator[str]:
    for family in _FAMILIES:
        rules = list(_json(machine, f"ip -{family} -j rule show"))
        if len(rules) != len({rule["priority"] for rule in rules}) or len(rules) > 4:
            yield f"IPv{family} rules {rules}"


def _outer_sources(machine: Machine) -> set[str]:
    """Peers' addresses that the filter lets VXLAN packets in from."""
    listed = json.loads(machine.run("nft", "-j", "list", "table", "inet", "limpet_overlay"))
    found = set()
    for each in listed["nftables"]:
        for element in each.get("set", {}).get("elem", ()):
            parts = element.get("concat") if isinstance(element, dict) else None
            if parts:
                found.add(str(ip_address(parts[0])))
    return found


def until_empty(wrong: Callable[[], list[str]], *, within_s: float) -> None:
    """Waits until nothing is wrong any more. Raises: AssertionError with what is."""
    end_s = time.monotonic() + within_s
    while found := wrong():
        assert time.monotonic() < end_s, "\n".join(found)
        time.sleep(0.2)


# What an agent takes


@dataclass(frozen=True, slots=True)
class Usage:
    descriptors: int
    threads: int
    resident_mib: float
    cpu_s: float


def usage_of(pid: int) -> Usage:
    folder = Path(f"/proc/{pid}")
    lines = (folder / "status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return Usage(
        descriptors=len(list((folder / "fd").iterdir())),
        threads=int(status["Threads"]),
        resident_mib=int(status["VmRSS"].split()[0]) / 1024,
        cpu_s=(int(fields[11]) + int(fields[12])) / 100,
    )
