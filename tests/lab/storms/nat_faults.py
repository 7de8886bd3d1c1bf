"""What happens to worlds with NATs, tunnels and relays, beside `faults`: each says what it did."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from limpet.lab.clock import LONG_AGO, can_turn_clocks
from limpet.lab.command import LabError, run_command
from limpet.lab.world.gateway import Gateway
from limpet.lab.world.machine import Machine
from limpet.lab.world.site import CLOUD, Nat
from limpet.lab.world.tunnels import tunnel_ifname, tunnel_pid
from tests.lab.storms.chaos import Chaos
from tests.lab.storms.faults import FAULTS, Fault, power_on

_LONG_S = 4.0
"""Without the cloud: longer than a path takes to fall."""


def reboot_gateway(chaos: Chaos) -> str:
    site = chaos.random.choice(chaos.world.topology.sites).name
    chaos.world.gateway(site).reboot()
    return f"the gateway of {site} reboots"


def change_public_address(chaos: Chaos) -> str:
    site = chaos.random.choice([e for e in chaos.world.gateways.values() if e.translates])
    site.change_public_address()
    return f"another public address of {site.site.name}: {site.public}"


def block_udp(chaos: Chaos) -> str:
    gateway = chaos.random.choice(list(chaos.world.gateways.values()))
    if gateway.udp_blocked:
        gateway.allow_udp()
        return f"UDP is allowed again at {gateway.site.name}"
    gateway.block_udp()
    return f"UDP is blocked at {gateway.site.name}"


def forget_mappings(chaos: Chaos) -> str:
    """A NAT of too little memory: it maps anew what goes on."""
    gateway = chaos.random.choice(list(chaos.world.gateways.values()))
    if not gateway.translates:
        return ""
    for netns in _translators(gateway):
        with contextlib.suppress(LabError):  # it says so where there was none
            run_command("conntrack", "-F", netns=netns)
        for name in ("hosts", "ports"):
            run_command("nft", "flush", "map", "ip", "translate", name, netns=netns)
    return f"the NAT of {gateway.site.name} forgets what it mapped"


def _translators(gateway: Gateway) -> list[str]:
    found = [gateway.wires.router(gateway.site)]
    if gateway.site.nat is Nat.CGN:
        found.append(gateway.wires.carrier(gateway.site))
    return found


def kill_relay(chaos: Chaos) -> str:
    """It hands on, but hears nobody."""
    relay = _relay(chaos)
    if relay is None:
        return ""
    relay.stop_agent(signal.SIGKILL)
    return f"kill the agent of the relay {relay.label}"


def switch_relay_off(chaos: Chaos) -> str:
    """For a moment, or until the world calms down."""
    relay = _relay(chaos)
    if relay is None:
        return ""
    relay.power_off()
    chaos.doomed = [each for each in chaos.doomed if each[0] is not relay]
    chaos.links_down.discard(relay.label)
    if chaos.random.random() < 0.5:
        power_on(relay)
        return f"the relay {relay.label} reboots"
    chaos.off.add(relay.label)
    return f"switch the relay {relay.label} off"


def _relay(chaos: Chaos) -> Machine | None:
    found = [each for each in chaos.victims() if "relay" in each.node.roles]
    return chaos.random.choice(found) if found else None


def cut_the_cloud_for_long(chaos: Chaos) -> str:
    chaos.world.cut(CLOUD)
    time.sleep(_LONG_S)
    return f"cut {CLOUD} for long"


def reboot_in_1970(chaos: Chaos) -> str:
    """A machine without a battery; somewhen its clock is right again."""
    if not can_turn_clocks():
        return ""
    machine = chaos.one()
    start = LONG_AGO if machine.clock is None else None
    machine.power_off()
    chaos.doomed = [each for each in chaos.doomed if each[0] is not machine]
    chaos.links_down.discard(machine.label)
    machine.set_clock(start)
    power_on(machine)
    return f"{machine.label} reboots, its clock is {'in 1970' if start else 'right again'}"


def kill_tunnel(chaos: Chaos) -> str:
    machine = chaos.one()
    pid = tunnel_pid(machine.name)
    if pid is None:
        return ""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return f"kill the WireGuard of {machine.label}"


_DAMAGES = (
    "ip link delete dev TUNNEL",
    "ip link set dev TUNNEL down",
    "ip link set dev TUNNEL mtu 1300",
    "ip addr flush dev TUNNEL",
    "ip route flush dev TUNNEL table 5148",
    "ip -6 route flush table 5148",
    "ip rule delete fwmark 0x1000",
    "ip -6 rule delete fwmark 0x1000",
    "nft delete table inet limpet_tunnel",
    "nft flush chain inet limpet_tunnel output",
    "nft delete table inet limpet_relay",
    "nft flush map inet limpet_relay ends4",
    "nft flush ruleset",
)


def damage_tunnel(chaos: Chaos) -> str:
    """What others' scripts do. Where there is nothing of it, it fails."""
    machine = chaos.one()
    what = chaos.random.choice(_DAMAGES).replace("TUNNEL", tunnel_ifname(machine.name))
    with contextlib.suppress(LabError):
        machine.run(*what.split())
    return f"{machine.label}: {what}"


NAT_FAULTS: tuple[Fault, ...] = (
    reboot_gateway,
    change_public_address,
    block_udp,
    forget_mappings,
    kill_relay,
    switch_relay_off,
    cut_the_cloud_for_long,
    reboot_in_1970,
    kill_tunnel,
    damage_tunnel,
    damage_tunnel,
)
DAY: tuple[Fault, ...] = (*NAT_FAULTS, *NAT_FAULTS, *FAULTS)
"""What happens to an edge node in a day: as often across sites as within them."""
