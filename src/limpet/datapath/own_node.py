"""This node as its peers see it: the links that lead to them, and what it says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from limpet.base.addresses import Address, Endpoint, Prefix, UnderlayLink, is_public
from limpet.base.bounds.members import PRESENCE_ADDRESSES, PRESENCE_ENDPOINTS
from limpet.base.ownership import DYING_GROUP, POD_GROUP, TUNNEL_GROUP, VXLAN_GROUPS
from limpet.base.settings import PeerSettings
from limpet.cluster.membership import Membership
from limpet.cluster.topology.paths import OwnSide
from limpet.datapath.event import LinksChanged, NetworksChanged, Tell, TunnelsChanged
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_networks, read_open_links, read_underlay

_log = structlog.get_logger("links")

_DEFAULT_MTU_BYTES = 1500
_LINK_MESSAGES = (wire.RTM_NEWLINK, wire.RTM_DELLINK)


@dataclass(frozen=True, slots=True)
class TunnelNames:
    """The tunnels that the node can have now; an empty name: none of that kind."""

    wireguard: str = ""
    ipsec: str = ""
    port: int = 0
    """UDP port of both."""


@dataclass(frozen=True, slots=True)
class _Links:
    """What was read of the machine's links."""

    to_peers: tuple[UnderlayLink, ...] = ()
    open: frozenset[tuple[str, int]] = frozenset()
    networks: tuple[Prefix, ...] = ()


class OwnNode:
    """Runs on the event loop."""

    def __init__(
        self, membership: Membership, settings: PeerSettings, route: RouteSocket, tell: Tell
    ) -> None:
        """Tells LinksChanged and NetworksChanged."""
        self.vteps: dict[int, str] = {}
        """MACs of the VXLAN devices by IP version of the underlay."""
        self.versions: set[int] = set()
        """IP versions that the underlay has had since the start: a device stays when it flaps."""
        self.tunnels = TunnelNames()
        self._membership = membership
        self._settings = settings
        self._route = route
        self._tell = tell
        self._mapped: tuple[Endpoint, ...] = ()
        self._relay_tls_port = 0
        self.is_stale = True
        """Links may be others than were read."""
        self._read = _Links()

    @property
    def links(self) -> tuple[UnderlayLink, ...]:
        """Those that lead to other nodes."""
        return self._read.to_peers

    @property
    def mtu_bytes(self) -> int:
        """MTU of the smallest link to other nodes: what every pod can count on."""
        return min((link.mtu_bytes for link in self.links), default=_DEFAULT_MTU_BYTES)

    @property
    def filtered_links(self) -> frozenset[tuple[str, int]]:
        """Names and numbers of links by which nothing comes in that no peer may send."""
        return self._read.open.union((link.ifname, link.ifindex) for link in self.links)

    def side(self) -> OwnSide:
        """What plans for peers have to know of this node."""
        return OwnSide(
            vtep_macs={v: mac for v, mac in self.vteps.items() if v in self.versions},
            link_mtu_bytes=max((link.mtu_bytes for link in self.links), default=_DEFAULT_MTU_BYTES),
            links=frozenset(link.ifname for link in self.links),
            open_links=frozenset(ifname for ifname, _ in self._read.open),
            link_prefixes=_prefixes(self.links),
            networks=self._read.networks,
            tunnel=self.tunnels.wireguard,
            ipsec=self.tunnels.ipsec,
            nat_timeout_s=self._settings.nat_timeout_s,
        )

    # Links

    def hear(self, message: wire.Message) -> None:
        """Takes a notification that is of no pod."""
        if message.type in _LINK_MESSAGES:
            own = link_codec.link_group(message) in (*VXLAN_GROUPS.values(), TUNNEL_GROUP)
            self.is_stale |= not own and message.body[0] != wire.AF_BRIDGE
        else:
            self.is_stale |= message.type in (wire.RTM_NEWADDR, wire.RTM_DELADDR)

    def read_links(self) -> bool:
        """If they may be others; True: they are, and who has to know was told.

        Raises: KernelError.
        """
        if not self.is_stale:
            return False
        network = self._membership.network
        not_in = network.pod_cidrs if network is not None else ()
        links = read_underlay(self._route, patterns=self._settings.links, not_in=not_in)
        networks = dict.fromkeys((*_prefixes(links), *read_networks(self._route, not_in=not_in)))
        open_links = read_open_links(self._route, not_in=not_in)
        self.is_stale = False  # only now: where reading is refused it is still to be done
        before = self._read
        self._read = _Links(links, open_links, tuple(networks))
        changed = links != before.to_peers
        self.versions |= {address.version for link in links for address in link.addresses}
        self.announce()
        if changed:
            _log.info(
                "links to other nodes",
                links=" ".join(
                    f"{link.ifname}({','.join(str(a) for a in link.addresses)})" for link in links
                ),
            )
            self._tell(LinksChanged(links))
        if self._read.networks != before.networks:
            self._tell(NetworksChanged(self._read.networks))
        return self._read != before

    # What it says of itself

    def set_endpoints(self, mapped: tuple[Endpoint, ...]) -> None:
        """Where the tunnel is seen from outside; told beside those of the configuration."""
        self._mapped = mapped
        self.announce()

    def set_relay_tls_port(self, port: int) -> None:
        """Where the node relays in TLS connections; 0: nowhere."""
        self._relay_tls_port = port
        self.announce()

    def set_tunnels(self, names: TunnelNames) -> bool:
        """True: they are others than before."""
        changed = names != self.tunnels
        self.tunnels = names
        if changed:
            self.announce()
            self._tell(TunnelsChanged())
        return changed

    def announce(self) -> None:
        """What the node says of itself, if it is not what it said last."""
        if not self.links:
            return  # cut off: whoever hears us again hears the addresses of then
        tunnels = self.tunnels
        self._membership.announce(
            addresses=best_addresses(self.links),
            port=self._settings.port,
            vtep_macs=self.side().vtep_macs,
            link_mtu_bytes=self.mtu_bytes,
            endpoints=best_endpoints(self._settings.endpoints, self._mapped),
            tunnel_port=tunnels.port if tunnels.wireguard or tunnels.ipsec else 0,
            relay_tls_port=self._relay_tls_port,
        )


