"""What may be asked of a peer, by what is known of it and of the node's own links. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from limpet.base.addresses import (
    Address,
    Endpoint,
    Prefix,
    UnderlayLink,
    is_private,
    may_be_anothers,
)
from limpet.base.bounds.neighbours import PROBED_ADDRESSES, PROBED_ENDPOINTS, PROBED_TOLD
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.topology.paths import PeerPath, RelayEnd
from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.probe.messages import Candidate


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """What is known of a peer and of ourselves that decides what may be proven."""

    addresses: tuple[Address, ...] = ()
    """Addresses that the peer's presence names, as far as they are `usable`."""
    port: int = 0
    heard: tuple[Address, int] | None = None
    """Address and port that it writes from, if its presence does not name the address."""
    overlay: tuple[int, ...] = ()
    """IP versions of the overlay that both have an address of."""
    devices: frozenset[tuple[str, int]] = frozenset()
    """Transports that both have a device for, each with the IP version of its underlay."""
    clear: bool = True
    """Packets between the two may go unencrypted within a site."""
    tunnel: bool = False
    """Both have a tunnel."""
    endpoints: tuple[Endpoint, ...] = ()
    """Where the peer's tunnel may be reached, the best first (`tunnel_endpoints`)."""
    relay_ends: tuple[RelayEnd, ...] = ()
    """Where relays take what they bring to the peer, the best first."""
    ipv6_last: bool = False
    """Our tunnel takes endpoints of IPv6 only where no other answers."""

    @property
    def named(self) -> tuple[Address, ...]:
        """Addresses that the peer names, as many as are looked at."""
        return self.addresses[: PROBED_ADDRESSES.most]

    @property
    def places(self) -> tuple[object, ...]:
        """Where the peer is; others say that it may have moved, or its gateway."""
        return (self.addresses, self.endpoints)


def candidates_for(
    facts: CandidateFacts, links: tuple[UnderlayLink, ...], path: PeerPath | None
) -> tuple[Candidate, ...]:
    """All that may be asked, each once."""
    ours = {address.ip for link in links for address in link.addresses}
    found: list[Candidate] = []
    if facts.clear:
        found += _clear_candidates(facts, links, path, ours)
    if facts.tunnel:
        found += _tunnel_candidates(facts, path, ours)
    return tuple(found)


def _clear_candidates(
    facts: CandidateFacts,
    links: tuple[UnderlayLink, ...],
    path: PeerPath | None,
    ours: set[Address],
) -> Iterable[Candidate]:
    """LINK and OVERLAY where the address is on a link's subnet, and SITE in private networks."""
    private = {address.version for address in ours if is_private(address)}
    addresses = [address for address in known_addresses(facts, path) if address not in ours]
    for address in addresses:
        port = port_of(facts, address)
        on = [link for link in links if _is_on(link, address)]
        if on or (address.version in private and is_private(address)):
            yield Candidate(ProbeKind.SITE, address, port)
        for link in on:
            if not _is_ethernet(link):
                continue
            yield Candidate(ProbeKind.LINK, address, port, link.ifname)
            has_ipv4 = any(a.version == 4 and _is_on(link, a) for a in addresses)
            for version in facts.overlay:
                if version == address.version or (version == 4 and not has_ipv4):
                    yield Candidate(ProbeKind.OVERLAY, address, port, link.ifname, version)


def _tunnel_candidates(
    facts: CandidateFacts, path: PeerPath | None, ours: set[Address]
) -> Iterable[Candidate]:
    """TUNNEL to every endpoint, to every relay's, and to the path's own until that is lost."""
    found = {
        Candidate(ProbeKind.TUNNEL, *end): None for end in facts.endpoints if end[0] not in ours
    } | dict.fromkeys(map(candidate_of_end, facts.relay_ends))
    # A connection of a former agent is gone, and its port on loopback may be anybody's.
    if path is not None and path.endpoint is not None and not path.rung.in_stream:
        found[Candidate(ProbeKind.TUNNEL, *path.endpoint, relay=path.relay)] = None
    return found


def candidate_of_end(end: RelayEnd) -> Candidate:
    return Candidate(ProbeKind.TUNNEL, *end.endpoint, relay=end.relay)


