"""Pod to pod across two nodes: by Limpet, and over the same path programmed by hand with `ip`.

    pod ── limpet0 ── [node] site0 ════ site0 [node] ── limpet0 ── pod

Each side has two nodes of its own. The hand's have what carries the packets, and nothing beside it:
no nftables, so nothing is tracked, masqueraded or filtered. Devices, offloads, the rule, routes,
neighbours and FDB entries are read from both and have to be equal.

With `ipMasq` the kernel tracks every flow, also those that keep their address. `ip` can't do that,
so in these measures the hand's side has the one nftables rule for each IP version that it takes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface
from typing import Any

from bench.bed import Bed
from bench.figures import Figure, Target, Unit
from bench.nodes.node import Node, Pod, ip, ip_json, output_of
from bench.nodes.plugins import Limpet
from bench.traffic.single_flow import Open, datagrams, pairs_until_narrow, stream
from bench.traffic.throughput import differences, link_settings, link_settings_of
from limpet.base.addresses import Prefix
from limpet.base.ownership import NFT_OVERLAY_TABLE, PEER_METRIC, ROUTE_TABLE, VXLAN_IFNAME_PREFIX
from limpet.cluster.keys import ClusterKey
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.view import view_of
from limpet.datapath.overlay.apply import OverlayKernel
from limpet.datapath.overlay.diff import diff_overlay
from limpet.datapath.overlay.filter.ruleset import plan_filter
from limpet.datapath.overlay.plan import plan_overlay
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables

NUMBERS = (1, 2)
POD_CIDRS = (IPv4Network("10.244.0.0/16"), IPv6Network("fd00:244::/48"))
_MTU_BYTES = 1500
_POD_MTU_BYTES = 1450
LINK, BRIDGE, _DEVICE = "site0", "limpet0", f"{VXLAN_IFNAME_PREFIX}4"
_ENTRIES = ("route", "rules", "neighbour", "fdb")
_NARROW = 0.05
"""Of the interval of a ratio; the target is that far from no difference."""
_OF_A_ROUTE = ("dst", "gateway", "dev", "prefsrc", "metric", "flags", "metrics")
_OF_A_NEIGHBOUR = ("dst", "lladdr", "state")
_OF_AN_FDB_ENTRY = ("mac", "dst", "flags", "state")


def segments_of(number: int) -> tuple[Prefix, ...]:
    return IPv4Network(f"10.244.{number}.0/24"), IPv6Network(f"fd00:244:0:{number}::/64")


def underlay(number: int) -> tuple[str, str]:
    return f"203.0.113.{number}", f"2001:db8:2::{number}"


def _mac(number: int) -> str:
    return f"02:4c:04:00:00:{number:02x}"


def across_route(bed: Bed, rounds: int) -> list[Figure]:
    """Both nodes on one link, plain routes."""
    return _across(bed, rounds, transports.ROUTE)


def across_vxlan(bed: Bed, rounds: int) -> list[Figure]:
    """VXLAN over IPv4."""
    return _across(bed, rounds, transports.VXLAN)


def across_route_masq(bed: Bed, rounds: int) -> list[Figure]:
    """Both nodes on one link; what leaves the cluster is masqueraded on both sides."""
    return _across(bed, rounds, transports.ROUTE, masquerade=True)


def across_vxlan_masq(bed: Bed, rounds: int) -> list[Figure]:
    """VXLAN over IPv4; what leaves the cluster is masqueraded on both sides."""
    return _across(bed, rounds, transports.VXLAN, masquerade=True)


def _across(
    bed: Bed, rounds: int, rung: transports.Transport, *, masquerade: bool = False
) -> list[Figure]:
    if bed.reference_only:
        return []
    name, what = f"across-{rung.name}", f"pod to pod across nodes, {rung.name}, against by hand"
    if masquerade:
        name, what = f"{name}-masq", f"{what}, both with ipMasq"
    flows: tuple[tuple[str, str, Unit, Open], ...] = (
        ("tcp", "TCP", "Gbit/s", stream),
        ("udp", "64-byte UDP", "kpps", datagrams),
    )
    figures = []
    with (
        _ours(bed, rung, masquerade=masquerade) as ours,
        _by_hand(bed, rung, ours, masquerade=masquerade) as hand,
    ):
        _compare(bed, rung, ours, hand)
        pods, its = ((nodes[0].pods[0], nodes[1].pods[0]) for nodes in (ours, hand))
        for key, title, unit, flow in flows:
            rates, of_hand = pairs_until_narrow(flow, pods, its, pairs=rounds, width=_NARROW)
            bed.notes.append(f"{what}: {title}: {len(rates)} pairs")
            target = Target(0.95, at_least=True)
            figures.append(
                Figure(f"{name}-{key}", f"{what}: {title}", unit, rates, of_hand, target)
            )
    return figures


@contextmanager
def two_nodes(bed: Bed, name: str) -> Iterator[list[Node]]:
    with ExitStack() as undo:
        nodes = []
        for number in NUMBERS:
            node = Node(f"{name}{number}", bed.disk_folder)
            undo.callback(node.close)
            nodes.append(node)
        with nodes[0].netns.inside():
            ip(
                f"link add {LINK} mtu {_MTU_BYTES} type veth "
                f"peer name {LINK} mtu {_MTU_BYTES} netns {nodes[1].netns.name}"
            )
        for number, node in zip(NUMBERS, nodes, strict=True):
            with node.netns.inside():
                v4, v6 = underlay(number)
                ip(f"addr add {v4}/24 dev {LINK}")
                ip(f"addr add {v6}/64 dev {LINK} nodad")
                ip(f"link set {LINK} up")
        yield nodes


# Limpet's side


@contextmanager
def _ours(bed: Bed, rung: transports.Transport, *, masquerade: bool) -> Iterator[list[Node]]:
    """A pod on each of two nodes, by agent and CNI binary; the path, by Limpet's planner."""
    with two_nodes(bed, "ours") as nodes, ExitStack() as undo:
        for number, node in zip(NUMBERS, nodes, strict=True):
            settings = {
                "segments": list(map(str, segments_of(number))),
                "cluster_cidrs": list(map(str, POD_CIDRS)),
                "mtu_bytes": _POD_MTU_BYTES,
            }
            plugin = Limpet(node, settings=settings)
            undo.callback(plugin.close)
            plugin.conf |= {"mtu": _POD_MTU_BYTES, "ipMasq": masquerade}
            (pod,) = node.new_pods(1)
            plugin.add(pod)
            _program(node, number, rung, undo)
        yield nodes


