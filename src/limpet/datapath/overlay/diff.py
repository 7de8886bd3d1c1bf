"""diff_overlay: the ordered changes that bring the network between nodes to its plan. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from limpet.cluster.topology.view import VxlanDevice
from limpet.datapath.change import Drop, LinkAddress, Put, on_link
from limpet.datapath.overlay.state import Entry, Key, Neighbour, OverlayState


@dataclass(frozen=True, slots=True)
class LoosenLink:
    """Let packets in by a link that their answers would not leave by."""

    ifname: str


@dataclass(frozen=True, slots=True)
class PutDevice:
    """Make the device, or set what differs on it; addresses are changes of their own."""

    device: VxlanDevice
    replaces: bool = False
    """What is there under the name has to go first: the kernel cannot change it."""


OverlayChange = (
    LoosenLink | PutDevice | Put[LinkAddress | Entry] | Drop[LinkAddress | Entry | VxlanDevice]
)


def diff_overlay(
    want: OverlayState, have: OverlayState, touched: Collection[Key] | None = None
) -> list[OverlayChange]:
    """Changes from `have` to `want`: first what adds reach, last what removes it.

    A route comes after the entries that it leads to, and goes before them. `touched`: only these
    keys are looked at, and the devices.
    """
    replaced = {ifname for ifname, device in want.devices.items() if _is_other(device, have)}
    foreign = {ifname for ifname, device in have.devices.items() if not device.ours}
    gone = replaced | (have.devices.keys() - want.devices.keys()) - foreign
    blocked = foreign | (gone - want.devices.keys())
    dropped = [Drop(have.devices[ifname]) for ifname in sorted(gone - replaced)]
    renamed = {
        ifname
        for ifname, device in want.devices.items()
        if ifname in have.devices and have.devices[ifname].mac != device.mac
    }
    if renamed:
        # The kernel forgets a device's neighbours with its MAC. Source: neigh_changeaddr.
        kept = {
            key: entry
            for key, entry in have.entries.items()
            if not (isinstance(entry, Neighbour) and entry.device in renamed)
        }
        have, touched = replace(have, entries=kept), None
    if replaced or blocked:
        # What a device takes with it; and nothing is put on one that is another's.
        have, touched = _without(have, replaced | blocked), None
        want = replace(want, entries=_entries_without(want, foreign))
    added = want.entries if touched is None else [key for key in touched if key in want.entries]
    lost = have.entries if touched is None else [key for key in touched if key in have.entries]
    return [
        *_put_devices(want, have, replaced, foreign),
        *map(LoosenLink, sorted(want.loose_links - have.loose_links - foreign)),
        *(
            Put(want.entries[key])
            for key in sorted(k for k in added if have.entries.get(k) != want.entries[k])
        ),
        *(
            Drop(have.entries[key])
            for key in sorted((k for k in lost if k not in want.entries), reverse=True)
        ),
        *(
            Drop(each)
            for ifname, found in sorted(have.devices.items())
            if ifname in want.devices
            for each in on_link(ifname, found.addresses - want.devices[ifname].addresses)
        ),
        *dropped,
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
        {ifname: each for ifname, each in state.devices.items() if ifname not in devices},
        _entries_without(state, devices),
        state.loose_links - frozenset(devices),
    )


def _entries_without(state: OverlayState, devices: Collection[str]) -> dict[Key, Entry]:
    return {key: entry for key, entry in state.entries.items() if entry.device not in devices}


def _put_devices(
    want: OverlayState, have: OverlayState, replaced: Collection[str], foreign: Collection[str]
) -> Iterator[PutDevice | Put[LinkAddress]]:
    for ifname, device in sorted(want.devices.items()):
        found = have.devices.get(ifname)
        if found is None or replace(found, addresses=device.addresses) != device:
            yield PutDevice(device, replaces=ifname in replaced)
        if ifname not in foreign:
            held = found.addresses if found is not None else frozenset()
            yield from map(Put, on_link(ifname, device.addresses - held))
