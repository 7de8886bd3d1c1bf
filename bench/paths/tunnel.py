"""Encrypted tunnels: from pod to pod against the same WireGuard set up by hand, and many peers.

    pod ── limpet0 ── [node] ── wireguard-go ──── site0 ════ site0 ──── … ── pod

Both sides have the same program, keys of their own, and the same MTU; the hand's has what carries
the packets, and nothing beside it: no nftables, no table of its own for its routes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from ipaddress import ip_address
from pathlib import Path

from bench.bed import Bed, Samples
from bench.figures import Figure, Target
from bench.nodes.member import TUNNEL_PORT, write_cluster
from bench.nodes.netns import Netns
from bench.nodes.node import Node, Pod, ip, output_of
from bench.nodes.plugins import Limpet
from bench.nodes.resident import cpu_s
from bench.paths.node_pairs import (
    BRIDGE,
    LINK,
    NUMBERS,
    POD_CIDRS,
    make_bridge,
    segments_of,
    two_nodes,
    underlay,
)
from bench.paths.overlay import cluster
from bench.traffic.throughput import transfer
from limpet.base.errors import LimpetError
from limpet.base.layered_map import alter
from limpet.base.ownership import NFT_OVERLAY_TABLE, ROUTE_TABLE
from limpet.cluster.keys import ClusterKey, public_key_of
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.apply import OverlayKernel
from limpet.datapath.overlay.diff import diff_overlay
from limpet.datapath.overlay.filter.ruleset import plan_filter
from limpet.datapath.overlay.plan import plan_overlay, replan_overlay
from limpet.datapath.tunnel.diff import diff_tunnel
from limpet.datapath.tunnel.key import tunnel_key_of
from limpet.datapath.tunnel.owned import needed_rules
from limpet.datapath.tunnel.plan import TunnelView, plan_tunnel, replan_tunnel, tunnel_ends
from limpet.datapath.tunnel.program import Program
from limpet.datapath.tunnel.state import DeviceSetting, PeerSetting
from limpet.datapath.tunnel.wireguard.apply import TunnelKernel
from limpet.datapath.tunnel.wireguard.device import UserspaceWireguard
from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables

PEERS = 1000
_MTU_BYTES = 1440
_SIZE = "300M"
_BATCHES = 10
_DATAGRAMS = 2000
_IN_FLIGHT = 128
_LIMIT_S = 20.0
_WATCHED_S = 10.0
_WITHIN_S = 60.0
_CHANGES = 50
_ROOT = Path(__file__).resolve().parents[2]


@cache
def program() -> str:
    fetch = [_ROOT / "scripts/fetch-wireguard"]
    return subprocess.run(fetch, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


# Pod to pod


def across_tunnel(bed: Bed, rounds: int) -> list[Figure]:
    """TCP and 64-byte UDP over IPv4, both sides in turn."""
    if bed.reference_only:
        return []
    rates: Samples = {"limpet": [], "by hand": []}
    counts: Samples = {"limpet": [], "by hand": []}
    with _ours(bed) as ours, _by_hand(bed, ours) as hand:
        sides = (("limpet", ours), ("by hand", hand))
        for number in range(rounds):
            for label, nodes in sides if number % 2 == 0 else reversed(sides):
                pods = nodes[0].pods[0], nodes[1].pods[0]
                rates[label].append(transfer(*pods, _SIZE).gbit_per_s)
                counts[label].append(_datagrams_kpps(*pods))
    what = "pod to pod across sites, against the same WireGuard by hand"
    target = Target(0.95, at_least=True)
    tcp, udp = ((samples["limpet"], samples["by hand"], target) for samples in (rates, counts))
    return [
        Figure("across-tunnel-tcp", f"{what}: TCP", "Gbit/s", *tcp),
        Figure("across-tunnel-udp", f"{what}: 64-byte UDP", "kpps", *udp),
    ]


def _datagrams_kpps(client: Pod, server: Pod) -> float:
    """Thousands a second that arrive, with so many on their way at a time.

    Of some batches the fastest counts: in that one others had the processor least.
    """
    with client.netns.inside():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with server.netns.inside():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.bind((server.address(4), 0))
        receiver.settimeout(_LIMIT_S)
        sender.connect(receiver.getsockname())
        return max(_batch_kpps(sender, receiver) for _ in range(_BATCHES))


def _batch_kpps(sender: socket.socket, receiver: socket.socket) -> float:
    data = bytes(64)
    started_s = time.perf_counter()
    for _ in range(_IN_FLIGHT):
        sender.send(data)
    for number in range(_DATAGRAMS):
        receiver.recv(len(data))
        if number + _IN_FLIGHT < _DATAGRAMS:
            sender.send(data)
    return _DATAGRAMS / (time.perf_counter() - started_s) / 1e3


# Limpet's side


@contextmanager
def _ours(bed: Bed) -> Iterator[list[Node]]:
    """A pod on each of two nodes, by agent and CNI binary; the tunnel, by Limpet's planner."""
    with two_nodes(bed, "ours") as nodes, ExitStack() as undo:
        for number, node in zip(NUMBERS, nodes, strict=True):
            settings = {
                "segments": list(map(str, segments_of(number))),
                "cluster_cidrs": list(map(str, POD_CIDRS)),
                "mtu_bytes": _MTU_BYTES,
            }
            plugin = Limpet(node, settings=settings)
            undo.callback(plugin.close)
            plugin.conf |= {"mtu": _MTU_BYTES, "ipMasq": False}
            (pod,) = node.new_pods(1)
            plugin.add(pod)
            with node.netns.inside():
                ifname = f"lbn{os.getpid()}o{number}"
                Programmed(ifname, _view_of_two(number), node.netns, node.folder, undo)
        yield nodes


