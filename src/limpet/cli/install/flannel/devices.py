"""flannel's VXLAN devices with all that leads through them: read, taken away, put back."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from ipaddress import ip_address, ip_interface, ip_network

import msgspec

from limpet.base.addresses import Address
from limpet.linux.netlink import address_codec, link_codec, route_codec, vxlan
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket

_PREFIXES = {"flannel-v6.": 6, "flannel.": 4}
"""Beginnings of their names, and the IP version of the underlay: the kernel does not tell it."""


class Device(msgspec.Struct, frozen=True):
    """One of them, as it was."""

    ifname: str
    version: int
    """IP version of the underlay, and of the pods' packets that it carries."""
    vni: int
    port: int
    mac: str
    mtu_bytes: int
    addresses: tuple[str, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    """Prefix and gateway; an empty gateway: none."""
    neighbours: tuple[tuple[str, str], ...] = ()
    """Address and MAC."""
    entries: tuple[tuple[str, str], ...] = ()
    """MAC, and where packets for it are sent."""


def read_devices(route: RouteSocket) -> list[Device]:
    """Raises: KernelError."""
    found = []
    for message in route.dump(link_codec.dump_links()):
        link, options = link_codec.parse_link(message), vxlan.parse_vxlan(message)
        version = next((v for name, v in _PREFIXES.items() if link.ifname.startswith(name)), 0)
        if options is not None and version:
            found.append(_read(route, link, options, version))
    return found


def _read(
    route: RouteSocket, link: link_codec.LinkInfo, options: vxlan.VxlanOptions, version: int
) -> Device:
    neighbours = [
        address_codec.parse_neighbour(message)
        for message in route.dump_found(address_codec.dump_neighbours(link.ifindex))
    ]
    entries = [
        address_codec.parse_neighbour(message)
        for message in route.dump_found(address_codec.dump_fdb(link.ifindex))
    ]
    return Device(
        link.ifname,
        version,
        options.vni,
        options.port,
        link.mac,
        link.mtu_bytes,
        tuple(
            str(each.interface)
            for each in route.addresses()
            if each.ifindex == link.ifindex and each.scope == route_codec.RT_SCOPE_UNIVERSE
        ),
        tuple(
            (str(each.prefix), str(ip_address(each.gateway)) if each.gateway else "")
            for each in route.routes(table=route_codec.RT_TABLE_MAIN)
            if each.ifindex == link.ifindex and each.gateway
        ),
        tuple((_text(each.destination), each.mac) for each in neighbours if each.permanent),
        tuple((each.mac, _text(each.destination)) for each in entries if each.destination),
    )


def _text(packed: bytes) -> str:
    return str(ip_address(packed))


def remove_devices(route: RouteSocket, ifnames: Iterable[str]) -> list[str]:
    """Those that were there. Raises: KernelError."""
    removed = []
    for ifname in ifnames:
        link = route.link(ifname)
        if link is not None and link.kind == "vxlan":
            gone = (errno.ENODEV,)
            route.apply(link_codec.delete_link(link.ifindex, what=ifname, ignore_errno=gone))
            removed.append(ifname)
    return removed


def restore_device(route: RouteSocket, device: Device) -> None:
    """As it was; flanneld makes another of it when it starts, with the same MAC.

    Raises: KernelError.
    """
    name = device.ifname
    if route.link(name) is not None:
        return
    route.apply(
        vxlan.new_vxlan(
            ifname=name,
            underlay_version=device.version,
            vni=device.vni,
            port=device.port,
            mac=device.mac,
            mtu_bytes=device.mtu_bytes,
            group=0,
        ),
        link_codec.set_link(0, what=name, ifname=name, up=True),
    )
    index = route.ifindex(name)
    route.apply(*(_requests(device, index)))


def _requests(device: Device, index: int) -> Iterable[wire.Request]:
    on = device.ifname
    for address in device.addresses:
        yield address_codec.new_address(index, ip_interface(address), on=on)
    for mac, end in device.entries:
        yield address_codec.put_fdb(index, mac, ip_address(end), on=on)
    for at, mac in device.neighbours:
        yield address_codec.put_neighbour(index, ip_address(at), mac, on=on)
    for prefix, via in device.routes:
        gateway: Address | None = ip_address(via) if via else None
        yield route_codec.route(ip_network(prefix), ifindex=index, gateway=gateway, on_link=on)
