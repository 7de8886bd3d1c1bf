"""How an IPsec tunnel's plan differs from WireGuard's, and what to do about a peer's SAs. Pure.

`tend` takes the SAs that the daemon has with one peer and returns what to do: it brings the tunnel
up, moves it to a new endpoint before it ends the old SA, covers added prefixes by a further
CHILD_SA, so that present traffic is not disturbed, and ends SAs that both ends made at once.

Who initiates: mostly both ends know the other's endpoint. The end with the lower key initiates at
once, the other after a second without an SA.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from limpet.base.addresses import Prefix
from limpet.cluster.topology.tunnel_end import ipsec_mtu_bytes
from limpet.datapath.tunnel.ipsec.state import (
    Care,
    EndChild,
    EndIke,
    IkeSa,
    Initiate,
    IpsecAction,
    IpsecPeer,
)
from limpet.datapath.tunnel.state import TunnelState

SECOND_WAITS_S = 1.0
"""The other end's head start: IKE takes two round trips and some milliseconds."""
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 8.0
MOST_ROUNDS = 8
"""Tries of prefixes that a peer with a tunnel refuses, or of a new endpoint, over half a minute."""
OLD_ENDS_AFTER_S = 2
"""Packets that were sent by an old SA have arrived so long after a newer one took over."""
OTHERS_END_AFTER_S = 10
"""When the end that initiates did not end the old SA."""
FOREIGN_ENDS_AFTER_S = 10.0
"""A CHILD_SA with a prefix that is not the peer's any more ends, whether there is another or not:
the peer has it in its hand to refuse that."""
_SAME_AGE_S = 2


def ipsec_state(state: TunnelState, versions: Collection[int]) -> TunnelState:
    """A WireGuard plan turned into IPsec's: another MTU, and no keepalives, for which the daemon
    finds out itself where a NAT is in the way.

    `versions`: IP versions that this node has segments of; no other is agreed on with a peer.
    """
    device = state.device
    if device is not None:
        device = replace(device, mtu_bytes=ipsec_mtu_bytes(device.mtu_bytes))
    peers = {
        key: replace(
            peer,
            allowed=frozenset(each for each in peer.allowed if each.version in versions),
            keepalive_s=0,
        )
        for key, peer in state.peers.items()
    }
    return TunnelState(device, {key: peer for key, peer in peers.items() if peer.allowed})


def begins(own_key: bytes, peer_key: bytes) -> bool:
    return own_key < peer_key


def cared_for(care: Care | None, peer: IpsecPeer, *, first: bool, now_s: float) -> Care:
    """What to remember of a peer that is new or has changed."""
    if care is None:
        care = Care(peer, first)
    moved = peer.endpoint is not None and peer.generation != care.peer.generation
    target = peer.endpoint if moved or care.target is not None else None
    # The change may have removed what stood in the way; if the tunnel is up, nothing is begun.
    due_s = now_s if first else now_s + SECOND_WAITS_S
    return Care(peer, first, target, due_s=due_s, foreign_since_s=care.foreign_since_s)


def tend(care: Care, sas: Collection[IkeSa], now_s: float) -> tuple[Care, list[IpsecAction]]:
    """What to remember, and what to do now; to be called again at `next_look_s`, and when one of
    the peer's SAs has changed."""
    live = [sa for sa in sas if sa.established and sa.children]
    if live and all(sa.remote == care.target for sa in live):
        care = replace(care, target=None, tries=0)
    foreign = _foreign(care.peer, live)
    since_s = None if not foreign else care.foreign_since_s
    if foreign and since_s is None:
        since_s = now_s
    care = replace(_looked(care, live, now_s), foreign_since_s=since_s)
    wish = _wish(care, sas, live)
    actions: list[IpsecAction]
    actions = _surplus(care, sas, live) if care.target is None or _is_reached(care, live) else []
    if wish is None or (since_s is not None and now_s >= since_s + FOREIGN_ENDS_AFTER_S):
        actions += foreign
    if wish is None:
        waits = now_s if care.first else now_s + SECOND_WAITS_S
        return replace(care, tries=0, due_s=waits), actions
    if now_s < care.due_s or _is_hopeless(care, live):
        return care, actions
    if any(not sa.established and sa.generation == care.peer.generation for sa in sas):
        return replace(care, due_s=now_s + FIRST_RETRY_S), actions
    actions += [EndIke(sa.uniqueid) for sa in sas if not sa.established and sa.initiator]
    longest_s = LAST_RETRY_S if care.target is not None or not live else math.inf
    delay_s = min(FIRST_RETRY_S * 2 ** _rounds(care, live), longest_s)
    return replace(care, tries=care.tries + 1, due_s=now_s + delay_s), [*actions, wish]


def _looked(care: Care, live: Iterable[IkeSa], now_s: float) -> Care:
    """With the prefixes that lack now; if fewer lack than before, the next try is due at once."""
    children = [child for sa in live for child in _clean(care.peer, sa)]
    lacking = missing(care.peer.allowed, children)
    if lacking == care.lacking:
        return care
    due_s = min(care.due_s, now_s) if lacking < care.lacking else care.due_s
    return replace(care, lacking=lacking, tries=0, due_s=due_s)