def _program(node: Node, number: int, rung: transports.Transport, undo: ExitStack) -> None:
    network = Network("bench", 1, 1, (ClusterKey(b""),), POD_CIDRS)
    snapshot = Snapshot(network, {f"n{each}": _entry(each) for each in NUMBERS})
    (peer,) = (each for each in NUMBERS if each != number)
    own = OwnSide({4: _mac(number)}, _MTU_BYTES, frozenset({LINK}))
    view = view_of(snapshot, f"n{number}", {f"n{peer}": _path(peer, rung)}, own)
    plan = plan_overlay(view)
    with node.netns.inside():
        with RouteSocket() as route:
            kernel = OverlayKernel(route)
            failures = kernel.apply(diff_overlay(plan.state, kernel.observe(plan.state)))
            if failures:
                raise RuntimeError(f"limpet: the path cannot be programmed: {failures[0]}")
        nft = Nftables(NFT_OVERLAY_TABLE)
        undo.callback(nft.close)
        devices = [each.ifname for each in plan.state.devices.values()]
        nft.put_table(plan_filter(view, plan, bridges=[BRIDGE], devices=devices))


def _entry(number: int) -> NodeEntry:
    uid = f"n{number}"
    grant = Grant(uid, uid, b"", 1, number, segments=segments_of(number))
    addresses = tuple(map(ip_address, underlay(number)))
    presence = Presence(uid, 1, "boot", addresses=addresses, vtep_macs={4: _mac(number)})
    return NodeEntry(grant, presence)


