"""The network between nodes: observing what is, hearing of changes, applying changes."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address

from limpet.base.addresses import Address, InterfaceAddress
from limpet.base.errors import KernelError, LimpetError, StorageError
from limpet.base.ownership import (
    OVERLAY_PROTOCOL,
    ROUTE_TABLE,
    VXLAN_GROUPS,
    VXLAN_IFNAME_PREFIX,
)
from limpet.cluster.topology.view import VxlanDevice
from limpet.datapath.change import Drop, LinkAddress
from limpet.datapath.overlay.device_apply import is_loose, loosen, parse_device, put_device
from limpet.datapath.overlay.diff import LoosenLink, OverlayChange, PutDevice
from limpet.datapath.overlay.state import (
    FDB,
    NEIGHBOUR,
    Entry,
    FdbEntry,
    Key,
    Neighbour,
    OverlayState,
    PeerRoute,
)
from limpet.linux.netlink import address_codec, link_codec, route_codec, vxlan
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket

OVERLAY_NOTIFICATIONS = (1, 3, 5, 7, 9, 11, 8, 19)
"""RTNLGRP_LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE, IPV4_RULE, IPV6_RULE.

Source: include/uapi/linux/rtnetlink.h, enum rtnetlink_groups.
"""
_GONE = (errno.ENODEV,)


class OverlayKernel:
    """The kernel's part of the network between nodes, as far as it is ours.

    `have` is what `observe` read, kept up to date by `hear`.
    """

    def __init__(self, route: RouteSocket) -> None:
        self._route = route
        self._links: dict[int, str] = {}
        self._indexes: dict[str, int] = {}
        self._ours: set[int] = set()
        """Our VXLAN devices by ifindex."""
        self._watched: frozenset[str] = frozenset()
        """Links whose loss takes routes with it, which the kernel does not always tell."""
        self._devices: dict[str, VxlanDevice] = {}
        self._entries: dict[Key, Entry] = {}
        self._routes_read: tuple[bytes, dict[str, int | None]] | None = None
        """What its routes were made of: all that was read, and the indexes of their devices; None:
        of notifications too."""
        self._loose: frozenset[str] = frozenset()
        self._heard: set[Key] = set()
        self._want = OverlayState()
        """As it was at the last look: equal objects are shared with it."""

    @property
    def have(self) -> OverlayState:
        """A view: it changes with what is heard."""
        return OverlayState(self._devices, self._entries, self._loose)

    def vtep_macs(self) -> dict[int, str]:
        """MACs of our VXLAN devices that are there, by IP version. Raises: KernelError."""
        return {
            version: link.mac
            for version, group in VXLAN_GROUPS.items()
            if (link := self._route.link(f"{VXLAN_IFNAME_PREFIX}{version}")) is not None
            and link.group == group
        }

    def observe(self, want: OverlayState) -> OverlayState:
        """What is, read from the kernel. Raises: KernelError."""
        self._links, self._indexes = {}, {}
        self._ours = set()
        self._watched = want.loose_links
        self._want = want
        self._devices = {}
        addresses = self._addresses()
        for message in self._route.dump(link_codec.dump_links()):
            link = link_codec.parse_link(message)
            self._know(link)
            device = parse_device(message, link, want, addresses.get(link.ifindex, frozenset()))
            if device is None:
                continue
            self._devices[device.ifname] = device
            if device.ours:
                self._ours.add(link.ifindex)
        found = {entry.key: entry for entry in self._read_entries()}
        # By the very objects of `want` where they are equal: nearly all, and many.
        shared = {key: entry for key, entry in want.entries.items() if found.get(key) == entry}
        self._entries = found | shared
        self._loose = frozenset(link for link in want.loose_links if is_loose(link, want))
        return self.have

    def _read_entries(self) -> Iterator[Entry]:
        for ifindex in self._ours:
            for request in (
                address_codec.dump_neighbours(ifindex),
                address_codec.dump_fdb(ifindex),
            ):
                for message in self._route.dump_found(request):
                    info = address_codec.parse_neighbour(message)
                    if info.usable:
                        yield self._entry(info)
        # Last: what it remembers has to be what the caller gets, and a dump may fail.
        yield from self._read_routes()

    def _read_routes(self) -> list[PeerRoute]:
        """There may be thousands: they are taken apart only if the kernel does not say the same as
        the last time."""
        messages = self._route.route_messages(table=ROUTE_TABLE, protocol=OVERLAY_PROTOCOL)
        digest = hashlib.sha256(b"".join(message.body for message in messages)).digest()
        routes = [entry for entry in self._entries.values() if isinstance(entry, PeerRoute)]
        if self._routes_read != (digest, self._indexes_of(routes)):
            routes = [self._peer_route(message) for message in messages]
            indexes = self._indexes_of(routes)
            self._routes_read = (digest, indexes) if "" not in indexes else None
        return routes

    def _indexes_of(self, routes: list[PeerRoute]) -> dict[str, int | None]:
        """Interface indexes of the routes' devices, by name, as they are now."""
        return {ifname: self._indexes.get(ifname) for ifname in {each.device for each in routes}}

    def _know(self, link: link_codec.LinkInfo) -> None:
        self._links[link.ifindex] = link.ifname
        self._indexes[link.ifname] = link.ifindex

    def _addresses(self) -> dict[int, frozenset[InterfaceAddress]]:
        found: dict[int, set[InterfaceAddress]] = {}
        for info in self._route.addresses():
            if info.scope != route_codec.RT_SCOPE_LINK:
                found.setdefault(info.ifindex, set()).add(info.interface)
        return {ifindex: frozenset(held) for ifindex, held in found.items()}

    def _peer_route(self, message: wire.Message) -> PeerRoute:
        info = route_codec.parse_route(message)
        return PeerRoute(
            info.prefix,
            self._links.get(info.ifindex, ""),
            _address(info.gateway) if info.gateway else None,
            _address(info.source) if info.source else None,
            info.metric,
            info.mtu_bytes,
        )

    def _entry(self, info: address_codec.NeighbourInfo) -> Neighbour | FdbEntry:
        device, address = self._links[info.ifindex], _address(info.destination)
        if info.family == wire.AF_BRIDGE:
            return FdbEntry(device, info.mac, address, info.permanent)
        return Neighbour(device, address, info.mac, info.permanent)

    # Notifications.

    def take_heard(self) -> set[Key]:
        """Keys of what was heard of since the last call, our own changes among it."""
        heard, self._heard = self._heard, set()
        return heard

    def hear(self, message: wire.Message) -> bool:
        """Takes a notification into `have`; True: not all can be known by it, observe again."""
        match message.type:
            case wire.RTM_NEWROUTE | wire.RTM_DELROUTE:
                self._hear_route(message)
            case wire.RTM_NEWNEIGH | wire.RTM_DELNEIGH:
                self._hear_neighbour(message)
            case wire.RTM_NEWLINK | wire.RTM_DELLINK:
                return self._hear_link(message)
            case wire.RTM_NEWADDR | wire.RTM_DELADDR:
                return self._hear_address(message)
        return False

    def _note(self, key: Key, entry: Entry | None) -> None:
        """What the kernel has under the key now; None: nothing."""
        self._heard.add(key)
        if entry is None:
            self._entries.pop(key, None)
        else:
            wanted = self._want.entries.get(key)
            self._entries[key] = wanted if wanted is not None and wanted == entry else entry

    def _hear_route(self, message: wire.Message) -> None:
        if not route_codec.is_of_large_table(message):
            return
        info = route_codec.parse_route(message)
        if info.table == ROUTE_TABLE:
            self._routes_read = None
            route = self._peer_route(message)
            new = message.type == wire.RTM_NEWROUTE and info.protocol == OVERLAY_PROTOCOL
            self._note(route.key, route if new else None)

    def _hear_neighbour(self, message: wire.Message) -> None:
        info = address_codec.parse_neighbour(message)
        device = self._links.get(info.ifindex)
        if info.ifindex not in self._ours or device is None or info.echo:
            return
        key: Key
        if info.family == wire.AF_BRIDGE:
            key = (FDB, device, info.mac)
        elif len(info.destination) in (4, 16):
            address = _address(info.destination)
            key = (NEIGHBOUR, device, address.version, int(address))
        else:
            return
        new = message.type == wire.RTM_NEWNEIGH and info.usable
        self._note(key, self._entry(info) if new else None)

    def _hear_link(self, message: wire.Message) -> bool:
        if message.body[0] == wire.AF_BRIDGE:
            return False
        link = link_codec.parse_link(message)
        known = self._links.get(link.ifindex)
        relevant = link.ifindex in self._ours or known in self._watched
        relevant |= link.ifname in self._watched
        if message.type == wire.RTM_DELLINK:
            self._links.pop(link.ifindex, None)
            if self._indexes.get(link.ifname) == link.ifindex:
                del self._indexes[link.ifname]
            return relevant
        self._know(link)
        if not relevant:
            return False
        device = self._devices.get(link.ifname)
        if device is None:
            return not link.up or known != link.ifname
        options = vxlan.parse_vxlan(message)
        seen = (link.mac, link.mtu_bytes, link.up, options is not None and options.plain)
        held = (device.mac, device.mtu_bytes, device.up, device.plain)
        return known != link.ifname or seen != held

    def _hear_address(self, message: wire.Message) -> bool:
        info = address_codec.parse_address(message)
        if info.ifindex in self._ours:
            device = self._devices.get(self._links.get(info.ifindex, ""))
            if device is None:  # it was made after the last look, or is being deleted
                return True
            present = info.interface in device.addresses
            return present == (message.type == wire.RTM_DELADDR)
        # Routes go with their preferred source, and with the last IPv4 address of their link, and
        # the kernel does not tell. Source: fib_sync_down_addr, fib_disable_ip.
        gone = message.type == wire.RTM_DELADDR and info.scope != route_codec.RT_SCOPE_LINK
        return gone and (
            self._links.get(info.ifindex) in self._watched
            or any(
                isinstance(route, PeerRoute)
                and route.source is not None
                and route.source.packed == info.packed
                for route in self._entries.values()
            )
        )

    # Changes.

    def apply(
        self,
        changes: Iterable[OverlayChange],
        *,
        before_sysctl: Callable[[str], None] = lambda path: None,
    ) -> list[LimpetError]:
        """Tries every change, many in one system call; returns the failures.

        Of what needs a link that is not there only the first one is among them.
        `before_sysctl` is told the path of a setting that is about to change; where it refuses
        that, the setting stays, and all else is done.
        """
        failures: dict[str, LimpetError] = {}
        requests: list[wire.Request] = []
        for change in changes:
            try:
                match change:
                    case PutDevice(device, replaces):
                        link = put_device(self._route, device, replaces=replaces)
                        self._know(link)
                        self._ours.add(link.ifindex)
                    case LoosenLink(ifname):
                        loosen(ifname, before_sysctl)
                        self._watched |= {ifname}  # before it is looked at the next time
                    case _:
                        drop = isinstance(change, Drop)
                        requests.append(self._request(change.what, drop=drop))
            except KernelError as error:
                failures.setdefault(f"{error.operation} {error.what}", error)
            except StorageError as error:
                failures.setdefault(str(error), error)
        refused = [each for each in self._route.try_each(requests) if each is not None]
        return [*failures.values(), *refused]

    def _request(self, what: LinkAddress | Entry | VxlanDevice, *, drop: bool) -> wire.Request:
        match what:
            case PeerRoute():
                return self._route_request(what, drop=drop)
            case VxlanDevice(ifname):
                at = self._ifindex(ifname)
                return link_codec.delete_link(at, what=ifname, ignore_errno=_GONE)
            case LinkAddress(ifname, address):
                at = self._ifindex(ifname)
                if drop:
                    return address_codec.delete_address(at, address, on=ifname)
                return address_codec.new_address(at, address, on=ifname, prefix_route=False)
            case FdbEntry(ifname, mac, underlay):
                at = self._ifindex(ifname)
                if drop:
                    return address_codec.delete_fdb(at, mac, on=ifname)
                return address_codec.put_fdb(at, mac, underlay, on=ifname)
            case Neighbour(ifname, of, mac):
                at = self._ifindex(ifname)
                if drop:
                    return address_codec.delete_neighbour(at, of, on=ifname)
                return address_codec.put_neighbour(at, of, mac, on=ifname)

    def _route_request(self, route: PeerRoute, *, drop: bool) -> wire.Request:
        if drop:
            # By its origin too: what another put in its place stays.
            return route_codec.route(
                route.prefix,
                ifindex=None,
                metric=route.metric,
                table=ROUTE_TABLE,
                protocol=OVERLAY_PROTOCOL,
                delete=True,
                ignore_errno=(errno.ESRCH,),
            )
        if route.next_hop is None or route.source is None:
            raise AssertionError("planned routes have both")
        return route_codec.route(
            route.prefix,
            ifindex=self._ifindex(route.device),
            table=ROUTE_TABLE,
            gateway=route.next_hop,
            source=route.source,
            metric=route.metric,
            mtu_bytes=route.mtu_bytes,
            protocol=OVERLAY_PROTOCOL,
            on_link=route.device,
        )

    def _ifindex(self, ifname: str) -> int:
        """Raises: KernelError (ENODEV)."""
        if ifname not in self._indexes:
            raise KernelError("find", f"link {ifname}", errno.ENODEV)
        return self._indexes[ifname]


def _address(packed: bytes) -> Address:
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)