def _prefixes(links: Sequence[UnderlayLink]) -> tuple[Prefix, ...]:
    return tuple(address.network for link in links for address in link.addresses)


def best_addresses(links: Sequence[UnderlayLink]) -> tuple[Address, ...]:
    """As many as a node may say that it has: of each link and IP version one, then a second one,
    and so on. In this order, since peers look at the first of them only."""
    ranked: list[tuple[int, Address]] = []
    for link in links:
        count: Counter[int] = Counter()
        for address in link.addresses:
            ranked.append((count[address.version], address.ip))
            count[address.version] += 1
    ranked.sort(key=lambda each: each[0])
    return tuple(address for _, address in ranked[: PRESENCE_ADDRESSES.most])


def best_endpoints(
    configured: Sequence[Endpoint], mapped: Iterable[Endpoint]
) -> tuple[Endpoint, ...]:
    """As many as a node may say that it has, in their order: what a person has written, then what
    everybody may reach, then the others."""
    ends = list(dict.fromkeys((*configured, *mapped)))
    by_worth = sorted(ends, key=lambda end: (end not in configured, not is_public(end[0])))
    best = set(by_worth[: PRESENCE_ENDPOINTS.most])
    return tuple(end for end in ends if end in best)


def is_of_a_pod(message: wire.Message) -> bool:
    """A notification of a pod's link, living or dying: nearly all are."""
    return message.type in _LINK_MESSAGES and link_codec.link_group(message) in (
        POD_GROUP,
        DYING_GROUP,
    )