def _seed(number: int) -> bytes:
    return bytes(30) + bytes([7, number])


def _view_of_two(number: int) -> View:
    (peer,) = (each for each in NUMBERS if each != number)
    network = Network("bench", 1, 1, (ClusterKey(b""),), POD_CIDRS)
    snapshot = Snapshot(network, {f"n{each}": _entry(each) for each in NUMBERS})
    endpoint = ip_address(underlay(peer)[0]), TUNNEL_PORT
    paths = {f"n{peer}": PeerPath(transports.TUNNEL, endpoint=endpoint)}
    own = OwnSide({}, 1500, frozenset({LINK}), tunnel=f"lbn{os.getpid()}o{number}")
    return view_of(snapshot, f"n{number}", paths, own)


def _entry(number: int) -> NodeEntry:
    uid = f"n{number}"
    key = public_key_of(_seed(number))
    grant = Grant(uid, uid, key, 1, number, segments=segments_of(number))
    addresses = tuple(map(ip_address, underlay(number)))
    presence = Presence(uid, 1, "boot", addresses=addresses, tunnel_port=TUNNEL_PORT)
    return NodeEntry(grant, presence)


class Programmed:
    """A node's tunnel and routes, as an agent's rounds make them, in the caller's namespace."""

    def __init__(
        self, ifname: str, view: View, netns: Netns, folder: Path, undo: ExitStack
    ) -> None:
        grant = view.grant
        assert grant is not None
        number = int(grant.name.removeprefix("n"))
        self._key = tunnel_key_of(_seed(number), grant.public_key, port=TUNNEL_PORT)
        self._route = undo.enter_context(RouteSocket())
        log = folder / f"{ifname}.log"
        self._tunnel = TunnelKernel(self._route, log=log, ifname=ifname, program=program())
        undo.callback(_end, self._tunnel.program, netns)
        self._kernel = OverlayKernel(self._route)
        self.view = view
        self.plan = plan_overlay(view)
        self._ends = tunnel_ends(view)
        self._seen = TunnelView(view, self.plan.parts, self._ends, self._key, ifname)
        self._tunnels = plan_tunnel(self._seen)
        want = self._tunnels.state
        made = diff_tunnel(want, self._tunnel.observe(want), {})
        failures: list[LimpetError] = [*self._tunnel.apply(made)]
        self._route.apply(*needed_rules(self._route, wanted=True))
        failures += self._tunnel.put_addresses(self._tunnels.addresses)
        state = self.plan.state
        failures += self._kernel.apply(diff_overlay(state, self._kernel.observe(state)))
        if failures:
            raise RuntimeError(f"limpet: the tunnel cannot be programmed: {failures[0]}")
        nft = Nftables(NFT_OVERLAY_TABLE)
        undo.callback(nft.close)
        text = plan_filter(view, self.plan, bridges=[BRIDGE], devices=[view.own.tunnel])
        if text:
            nft.put_table(text)

    def change(self, uid: str, path: PeerPath) -> None:
        """The peer has another path: planned and programmed."""
        before = self.view
        paths = alter(before.paths, {uid: path})
        self.view = view_of(before.snapshot, before.uid, paths, before.own, before=before)
        self.plan, touched = replan_overlay(self.plan, before, self.view)
        self._ends = tunnel_ends(self.view, (before, self._ends))
        seen = replace(self._seen, view=self.view, admitted=self.plan.parts, ends=self._ends)
        self._tunnels, keys = replan_tunnel(self._tunnels, self._seen, seen)
        self._seen = seen
        have, given = self._tunnel.have, self._tunnel.given
        changes = diff_tunnel(self._tunnels.state, have, given, keys)
        failures: list[LimpetError] = [*self._tunnel.apply(changes)]
        routes = diff_overlay(self.plan.state, self._kernel.have, touched)
        failures += self._kernel.apply(routes)
        if failures or not changes:
            raise RuntimeError(f"limpet: the change was not programmed: {failures[:1]}")