def next_look_s(care: Care, sas: Collection[IkeSa], now_s: float) -> float | None:
    """When something is to be done if nothing changes; None: never."""
    live = [sa for sa in sas if sa.established and sa.children]
    times = []
    if _wish(care, sas, live) is not None and not _is_hopeless(care, live):
        times.append(care.due_s)
    if live and sum(sa.established for sa in sas) > 1:
        times.append(now_s + 1)
    if care.foreign_since_s is not None:
        times.append(max(care.foreign_since_s + FOREIGN_ENDS_AFTER_S, now_s + FIRST_RETRY_S))
    return min(times, default=None)


def _wish(care: Care, sas: Collection[IkeSa], live: Collection[IkeSa]) -> Initiate | None:
    """What to initiate; None: nothing lacks, or the peer has to."""
    peer = care.peer
    here = [sa for sa in sas if sa.established and sa.generation == peer.generation]
    if peer.endpoint is None and not here:
        return None
    if care.target is not None and not _is_reached(care, live):
        return Initiate(peer.public_key)
    lacking = care.lacking
    if not lacking:
        return None
    turn = care.tries % (1 + len(lacking))
    if turn and here:
        # The peer answers and has refused the whole, maybe because of one prefix.
        return Initiate(peer.public_key, frozenset({sorted(lacking, key=_order)[turn - 1]}))
    whole = lacking == peer.allowed or not any(sa in here for sa in live)
    return Initiate(peer.public_key, frozenset() if whole else lacking)


def _order(prefix: Prefix) -> tuple[int, int, int]:
    return prefix.version, int(prefix.network_address), prefix.prefixlen


def _is_reached(care: Care, live: Iterable[IkeSa]) -> bool:
    return any(sa.remote == care.target for sa in live)


def _is_hopeless(care: Care, live: Collection[IkeSa]) -> bool:
    """The peer has refused some prefixes, or not answered at the new endpoint, so often that only
    the present SAs are kept."""
    return bool(live) and _rounds(care, live) >= MOST_ROUNDS


def _rounds(care: Care, live: Collection[IkeSa]) -> int:
    """How often everything was tried, at most `MOST_ROUNDS`; each round doubles the wait."""
    is_alone = not live or care.target is not None
    rounds = care.tries if is_alone else care.tries // (1 + len(care.lacking))
    return min(rounds, MOST_ROUNDS)


Selectors = tuple[frozenset[Prefix], frozenset[Prefix]]
"""Local and remote prefixes of a CHILD_SA."""


def missing(allowed: frozenset[Prefix], children: Collection[Selectors]) -> frozenset[Prefix]:
    """Prefixes of the peer that are not reached from every local prefix of `children`.

    This node's own prefixes are taken from the children: the peer agrees on those that it knows,
    and initiates for the rest when it knows more.
    """
    local = frozenset[Prefix]().union(*(mine for mine, _ in children))
    carried = {
        (mine, theirs)
        for one, other in children
        for mine in one
        for theirs in other
        if mine.version == theirs.version
    }
    reached = {theirs for _, theirs in carried}
    return frozenset(
        theirs
        for theirs in allowed
        if theirs not in reached
        or any(mine.version == theirs.version and (mine, theirs) not in carried for mine in local)
    )


def _clean(peer: IpsecPeer, sa: IkeSa) -> list[Selectors]:
    return [(child.local, child.remote) for child in sa.children if child.remote <= peer.allowed]


def _foreign(peer: IpsecPeer, live: Iterable[IkeSa]) -> list[IpsecAction]:
    """Ends children with prefixes that are not the peer's any more."""
    return [
        EndChild(child.uniqueid)
        for sa in live
        for child in sa.children
        if not child.remote <= peer.allowed
    ]


def _surplus(care: Care, sas: Iterable[IkeSa], live: Collection[IkeSa]) -> list[IpsecAction]:
    """Ends all IKE_SAs but the newest.

    Ages are in whole seconds, and two ends that initiate at once make two of one age: of these
    stays the one for the newest endpoint, else the one with the higher SPI, which is the same at
    both ends. The end that did not initiate waits longer, as the two might not agree.
    """
    if not live:
        return []
    youngest_s = min(sa.age_s for sa in live)
    keep = max(
        (sa for sa in live if sa.age_s <= youngest_s + _SAME_AGE_S),
        key=lambda sa: (sa.generation, sa.spi),
    )
    patience_s = OLD_ENDS_AFTER_S if care.first else OTHERS_END_AFTER_S
    if keep.age_s < patience_s:
        return []
    return [
        EndIke(sa.uniqueid)
        for sa in sas
        # One without children may be about to get its first.
        if sa.established and sa is not keep and (sa.children or sa.age_s >= patience_s)
    ]
