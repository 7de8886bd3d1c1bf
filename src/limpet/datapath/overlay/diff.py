"""diff_overlay: the ordered changes that bring the network between nodes to its plan. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from limpet.base.addresses import InterfaceAddress
from limpet.cluster.topology.view import VxlanDevice
from limpet.datapath.overlay.state import FdbEntry, Neighbour, OverlayState, PeerRoute, Touched

_Key = TypeVar("_Key", tuple[int, int, int, int], tuple[str, int, int], tuple[str, str])
_Value = TypeVar("_Value", PeerRoute, Neighbour, FdbEntry)


@dataclass(frozen=True, slots=True)
class LoosenLink:
    """Let packets in by a link that their answers would not leave by."""

    ifname: str


@dataclass(frozen=True, slots=True)
class PutDevice:
    """Make the device, or set what differs on it; addresses are changes of their own."""

    device: VxlanDevice
    anew: bool = False
    """What is there under the name has to go first: the kernel cannot change it."""


@dataclass(frozen=True, slots=True)
class PutDeviceAddress:
    ifname: str
    address: InterfaceAddress


@dataclass(frozen=True, slots=True)
class DropDeviceAddress:
    ifname: str
    address: InterfaceAddress


@dataclass(frozen=True, slots=True)
class PutFdb:
    entry: FdbEntry


@dataclass(frozen=True, slots=True)
class DropFdb:
    entry: FdbEntry


@dataclass(frozen=True, slots=True)
class PutNeighbour:
    neighbour: Neighbour


@dataclass(frozen=True, slots=True)
class DropNeighbour:
    neighbour: Neighbour


@dataclass(frozen=True, slots=True)
class PutPeerRoute:
    route: PeerRoute


@dataclass(frozen=True, slots=True)
class DropPeerRoute:
    route: PeerRoute


@dataclass(frozen=True, slots=True)
class DropDevice:
    ifname: str


OverlayChange = (
    LoosenLink
    | PutDevice
    | PutDeviceAddress
    | DropDeviceAddress
    | PutFdb
    | DropFdb
    | PutNeighbour
    | DropNeighbour
    | PutPeerRoute
    | DropPeerRoute
    | DropDevice
)


def diff_overlay(
    want: OverlayState, have: OverlayState, touched: Touched | None = None
) -> list[OverlayChange]:
    """Changes from `have` to `want`: first what adds reach, last what removes it.

    A route comes after the entries that it leads to, and goes before them. `touched`: only these
    keys are looked at, and the devices.
    """
    anew = {ifname for ifname, device in want.devices.items() if _is_other(device, have)}
    foreign = {ifname for ifname, device in have.devices.items() if not device.ours}
    gone = anew | (have.devices.keys() - want.devices.keys()) - foreign
    blocked = foreign | (gone - want.devices.keys())
    renamed = {
        ifname
        for ifname, device in want.devices.items()
        if ifname in have.devices and have.devices[ifname].mac != device.mac
    }
    if renamed:
        # The kernel forgets a device's neighbours with its MAC. Source: neigh_changeaddr.
        kept = {k: v for k, v in have.neighbours.items() if v.device not in renamed}
        have = replace(have, neighbours=kept)
        touched = None
    if anew or blocked:
        # What a device takes with it; and nothing is put on one that is another's.
        have = _without(have, anew | blocked)
        want = replace(
            want,
            routes={k: v for k, v in want.routes.items() if v.device not in foreign},
            neighbours={k: v for k, v in want.neighbours.items() if v.device not in foreign},
            fdb={k: v for k, v in want.fdb.items() if v.device not in foreign},
        )
        touched = None
    routes = touched.routes if touched else None
    neighbours = touched.neighbours if touched else None
    fdb = touched.fdb if touched else None
    return [
        *_put_devices(want, have, anew, foreign),
        *map(LoosenLink, sorted(want.loose_links - have.loose_links - foreign)),
        *_puts(PutFdb, want.fdb, have.fdb, fdb),
        *_puts(PutNeighbour, want.neighbours, have.neighbours, neighbours),
        *_puts(PutPeerRoute, want.routes, have.routes, routes),
        *_drops(DropPeerRoute, want.routes, have.routes, routes),
        *_drops(DropNeighbour, want.neighbours, have.neighbours, neighbours),
        *_drops(DropFdb, want.fdb, have.fdb, fdb),
        *_drop_addresses(want, have),
        *map(DropDevice, sorted(gone - anew)),
    ]


def _is_other(device: VxlanDevice, have: OverlayState) -> bool:
    """What is there under its name is ours, and something that the kernel cannot make into it."""
    found = have.devices.get(device.ifname)
    if found is None or not found.ours:
        return False
    same = (found.underlay_version, found.vni, found.port)
    return not found.plain or same != (device.underlay_version, device.vni, device.port)


def _without(state: OverlayState, devices: Collection[str]) -> OverlayState:
    return OverlayState(
        {k: v for k, v in state.devices.items() if k not in devices},
        {k: v for k, v in state.routes.items() if v.device not in devices},
        {k: v for k, v in state.neighbours.items() if v.device not in devices},
        {k: v for k, v in state.fdb.items() if v.device not in devices},
        state.loose_links - frozenset(devices),
    )


def _put_devices(
    want: OverlayState, have: OverlayState, anew: Collection[str], foreign: Collection[str]
) -> list[OverlayChange]:
    changes: list[OverlayChange] = []
    for ifname, device in sorted(want.devices.items()):
        found = have.devices.get(ifname)
        if found is None or replace(found, addresses=device.addresses) != device:
            changes.append(PutDevice(device, anew=ifname in anew))
        held = found.addresses if found is not None else frozenset()
        if ifname not in foreign:
            changes += [
                PutDeviceAddress(ifname, address)
                for address in sorted(device.addresses - held, key=_address_key)
            ]
    return changes


def _drop_addresses(want: OverlayState, have: OverlayState) -> list[DropDeviceAddress]:
    return [
        DropDeviceAddress(ifname, address)
        for ifname, found in sorted(have.devices.items())
        if ifname in want.devices
        for address in sorted(found.addresses - want.devices[ifname].addresses, key=_address_key)
    ]


def _address_key(address: InterfaceAddress) -> tuple[int, int]:
    return address.version, int(address)


def _puts(
    change: Callable[[_Value], OverlayChange],
    want: Mapping[_Key, _Value],
    have: Mapping[_Key, _Value],
    only: Collection[_Key] | None,
) -> list[OverlayChange]:
    keys = want if only is None else [key for key in only if key in want]
    return [change(want[key]) for key in sorted(k for k in keys if have.get(k) != want[k])]


def _drops(
    change: Callable[[_Value], OverlayChange],
    want: Mapping[_Key, _Value],
    have: Mapping[_Key, _Value],
    only: Collection[_Key] | None,
) -> list[OverlayChange]:
    keys = have if only is None else [key for key in only if key in have]
    return [change(have[key]) for key in sorted(k for k in keys if k not in want)]
