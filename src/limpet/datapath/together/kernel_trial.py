"""What the kernel can do, found out by doing it in a network namespace that is thrown away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address, ip_network

from limpet.base.errors import LimpetError
from limpet.base.ownership import (
    NFT_OVERLAY_TABLE,
    NFT_PORTS_TABLE,
    POD_GROUP,
    ROUTE_TABLE,
    RULE_PRIORITY,
    VXLAN_GROUPS,
)
from limpet.datapath.node.pod.announcer import Announcer
from limpet.datapath.node.ports.ruleset import plan_frame
from limpet.datapath.node.ruleset import HostPort, plan_ruleset
from limpet.linux.conntrack import forget_flows
from limpet.linux.namespaces import in_new_namespace
from limpet.linux.netlink import address_codec, link_codec, route_codec, vxlan
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.netlink.traffic_control import ingress_hook, redirect_ingress, token_bucket
from limpet.linux.nftables import Nftables

VXLAN_DEVICES, BRIDGE_TABLES = "vxlan", "nftables for bridges"
_CIDRS = {4: ip_network("192.0.2.0/24"), 6: ip_network("2001:db8::/64")}


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that the kernel, or this machine, cannot do."""

    feature: str
    cause: str
    used_for: str
    module: str
    """Kernel options or packages that bring it."""
    essential: bool = True
    """False: only pods that ask for `used_for` are concerned."""


def try_features(*, ipv6: bool, cluster: bool = False) -> list[Lack]:
    """All that pods need, tried for real. Nothing of it touches the node's own namespace.

    `cluster`: the way to other nodes too.

    Raises: KernelError when no namespace can be made.
    """
    return in_new_namespace(lambda: list(_try_all(ipv6=ipv6, cluster=cluster)))


def _try_all(*, ipv6: bool, cluster: bool) -> Iterator[Lack]:
    versions = (4, 6) if ipv6 else (4,)
    with RouteSocket() as route:
        for feature, used_for, module, essential, step in (
            ("bridge", "the pods' bridge", "CONFIG_BRIDGE", True, _bridge),
            ("veth", "pods' interfaces", "CONFIG_VETH", True, _veth),
            ("isolated bridge ports", "portIsolation", "Linux 4.18", False, _isolation),
            ("tbf", "bandwidth limits", "CONFIG_NET_SCH_TBF", False, _token_bucket),
            ("ifb, u32 and mirred", "egress limits", _EGRESS_OPTIONS, False, _egress),
        ):
            yield from _lack(feature, used_for, module, essential, partial(step, route))
        for version in versions:
            yield from _lack(
                f"policy routing for IPv{version}",
                "the routes of pods",
                "CONFIG_IP_MULTIPLE_TABLES, CONFIG_IPV6_MULTIPLE_TABLES",
                True,
                partial(_routes, route, version),
            )
        if cluster:
            yield from _lack(
                VXLAN_DEVICES, "pods' ways to nodes beyond the common link", "CONFIG_VXLAN", False,
                partial(_vxlan, route),
            )  # fmt: skip
    yield from _lack("nftables with NAT", "masquerade and hostPorts", _NFT_OPTIONS, True, _nft)
    yield from _lack(
        BRIDGE_TABLES, "port security and network policies",
        "CONFIG_NF_TABLES_BRIDGE, Linux 4.18", False, _nft_bridge,
    )  # fmt: skip
    if cluster:
        yield from _lack(
            "nftables where a link's packets come in", "refusing what is no peer's",
            "CONFIG_NETFILTER_INGRESS, CONFIG_NF_TABLES_NETDEV", True, _nft_ingress,
        )  # fmt: skip
    yield from _lack(
        "connection tracking by netlink", "addresses that are used again",
        "CONFIG_NF_CT_NETLINK", True, _conntrack,
    )  # fmt: skip
    yield from _lack("packet sockets", "gratuitous ARP", "CONFIG_PACKET", True, _packet_socket)


_EGRESS_OPTIONS = "CONFIG_IFB, CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED"
_NFT_OPTIONS = (
    "CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NFT_CT, "
    "CONFIG_NFT_FIB_INET; package nftables"
)


