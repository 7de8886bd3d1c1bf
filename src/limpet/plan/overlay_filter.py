"""nftables text that lets in from a peer only what the peer may send.

Of a VXLAN packet the inner source is compared with the outer one before it is unpacked: a peer's
underlay addresses let in the peer's segments and what is behind it. On a plain link there is one
source only, and whoever is on the link can write it: there, an address of the cluster that belongs
to no peer of this node is refused, and reverse path filtering can do no more.

Source: RFC 7348 section 5 for the offsets; an inner Ethernet header without a VLAN tag.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from limpet.model.datapath import NFT_TABLE
from limpet.model.network import Address, Prefix
from limpet.model.overlay import OverlayPlan, PeerPart
from limpet.plan.overlay import View
from limpet.plan.ruleset import is_plain_name

FORGED_COUNTER = "overlay_forged"
"""Packets whose source is not the sender's."""
_ETHERTYPES = {4: "0x0800", 6: "0x86dd"}
# Bits from the UDP header: 64 of UDP, 64 of VXLAN, 112 of Ethernet, then up to the source address.
_INNER_TYPE = "@th,224,16"
_INNER_SOURCE = {4: "@th,336,32", 6: "@th,304,128"}
_VNI = "@th,96,24"
_OUTER_SOURCE = {4: "ip saddr", 6: "ip6 saddr"}
Elements = Mapping[str, frozenset[str]]
"""Elements by the name of their set."""


def plan_filter(view: View, plan: OverlayPlan, *, bridges: Collection[str] = ()) -> str:
    """Sets, counter and chains, to stand in our table; empty where there is no network.

    `bridges`: those of our pods, which have no business with the node's VXLAN port.
    """
    if view.network is None or not plan.state.devices:
        return ""
    elements = _all_elements(view, plan.parts)
    lines = [f"\tcounter {FORGED_COUNTER} {{", "\t}", ""]
    for outer in (4, 6):
        for inner in (4, 6):
            key = f"typeof {_OUTER_SOURCE[outer]} . {_INNER_SOURCE[inner]}"
            lines += _set(_vxlan_set(outer, inner), key, elements)
    for version in (4, 6):
        lines += _set(_link_set(version), f"type ipv{version}_addr", elements)
    port, vni = view.network.vxlan_port, view.network.vxlan_id
    dropped = f"counter name {FORGED_COUNTER} drop"
    lines += [
        "\tchain overlay_vxlan {",
        *(f'\t\tiifname "{name}" {dropped}' for name in sorted(bridges) if is_plain_name(name)),
        *(
            f"\t\t{_INNER_TYPE} {_ETHERTYPES[inner]} "
            f"{_OUTER_SOURCE[outer]} . {_INNER_SOURCE[inner]} @{_vxlan_set(outer, inner)} accept"
            for outer in (4, 6)
            for inner in (4, 6)
        ),
        f"\t\t{dropped}",
        "\t}",
        "",
        "\tchain overlay_sources {",
        "\t\ttype filter hook prerouting priority raw; policy accept;",
        f"\t\tudp dport {port} {_VNI} {vni:#08x} fib daddr type local jump overlay_vxlan",
        *(
            f'\t\tiifname "{link}" {_OUTER_SOURCE[cidr.version]} {cidr} '
            f"{_OUTER_SOURCE[cidr.version]} != @{_link_set(cidr.version)} {dropped}"
            for link in sorted(view.own.links)
            for cidr in view.network.pod_cidrs
            if is_plain_name(link)
        ),
        "\t}",
    ]
    return "\n".join(lines) + "\n"


def filter_commands(
    view: View, before: OverlayPlan, after: OverlayPlan, uids: Iterable[str]
) -> str:
    """nft commands for the peers that changed, to be run as one transaction; empty: nothing to do.

    Where nft refuses them (peers behind one address have overlapping prefixes), what `plan_filter`
    gives has to be put as a whole.
    """
    old: dict[str, set[str]] = defaultdict(set)
    new: dict[str, set[str]] = defaultdict(set)
    for uid in uids:
        for found, plan in ((old, before), (new, after)):
            for name, element in _elements(view, plan.parts.get(uid, PeerPart())):
                found[name].add(element)
    lines = []
    for verb, more, less in (("delete", old, new), ("add", new, old)):
        for name, elements in sorted(more.items()):
            changed = sorted(elements - less[name]) if name in less else sorted(elements)
            if changed:
                joined = ", ".join(changed)
                lines.append(f"{verb} element inet {NFT_TABLE} {name} {{ {joined} }}")
    return "".join(f"{line}\n" for line in lines)


def _vxlan_set(outer: int, inner: int) -> str:
    return f"vxlan{outer}_sources{inner}"


def _link_set(version: int) -> str:
    return f"link_sources{version}"


def _set(name: str, key: str, elements: Elements) -> list[str]:
    held = sorted(elements.get(name, ()))
    inside = [f"\t\telements = {{ {', '.join(held)} }}"] if held else []
    return [f"\tset {name} {{", f"\t\t{key}", "\t\tflags interval", *inside, "\t}", ""]


def _all_elements(view: View, parts: Mapping[str, PeerPart]) -> dict[str, frozenset[str]]:
    """Of all peers; a set of intervals takes none that overlap, so the wider ones count."""
    by_outer: dict[Address, set[Prefix]] = defaultdict(set)
    on_links: set[Prefix] = set()
    for part in parts.values():
        for outer in part.outer:
            by_outer[outer].update(part.sources)
        on_links.update(part.sources)
    found: dict[str, set[str]] = defaultdict(set)
    for outer, sources in by_outer.items():
        for prefix in _outermost(sources):
            name, element = _vxlan_element(outer, prefix)
            found[name].add(element)
    for prefix in _outermost(on_links):
        if _is_of_the_cluster(view, prefix):
            found[_link_set(prefix.version)].add(str(prefix))
    return {name: frozenset(elements) for name, elements in found.items()}


def _elements(view: View, part: PeerPart) -> Iterable[tuple[str, str]]:
    """Name of the set, and element."""
    for prefix in part.sources:
        for outer in part.outer:
            yield _vxlan_element(outer, prefix)
        if _is_of_the_cluster(view, prefix):
            yield _link_set(prefix.version), str(prefix)


def _vxlan_element(outer: Address, prefix: Prefix) -> tuple[str, str]:
    first, last = int(prefix.network_address), int(prefix.broadcast_address)
    span = f"{first:#x}" if first == last else f"{first:#x}-{last:#x}"
    return _vxlan_set(outer.version, prefix.version), f"{outer} . {span}"


def _is_of_the_cluster(view: View, prefix: Prefix) -> bool:
    """It lies in a pod CIDR; other sources on a link are not ours to judge."""
    if view.network is None:
        return False
    first = int(prefix.network_address)
    return any(
        cidr.version == prefix.version
        and cidr.prefixlen <= prefix.prefixlen
        and int(cidr.network_address) <= first <= int(cidr.broadcast_address)
        for cidr in view.network.pod_cidrs
    )


def _outermost(prefixes: Collection[Prefix]) -> list[Prefix]:
    """Without those that lie in others; neighbours are not merged, so that each can be deleted."""
    if len(prefixes) == 1:
        return list(prefixes)
    kept: list[Prefix] = []
    last = (0, -1)
    for prefix in sorted(prefixes, key=_position):
        end = (prefix.version, int(prefix.broadcast_address))
        if end > last:
            kept.append(prefix)
            last = end
    return kept


def _position(prefix: Prefix) -> tuple[int, int, int]:
    return prefix.version, int(prefix.network_address), prefix.prefixlen
