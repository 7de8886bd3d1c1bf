"""What stands in the sets of the filter of peers: of all of them, and what changes with some. Pure.

Segments are of one length in a network, so their leading bits are looked up by hash. What is of
another length is looked up in intervals, which nft reads back whole for every change (1.0.6: 7 ms
for 5,000 elements, where a hash takes 0.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from limpet.base.addresses import Address, Endpoint, Prefix, bounds_of
from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.kinds.network import Network
from limpet.cluster.topology.reach import in_clear_refused
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.routed_prefixes import is_of_the_cluster, outermost
from limpet.datapath.overlay.state import OverlayPlan, PeerPart

# Bits from the UDP header: 64 of UDP, 64 of VXLAN, 112 of Ethernet, then up to the source address.
_INNER_SOURCE = {4: 336, 6: 304}
BITS = {4: 32, 6: 128}
_NOBODY = PeerPart()
Elements = Mapping[str, frozenset[str]]
"""Elements by the name of their set."""


def filter_commands(
    view: View, before: OverlayPlan, after: OverlayPlan, uids: Iterable[str]
) -> str:
    """nft commands for the peers that changed, to be run as one transaction; empty: nothing to do.

    Where nft refuses them (the kernel has not what was planned before), what `plan_filter` gives
    has to be put as a whole.
    """
    changed = [uid for uid in uids if _let_in(before, uid) != _let_in(after, uid)]
    if not changed:
        return ""
    parts = [plan.parts[uid] for plan in (before, after) for uid in changed if uid in plan.parts]
    if any(not _is_a_segment(view, prefix) for part in parts for prefix in part.sources):
        # What is behind several peers is one element of all of them, and wider ones hide others.
        outers = frozenset(outer for part in parts for outer in part.outer)
        old, new = (all_elements(view, plan.parts, outers) for plan in (before, after))
    else:
        old, new = (_own_elements(view, plan, changed) for plan in (before, after))
    lines = []
    held: frozenset[str] | None = None
    for verb, more, less in (("delete", old, new), ("add", new, old)):
        for name, elements in sorted(more.items()):
            differing = elements - less.get(name, frozenset())
            # What is there may be added all the same, and a look at all peers takes milliseconds.
            if differing and verb == "delete" and name.startswith((NODES, TUNNELS)):
                held = _still_there(after, parts) if held is None else held
                differing -= held
            if differing:
                joined = ", ".join(sorted(differing))
                lines.append(f"{verb} element inet {NFT_OVERLAY_TABLE} {name} {{ {joined} }}")
    return "".join(f"{line}\n" for line in lines)


def _still_there(plan: OverlayPlan, changed: Iterable[PeerPart]) -> frozenset[str]:
    """Elements of those parts, in sets of what is no business of pods, that some peer of the plan
    has: two sites may number alike."""
    addresses = {each for part in changed for each in part.addresses}
    ends = {each for part in changed for each in part.tunnel_ends}
    # By numbers first: an address is hashed by its text, which takes five times as long.
    numbers = {int(each) for each in (*addresses, *(address for address, _ in ends))}
    held = PeerPart(
        addresses=tuple(
            each
            for part in plan.parts.values()
            for each in part.addresses
            if int(each) in numbers and each in addresses
        ),
        tunnel_ends=tuple(
            each
            for part in plan.parts.values()
            for each in part.tunnel_ends
            if int(each[0]) in numbers and each in ends
        ),
    )
    return frozenset(element for _, element in _of_nodes(held))


def _let_in(plan: OverlayPlan, uid: str) -> tuple[object, ...]:
    """All of the peer that its elements are made of."""
    part = plan.parts.get(uid)
    if part is None:
        return ()
    return part.sources, part.outer, part.in_clear, part.addresses, part.tunnel_ends


SEGMENTS, OTHERS = "segments", "others"
NODES, TUNNELS = "nodes", "tunnels"
"""Addresses where peers hear VXLAN and the exchange; addresses and ports where they hear tunnels'
packets."""
BEHIND = "behind"
"""What is behind nodes, this one among them, and no pod's."""


def kinds(network: Network, version: int, *, of_links: bool = False) -> list[tuple[str, int]]:
    """Kinds of sets for inner sources of a version, each with the leading bits that it compares."""
    bits = _hashed_bits(network, version, of_links=of_links)
    return [*([(SEGMENTS, bits)] if bits else []), (OTHERS, BITS[version])]


def inner_fields(kind: str, version: int, bits: int) -> list[tuple[int, int]]:
    """Where the bits of an inner source are, and how many: aligned ones are read without a call."""
    start = _INNER_SOURCE[version]
    if kind == SEGMENTS and version == 4 and bits > 16:
        return [(start, 16), (start + 16, bits - 16)]
    return [(start, bits)]


def _hashed_bits(network: Network, version: int, *, of_links: bool) -> int:
    """Length of a segment; 0 where nft cannot compare so many bits of a payload."""
    bits = network.segment_lengths.get(version, 0)
    return bits if of_links or bits % 8 == 0 else 0


