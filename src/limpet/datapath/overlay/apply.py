"""The network between nodes: observing what is, hearing of changes, applying changes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import TypeVar

from limpet.base.addresses import Address, InterfaceAddress
from limpet.base.errors import KernelError
from limpet.base.ownership import ALIAS, OVERLAY_PROTOCOL, ROUTE_TABLE, VXLAN_GROUPS
from limpet.cluster.topology.view import VxlanDevice
from limpet.datapath.overlay import diff as diff
from limpet.datapath.overlay.assembly import fdb_key, neighbour_key, route_key
from limpet.datapath.overlay.state import (
    FdbEntry,
    FdbKey,
    Neighbour,
    NeighbourKey,
    OverlayState,
    PeerRoute,
    RouteKey,
    Touched,
)
from limpet.linux.netlink import address_codec, link_codec, route_codec, vxlan
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.sysctl import read_sysctl, write_sysctl

OVERLAY_NOTIFICATIONS = (1, 3, 5, 7, 9, 11, 8, 19)
"""RTNLGRP_LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE, IPV4_RULE, IPV6_RULE.

Source: include/uapi/linux/rtnetlink.h, enum rtnetlink_groups.
"""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_STRICT = "1"
_LOOSE = "2"
_ROUTE_MESSAGES = (wire.RTM_NEWROUTE, wire.RTM_DELROUTE)
_NEIGHBOUR_MESSAGES = (wire.RTM_NEWNEIGH, wire.RTM_DELNEIGH)
_LINK_MESSAGES = (wire.RTM_NEWLINK, wire.RTM_DELLINK)


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
        self._routes: dict[RouteKey, PeerRoute] = {}
        self._neighbours: dict[NeighbourKey, Neighbour] = {}
        self._fdb: dict[FdbKey, FdbEntry] = {}
        self._loose: frozenset[str] = frozenset()
        self._heard = (set[RouteKey](), set[NeighbourKey](), set[FdbKey]())
        self._want = OverlayState()
        """As it was at the last look: equal objects are shared with it."""

    @property
    def have(self) -> OverlayState:
        """A view: it changes with what is heard."""
        return OverlayState(self._devices, self._routes, self._neighbours, self._fdb, self._loose)

    def observe(self, want: OverlayState) -> OverlayState:
        """What is, read anew. Raises: KernelError."""
        self._links, self._indexes = {}, {}
        self._ours = set()
        self._watched = want.loose_links
        self._want = want
        self._devices = {}
        addresses = self._addresses()
        for message in self._route.dump(link_codec.dump_links()):
            link = link_codec.parse_link(message)
            self._know(link)
            device = self._device(message, link, want, addresses.get(link.ifindex, frozenset()))
            if device is None:
                continue
            self._devices[device.ifname] = device
            if device.ours:
                self._ours.add(link.ifindex)
        self._routes = _shared(dict(self._peer_routes()), want.routes)
        neighbours: dict[NeighbourKey, Neighbour] = {}
        fdb: dict[FdbKey, FdbEntry] = {}
        for ifindex in self._ours:
            for message in self._dump(address_codec.dump_neighbours(ifindex)):
                neighbour = self._neighbour(address_codec.parse_neighbour(message))
                if neighbour is not None:
                    neighbours[neighbour_key(neighbour)] = neighbour
            for message in self._dump(address_codec.dump_fdb(ifindex)):
                entry = self._entry(address_codec.parse_neighbour(message))
                if entry is not None:
                    fdb[fdb_key(entry)] = entry
        self._neighbours = _shared(neighbours, want.neighbours)
        self._fdb = _shared(fdb, want.fdb)
        self._loose = frozenset(link for link in want.loose_links if self._is_loose(link, want))
        return self.have

    def _know(self, link: link_codec.LinkInfo) -> None:
        self._links[link.ifindex] = link.ifname
        self._indexes[link.ifname] = link.ifindex

    def _dump(self, request: wire.Request) -> list[wire.Message]:
        """Empty where what it asks about is not there."""
        try:
            return self._route.dump(request)
        except KernelError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return []
            raise

    def _addresses(self) -> dict[int, frozenset[InterfaceAddress]]:
        found: dict[int, set[InterfaceAddress]] = {}
        for info in self._route.addresses():
            if info.scope != route_codec.RT_SCOPE_LINK:
                found.setdefault(info.ifindex, set()).add(info.interface)
        return {ifindex: frozenset(held) for ifindex, held in found.items()}

    @staticmethod
    def _device(
        message: wire.Message,
        link: link_codec.LinkInfo,
        want: OverlayState,
        addresses: frozenset[InterfaceAddress],
    ) -> VxlanDevice | None:
        """None: neither ours nor one that has the name of one of ours."""
        options = vxlan.parse_vxlan(message)
        versions = [version for version, group in VXLAN_GROUPS.items() if group == link.group]
        ours = options is not None and bool(versions)
        if not ours and link.ifname not in want.devices:
            return None
        return VxlanDevice(
            link.ifname,
            versions[0] if versions else 0,
            options.vni if options else 0,
            options.port if options else 0,
            link.mac,
            link.mtu_bytes,
            addresses,
            up=link.up,
            plain=options is not None and options.plain,
            ours=ours,
        )

    def _peer_routes(self) -> Iterable[tuple[RouteKey, PeerRoute]]:
        for version in (4, 6):
            request = route_codec.dump_routes(
                wire.family(version), table=ROUTE_TABLE, protocol=OVERLAY_PROTOCOL
            )
            for message in self._dump(request):
                route = self._peer_route(message)
                yield route_key(route), route

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

    def _neighbour(self, info: address_codec.NeighbourInfo) -> Neighbour | None:
        if not info.usable:
            return None
        address = _address(info.destination)
        return Neighbour(self._links[info.ifindex], address, info.mac, info.permanent)

    def _entry(self, info: address_codec.NeighbourInfo) -> FdbEntry | None:
        if not info.usable:
            return None
        address = _address(info.destination)
        return FdbEntry(self._links[info.ifindex], info.mac, address, info.permanent)

    def _is_loose(self, ifname: str, want: OverlayState) -> bool:
        """A link that is not there filters nothing; a device of ours will, once it is made."""
        path = _rp_filter(ifname)
        value = read_sysctl(path)
        if value is None:
            return ifname not in want.devices
        return max(value, read_sysctl(_rp_filter("all")) or "0") != _STRICT

    # Notifications.

    def take_heard(self) -> Touched:
        """Keys of what was heard of since the last call, our own changes among it."""
        routes, neighbours, fdb = self._heard
        self._heard = (set(), set(), set())
        return Touched(frozenset(routes), frozenset(neighbours), frozenset(fdb))

    def hear(self, message: wire.Message | None) -> bool:
        """Takes a notification into `have`; True: not all can be known by it, observe anew.

        None (some were lost) is such a one.
        """
        if message is None:
            return True
        if message.type in _ROUTE_MESSAGES:
            self._hear_route(message)
        elif message.type in _NEIGHBOUR_MESSAGES:
            self._hear_neighbour(message)
        elif message.type in _LINK_MESSAGES:
            return self._hear_link(message)
        elif message.type in (wire.RTM_NEWADDR, wire.RTM_DELADDR):
            return self._hear_address(message)
        return False

    def _hear_route(self, message: wire.Message) -> None:
        if not route_codec.is_of_large_table(message):
            return
        info = route_codec.parse_route(message)
        if info.table != ROUTE_TABLE:
            return
        route = self._peer_route(message)
        self._heard[0].add(route_key(route))
        if message.type == wire.RTM_NEWROUTE and info.protocol == OVERLAY_PROTOCOL:
            _take(route_key(route), route, self._routes, self._want.routes)
        else:
            self._routes.pop(route_key(route), None)

    def _hear_neighbour(self, message: wire.Message) -> None:
        info = address_codec.parse_neighbour(message)
        device = self._links.get(info.ifindex)
        if info.ifindex not in self._ours or device is None or info.echo:
            return
        new = message.type == wire.RTM_NEWNEIGH
        if info.family == wire.AF_BRIDGE:
            entry = self._entry(info) if new else None
            self._heard[2].add((device, info.mac))
            if entry is not None:
                _take(fdb_key(entry), entry, self._fdb, self._want.fdb)
            else:
                self._fdb.pop((device, info.mac), None)
        elif len(info.destination) in (4, 16):
            neighbour = self._neighbour(info) if new else None
            address = _address(info.destination)
            self._heard[1].add((device, address.version, int(address)))
            if neighbour is not None:
                key = neighbour_key(neighbour)
                _take(key, neighbour, self._neighbours, self._want.neighbours)
            else:
                self._neighbours.pop((device, address.version, int(address)), None)

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
                route.source is not None and route.source.packed == info.packed
                for route in self._routes.values()
            )
        )

    # Changes.

    def apply(
        self,
        changes: Iterable[diff.OverlayChange],
        *,
        before_sysctl: Callable[[str], None] = lambda path: None,
    ) -> list[KernelError]:
        """Tries every change, many in one system call; returns the failures.

        Of what needs a link that is not there only the first one is among them.
        `before_sysctl` is told the path of a setting that is about to change.
        """
        failures: dict[str, KernelError] = {}
        requests: list[wire.Request] = []
        for change in changes:
            try:
                match change:
                    case diff.PutDevice(device, anew):
                        self._put_device(device, anew=anew)
                    case diff.LoosenLink(ifname):
                        self._loosen(ifname, before_sysctl)
                        self._watched |= {ifname}  # before it is looked at the next time
                    case _:
                        requests.append(self._request(change))
            except KernelError as error:
                failures.setdefault(f"{error.operation} {error.what}", error)
        refused = [each for each in self._route.try_each(requests) if each is not None]
        return [*failures.values(), *refused]

    def _request(self, change: diff.OverlayChange) -> wire.Request:
        match change:
            case diff.PutDeviceAddress(ifname, address):
                at = self._ifindex(ifname)
                return address_codec.new_address(at, address, on=ifname, prefix_route=False)
            case diff.DropDeviceAddress(ifname, address):
                return address_codec.delete_address(self._ifindex(ifname), address, on=ifname)
            case diff.PutFdb(entry):
                at = self._ifindex(entry.device)
                return address_codec.put_fdb(at, entry.mac, entry.underlay, on=entry.device)
            case diff.DropFdb(entry):
                return address_codec.delete_fdb(
                    self._ifindex(entry.device), entry.mac, on=entry.device
                )
            case diff.PutNeighbour(each):
                at = self._ifindex(each.device)
                return address_codec.put_neighbour(at, each.address, each.mac, on=each.device)
            case diff.DropNeighbour(each):
                at = self._ifindex(each.device)
                return address_codec.delete_neighbour(at, each.address, on=each.device)
            case diff.PutPeerRoute(route):
                return self._put_route(route)
            case diff.DropPeerRoute(route):
                return route_codec.route(
                    route.prefix,
                    ifindex=None,
                    metric=route.metric,
                    table=ROUTE_TABLE,
                    protocol=OVERLAY_PROTOCOL,
                    delete=True,
                    ignore_errno=(errno.ESRCH,),
                )
            case diff.DropDevice(ifname):
                gone = (errno.ENODEV,)
                return link_codec.delete_link(self._ifindex(ifname), what=ifname, ignore_errno=gone)
            case diff.PutDevice() | diff.LoosenLink():
                raise AssertionError("applied on its own")

    def _put_route(self, route: PeerRoute) -> wire.Request:
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

    def _put_device(self, device: VxlanDevice, *, anew: bool) -> None:
        link = self._route.link(device.ifname)
        if link is not None and (link.kind, link.group) != (
            "vxlan",
            VXLAN_GROUPS[device.underlay_version],
        ):
            hint = "somebody else made it; remove or rename it"
            raise KernelError("use", f"link {device.ifname}", errno.EEXIST, hint)
        if link is not None and anew:
            self._route.apply(
                link_codec.delete_link(
                    link.ifindex, what=device.ifname, ignore_errno=(errno.ENODEV,)
                )
            )
            link = None
        if link is None:
            self._make_device(device)
        else:
            self._set_device(device, link)
        link = self._route.link(device.ifname)
        if link is None:
            raise KernelError("find", f"link {device.ifname}", errno.ENODEV)
        self._know(link)
        self._ours.add(link.ifindex)
        if link.mac != device.mac:
            # Others give new devices a MAC of their own, just when those come up (udev).
            self._set_device(device, link)

    def _make_device(self, device: VxlanDevice) -> None:
        made = vxlan.new_vxlan(
            ifname=device.ifname,
            underlay_version=device.underlay_version,
            vni=device.vni,
            port=device.port,
            mac=device.mac,
            mtu_bytes=device.mtu_bytes,
            group=VXLAN_GROUPS[device.underlay_version],
        )
        try:
            self._route.apply(made)
        except KernelError as error:
            if error.errno != errno.EEXIST:
                raise
            hint = (
                "another VXLAN device has this VNI and port, flannel's perhaps: "
                "remove it, or give the network another VNI"
            )
            raise KernelError("make", made.what, errno.EEXIST, hint) from error
        self._route.apply(
            link_codec.no_made_up_addresses(device.ifname),
            link_codec.set_link(0, what=device.ifname, ifname=device.ifname, alias=ALIAS, up=True),
        )

    def _set_device(self, device: VxlanDevice, link: link_codec.LinkInfo) -> None:
        self._route.apply(
            link_codec.set_link(
                link.ifindex,
                what=device.ifname,
                up=True,
                mac=device.mac if link.mac != device.mac else None,
                mtu_bytes=device.mtu_bytes if link.mtu_bytes != device.mtu_bytes else None,
            )
        )

    @staticmethod
    def _loosen(ifname: str, before_sysctl: Callable[[str], None]) -> None:
        path = _rp_filter(ifname)
        strict = max(read_sysctl(path) or "0", read_sysctl(_rp_filter("all")) or "0")
        if strict == _STRICT:
            before_sysctl(path)
            write_sysctl(path, _LOOSE)


def _shared(have: dict[_Key, _Value], want: Mapping[_Key, _Value]) -> dict[_Key, _Value]:
    """`have`, by the very objects of `want` where they are equal: nearly all, and many."""
    shared = {key: value for key, value in want.items() if have.get(key) == value}
    return shared | {key: value for key, value in have.items() if key not in shared}


def _take(key: _Key, value: _Value, have: dict[_Key, _Value], want: Mapping[_Key, _Value]) -> None:
    wanted = want.get(key)
    have[key] = wanted if wanted is not None and wanted == value else value


def _rp_filter(ifname: str) -> str:
    return f"net/ipv4/conf/{ifname}/rp_filter"


def _address(packed: bytes) -> Address:
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)