def _lack(
    feature: str, used_for: str, module: str, essential: bool, step: Callable[[], object]
) -> Iterator[Lack]:
    try:
        step()
    except (LimpetError, OSError) as error:
        yield Lack(feature, str(error), used_for, module, essential)


def _bridge(route: RouteSocket) -> None:
    route.apply(link_codec.new_link(ifname="bridge", kind="bridge", up=True))


def _veth(route: RouteSocket) -> None:
    with open("/proc/thread-self/ns/net", "rb") as here:
        route.apply(
            link_codec.new_veth(
                ifname="veth",
                mac="0a:58:c0:00:02:01",
                mtu_bytes=1400,
                group=POD_GROUP,
                master_ifindex=_ifindex(route, "bridge"),
                peer_ifname="peer",
                peer_mac="0a:58:c0:00:02:02",
                peer_netns_fd=here.fileno(),
            )
        )


def _ifindex(route: RouteSocket, ifname: str) -> int:
    return link_codec.parse_link(route.query(link_codec.get_link(ifname))).ifindex


def _isolation(route: RouteSocket) -> None:
    ifindex = _ifindex(route, "veth")
    route.apply(link_codec.set_bridge_port(ifindex, what="port", hairpin=True, isolated=True))


def _token_bucket(route: RouteSocket) -> None:
    ifindex = _ifindex(route, "veth")
    route.apply(token_bucket(ifindex, rate_bits=8_000_000, burst_bits=80_000, what="veth"))


def _egress(route: RouteSocket) -> None:
    route.apply(link_codec.new_link(ifname="shaper", kind="ifb", up=True))
    ifindex = _ifindex(route, "veth")
    route.apply(
        ingress_hook(ifindex, what="veth"),
        redirect_ingress(ifindex, to_ifindex=_ifindex(route, "shaper"), what="veth"),
    )


def _routes(route: RouteSocket, version: int) -> None:
    route.apply(
        route_codec.rule(version, priority=RULE_PRIORITY, table=ROUTE_TABLE),
        route_codec.route(
            _CIDRS[version], ifindex=None, table=ROUTE_TABLE, metric=65000, unreachable=True
        ),
    )


def _vxlan(route: RouteSocket) -> None:
    mac = "0a:58:c0:00:02:03"
    route.apply(
        vxlan.new_vxlan(
            ifname="vxlan",
            underlay_version=4,
            vni=1,
            port=8472,
            mac=mac,
            mtu_bytes=1350,
            group=VXLAN_GROUPS[4],
        ),
        link_codec.no_made_up_addresses("vxlan"),
    )
    ifindex = _ifindex(route, "vxlan")
    route.apply(
        address_codec.put_fdb(ifindex, mac, ip_address("192.0.2.1"), on="vxlan"),
        address_codec.put_neighbour(ifindex, ip_address("192.0.2.2"), mac, on="vxlan"),
    )


def _nft() -> None:
    """The very table that the agent makes, with an element in each of its maps."""
    ports = [
        HostPort(version, at, "tcp", 80, str(target), 80)
        for version, target in ((4, "192.0.2.2"), (6, "2001:db8::2"))
        for at in ("", str(ip_address(target)))
    ]
    cidrs = list(_CIDRS.values())
    with closing(Nftables()) as nft:
        nft.put_table(plan_ruleset(masquerade=cidrs, cluster=cidrs, pods=cidrs, host_ports=ports))


def _nft_bridge() -> None:
    """The very table that the agent makes."""
    with closing(Nftables(NFT_PORTS_TABLE, family="bridge")) as nft:
        nft.put_table(plan_frame(wide=False))


def _nft_ingress() -> None:
    chain = 'type filter hook ingress devices = { "veth" } priority 0; ip saddr 192.0.2.1 drop;'
    for family in ("inet", "netdev"):
        with closing(Nftables(NFT_OVERLAY_TABLE, family=family)) as nft:
            nft.put_table(f"table {family} {NFT_OVERLAY_TABLE} {{ chain links {{ {chain} }}; }}\n")


def _conntrack() -> None:
    forget_flows([ip_address("192.0.2.2")])


def _packet_socket() -> None:
    Announcer().close()
