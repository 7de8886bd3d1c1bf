"""`limpet lab fault`: what each kind does, and how it is put right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from limpet.base.errors import LimpetError
from limpet.cli.answers import Befallen
from limpet.cli.output import say

if TYPE_CHECKING:  # the lab is loaded by the command that has found the world
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


_AT_ONCE = frozenset({Fault.REBOOT, Fault.ADDRESS, Fault.GATEWAY, Fault.PUBLIC_ADDRESS})
"""Those that are over as soon as they have happened."""


def befall(world: World, kind: Fault, target: str | None, *, restore: bool) -> Befallen:
    """It happens, or is put right again, and is told as it does. Raises: LimpetError."""
    if restore and kind in _AT_ONCE:
        raise LimpetError(f"limpet lab fault {kind} --restore: it is over as soon as it happened")
    if target is None and kind is not Fault.CUT:
        raise LimpetError(
            f"limpet lab fault {kind}: say whom it befalls (a node, a site, or all; "
            "limpet lab status names them)"
        )
    target = target or "cloud"
    told = []
    for words in _FAULTS[kind](world, target, restore):
        say(words)
        told.append(words)
    return Befallen(world=world.name, fault=kind.value, target=target, restored=restore, told=told)


# Each changes the world, and says what has become of it.


def _cut(world: World, link: str, restore: bool) -> Iterator[str]:
    if restore:
        world.restore(link)
        yield f"{link} is connected"
    else:
        world.cut(link)
        yield f"{link} is cut off: nothing comes through, and nobody says so"


def _reboot(world: World, target: str, _restore: bool) -> Iterator[str]:
    machines = world.select(target)
    world.reboot(machines)
    for machine in machines:
        back = "its pod is" if len(machine.pods) == 1 else f"{len(machine.pods)} pods are"
        yield f"{machine.label} has rebooted; {back} back as new containers"


def _address(world: World, target: str, _restore: bool) -> Iterator[str]:
    machines = world.select(target)
    world.change_addresses(machines)
    for machine in machines:
        yield f"{machine.label} is {', '.join(map(str, machine.addresses))} now"


def _kill(world: World, target: str, restore: bool) -> Iterator[str]:
    what = "controller" if target == "controller" else f"agent of {target}"
    if target != "controller":
        (world.start_agents if restore else world.kill_agents)(world.select(target))
    elif restore:
        world.start_controller()
    else:
        world.controller.process.kill()
    yield f"{what}: {'runs' if restore else 'killed'}"


def _disk(world: World, target: str, restore: bool) -> Iterator[str]:
    for machine in world.select(target):
        (machine.empty_disk if restore else machine.fill_disk)()
        yield f"{machine.label}: its disk {'has room again' if restore else 'is full'}"


def _clock(world: World, target: str, restore: bool) -> Iterator[str]:
    from limpet.lab.clock import LONG_AGO

    machines = world.select(target)
    world.turn_clocks_back(machines, None if restore else LONG_AGO)
    for machine in machines:
        right = "the true time" if restore else f"that it is {LONG_AGO}"
        yield f"{machine.label}: its agent was started anew and takes it {right}"


def _gateway(world: World, target: str, _restore: bool) -> Iterator[str]:
    for gateway in world.select_gateways(target):
        gateway.reboot()
        world.save()
        yield f"the gateway of {gateway.site.name} has rebooted; what it had mapped is gone"


def _public_address(world: World, target: str, _restore: bool) -> Iterator[str]:
    for gateway in world.select_gateways(target):
        if gateway.translates or target != "all":
            gateway.change_public_address()
            world.save()
            yield f"{gateway.site.name} is seen as {gateway.public} now"


def _udp(world: World, target: str, restore: bool) -> Iterator[str]:
    for gateway in world.select_gateways(target):
        (gateway.allow_udp if restore else gateway.block_udp)()
        world.save()
        yield f"{gateway.site.name}: UDP {'passes again' if restore else 'is dropped, both ways'}"


_FAULTS: dict[Fault, Callable[[World, str, bool], Iterator[str]]] = {
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