def _path(number: int, rung: transports.Transport) -> PeerPath:
    v4, v6 = map(ip_address, underlay(number))
    if rung is transports.ROUTE:
        return PeerPath(rung, device=LINK, next_hops=(v4, v6), underlay=v4)
    return PeerPath(rung, underlay=v4)


# The hand's side


@contextmanager
def _by_hand(
    bed: Bed, rung: transports.Transport, ours: Sequence[Node], *, masquerade: bool
) -> Iterator[list[Node]]:
    with two_nodes(bed, "hand") as nodes:
        for number, node, like in zip(NUMBERS, nodes, ours, strict=True):
            (pod,) = node.new_pods(1)
            pod.result = like.pods[0].result
            with node.netns.inside():
                make_bridge(number, pod)
                _make_path(number, rung)
                if masquerade:
                    rules = _masquerade(number).encode()
                    subprocess.run(["nft", "-f", "-"], input=rules, check=True)
        yield nodes


def make_bridge(number: int, pod: Pod, mtu_bytes: int = _POD_MTU_BYTES) -> None:
    for path in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
        with open(f"/proc/sys/{path}", "w") as file:
            file.write("1")
    v4, v6 = segments_of(number)
    ip(f"link add {BRIDGE} mtu {mtu_bytes} type bridge")
    ip(f"link set {BRIDGE} up")
    ip(f"addr add {v4[1]}/24 dev {BRIDGE}")
    ip(f"addr add {v6[1]}/64 dev {BRIDGE} nodad")
    ip(
        f"link add pod0 mtu {mtu_bytes} type veth "
        f"peer name eth0 mtu {mtu_bytes} netns {pod.netns.name}"
    )
    ip(f"link set pod0 master {BRIDGE}")
    ip("link set pod0 up")
    with pod.netns.inside():
        for entry in pod.result["ips"]:
            nodad = " nodad" if ":" in entry["address"] else ""
            ip(f"addr add {entry['address']} dev eth0{nodad}")
        ip("link set eth0 up")
        ip(f"route add default via {v4[1]}")
        ip(f"route add default via {v6[1]}")


def _masquerade(number: int) -> str:
    """For nft: the node's pods have its address for whatever is no pod."""
    rules = [
        f"{ip_word} saddr {own} {ip_word} daddr != {cidr} masquerade\n"
        for ip_word, own, cidr in zip(("ip", "ip6"), segments_of(number), POD_CIDRS, strict=True)
    ]
    hook = "type nat hook postrouting priority srcnat;"
    return f"table inet hand {{ chain postrouting {{ {hook}\n{''.join(rules)}}}\n}}\n"


def _make_path(number: int, rung: transports.Transport) -> None:
    (peer,) = (each for each in NUMBERS if each != number)
    for family in ("", "-6 "):
        ip(f"{family}rule add priority {ROUTE_TABLE} lookup {ROUTE_TABLE} protocol static")
    own, its = segments_of(number), segments_of(peer)
    if rung is transports.ROUTE:
        for prefix, hop, mine in zip(its, underlay(peer), own, strict=True):
            ip(
                f"route add {prefix} via {hop} dev {LINK} onlink src {mine[1]} "
                f"metric {PEER_METRIC} mtu {_MTU_BYTES} table {ROUTE_TABLE}"
            )
        return
    ip(
        f"link add {_DEVICE} address {_mac(number)} mtu {_POD_MTU_BYTES} "
        "type vxlan id 1 dstport 8472 nolearning"
    )
    for prefix in own:
        ip(f"addr add {prefix[0]} dev {_DEVICE}{' nodad' if prefix.version == 6 else ''}")
    ip(f"link set {_DEVICE} up")
    fdb = f"bridge fdb add {_mac(peer)} dev {_DEVICE} dst {underlay(peer)[0]}"
    subprocess.run(fdb.split(), check=True)
    for prefix, mine in zip(its, own, strict=True):
        ip(f"neigh add {prefix[0]} lladdr {_mac(peer)} dev {_DEVICE} nud permanent")
        ip(
            f"route add {prefix} via {prefix[0]} dev {_DEVICE} onlink src {mine[1]} "
            f"metric {PEER_METRIC} mtu {_POD_MTU_BYTES} table {ROUTE_TABLE}"
        )


