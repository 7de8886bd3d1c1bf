"""How an IPsec tunnel's plan differs from WireGuard's, and what to do about a peer's SAs. Pure.

`tend` looks at what the daemon has of one peer and says what to do, whatever happened before: it
brings the tunnel up, moves it to a new endpoint before the old SA is ended, covers prefixes that
have come by a further CHILD_SA, so that nothing that flows is touched, and clears up what both ends
made twice.

Who begins: both ends know the other's endpoint, most often. The end with the lower key begins at
once, the other after it has waited a second.
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
"""For the end that begins: it takes two round trips and some milliseconds."""
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 8.0
MOST_ROUNDS = 8
"""For what a peer with a tunnel refuses, or a new endpoint: over half a minute and more."""
OLD_ENDS_AFTER_S = 2
"""A newer SA carries the packets from its first moment; what is on the way by the old one has
arrived after that time."""
OTHERS_END_AFTER_S = 10
"""When the end that begins did not clear up."""
_SAME_AGE_S = 2


def ipsec_state(state: TunnelState, ifname: str, versions: Collection[int] = (4, 6)) -> TunnelState:
    """The tunnel's plan for this backend: its device, its MTU; keepalives are the daemon's own
    business, which finds out where a NAT is in the way.

    `versions`: of IP, those that this node has segments of; no other is agreed on with a peer.
    """
    device = state.device
    if device is not None:
        device = replace(device, ifname=ifname, mtu_bytes=ipsec_mtu_bytes(device.mtu_bytes))
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
    """The memory of a peer that has been changed, or is new."""
    if care is None:
        care = Care(peer, first)
    moved = peer.endpoint is not None and peer.generation != care.peer.generation
    target = peer.endpoint if moved or care.target is not None else None
    # What stands in its way may have gone with the change; a tunnel that is there is not begun.
    due_s = now_s if first else now_s + SECOND_WAITS_S
    return Care(peer, first, target, due_s=due_s)


def tend(care: Care, sas: Collection[IkeSa], now_s: float) -> tuple[Care, list[IpsecAction]]:
    """What to do now, and what to remember; to be asked again at `next_look_s`, and when one of the
    peer's SAs has changed."""
    live = [sa for sa in sas if sa.established and sa.children]
    if live and all(sa.remote == care.target for sa in live):
        care = replace(care, target=None, tries=0)
    care = _looked(care, live, now_s)
    wish = _wish(care, sas, live)
    actions = _surplus(care, sas, live) if care.target is None or _is_reached(care, live) else []
    if wish is None:
        actions += _dirty(care.peer, live)
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
    """With what is not carried now; some that is carried at last is a reason to go on at once."""
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
    return min(times, default=None)


def _wish(care: Care, sas: Collection[IkeSa], live: Collection[IkeSa]) -> Initiate | None:
    """What should be begun."""
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
        # The peer answers and has refused the whole: it may be for the sake of one.
        return Initiate(peer.public_key, frozenset({sorted(lacking, key=_order)[turn - 1]}))
    whole = lacking == peer.allowed or not any(sa in here for sa in live)
    return Initiate(peer.public_key, frozenset() if whole else lacking)


def _order(prefix: Prefix) -> tuple[int, int, int]:
    return prefix.version, int(prefix.network_address), prefix.prefixlen


def _is_reached(care: Care, live: Iterable[IkeSa]) -> bool:
    return any(sa.remote == care.target for sa in live)


def _is_hopeless(care: Care, live: Collection[IkeSa]) -> bool:
    """Some prefixes are refused by the peer, or nothing answers at the new endpoint, again and
    again; what there is goes on."""
    return bool(live) and _rounds(care, live) >= MOST_ROUNDS


def _rounds(care: Care, live: Collection[IkeSa]) -> int:
    """How often all was tried that there is to try; for the waits between, of which none is longer
    than a peer's that is not there."""
    is_alone = not live or care.target is not None
    rounds = care.tries if is_alone else care.tries // (1 + len(care.lacking))
    return min(rounds, MOST_ROUNDS)


Selectors = tuple[frozenset[Prefix], frozenset[Prefix]]
"""Local and remote prefixes of a CHILD_SA."""


def missing(allowed: frozenset[Prefix], children: Collection[Selectors]) -> frozenset[Prefix]:
    """Prefixes of the peer that some prefix of this node's does not reach.

    What this node has is told by the children themselves: the peer lets in what it knows, and asks
    for the rest as soon as it knows more.
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


def _dirty(peer: IpsecPeer, live: Iterable[IkeSa]) -> list[IpsecAction]:
    """Children with prefixes that are not the peer's any more; all others are covered without."""
    return [
        EndChild(child.uniqueid)
        for sa in live
        for child in sa.children
        if not child.remote <= peer.allowed
    ]


def _surplus(care: Care, sas: Iterable[IkeSa], live: Collection[IkeSa]) -> list[IpsecAction]:
    """Of several that do the same one stays: the newest.

    Ages are of whole seconds, and two ends that began at once have two of one age: of these the one
    that was made for the newest endpoint, else the same for both ends. Only one end clears up, as
    long as it does: the two might not agree.
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
