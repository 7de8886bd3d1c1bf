"""nftables text that lets in from a peer only what the peer may send.

Of a VXLAN packet the inner source is compared with the outer one before it is unpacked: a peer's
underlay addresses let in the peer's segments and what is behind it. On a plain link there is one
source only, and whoever is on the link can write it: there, an address of the cluster that belongs
to no peer of this node is refused, and reverse path filtering can do no more.

What comes through the encrypted tunnel is compared by that: a peer sends from its prefixes, or is
dropped there. Where the network encrypts all, nothing of a peer is let in otherwise.

What a peer sends by VXLAN or a tunnel has to be for the cluster: for its pods, or for what is known
to be behind a node. Else a member could have this node lead it into its LAN. This is asked at the
device, before an answer to who was translated here has their address again.

The hooks are those that see least: what is for the node itself, put together again where it came in
fragments, and what comes in by a link at which strangers are. On prerouting or forward each packet
of each pod would pay, on both nodes.

Source: RFC 7348 section 5 for the offsets; an inner Ethernet header without a VLAN tag.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address

from limpet.base.addresses import Prefix, is_plain_name
from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.kinds.network import Network
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.filter.elements import (
    BEHIND,
    BITS,
    NODES,
    OTHERS,
    SEGMENTS,
    TUNNELS,
    Elements,
    all_elements,
    inner_fields,
    kinds,
)
from limpet.datapath.overlay.state import OverlayPlan

FORGED_COUNTER = "overlay_forged"
"""Packets whose source is not the sender's, or that are for nobody of the cluster."""
_ETHERTYPES = {4: "0x0800", 6: "0x86dd"}
# Bits from the UDP header: 64 of UDP, 64 of VXLAN, and 96 of Ethernet before the type.
_INNER_TYPE = "@th,224,16"
_VNI = "@th,96,32 & 0xffffff00"
_SOURCE_START = {4: "@nh,96,32", 6: "@nh,64,32"}
_OUTER_SOURCE, _OUTER_TARGET = {4: "ip saddr", 6: "ip6 saddr"}, {4: "ip daddr", 6: "ip6 daddr"}
_MOST_HOOKS = 256
"""Links of one chain. Source: NFT_NETDEVICE_MAX of the kernel."""
_TAGGED = "meta protocol { 8021q, 8021ad }"
"""The first tag is taken away, and there is another one."""
_OF_NO_VLAN = "@nh,0,16 & 0xfff == 0x0 @ll,112,16 & 0xfff == 0x0"
"""VLAN 0 in the next tag and in the first. A VLAN behind a priority is what some switches send."""


def plan_filter(
    view: View,
    plan: OverlayPlan,
    *,
    bridges: Collection[str] = (),
    devices: Collection[str] = (),
    peer_port: int = 0,
    tenants: bool = False,
) -> str:
    """The table that lets in what peers may send; empty where there is no network.

    `bridges`: those of our pods, which have no business with nodes' VXLAN ports, nor with
    `peer_port`, that of the exchange. `devices`: by which peers' packets come. `tenants`: others
    than who has this node write where Services lead.
    """
    if view.network is None or not plan.state.devices:
        return ""
    elements = all_elements(view, plan.parts)
    lines = [f"table inet {NFT_OVERLAY_TABLE} {{", f"\tcounter {FORGED_COUNTER} {{", "\t}", ""]
    checks = []
    for outer in (4, 6):
        for inner in (4, 6):
            for kind, bits in kinds(view.network, inner):
                fields = (f"@th,{at},{n}" for at, n in inner_fields(kind, inner, bits))
                key = " . ".join((_OUTER_SOURCE[outer], *fields))
                name = f"vxlan{outer}_{kind}{inner}"
                lines += _set(name, f"typeof {key}", elements, interval=kind == OTHERS)
                checks.append(f"\t\t{_INNER_TYPE} {_ETHERTYPES[inner]} {key} @{name} accept")
    for version in (4, 6):
        for kind, _ in kinds(view.network, version, of_links=True):
            name = f"link_{kind}{version}"
            lines += _set(name, f"type ipv{version}_addr", elements, interval=kind == OTHERS)
        key = f"type ipv{version}_addr"
        lines += _set(f"{NODES}{version}", key, elements, interval=False)
        lines += _set(f"{TUNNELS}{version}", f"{key} . inet_service", elements, interval=False)
        lines += _set(f"{BEHIND}{version}", key, elements, interval=True)
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
    lines += _from_pods(view.network, plain, peer_port, dropped, tenants=tenants)
    if links := plain_links(view, bridges):
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


