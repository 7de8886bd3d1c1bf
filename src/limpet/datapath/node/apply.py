"""The node's own side: observing what is, applying changes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address

from limpet.base.addresses import InterfaceAddress
from limpet.base.errors import KernelError
from limpet.base.ownership import (
    ALIAS,
    DYING_IFNAME_PREFIX,
    OVERLAY_PROTOCOL,
    POD_GROUP,
    POD_IFNAME_PREFIX,
    ROUTE_TABLE,
    RULE_PRIORITY,
)
from limpet.datapath.change import Drop, LinkAddress, Put
from limpet.datapath.node.diff import Change, MissingPort, PutRuleset, PutSysctl
from limpet.datapath.node.plan import NodeFacts
from limpet.datapath.node.pod.interface import retire_host_end
from limpet.datapath.node.state import Bridge, NodePlan, Port, Route, Rule
from limpet.datapath.node.uplinks import Uplinks, listening_uplinks
from limpet.linux.netlink import address_codec, link_codec, route_codec
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.netlink.table_codec import TableId
from limpet.linux.netlink.transactions import NftablesSocket, OwnTables
from limpet.linux.nftables import Nftables
from limpet.linux.sysctl import read_sysctl, write_sysctl

_RTPROT_RA = 9
_SCOPE_LINK = 253


class NodeKernel:
    """The kernel of this node, as far as it is ours."""

    def __init__(self) -> None:
        self.route = RouteSocket()
        self.nft = Nftables()
        self.uplinks = Uplinks()

    def close(self) -> None:
        self.route.close()
        self.nft.close()

    def observe(self, wanted: NodePlan) -> NodePlan:
        """What is, limited to what is ours or wanted."""
        links = self.route.links()
        names = {link.ifindex: link.ifname for link in links.values()}
        addresses = self._addresses_by_link(
            {each for bridge in wanted.bridges.values() for each in bridge.addresses}
        )
        bridges = {
            link.ifname: Bridge(
                link.ifname,
                link.mac,
                frozenset(addresses.get(link.ifindex, ())),
                promisc=bool(link.flags & link_codec.IFF_PROMISC),
                up=link.up,
                learns_link_local=link.learns_link_local,
                ours=link.alias == ALIAS,
            )
            for link in links.values()
            if link.kind == "bridge" and (link.ifname in wanted.bridges or link.alias == ALIAS)
        }
        return NodePlan(
            bridges=bridges,
            ports=self._ports(links, names),
            routes=frozenset(self._routes(names)),
            rules=frozenset(
                Rule(rule.version)
                for rule in self.route.rules()
                if rule.priority == RULE_PRIORITY and rule.table == ROUTE_TABLE
            ),
            sysctls={path: read_sysctl(path) or "" for path in wanted.sysctls},
            ruleset=self.nft.read_ruleset(wanted.ruleset),
        )

    def _addresses_by_link(
        self, wanted: Collection[InterfaceAddress]
    ) -> dict[int, list[InterfaceAddress]]:
        """Addresses by link; link-local ones only if wanted: the others are the kernel's."""
        found: dict[int, list[InterfaceAddress]] = {}
        for info in self.route.addresses():
            if info.scope != _SCOPE_LINK or info.interface in wanted:
                found.setdefault(info.ifindex, []).append(info.interface)
        return found

    def _ports(
        self, links: dict[str, link_codec.LinkInfo], names: dict[int, str]
    ) -> dict[str, Port]:
        settings = self.route.bridge_ports()
        ports = {}
        for link in links.values():
            if not is_pod_link(link):
                continue
            port = settings.get(link.ifindex)
            ports[link.ifname] = Port(
                link.ifname,
                bridge=names.get(link.master_ifindex, ""),
                hairpin=port is not None and port.hairpin,
                isolated=port is not None and port.isolated,
                up=link.up,
            )
        return ports

    def _routes(self, names: dict[int, str]) -> Iterable[Route]:
        for message in self.route.route_messages(table=ROUTE_TABLE):
            if route_codec.route_protocol(message) == OVERLAY_PROTOCOL:
                continue  # to other nodes, perhaps thousands
            info = route_codec.parse_route(message)
            yield Route(
                info.prefix,
                names.get(info.ifindex) if info.type == route_codec.RTN_UNICAST else None,
                info.metric,
                ip_address(info.source) if info.source else None,
            )

    def pod_links(self) -> set[str]:
        """Names of the host ends of pods. Raises: KernelError."""
        return {link.ifname for link in self.route.links().values() if is_pod_link(link)}

    def given_back_links(self) -> set[str]:
        """Names of host ends that were given to another plugin while their pods ran: our name,
        and no more our group. Raises: KernelError."""
        links = self.route.links().values()
        return {each.ifname for each in links if _is_named_as_of_pod(each)} - self.pod_links()

    def facts(self, wanted: Collection[str], *, own_forwarding: bool = False) -> NodeFacts:
        """What the plan depends on; `wanted`: names of bridges. `own_forwarding`: the node forwards
        IPv6 for us alone. Raises: KernelError."""
        links = self.route.links()
        self.uplinks.look(links)
        names = {link.ifindex: link.ifname for link in links.values()}
        there = [links[ifname] for ifname in wanted if ifname in links]
        bridges = [link for link in there if link.kind == "bridge"]
        defaults, advertised = (
            [(names[i.ifindex], i) for i in found if not i.prefix_length and i.ifindex in names]
            for found in (
                self.route.routes(table=route_codec.RT_TABLE_MAIN),
                self.route.routes(protocol=_RTPROT_RA),
            )
        )
        return NodeFacts(
            foreign_bridges=frozenset(link.ifname for link in bridges if link.alias != ALIAS),
            own_bridges={link.ifname: link.mac for link in bridges if link.alias == ALIAS},
            no_bridges={
                link.ifname: str(_no_bridge(link)) for link in there if link.kind != "bridge"
            },
            routes_localhost=any(
                read_sysctl(f"net/ipv4/conf/{ifname}/route_localnet") == "1"
                for ifname in ("all", *wanted)
            ),
            unfiltered=frozenset(
                version
                for version, name in ((4, "iptables"), (6, "ip6tables"))
                if read_sysctl(f"net/bridge/bridge-nf-call-{name}") != "1"
            ),
            listening_uplinks=listening_uplinks(
                links,
                {ifname for ifname, info in advertised if info.family == wire.AF_INET6},
                read_sysctl,
                own_forwarding=own_forwarding,
            ),
            uplink_mtu_bytes=min((links[ifname].mtu_bytes for ifname, _ in defaults), default=None),
        )

    def bridges(self, wanted: Iterable[str]) -> dict[str, tuple[int, str]]:
        """ifindex and MAC of those that are there, by name."""
        found = (self.route.link(ifname) for ifname in wanted)
        return {
            link.ifname: (link.ifindex, link.mac)
            for link in found
            if link is not None and link.kind == "bridge"
        }

    def apply(self, change: Change, *, before_sysctl: Callable[[str], None]) -> None:
        """One change; `before_sysctl` is told the path of a setting that is about to change.

        Raises: KernelError.
        """
        match change:
            case PutSysctl(path, value):
                before_sysctl(path)
                write_sysctl(path, value)
            case PutRuleset(text):
                self.nft.put_table(text)
            case Put(Bridge() as bridge):
                self._put_bridge(bridge)
            case Put(Port() as port):
                self._put_port(port)
            case Drop(Port(ifname)):
                retire_host_end(self.route, ifname)
            case MissingPort(ifname):
                raise KernelError("find", f"link {ifname}", errno.ENODEV)
            case Put(LinkAddress() | Route() | Rule() as what):
                self.route.apply(self._request(what, drop=False))
            case Drop(LinkAddress() | Route() | Rule() as what):
                self.route.apply(self._request(what, drop=True))

    def raise_sysctl(self, path: str, least: int, *, before_sysctl: Callable[[str], None]) -> None:
        """It is no less then; one that the kernel has not is let be. Raises: LimpetError."""
        now = read_sysctl(path)
        if now is not None and int(now) < least:
            self.apply(PutSysctl(path, str(least)), before_sysctl=before_sysctl)

    def _request(self, what: LinkAddress | Route | Rule, *, drop: bool) -> wire.Request:
        """Raises: KernelError (ENODEV)."""
        match what:
            case LinkAddress(ifname, address):
                at = self.ifindex(ifname)
                if drop:
                    return address_codec.delete_address(at, address, on=ifname)
                link_local = address.version == 6 and address.ip.is_link_local
                return address_codec.new_address(at, address, on=ifname, prefix_route=link_local)
            case Route(prefix, device, metric, source):
                return route_codec.route(
                    prefix,
                    ifindex=None if device is None else self.ifindex(device),
                    table=ROUTE_TABLE,
                    source=source,
                    metric=metric,
                    unreachable=device is None,
                    delete=drop,
                )
            case Rule(version):
                return route_codec.rule(
                    version, priority=RULE_PRIORITY, table=ROUTE_TABLE, delete=drop
                )

    @staticmethod
    def has_tables(tables: Iterable[tuple[str, str]]) -> bool:
        """One of them, by family and name, is in nftables. Raises: KernelError."""
        with NftablesSocket() as netlink:
            there = OwnTables(netlink)
            there.look()
            return there.has([TableId(*each) for each in tables])

    def ifindex(self, ifname: str) -> int:
        """Raises: KernelError (ENODEV)."""
        link = self.route.link(ifname)
        if link is None:
            raise KernelError("find", f"link {ifname}", errno.ENODEV)
        return link.ifindex

    def bridge_ifindex(self, ifname: str) -> int:
        """Raises: KernelError (ENODEV; EEXIST: it is no bridge)."""
        link = self.route.link(ifname)
        if link is None:
            raise KernelError("find", f"bridge {ifname}", errno.ENODEV)
        if link.kind != "bridge":
            raise _no_bridge(link)
        return link.ifindex

    def _put_bridge(self, bridge: Bridge) -> None:
        link = self.route.link(bridge.ifname)
        if link is None:
            # In one datagram: the kernel takes no alias at creation, and a bridge that has none is
            # somebody else's for ever.
            self.route.apply(
                link_codec.new_link(ifname=bridge.ifname, kind="bridge", mac=bridge.mac),
                link_codec.set_link(0, what=bridge.ifname, ifname=bridge.ifname, alias=ALIAS),
            )
            link = self.route.link(bridge.ifname)
        if link is None:
            raise KernelError("find", f"bridge {bridge.ifname}", errno.ENODEV)
        if link.kind != "bridge":
            raise _no_bridge(link)
        self.route.apply(
            link_codec.set_link(
                link.ifindex,
                what=bridge.ifname,
                up=True,
                promisc=True if bridge.promisc else None,
                mac=bridge.mac if link.alias == ALIAS and link.mac != bridge.mac else None,
            )
        )
        if link.alias == ALIAS and link.learns_link_local:
            self.route.apply(link_codec.learn_no_link_local(bridge.ifname))

    def _put_port(self, port: Port) -> None:
        ifindex = self.ifindex(port.ifname)
        self.route.apply(
            link_codec.set_link(
                ifindex, what=port.ifname, up=True, master_ifindex=self.ifindex(port.bridge)
            ),
            link_codec.set_bridge_port(
                ifindex, what=port.ifname, hairpin=port.hairpin, isolated=port.isolated
            ),
        )


def _no_bridge(link: link_codec.LinkInfo) -> KernelError:
    hint = f"it is a {link.kind or 'physical'} link; give the network another bridge name"
    return KernelError("use", f"bridge {link.ifname}", errno.EEXIST, hint)


def is_pod_link(link: link_codec.LinkInfo) -> bool:
    """A live host end of a pod: our name, our group, a veth."""
    return link.group == POD_GROUP and _is_named_as_of_pod(link)


def _is_named_as_of_pod(link: link_codec.LinkInfo) -> bool:
    return (
        link.kind == "veth"
        and link.ifname.startswith(POD_IFNAME_PREFIX)
        and not link.ifname.startswith(DYING_IFNAME_PREFIX)
    )
