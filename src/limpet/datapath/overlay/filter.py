"""nftables text that lets in from a peer only what the peer may send.

Of a VXLAN packet the inner source is compared with the outer one before it is unpacked: a peer's
underlay addresses let in the peer's segments and what is behind it. On a plain link there is one
source only, and whoever is on the link can write it: there, an address of the cluster that belongs
to no peer of this node is refused, and reverse path filtering can do no more.

Segments are of one length in a network, so their leading bits are looked up by hash. What is of
another length is looked up in intervals, which nft reads back whole for every change (1.0.6: 7 ms
for 5,000 elements, where a hash takes 0.1).

What comes through the encrypted tunnel is compared by that: a peer sends from its prefixes, or is
dropped there. Where the network encrypts all, nothing of a peer is let in otherwise.

What a peer sends by VXLAN or a tunnel has to be for the cluster: for its pods, or for what is known
to be behind a node. Else a member could have this node lead it into its LAN. This is asked at the
device, before an answer to who was translated here has their address again.

The hooks are those that see least: what is for the node itself, put together again where it came in
fragments, and what comes in by a link to peers. On prerouting or forward each packet of each pod
would pay, on both nodes.

Source: RFC 7348 section 5 for the offsets; an inner Ethernet header without a VLAN tag.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from ipaddress import ip_address

from limpet.base.addresses import Address, Prefix, bounds_of, is_plain_name
from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.kinds.network import Network
from limpet.cluster.topology.reach import in_clear_refused
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.routed_prefixes import is_of_the_cluster, outermost
from limpet.datapath.overlay.state import OverlayPlan, PeerPart

FORGED_COUNTER = "overlay_forged"
"""Packets whose source is not the sender's, or that are for nobody of the cluster."""
_ETHERTYPES = {4: "0x0800", 6: "0x86dd"}
# Bits from the UDP header: 64 of UDP, 64 of VXLAN, 112 of Ethernet, then up to the source address.
_INNER_TYPE = "@th,224,16"
_INNER_SOURCE = {4: 336, 6: 304}
_BITS = {4: 32, 6: 128}
_VNI = "@th,96,32 & 0xffffff00"
_SOURCE_START = {4: "@nh,96,32", 6: "@nh,64,32"}
_OUTER_SOURCE, _OUTER_TARGET = {4: "ip saddr", 6: "ip6 saddr"}, {4: "ip daddr", 6: "ip6 daddr"}
Elements = Mapping[str, frozenset[str]]
"""Elements by the name of their set."""


def plan_filter(
    view: View,
    plan: OverlayPlan,
    *,
    bridges: Collection[str] = (),
    devices: Collection[str] = (),
    peer_port: int = 0,
) -> str:
    """The table that lets in what peers may send; empty where there is no network.

    `bridges`: those of our pods, which have no business with nodes' VXLAN ports, nor with
    `peer_port`, that of the exchange. `devices`: by which peers' packets come.
    """
    if view.network is None or not plan.state.devices:
        return ""
    elements = _all_elements(view, plan.parts)
    lines = [f"table inet {NFT_OVERLAY_TABLE} {{", f"\tcounter {FORGED_COUNTER} {{", "\t}", ""]
    checks = []
    for outer in (4, 6):
        for inner in (4, 6):
            for kind, bits in _kinds(view.network, inner):
                fields = (f"@th,{at},{n}" for at, n in _inner_fields(kind, inner, bits))
                key = " . ".join((_OUTER_SOURCE[outer], *fields))
                name = f"vxlan{outer}_{kind}{inner}"
                lines += _set(name, f"typeof {key}", elements, interval=kind == _OTHERS)
                checks.append(f"\t\t{_INNER_TYPE} {_ETHERTYPES[inner]} {key} @{name} accept")
    for version in (4, 6):
        for kind, _ in _kinds(view.network, version, of_links=True):
            name = f"link_{kind}{version}"
            lines += _set(name, f"type ipv{version}_addr", elements, interval=kind == _OTHERS)
        key = f"type ipv{version}_addr"
        lines += _set(f"{_NODES}{version}", key, elements, interval=False)
        lines += _set(f"{_TUNNELS}{version}", f"{key} . inet_service", elements, interval=False)
        lines += _set(f"{_BEHIND}{version}", key, elements, interval=True)
    port = view.network.vxlan_port
    # Asked last, of what is dropped only: nearly every packet is one that is let in.
    ours = f"{_VNI} == {view.network.vxlan_id << 8:#010x}"
    dropped = f"counter name {FORGED_COUNTER} drop"
    plain = [f'"{name}"' for name in sorted(bridges) if is_plain_name(name)]
    lines += [
        "\tchain overlay_vxlan {",
        *(f"\t\tiifname {name} {ours} {dropped}" for name in plain),
        *checks,
        f"\t\t{ours} {dropped}",
        "\t}",
        "",
        "\tchain overlay_input {",
        "\t\ttype filter hook input priority raw; policy accept;",
        f"\t\tudp dport {port} jump overlay_vxlan",
        "\t}",
    ]
    lines += _from_pods(view.network, plain, peer_port, dropped)
    if links := plain_links(view):
        lines += [
            "",
            "\tchain overlay_links {",
            f"\t\ttype filter hook ingress devices = {{ {', '.join(links)} }} priority 0; "
            "policy accept;",
            *(f"\t\t{_of_no_peer(view.network, c)} {dropped}" for c in view.network.pod_cidrs),
            "\t}",
        ]
    lines += [*_from_peers(view.network, devices, dropped), "}"]
    return "\n".join(lines) + "\n"