def _end(program: Program, netns: Netns) -> None:
    with netns.inside():
        program.stop()


# The hand's side


@contextmanager
def _by_hand(bed: Bed, ours: Sequence[Node]) -> Iterator[list[Node]]:
    keys = {each: tunnel_key_of(_seed(each), public_key_of(_seed(each))) for each in NUMBERS}
    with two_nodes(bed, "hand") as nodes, ExitStack() as undo:
        for number, node, like in zip(NUMBERS, nodes, ours, strict=True):
            (pod,) = node.new_pods(1)
            pod.result = like.pods[0].result
            (peer,) = (each for each in NUMBERS if each != number)
            ifname = f"lbn{os.getpid()}h{number}"
            process = WireguardProcess(ifname, log=node.folder / f"{ifname}.log", program=program())
            undo.callback(_end, process, node.netns)
            endpoint = ip_address(underlay(peer)[0]), TUNNEL_PORT
            setting = PeerSetting(keys[peer].public_key, segments_of(peer), endpoint)
            with node.netns.inside():
                make_bridge(number, pod, _MTU_BYTES)
                device = UserspaceWireguard(process)
                device.make()
                device.write(DeviceSetting(keys[number].private_key, TUNNEL_PORT, 0, (setting,)))
                ip(f"link set {ifname} mtu {_MTU_BYTES} up")
                for prefix in segments_of(peer):
                    ip(f"route add {prefix} dev {ifname}")
        yield nodes


# Many peers


