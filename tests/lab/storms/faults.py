"""What happens to the worlds of `chaos`: each fault says what it did, or nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from limpet.lab.clock import LONG_AGO, can_turn_clocks
from limpet.lab.command import LabError, run_command, side_by_side
from limpet.lab.world.machine import UPLINK, Machine
from limpet.lab.world.site import CLOUD
from tests.lab.storms.chaos import Chaos, link_up

_MOST_PODS = 3
"""Of a node, beside those of its topology."""

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
    if not can_turn_clocks():
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
    machine.stop_pod(name)
    machine.start_pod(name)
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
