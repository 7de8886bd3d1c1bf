"""`limpet lab fault`: what each kind does, and how it is put right."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from limpet.base.errors import LimpetError
from limpet.cli.output import say

if TYPE_CHECKING:
    from limpet.lab.world.world import World


class Fault(StrEnum):
    """What can befall a world; docs/lab.md says what each one does."""

    CUT = "cut"
    REBOOT = "reboot"
    ADDRESS = "address"
    KILL = "kill"
    DISK = "disk"
    CLOCK = "clock"
    GATEWAY = "gateway"
    PUBLIC_ADDRESS = "public-address"
    UDP = "udp"


def _needed(kind: Fault, target: str | None) -> str:
    if target is None:
        raise LimpetError(
            f"limpet lab fault {kind}: say whom it befalls (a node, a site, or all; "
            "limpet lab status names them)"
        )
    return target


def _cut(world: World, target: str | None, restore: bool) -> None:
    link = target or "cloud"
    if restore:
        world.restore(link)
        say(f"{link} is connected")
    else:
        world.cut(link)
        say(f"{link} is cut off: nothing comes through, and nobody says so")


def _reboot(world: World, target: str | None, restore: bool) -> None:
    _refuse_restore(Fault.REBOOT, restore)
    machines = world.select(_needed(Fault.REBOOT, target))
    world.reboot(machines)
    for machine in machines:
        say(f"{machine.label} has rebooted; {len(machine.pods)} pods are back as new containers")


def _address(world: World, target: str | None, restore: bool) -> None:
    _refuse_restore(Fault.ADDRESS, restore)
    machines = world.select(_needed(Fault.ADDRESS, target))
    world.change_addresses(machines)
    for machine in machines:
        say(f"{machine.label} is {', '.join(map(str, machine.addresses))} now")


def _kill(world: World, target: str | None, restore: bool) -> None:
    chosen = _needed(Fault.KILL, target)
    if chosen == "controller":
        if restore:
            world.start_controller()
        else:
            world.controller.process.kill()
    else:
        (world.start_agents if restore else world.kill_agents)(world.select(chosen))
    what = "controller" if chosen == "controller" else f"agent of {chosen}"
    say(f"{what}: {'runs' if restore else 'killed'}")


def _disk(world: World, target: str | None, restore: bool) -> None:
    for machine in world.select(_needed(Fault.DISK, target)):
        if restore:
            machine.empty_disk()
        else:
            machine.fill_disk()
        say(f"{machine.label}: its disk {'has room again' if restore else 'is full'}")


def _clock(world: World, target: str | None, restore: bool) -> None:
    from limpet.lab.clock import LONG_AGO

    machines = world.select(_needed(Fault.CLOCK, target))
    world.turn_clocks_back(machines, None if restore else LONG_AGO)
    for machine in machines:
        right = "the true time" if restore else f"that it is {LONG_AGO}"
        say(f"{machine.label}: its agent was started anew and takes it {right}")


def _sites(world: World, kind: Fault, target: str | None) -> list[str]:
    """Names, checked, before anything is changed."""
    chosen = _needed(kind, target)
    names = list(world.gateways) if chosen == "all" else [chosen]
    return [world.gateway(name).site.name for name in names]


def _gateway(world: World, target: str | None, restore: bool) -> None:
    _refuse_restore(Fault.GATEWAY, restore)
    for site in _sites(world, Fault.GATEWAY, target):
        world.reboot_gateway(site)
        say(f"the gateway of {site} has rebooted; what it had mapped is gone")


def _public_address(world: World, target: str | None, restore: bool) -> None:
    _refuse_restore(Fault.PUBLIC_ADDRESS, restore)
    sites = _sites(world, Fault.PUBLIC_ADDRESS, target)
    if target == "all":
        sites = [name for name in sites if world.gateway(name).translates]
    for site in sites:
        world.change_public_address(site)
        say(f"{site} is seen as {world.gateway(site).public} now")


def _udp(world: World, target: str | None, restore: bool) -> None:
    for site in _sites(world, Fault.UDP, target):
        if restore:
            world.allow_udp(site)
        else:
            world.block_udp(site)
        say(f"{site}: UDP {'passes again' if restore else 'is dropped, both ways'}")


def _refuse_restore(kind: Fault, restore: bool) -> None:
    if restore:
        raise LimpetError(f"limpet lab fault {kind} --restore: it is over as soon as it happened")


FAULTS: dict[Fault, Callable[[Any, str | None, bool], None]] = {
    Fault.CUT: _cut,
    Fault.REBOOT: _reboot,
    Fault.ADDRESS: _address,
    Fault.KILL: _kill,
    Fault.DISK: _disk,
    Fault.CLOCK: _clock,
    Fault.GATEWAY: _gateway,
    Fault.PUBLIC_ADDRESS: _public_address,
    Fault.UDP: _udp,
}
