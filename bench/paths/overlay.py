"""The network between nodes at many peers, as far as one node plans and programs it.

Peers are simulated: a snapshot, and a proven VXLAN path to each. Cost is told for what changes,
and for one node of 100 to 5,000: it should stay the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from itertools import count

from bench.bed import Bed
from bench.figures import Figure, Target
from bench.nodes.netns import Netns
from bench.nodes.node import ip
from limpet.base.addresses import Address
from limpet.base.layered_map import alter, differing
from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.keys import ClusterKey
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.apply import OverlayKernel
from limpet.datapath.overlay.diff import diff_overlay
from limpet.datapath.overlay.filter.elements import filter_commands
from limpet.datapath.overlay.filter.ruleset import plan_filter
from limpet.datapath.overlay.plan import plan_overlay, replan_overlay
from limpet.datapath.overlay.state import OverlayPlan
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables

SIZES = (100, 1000, 2000, 3000, 4000, 5000)
_ROUNDS_OF_CURVE = 3
_CHANGES_EACH_ROUND = 5
_OWN = OwnSide({4: "02:4c:04:00:00:00", 6: "02:4c:06:00:00:00"}, 1500, frozenset({"eth0"}))
_PLACE = 10 << 24, 0xFD << 120
_CHANGED = "n7"


def cluster(peers: int) -> tuple[Snapshot, dict[str, PeerPath]]:
    """This node, uid `n0`, and so many peers, each with a segment of both IP versions."""
    network = Network(
        "bench", 1, 1, (ClusterKey(b""),), (IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/16"))
    )
    nodes = {f"n{number}": _entry(number) for number in range(peers + 1)}
    paths = {f"n{number}": _path(number) for number in range(1, peers + 1)}
    return Snapshot(network, nodes), paths


def _entry(number: int, sequence: int = 1) -> NodeEntry:
    uid = f"n{number}"
    grant = Grant(
        uid,
        uid,
        b"",
        1,
        number,
        segments=(
            IPv4Network((_PLACE[0] + (number << 8), 24)),
            IPv6Network((_PLACE[1] + (number << 64), 64)),
        ),
    )
    macs = {
        4: f"02:4c:04:00:{number >> 8:02x}:{number & 255:02x}",
        6: f"02:4c:06:00:{number >> 8:02x}:{number & 255:02x}",
    }
    at = _underlay(number, sequence)
    presence = Presence(uid, sequence, "boot", addresses=(at,), vtep_macs=macs)
    return NodeEntry(grant, presence)


def _underlay(number: int, sequence: int = 1) -> Address:
    """Another one with each sequence."""
    return ip_address(f"172.{15 + sequence}.{number >> 8}.{number & 255}")


def _path(number: int, sequence: int = 1) -> PeerPath:
    return PeerPath(transports.VXLAN, underlay=_underlay(number, sequence))


@dataclass
class Samples:
    """Of one size, in milliseconds. CPU: with the kernel's work on our behalf."""

    plan_cpu: list[float] = field(default_factory=list)
    program: list[float] = field(default_factory=list)
    program_cpu: list[float] = field(default_factory=list)
    change_cpu: list[float] = field(default_factory=list)
    messages: list[float] = field(default_factory=list)


