"""What may be asked of a peer, by what is known of it and of the node's own links. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from limpet.model.network import Address
from limpet.model.overlay import PeerPath, UnderlayLink
from limpet.model.probe import Ask, Trial

_MOST_ADDRESSES = 8


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a peer and of ourselves that decides what may be proven."""

    addresses: tuple[Address, ...] = ()
    """That the peer's presence names, as far as they are `usable`."""
    port: int = 0
    heard: tuple[Address, int] | None = None
    """Address and port that it writes from, if its presence does not name the address."""
    overlay: tuple[int, ...] = ()
    """IP versions of the overlay that both have an address of."""
    vxlan: frozenset[int] = frozenset()
    """IP versions of the underlay that both have a VXLAN device for."""

    @property
    def named(self) -> tuple[Address, ...]:
        """Addresses that the peer names, as many as are looked at."""
        return self.addresses[:_MOST_ADDRESSES]


def trials_for(
    facts: Facts, links: tuple[UnderlayLink, ...], path: PeerPath | None
) -> tuple[Trial, ...]:
    """All that may be asked: LINK and OVERLAY where the address is on a link's subnet, and SITE."""
    ours = {address.ip for link in links for address in link.addresses}
    addresses = [address for address in known_addresses(facts, path) if address not in ours]
    found: list[Trial] = []
    for address in addresses:
        port = port_of(facts, address)
        found.append(Trial(Ask.SITE, address, port))
        for link in links:
            if _is_ethernet(link) and _is_on(link, address):
                found.append(Trial(Ask.LINK, address, port, link.ifname))
                has_ipv4 = any(a.version == 4 and _is_on(link, a) for a in addresses)
                found.extend(
                    Trial(Ask.OVERLAY, address, port, link.ifname, version)
                    for version in facts.overlay
                    if version == address.version or (version == 4 and not has_ipv4)
                )
    return tuple(found)


def usable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Without those that no other node reaches."""
    return tuple(
        address
        for address in addresses
        if not (
            address.is_loopback
            or address.is_link_local
            or address.is_multicast
            or address.is_unspecified
        )
    )


def known_addresses(facts: Facts, path: PeerPath | None) -> tuple[Address, ...]:
    """Those that the peer names, where it was heard, and those of the path, without repetition."""
    found = dict.fromkeys(facts.named)
    if facts.heard is not None:
        found[facts.heard[0]] = None
    if path is not None:
        found |= dict.fromkeys(path.next_hops)
        if path.underlay is not None:
            found[path.underlay] = None
    return tuple(found)


def port_of(facts: Facts, address: Address) -> int:
    """Where the peer listens."""
    if facts.heard is not None and facts.heard[0] == address:
        return facts.heard[1]
    return facts.port


def _is_ethernet(link: UnderlayLink) -> bool:
    return len(link.mac) == len("00:00:00:00:00:00")


def _is_on(link: UnderlayLink, address: Address) -> bool:
    return any(address.version == own.version and address in own.network for own in link.addresses)


def link_trial(trial: Trial) -> Trial:
    """Of the link that an overlay probe goes over."""
    return Trial(Ask.LINK, trial.address, trial.port, trial.device)


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