def tunnel_candidate(path: PeerPath) -> Candidate | None:
    """What proves a tunnelled path; None for others."""
    if not path.rung.encrypted or path.endpoint is None:
        return None
    return Candidate(ProbeKind.TUNNEL, *path.endpoint, relay=path.relay)


def tunnel_endpoints(
    presence: Presence,
    heard: Iterable[Endpoint],
    links: tuple[UnderlayLink, ...],
    *,
    overlay: Iterable[Prefix] = (),
    ipv6_last: bool = False,
) -> tuple[Endpoint, ...]:
    """Where a peer's tunnel may be reached, the nearest first; not in `overlay`, pods' prefixes.

    `heard`: where it wrote from by its tunnel, the newest first. `ipv6_last`: as `nearness`.
    """
    if not presence.tunnel_port:
        return ()
    own = ((address, presence.tunnel_port) for address in usable(presence.addresses))
    told = [end for end in presence.endpoints if end[1] and usable([end[0]])]
    found = dict.fromkeys((*heard, *told[: PROBED_TOLD.most], *own))
    prefixes = tuple(overlay)
    reachable = [end for end in found if not any(end[0] in prefix for prefix in prefixes)]
    return tuple(
        sorted(
            reachable[: PROBED_ENDPOINTS.most],
            key=lambda end: nearness(end[0], links, ipv6_last=ipv6_last),
        )
    )


def nearness(address: Address, links: tuple[UnderlayLink, ...], *, ipv6_last: bool = False) -> int:
    """0: on a link of ours; 1: private; 2: IPv6; 3: IPv4, with NATs that rarely hairpin.

    `ipv6_last`: 4 for any of IPv6. wireguard-go, to 0.0.20231211 at least, sends some packets for
    endpoints of IPv6 to other peers' addresses while it has peers at IPv4 as well.
    """
    if ipv6_last and address.version == 6:
        return 4
    if any(_is_on(link, address) for link in links):
        return 0
    if is_private(address):
        return 1
    return 2 if address.version == 6 else 3


def usable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Without those that no other node reaches."""
    return tuple(filter(may_be_anothers, addresses))


def known_addresses(facts: CandidateFacts, path: PeerPath | None) -> tuple[Address, ...]:
    """Those that the peer names, where it was heard, and those of the path, without repetition."""
    found = dict.fromkeys(facts.named)
    if facts.heard is not None:
        found[facts.heard[0]] = None
    if path is not None:
        found |= dict.fromkeys(path.next_hops)
        if path.underlay is not None:
            found[path.underlay] = None
    return tuple(found)


def port_of(facts: CandidateFacts, address: Address) -> int:
    """Where the peer listens."""
    if facts.heard is not None and facts.heard[0] == address:
        return facts.heard[1]
    return facts.port


def _is_ethernet(link: UnderlayLink) -> bool:
    return len(link.mac) == len("00:00:00:00:00:00")


def _is_on(link: UnderlayLink, address: Address) -> bool:
    return any(address.version == own.version and address in own.network for own in link.addresses)


def is_direct(candidate: Candidate) -> bool:
    """It goes through the tunnel, past no relay."""
    return candidate.kind is ProbeKind.TUNNEL and not candidate.relay


def links_left(before: Iterable[UnderlayLink], links: Iterable[UnderlayLink]) -> frozenset[str]:
    """Names of links that have lost a subnet since, or are gone."""
    now = {link.ifname: {own.network for own in link.addresses} for link in links}
    return frozenset(
        link.ifname
        for link in before
        if not now.get(link.ifname, set()).issuperset(own.network for own in link.addresses)
    )


def link_candidate(candidate: Candidate) -> Candidate:
    """The LINK candidate of the link that an overlay probe goes over."""
    return Candidate(ProbeKind.LINK, candidate.address, candidate.port, candidate.device)


def joined_hops(found: dict[int, Address], wanted: tuple[int, ...]) -> tuple[Address, ...]:
    """Next hops for a path, of those by IP version of the overlay.

    A path without a next hop of IPv4 sends IPv4 to that of IPv6 (plan.overlay): where only IPv6
    gets through, there is no route.
    """
    four, six = found.get(4), found.get(6)
    if 4 in wanted:
        if four is None:
            return ()
        if four.version == 6:
            return (four,) if 6 not in wanted or six == four else ()
    return tuple(hop for hop in (four, six) if hop is not None)
