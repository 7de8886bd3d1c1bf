"""The node's links that lead to other nodes, and its way out: found, not configured."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Container, Iterable
from fnmatch import fnmatch
from ipaddress import IPv4Address, ip_address

from limpet.base.addresses import InterfaceAddress, Prefix, UnderlayLink
from limpet.base.errors import KernelError
from limpet.base.ownership import (
    ALIAS,
    DNS_GROUP,
    DYING_GROUP,
    POD_GROUP,
    TUNNEL_GROUP,
    VXLAN_GROUPS,
)
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec, route_codec
from limpet.linux.netlink.socket import RouteSocket

_OVERLAY_KINDS = frozenset(
    {"vxlan", "geneve", "wireguard", "tun", "ipip", "sit", "ip6tnl", "gre", "gretap", "ip6gre"}
    | {"ip6gretap", "vti", "vti6", "xfrm", "ifb", "dummy"}
)
"""Also those of VPNs in user space, and what holds addresses of services (kube-ipvs0, edgemesh0):
one such link with a small MTU would make every pod's small."""
_DOCKER_NETWORK = "br-" + "[0-9a-f]" * 12
"""br-lan and the like are bridges over uplinks. Source: moby, libnetwork/drivers/bridge."""
_CONTAINER_LINKS = (
    *("docker*", _DOCKER_NETWORK, "cni*", "cbr*", "flannel*", "cali*", "cilium*", "lxc*"),
    *("weave*", "antrea-*", "ovn-k8s-*"),
)
_SERVICE_LINKS = ("kube-*", "nodelocaldns*")
_MACHINE_LINKS = ("virbr*", "lxdbr*", "incusbr*", "vnet*", "podman*", "nerdctl*", "veth*")
_NOT_READY = 0x48
"""IFA_F_TENTATIVE, IFA_F_DADFAILED. Source: include/uapi/linux/if_addr.h."""

_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL)
"""Answers of the kernel to a question for a route: none, and one that forbids it."""


def read_underlay(
    route: RouteSocket, *, patterns: Collection[str] = (), not_in: Collection[Prefix] = ()
) -> tuple[UnderlayLink, ...]:
    """Links that are up and have an address that peers may use, by name.

    `patterns`: only links whose name one of them matches (fnmatch); empty: all that are not of
    containers, virtual machines or another overlay. `not_in`: the cluster's own prefixes.
    Raises: KernelError.
    """
    addresses = _addresses(route, not_in)
    return tuple(
        UnderlayLink(
            link.ifname, link.ifindex, link.mac, link.mtu_bytes, tuple(addresses[link.ifindex])
        )
        for link in sorted(route.links().values(), key=lambda link: link.ifname)
        if link.ifindex in addresses and link.up and _leads_out(link, patterns)
    )


def read_open_links(
    route: RouteSocket, *, not_in: Collection[Prefix] = ()
) -> frozenset[tuple[str, int]]:
    """Names and numbers of links by which anybody's packets may come in, whether peers are there or
    not: those that lead out and have an address or a cable. Raises: KernelError."""
    return open_links(route.links().values(), _addresses(route, not_in))


def open_links(
    links: Iterable[link_codec.LinkInfo], addressed: Container[int]
) -> frozenset[tuple[str, int]]:
    """As `read_open_links` has it. `addressed`: numbers of links that have an address."""
    return frozenset(
        (link.ifname, link.ifindex)
        for link in links
        if _leads_out(link, ())
        and (link.ifindex in addressed or link.kind in link_codec.OUTWARD_KINDS)
    )


def read_networks(route: RouteSocket, *, not_in: Collection[Prefix] = ()) -> tuple[Prefix, ...]:
    """Subnets that the machine is in by any link that is up, whatever that leads to, but for ours.
    An address alone is none: the kernel keeps it. Raises: KernelError."""
    addresses = _addresses(route, not_in)
    found = {
        address.network
        for link in route.links().values()
        if link.ifindex in addresses and link.up and not _is_of_limpet(link)
        for address in addresses[link.ifindex]
        if address.network.prefixlen < address.max_prefixlen
    }
    return tuple(sorted(found, key=lambda each: (each.version, each)))