def plain_links(view: View) -> list[str]:
    """Links that peers' packets may come in by, as nft takes them."""
    return [f'"{link}"' for link in sorted(view.own.links) if is_plain_name(link)]


def _from_peers(network: Network, devices: Collection[str], dropped: str) -> list[str]:
    """What comes by these devices is for the cluster."""
    plain = [f'"{name}"' for name in sorted(devices) if is_plain_name(name)]
    if not plain:
        return []
    return [
        "",
        "\tchain overlay_from_peers {",
        f"\t\ttype filter hook ingress devices = {{ {', '.join(plain)} }} priority 0; "
        "policy accept;",
        *(f"\t\t{_OUTER_TARGET[each.version]} {each} accept" for each in network.pod_cidrs),
        *(f"\t\t{_OUTER_TARGET[version]} @{_BEHIND}{version} accept" for version in (4, 6)),
        f"\t\tmeta protocol {{ ip, ip6 }} {dropped}",
        "\t}",
    ]


def _from_pods(network: Network, bridges: list[str], peer_port: int, dropped: str) -> list[str]:
    """A pod's packets to nodes leave with the node's own address: a peer would take them for the
    node's, and what is in them for any of its pods'; at tunnels' ports a pod could speak as our
    probes do, or have connection tracking give it what a peer's tunnel sends to the node's. Where a
    Service leads, whoever may write its endpoints says: so it is asked behind all translation of
    targets, and before that of sources. A chain of NAT sees the first packet of a flow, and the
    others of one that it has dropped: standing flows of pods pay nothing.

    Pods are on our bridges, or have addresses of the cluster on links that another plugin made. To
    VXLAN no Service leads anybody: by a port of the node the world comes with the node's address.
    """
    each = sorted({network.vxlan_port, *([peer_port] if peer_port else [])})
    said = str(each[0]) if len(each) == 1 else f"{{ {', '.join(map(str, each))} }}"
    names = bridges[0] if len(bridges) == 1 else f"{{ {', '.join(bridges)} }}"
    whose = [(f"iifname {names}", version) for version in (4, 6)] if bridges else []
    for cidr in network.pod_cidrs:
        whose.append(
            (f"{_OUTER_SOURCE[cidr.version]} {cidr} fib saddr type != local", cidr.version)
        )
    to_peers = [
        f"{pods} {'ip' if version == 4 else 'ip6'} daddr {to}"
        for pods, version in whose
        for to in (f"@{_NODES}{version} udp dport {said}", f". udp dport @{_TUNNELS}{version}")
    ]
    to_peers += [
        f"ct status dnat {family} daddr @{_NODES}{version} udp dport {network.vxlan_port}"
        for family, version in (("ip", 4), ("ip6", 6))
    ]
    # By its address a peer's gateway is a pod, too, and asks at the exchange's port whether it is
    # reached: so here the link says who is one.
    to_node = [f"iifname {names} fib daddr type local udp dport {said}"] if bridges else []
    lines = []
    for name, hook, found in (
        ("overlay_from_pods", "postrouting", to_peers),
        ("overlay_from_own_pods", "input", to_node),
    ):
        head = f"\t\ttype nat hook {hook} priority -100; policy accept;"
        lines += ["", f"\tchain {name} {{", head, *(f"\t\t{x} {dropped}" for x in found), "\t}"]
    return lines


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
        old, new = (_all_elements(view, plan.parts, outers) for plan in (before, after))
    else:
        old, new = (_own_elements(view, plan, changed) for plan in (before, after))
    lines = []
    held: frozenset[str] | None = None
    for verb, more, less in (("delete", old, new), ("add", new, old)):
        for name, elements in sorted(more.items()):
            differing = elements - less.get(name, frozenset())
            # What is there may be added all the same, and a look at all peers takes milliseconds.
            if differing and verb == "delete" and name.startswith((_NODES, _TUNNELS)):
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