def tunnel_peers(bed: Bed, rounds: int) -> list[Figure]:
    """A thousand of them: the agent's start, one change, and what it costs to have them."""
    if bed.reference_only:
        return []
    cold, warm, busy, changes = [], [], [], list(_changes(bed))
    node = Node("peers", bed.disk_folder)
    ifname = f"lbn{os.getpid()}p"
    wireguard = WireguardProcess(ifname, log=node.folder / "wireguard.log", program=program())
    try:
        write_cluster(node.folder / "state" / "cluster", PEERS + 1, tunnelled=True)
        settings = {
            "segments": [],
            "peer_port": 7471,
            "tunnel_ifname": ifname,
            "tunnel_program": program(),
        }
        began_s = time.monotonic()
        plugin = Limpet(node, settings=settings)
        try:
            cold.append(_configured_s(node, wireguard, began_s))
            for _ in range(rounds):
                plugin.stop()
                began_s = time.monotonic()
                plugin.start()
                warm.append(_configured_s(node, wireguard, began_s))
            used_s, began_s = cpu_s(plugin.agent_pid), time.monotonic()
            time.sleep(_WATCHED_S)
            used_s = cpu_s(plugin.agent_pid) - used_s
            busy.append(used_s / (time.monotonic() - began_s) * 100)
        except Exception as error:
            error.add_note(plugin.log_tail())
            raise
        finally:
            plugin.close()
    finally:
        with node.netns.inside():
            wireguard.stop()
        node.close()
    what = f"{PEERS} tunnel peers"
    return [
        Figure(
            "tunnel-start",
            f"{what}: agent start to all configured, after a boot",
            "s",
            cold,
            target=Target(2, of_ratio=False),
        ),
        Figure(
            "tunnel-restart",
            "... the agent alone started again",
            "s",
            warm,
            target=Target(2, of_ratio=False),
        ),
        Figure(
            "tunnel-idle-cpu",
            "... the agent while none of them answers: of one core",
            "CPU %",
            busy,
        ),
        Figure(
            "tunnel-change",
            f"one changed peer of {PEERS}: planned and programmed",
            "ms",
            changes,
            target=Target(5, of_ratio=False),
        ),
    ]


def _configured_s(node: Node, program: WireguardProcess, began_s: float) -> float:
    """From then until every peer has its routes, and the device has every peer."""
    while time.monotonic() - began_s < _WITHIN_S:
        shown = output_of(node.netns, ["ip", "-4", "route", "show", "table", str(ROUTE_TABLE)])
        if shown.count(f" dev {program.ifname} ") == PEERS:
            took_s = time.monotonic() - began_s
            with node.netns.inside():
                peers = UserspaceWireguard(program).read()
            if peers is not None and len(peers.peers) == PEERS:
                return took_s
        time.sleep(0.01)
    raise RuntimeError(f"tunnel: not all of {PEERS} peers were configured in {_WITHIN_S:g} s")


def _changes(bed: Bed) -> Iterator[float]:
    """Milliseconds of each of some changes."""
    netns = Netns("changes")
    folder = bed.disk_folder
    try:
        with netns.inside(), ExitStack() as undo:
            ip("link set lo up")
            for source in ("10.0.0.1/32", "fd00::1/128"):
                ip(f"addr add {source} dev lo")
            ifname = f"lbn{os.getpid()}c"
            made = Programmed(ifname, _view_of_many(ifname), netns, folder, undo)
            undo.callback((folder / f"{ifname}.log").unlink, missing_ok=True)
            for number in range(_CHANGES):
                endpoint = ip_address("198.51.100.9"), 1024 + number
                started_s = time.perf_counter()
                made.change("n7", PeerPath(transports.TUNNEL, endpoint=endpoint))
                yield (time.perf_counter() - started_s) * 1e3
    finally:
        netns.close()


def _view_of_many(ifname: str) -> View:
    snapshot, _ = cluster(PEERS)
    nodes, paths = {}, {}
    for number, (uid, entry) in enumerate(snapshot.nodes.items()):
        assert entry.presence is not None
        key = public_key_of(_seed(0)[:28] + number.to_bytes(4, "big"))
        presence = replace(entry.presence, tunnel_port=TUNNEL_PORT)
        nodes[uid] = replace(entry, grant=replace(entry.grant, public_key=key), presence=presence)
        paths[uid] = PeerPath(transports.TUNNEL, endpoint=(presence.addresses[0], TUNNEL_PORT))
    del paths["n0"]
    own = OwnSide({}, 1500, frozenset(), tunnel=ifname)
    return view_of(replace(snapshot, nodes=nodes), "n0", paths, own)