def overlay(bed: Bed, rounds: int) -> list[Figure]:
    """Planning and programming 5,000 peers, one that changes, and what one more node costs."""
    largest = SIZES[-1]
    measure(largest, 1)  # so that no size pays for the first use of anything
    found = {
        peers: measure(peers, rounds if peers == largest else min(rounds, _ROUNDS_OF_CURVE))
        for peers in SIZES
    }
    plan_us = [[ms * 1e3 / n for ms in found[n].plan_cpu] for n in SIZES]
    program_us = [[ms * 1e3 / n for ms in found[n].program_cpu] for n in SIZES]
    sizes = ", ".join(map(str, SIZES))
    for what, curve in (("planned", plan_us), ("programmed", program_us)):
        told = ", ".join(f"{statistics.median(samples):.0f}" for samples in curve)
        bed.notes.append(f"overlay: a node {what} costs {told} CPU us, of {sizes} nodes")
    told = ", ".join(f"{statistics.median(found[n].change_cpu):.2f}" for n in SIZES)
    bed.notes.append(f"overlay: one changed peer costs {told} CPU ms, of {sizes} nodes")
    of = found[largest]
    whole = [ms / 1e3 for ms in of.program]
    flat = f"one node of {largest}, by one of {SIZES[0]}"
    few = Target(8, of_ratio=False)
    return [
        Figure(
            "plan-5000", f"plan for {largest} nodes", "CPU ms", of.plan_cpu, target=_at_most(250)
        ),
        Figure(
            "program-5000",
            f"{largest} peers programmed from nothing",
            "s",
            whole,
            target=_at_most(5),
        ),
        Figure(
            "change-5000",
            f"one changed peer of {largest}: planned and programmed",
            "CPU ms",
            of.change_cpu,
            target=_at_most(5),
        ),
        Figure(
            "change-5000-messages",
            "... objects told to the kernel",
            "objects",
            of.messages,
            target=few,
        ),
        Figure("plan-curve", f"{flat}: planned", "CPU us", plan_us[-1], plan_us[0], Target(2)),
        Figure(
            "program-curve",
            f"{flat}: programmed",
            "CPU us",
            program_us[-1],
            program_us[0],
            Target(2),
        ),
    ]


def _at_most(bound: float) -> Target:
    return Target(bound, of_ratio=False)


def measure(peers: int, rounds: int) -> Samples:
    """In a fresh namespace each round."""
    snapshot, paths = cluster(peers)
    samples = Samples()
    for number in range(rounds):
        with _timed(samples.plan_cpu, time.process_time):
            view = view_of(snapshot, "n0", paths, _OWN)
            plan = plan_overlay(view)
        netns = Netns(f"peers-{peers}-{number}")
        try:
            with netns.inside():
                _prepare_links()
                _program(view, plan, samples)
        finally:
            netns.close()
    return samples


@contextmanager
def _timed(samples: list[float], clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    started = clock()
    yield
    samples.append((clock() - started) * 1e3)


def _prepare_links() -> None:
    ip("link add limpet0 type bridge")
    ip("link set limpet0 up")
    ip("addr add 10.0.0.1/24 dev limpet0 noprefixroute")
    ip("addr add fd00::1/64 dev limpet0 nodad noprefixroute")
    ip("link add eth0 type veth peer name eth1")
    ip("link set lo up")


def _program(view: View, plan: OverlayPlan, samples: Samples) -> None:
    nft = Nftables(NFT_OVERLAY_TABLE)
    try:
        with RouteSocket() as route:
            kernel = OverlayKernel(route)
            with _timed(samples.program), _timed(samples.program_cpu, time.process_time):
                assert kernel.apply(diff_overlay(plan.state, kernel.observe(plan.state))) == []
                nft.put_table(plan_filter(view, plan))
            assert diff_overlay(plan.state, kernel.observe(plan.state)) == []
            sequences = count(2)
            for _ in range(_CHANGES_EACH_ROUND):
                view, plan, told = _change(kernel, nft, view, plan, next(sequences), samples)
                samples.messages.append(told)
            assert diff_overlay(plan.state, kernel.observe(plan.state)) == []
    finally:
        nft.close()


def _change(
    kernel: OverlayKernel,
    nft: Nftables,
    before: View,
    plan: OverlayPlan,
    sequence: int,
    samples: Samples,
) -> tuple[View, OverlayPlan, int]:
    """One peer has another address: new snapshot, new path, then all that a round does."""
    number = int(_CHANGED[1:])
    nodes = alter(before.snapshot.nodes, {_CHANGED: _entry(number, sequence)})
    paths = alter(before.paths, {_CHANGED: _path(number, sequence)})
    snapshot = replace(before.snapshot, nodes=nodes)
    with _timed(samples.change_cpu, time.process_time):
        view = view_of(snapshot, "n0", paths, _OWN, before=before)
        new, touched = replan_overlay(plan, before, view)
        assert touched is not None
        changes = diff_overlay(new.state, kernel.have, touched)
        assert kernel.apply(changes) == []
        commands = filter_commands(view, plan, new, differing(plan.parts, new.parts))
        nft.run(commands, what="the filter of peers")
    assert changes
    elements = sum(line.count(",") + 1 for line in commands.splitlines())
    return view, new, len(changes) + elements