def plain_links(view: View, bridges: Collection[str]) -> list[str]:
    """Links by which packets come in as whoever is there has written them, as nft takes them."""
    others = view.own.open_links.difference(view.own.links, bridges)
    names = [name for name in (*sorted(view.own.links), *sorted(others)) if is_plain_name(name)]
    return [f'"{name}"' for name in sorted(names[:_MOST_HOOKS])]


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
        *(f"\t\t{_OUTER_TARGET[version]} @{BEHIND}{version} accept" for version in (4, 6)),
        f"\t\tmeta protocol {{ ip, ip6 }} {dropped}",
        "\t}",
    ]


def _from_pods(
    network: Network, bridges: list[str], peer_port: int, dropped: str, *, tenants: bool
) -> list[str]:
    """A pod's packets to nodes leave with the node's own address: a peer would take them for the
    node's, and what is in them for any of its pods'; at tunnels' ports a pod could speak as our
    probes do, or have connection tracking give it what a peer's tunnel sends to the node's. Where a
    Service leads, whoever may write its endpoints says: so it is asked behind all translation of
    targets, and before that of sources. A chain of NAT sees the first packet of a flow, and the
    others of one that it has dropped: standing flows of pods pay nothing.

    Pods are on our bridges, or have addresses of the cluster on links that another plugin made. To
    VXLAN no Service leads anybody: by a port of the node the world comes with the node's address.
    To ask for that has the kernel track all connections, which takes a tenth of what passes between
    nodes where nothing else has; whoever translates addresses has.
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
        for to in (f"@{NODES}{version} udp dport {said}", f". udp dport @{TUNNELS}{version}")
    ]
    if tenants:
        to_peers += [
            f"ct status dnat {family} daddr @{NODES}{version} udp dport {network.vxlan_port}"
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


def _of_no_peer(network: Network, cidr: Prefix) -> str:
    """Matches a source of the cluster that is in no set of the links."""
    version = cidr.version
    source = _OUTER_SOURCE[version]
    # Aligned words of a packet are compared without a call. Most have no such source, of whatever
    # version they are, and are done with that.
    start = int(cidr.network_address) >> (BITS[version] - 32)
    mask = (0xFFFFFFFF << (32 - min(cidr.prefixlen, 32))) & 0xFFFFFFFF
    words = [f"{_SOURCE_START[version]} & {mask:#010x} == {start:#010x}"]
    if cidr.prefixlen > 32:
        words.append(f"{source} {cidr}")
    for kind, bits in kinds(network, version, of_links=True):
        mask = ((1 << bits) - 1) << (BITS[version] - bits)
        masked = f" & {ip_address(mask.to_bytes(BITS[version] // 8, 'big'))}"
        words.append(f"{source}{masked if kind == SEGMENTS else ''} != @link_{kind}{version}")
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


def plan_tag_filter(view: View, plan: OverlayPlan, bridges: Collection[str]) -> str:
    """A table of family netdev that lets no frame past the filter of peers in tags of no VLAN;
    empty where no link has that filter.

    A tag of VLAN 0 says a priority only, and the kernel takes away as many of them as there are.
    But only one of them before the hook `ingress`, where a chain of family `inet` sees no IP as yet
    and lets the frame through. Source: net/core/dev.c, __netif_receive_skb_core.
    """
    links = plain_links(view, bridges)
    if view.network is None or not plan.state.devices or not links:
        return ""
    return f"""table netdev {NFT_OVERLAY_TABLE} {{
\tcounter {FORGED_COUNTER} {{
\t}}

\tchain overlay_tags {{
\t\ttype filter hook ingress devices = {{ {", ".join(links)} }} priority 0; policy accept;
\t\t{_TAGGED} {_OF_NO_VLAN} counter name {FORGED_COUNTER} drop
\t}}
}}
"""