def all_elements(
    view: View, parts: Mapping[str, PeerPart], outers: Collection[Address] | None = None
) -> dict[str, frozenset[str]]:
    """Elements of all peers; a set of intervals takes none that overlap, so the wider ones count.

    `outers`: of VXLAN only what is from these addresses; None: from all.
    """
    encrypted = view.network is not None and in_clear_refused(view.network)
    by_outer: dict[Address, set[Prefix]] = defaultdict(set)
    behind = set(view.grant.prefixes_behind if view.grant is not None else ())
    on_links = {prefix for prefix in behind if is_of_the_cluster(view.network, prefix)}
    for part in parts.values():
        for outer in part.outer:
            if outers is None or outer in outers:
                by_outer[outer].update(part.sources)
        for prefix in part.sources:
            if not is_of_the_cluster(view.network, prefix):
                behind.add(prefix)
            elif part.in_clear and not encrypted:
                on_links.add(prefix)
    found: dict[str, set[str]] = defaultdict(set)
    for part in parts.values():
        for name, element in _of_nodes(part):
            found[name].add(element)
    for prefix in outermost(behind):
        found[f"{BEHIND}{prefix.version}"].add(str(prefix))
    for outer, sources in by_outer.items():
        for prefix in outermost(sources):
            name, element = _vxlan_element(view, outer, prefix)
            found[name].add(element)
    for prefix in outermost(on_links):
        name, element = _link_element(view, prefix)
        found[name].add(element)
    return {name: frozenset(elements) for name, elements in found.items()}


def _own_elements(view: View, plan: OverlayPlan, uids: Iterable[str]) -> dict[str, frozenset[str]]:
    """Elements of peers that share none with others: they have segments only."""
    found: dict[str, set[str]] = defaultdict(set)
    for uid in uids:
        for name, element in _elements(view, plan.parts.get(uid, _NOBODY)):
            found[name].add(element)
    return {name: frozenset(elements) for name, elements in found.items()}


def _elements(view: View, part: PeerPart) -> Iterable[tuple[str, str]]:
    """Name of the set, and element."""
    yield from _of_nodes(part)
    for prefix in part.sources:
        for outer in part.outer:
            yield _vxlan_element(view, outer, prefix)
        if part.in_clear and _is_let_in_plainly(view, prefix):
            yield _link_element(view, prefix)


def closed_ends(
    before: OverlayPlan, after: OverlayPlan, uids: Iterable[str], ports: Collection[int]
) -> set[Endpoint]:
    """Where pods may not send any more by `after`, though flows that they began may lead there.

    `ports`: of the cluster, at each address of a peer.
    """
    found: set[Endpoint] = set()
    for uid in uids:
        old, new = (plan.parts.get(uid, _NOBODY) for plan in (before, after))
        if (old.addresses, old.tunnel_ends) != (new.addresses, new.tunnel_ends):
            found |= _ends(new, ports) - _ends(old, ports)
    return found


def _ends(part: PeerPart, ports: Collection[int]) -> set[Endpoint]:
    return {(each, port) for each in part.addresses for port in ports}.union(part.tunnel_ends)


def _of_nodes(part: PeerPart) -> Iterator[tuple[str, str]]:
    """Where our pods have no business: name of the set, and element."""
    for each in part.addresses:
        yield f"{NODES}{each.version}", str(each)
    for address, port in part.tunnel_ends:
        yield f"{TUNNELS}{address.version}", f"{address} . {port}"


def _vxlan_element(view: View, outer: Address, prefix: Prefix) -> tuple[str, str]:
    version = prefix.version
    bits = _hashed(view, prefix, of_links=False)
    first, last = bounds_of(prefix)
    if bits:
        fields = (
            f"{first >> (BITS[version] + _INNER_SOURCE[version] - at - n) & ((1 << n) - 1):#x}"
            for at, n in inner_fields(SEGMENTS, version, bits)
        )
        return f"vxlan{outer.version}_{SEGMENTS}{version}", " . ".join((str(outer), *fields))
    span = f"{first:#x}" if first == last else f"{first:#x}-{last:#x}"
    return f"vxlan{outer.version}_{OTHERS}{version}", f"{outer} . {span}"


def _link_element(view: View, prefix: Prefix) -> tuple[str, str]:
    if _hashed(view, prefix, of_links=True):
        return f"link_{SEGMENTS}{prefix.version}", str(prefix.network_address)
    return f"link_{OTHERS}{prefix.version}", str(prefix)


def _hashed(view: View, prefix: Prefix, *, of_links: bool) -> int:
    """Bits by which the prefix is hashed; 0: it is of another length."""
    if view.network is None:
        return 0
    bits = _hashed_bits(view.network, prefix.version, of_links=of_links)
    return bits if bits == prefix.prefixlen else 0


def _is_let_in_plainly(view: View, prefix: Prefix) -> bool:
    """It lies in a pod CIDR, and not all is encrypted; other sources are not ours to judge."""
    encrypted = view.network is not None and in_clear_refused(view.network)
    return not encrypted and is_of_the_cluster(view.network, prefix)


def _is_a_segment(view: View, prefix: Prefix) -> bool:
    """As the cluster grants them: those of two nodes do not overlap."""
    return bool(_hashed(view, prefix, of_links=True)) and is_of_the_cluster(view.network, prefix)