_SEGMENTS, _OTHERS = "segments", "others"
_NODES, _TUNNELS = "nodes", "tunnels"
"""Addresses where peers hear VXLAN and the exchange; addresses and ports where they hear tunnels'
packets."""
_BEHIND = "behind"
"""What is behind nodes, this one among them, and no pod's."""


def _kinds(network: Network, version: int, *, of_links: bool = False) -> list[tuple[str, int]]:
    """Kinds of sets for inner sources of a version, each with the leading bits that it compares."""
    bits = _hashed_bits(network, version, of_links=of_links)
    return [*([(_SEGMENTS, bits)] if bits else []), (_OTHERS, _BITS[version])]


def _inner_fields(kind: str, version: int, bits: int) -> list[tuple[int, int]]:
    """Where the bits of an inner source are, and how many: aligned ones are read without a call."""
    start = _INNER_SOURCE[version]
    if kind == _SEGMENTS and version == 4 and bits > 16:
        return [(start, 16), (start + 16, bits - 16)]
    return [(start, bits)]


def _hashed_bits(network: Network, version: int, *, of_links: bool) -> int:
    """Length of a segment; 0 where nft cannot compare so many bits of a payload."""
    bits = network.segment_lengths.get(version, 0)
    return bits if of_links or bits % 8 == 0 else 0


def _of_no_peer(network: Network, cidr: Prefix) -> str:
    """Matches a source of the cluster that is in no set of the links."""
    version = cidr.version
    source = _OUTER_SOURCE[version]
    # Aligned words of a packet are compared without a call. Most have no such source, of whatever
    # version they are, and are done with that.
    start = int(cidr.network_address) >> (_BITS[version] - 32)
    mask = (0xFFFFFFFF << (32 - min(cidr.prefixlen, 32))) & 0xFFFFFFFF
    words = [f"{_SOURCE_START[version]} & {mask:#010x} == {start:#010x}"]
    if cidr.prefixlen > 32:
        words.append(f"{source} {cidr}")
    for kind, bits in _kinds(network, version, of_links=True):
        mask = ((1 << bits) - 1) << (_BITS[version] - bits)
        masked = f" & {ip_address(mask.to_bytes(_BITS[version] // 8, 'big'))}"
        words.append(f"{source}{masked if kind == _SEGMENTS else ''} != @link_{kind}{version}")
    return " ".join(words)


def _set(name: str, key: str, elements: Elements, *, interval: bool) -> list[str]:
    held = sorted(elements.get(name, ()))
    return [
        f"\tset {name} {{",
        f"\t\t{key}",
        *(["\t\tflags interval"] if interval else []),
        *([f"\t\telements = {{ {', '.join(held)} }}"] if held else []),
        "\t}",
        "",
    ]


def _all_elements(
    view: View, parts: Mapping[str, PeerPart], outers: Collection[Address] | None = None
) -> dict[str, frozenset[str]]:
    """Elements of all peers; a set of intervals takes none that overlap, so the wider ones count.

    `outers`: of VXLAN only what is from these addresses; None: from all.
    """
    encrypted = view.network is not None and in_clear_refused(view.network)
    by_outer: dict[Address, set[Prefix]] = defaultdict(set)
    on_links: set[Prefix] = set()
    behind = set(view.grant.prefixes_behind if view.grant is not None else ())
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
        found[f"{_BEHIND}{prefix.version}"].add(str(prefix))
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
        for name, element in _elements(view, plan.parts.get(uid, PeerPart())):
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


def _of_nodes(part: PeerPart) -> Iterator[tuple[str, str]]:
    """Where our pods have no business: name of the set, and element."""
    for each in part.addresses:
        yield f"{_NODES}{each.version}", str(each)
    for address, port in part.tunnel_ends:
        yield f"{_TUNNELS}{address.version}", f"{address} . {port}"


def _vxlan_element(view: View, outer: Address, prefix: Prefix) -> tuple[str, str]:
    version = prefix.version
    bits = _hashed(view, prefix, of_links=False)
    first, last = bounds_of(prefix)
    if bits:
        fields = (
            f"{first >> (_BITS[version] + _INNER_SOURCE[version] - at - n) & ((1 << n) - 1):#x}"
            for at, n in _inner_fields(_SEGMENTS, version, bits)
        )
        return f"vxlan{outer.version}_{_SEGMENTS}{version}", " . ".join((str(outer), *fields))
    span = f"{first:#x}" if first == last else f"{first:#x}-{last:#x}"
    return f"vxlan{outer.version}_{_OTHERS}{version}", f"{outer} . {span}"


def _link_element(view: View, prefix: Prefix) -> tuple[str, str]:
    if _hashed(view, prefix, of_links=True):
        return f"link_{_SEGMENTS}{prefix.version}", str(prefix.network_address)
    return f"link_{_OTHERS}{prefix.version}", str(prefix)


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