# What has to be equal


def _compare(
    bed: Bed, rung: transports.Transport, ours: Sequence[Node], hand: Sequence[Node]
) -> None:
    """Devices, offloads and entries. Raises: RuntimeError that names what differs."""
    found = [_path_settings(rung, nodes) for nodes in (ours, hand)]
    unlike = differences(*found)
    if unlike:
        raise RuntimeError(f"across {rung.name}: not the same path: {'; '.join(unlike)}")
    entries = [key for key in found[0] if key.split()[1] in _ENTRIES]
    bed.notes.append(
        f"across {rung.name}: {len(found[0]) - len(entries)} settings of devices with their "
        f"offloads are equal, and {len(entries)} entries: "
        + ", ".join(" ".join(key.split()[1:]) for key in entries if key.startswith("1 "))
    )


def _path_settings(rung: transports.Transport, nodes: Sequence[Node]) -> dict[str, str]:
    """By place, everything that a packet meets on its way; `1` and `2` are the nodes."""
    settings: dict[str, str] = {}
    for number, node in zip(NUMBERS, nodes, strict=True):
        links = [LINK] if rung is transports.ROUTE else [LINK, _DEVICE]
        of_node = link_settings(node, node.pods[0])
        for link in links:
            of_node |= link_settings_of(node.netns, link, link)
        of_node |= _entries(node, links[-1])
        settings |= {f"{number} {key}": value for key, value in of_node.items()}
    return settings


def _entries(node: Node, device: str) -> dict[str, str]:
    """Routes to the peer, rules, and of a VXLAN device neighbours, FDB and options."""
    (peer,) = (segments_of(n) for n in NUMBERS if str(segments_of(n)[0]) not in _own(node))
    found = {}
    for prefix in peer:
        show = f"-{prefix.version} route show {prefix} table {ROUTE_TABLE}"
        (route,) = ip_json(node.netns, show)
        found[f"route {prefix}"] = _picked(route, _OF_A_ROUTE)
    for version in (4, 6):
        rules = ip_json(node.netns, f"-{version} rule show")
        found[f"rules of IPv{version}"] = json.dumps(rules, sort_keys=True)
    if device == LINK:
        return found
    for entry in ip_json(node.netns, f"neigh show dev {device} nud permanent"):
        found[f"neighbour {entry['dst']}"] = _picked(entry, _OF_A_NEIGHBOUR)
    shown = output_of(node.netns, ["bridge", "-j", "fdb", "show", "dev", device])
    for entry in json.loads(shown):
        found[f"fdb {entry['mac']}"] = _picked(entry, _OF_AN_FDB_ENTRY)
    (link,) = ip_json(node.netns, f"link show dev {device}")
    found["device VXLAN options"] = json.dumps(link["linkinfo"], sort_keys=True)
    found["device MAC"] = link["address"]
    return found


def _own(node: Node) -> str:
    """The addresses of its pods."""
    return " ".join(
        str(ip_interface(entry["address"]).network) for entry in node.pods[0].result["ips"]
    )


def _picked(entry: dict[str, Any], fields: Sequence[str]) -> str:
    return json.dumps({field: entry.get(field) for field in fields}, sort_keys=True)