def _addresses(route: RouteSocket, not_in: Collection[Prefix]) -> dict[int, list[InterfaceAddress]]:
    """Those that others may use, by number of the link. Raises: KernelError."""
    addresses: dict[int, list[InterfaceAddress]] = {}
    for info in route.addresses():
        if info.scope != route_codec.RT_SCOPE_UNIVERSE or info.flags & _NOT_READY:
            continue
        address = info.interface
        if not any(address.version == p.version and address.ip in p for p in not_in):
            addresses.setdefault(info.ifindex, []).append(address)
    return addresses


def read_lan(patterns: Collection[str] = ()) -> list[Prefix]:
    """Prefixes of the links that lead to other nodes, in order. Raises: KernelError."""
    with RouteSocket() as route:
        links = read_underlay(route, patterns=patterns)
    return sorted(
        {address.network for link in links for address in link.addresses},
        key=lambda prefix: (prefix.version, prefix),
    )


def default_gateway() -> IPv4Address | None:
    """IPv4 gateway of the default route that counts; in the namespace of the thread.

    None: there is no such route, or it has no gateway, as with PPP: of a router that another one
    leads to no answer would come back to what this node sends. Raises: KernelError.
    """
    with RouteSocket() as route:
        found = [
            info
            for info in route.routes(table=route_codec.RT_TABLE_MAIN)
            if info.family == wire.AF_INET and info.prefix_length == 0
        ]
    best = min(found, key=lambda info: info.metric, default=None)
    return IPv4Address(best.gateway) if best is not None and len(best.gateway) == 4 else None


def is_beyond(address: str) -> bool:
    """Whether what this node sends to the address leaves it: by a gateway, or by a link to others.

    Of a link-local address of IPv6 it does; where no route is known it does not, nor to a bridge
    with pods on it. Namespace: of the calling thread. Raises: KernelError.
    """
    to = ip_address(address)
    if to.version == 6 and to.is_link_local:
        return True
    with RouteSocket() as route:
        try:
            found = route_codec.parse_route(route.query(route_codec.get_route(to)))
            if found.type != route_codec.RTN_UNICAST:
                return False
            if found.gateway:
                return True
            link = route.link(socket.if_indextoname(found.ifindex))
            if link is None or not _is_between_nodes(link):
                return False
            # A bridge of the machine's owner may have pods on it beside an uplink.
            return link.kind != "bridge" or not any(
                each.master_ifindex == link.ifindex and each.group == POD_GROUP
                for each in route.links().values()
            )
        except KernelError as error:
            if error.errno in _NO_ROUTE:
                return False
            raise
        except OSError:  # the link has gone
            return False


def guest_links(links: Iterable[link_codec.LinkInfo]) -> list[str]:
    """Names of those by which others' containers and virtual machines are reached."""
    patterns = (*_CONTAINER_LINKS, *_MACHINE_LINKS)
    return [
        link.ifname
        for link in links
        if not _is_of_limpet(link) and any(fnmatch(link.ifname, pattern) for pattern in patterns)
    ]


def _is_between_nodes(link: link_codec.LinkInfo) -> bool:
    is_overlay = link.group in VXLAN_GROUPS.values() or link.kind in _OVERLAY_KINDS
    return is_overlay or _leads_out(link, ())


def _is_of_limpet(link: link_codec.LinkInfo) -> bool:
    groups = (POD_GROUP, DYING_GROUP, DNS_GROUP, TUNNEL_GROUP, *VXLAN_GROUPS.values())
    return link.alias == ALIAS or link.group in groups


def _leads_out(link: link_codec.LinkInfo, patterns: Collection[str]) -> bool:
    if link.flags & link_codec.IFF_LOOPBACK or link.master_ifindex or _is_of_limpet(link):
        return False
    if patterns:
        return any(fnmatch(link.ifname, pattern) for pattern in patterns)
    others = (*_CONTAINER_LINKS, *_SERVICE_LINKS, *_MACHINE_LINKS)
    return link.kind not in _OVERLAY_KINDS and not any(fnmatch(link.ifname, x) for x in others)
