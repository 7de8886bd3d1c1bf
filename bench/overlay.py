"""The network between nodes at many peers: planning, one changed peer, programming, the filter.

`python -m bench.overlay [PEERS ...]`, as root; a namespace of its own is made and removed.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, TypeVar

from limpet.kernel.namespaces import Namespace
from limpet.kernel.netlink import RouteSocket
from limpet.kernel.nftables import Nftables
from limpet.kernel.overlay import OverlayKernel
from limpet.model.cluster import ClusterKey, Grant, Network, NodeEntry, Presence, Sealed, Snapshot
from limpet.model.datapath import NFT_OVERLAY_TABLE
from limpet.model.network import Address
from limpet.model.overlay import OverlayPlan, OwnSide, PeerPath, Rung
from limpet.plan.overlay import View, plan_overlay, replan_overlay, view_of
from limpet.plan.overlay_diff import diff_overlay
from limpet.plan.overlay_filter import filter_commands, plan_filter

SIZES = (100, 1000, 5000)
_ROUNDS = 7
_UNSEALED = Sealed(b"", b"")
_OWN = OwnSide({4: "02:4c:04:00:00:00", 6: "02:4c:06:00:00:00"}, 1500, frozenset({"eth0"}))
_T = TypeVar("_T")
_PLACE = 10 << 24, 0xFD << 120


def cluster(peers: int) -> tuple[Snapshot, dict[str, PeerPath]]:
    """This node, uid `n0`, and so many peers, each with a segment of both IP versions."""
    network = Network(
        "bench", 1, 1, (ClusterKey(b""),), (IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/16"))
    )
    nodes = {f"n{number}": _entry(number) for number in range(peers + 1)}
    paths = {f"n{number}": _path(number) for number in range(1, peers + 1)}
    return Snapshot(network, None, nodes), paths


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
        4: f"02:4c:04:{sequence:02x}:{number >> 8:02x}:{number & 255:02x}",
        6: f"02:4c:06:{sequence:02x}:{number >> 8:02x}:{number & 255:02x}",
    }
    at = _underlay(number)
    presence = Presence(uid, sequence, "boot", addresses=(at,), vtep_macs=macs)
    return NodeEntry(grant, _UNSEALED, presence, _UNSEALED)


def _underlay(number: int) -> Address:
    return ip_address(f"172.16.{number >> 8}.{number & 255}")


def _path(number: int) -> PeerPath:
    return PeerPath(Rung.VXLAN, underlay=_underlay(number))


def median_ms(action: Callable[[], object], rounds: int = _ROUNDS) -> float:
    samples = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        samples.append((time.perf_counter() - started) * 1e3)
    return statistics.median(samples)


def planning(peers: int) -> dict[str, float]:
    snapshot, paths = cluster(peers)
    view = view_of(snapshot, "n0", paths, _OWN)
    plan = plan_overlay(view)
    state: dict[str, Any] = {"view": view, "plan": plan}
    sequence = iter(range(2, 200))

    def one_presence() -> None:
        entry = _entry(7, next(sequence))
        _change(state, replace(snapshot, nodes={**snapshot.nodes, "n7": entry}), paths)

    def one_path() -> None:
        new = {**paths, "n7": PeerPath(Rung.VXLAN, underlay=_underlay(next(sequence)))}
        _change(state, state["view"].snapshot, new)

    def one_grant() -> None:
        entry = _entry(7)
        grant = replace(entry.grant, generation=next(sequence), labels={"a": "b"})
        nodes = {**snapshot.nodes, "n7": replace(entry, grant=grant)}
        _change(state, replace(snapshot, nodes=nodes), paths)

    return {
        "segments of all (effective_segments) and the view": median_ms(
            lambda: view_of(snapshot, "n0", paths, _OWN)
        ),
        "plan of all": median_ms(lambda: plan_overlay(view)),
        "one changed presence: view, plan, diff": median_ms(one_presence),
        "one changed path: view, plan, diff": median_ms(one_path),
        "one changed grant: view, plan, diff": median_ms(one_grant),
        "filter text of all": median_ms(lambda: plan_filter(view, plan)),
    }


def _change(state: dict[str, Any], snapshot: Snapshot, paths: dict[str, PeerPath]) -> None:
    before: View = state["view"]
    held: OverlayPlan = state["plan"]
    after = view_of(snapshot, "n0", paths, _OWN, before=before)
    state["plan"], touched = replan_overlay(held, before, after)
    state["view"] = after
    assert touched is not None
    assert 0 <= len(diff_overlay(state["plan"].state, held.state, touched)) <= 5


class _Clock:
    """Samples by name, milliseconds."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}

    def __call__(self, name: str, action: Callable[..., _T], *arguments: object) -> _T:
        started = time.perf_counter()
        result = action(*arguments)
        self.samples.setdefault(name, []).append((time.perf_counter() - started) * 1e3)
        return result


def programming(peers: int, rounds: int = 3) -> dict[str, float]:
    """In a fresh namespace each time."""
    snapshot, paths = cluster(peers)
    view = view_of(snapshot, "n0", paths, _OWN)
    plan = plan_overlay(view)
    clock = _Clock()
    for number in range(rounds):
        netns = f"lov-bench-{os.getpid()}-{number}"
        subprocess.run(["ip", "netns", "add", netns], check=True)
        try:
            _gateway(netns)
            with Namespace(f"/run/netns/{netns}") as opened, opened.entered():
                _program(clock, view, plan)
                _filter(clock, view, plan)
        finally:
            subprocess.run(["ip", "netns", "delete", netns], check=True)
    return {name: statistics.median(samples) for name, samples in clock.samples.items()}


def _program(clock: _Clock, view: View, plan: OverlayPlan) -> None:
    with RouteSocket() as route:
        kernel = OverlayKernel(route)
        changes = diff_overlay(plan.state, kernel.observe(plan.state))
        assert clock("programmed from nothing", kernel.apply, changes) == []
        clock("observed", kernel.observe, plan.state)
        assert clock("diff of all", diff_overlay, plan.state, kernel.have) == []
        nodes = {**view.snapshot.nodes, "n7": _entry(7, 2)}
        after = view_of(replace(view.snapshot, nodes=nodes), "n0", view.paths, _OWN, before=view)
        new, touched = replan_overlay(plan, view, after)
        few = diff_overlay(new.state, kernel.have, touched)
        assert len(few) == 4
        assert clock("one changed peer programmed", kernel.apply, few) == []


def _filter(clock: _Clock, view: View, plan: OverlayPlan) -> None:
    nft = Nftables(NFT_OVERLAY_TABLE)
    text = plan_filter(view, plan)
    clock("filter put whole", lambda: nft.run(text, what="the filter"))
    silent = replace(plan, parts={**plan.parts, "n7": replace(plan.parts["n7"], sources=())})
    commands = filter_commands(view, plan, silent, ["n7"])
    assert commands
    clock("filter, one changed peer", lambda: nft.run(commands, what="the filter"))
    nft.close()


def _gateway(netns: str) -> None:
    lines = (
        "link add limpet0 type bridge",
        "link set limpet0 up",
        "addr add 10.0.0.1/24 dev limpet0 noprefixroute",
        "addr add fd00::1/64 dev limpet0 nodad noprefixroute",
        "link add eth0 type veth peer name eth1",
        "link set lo up",
    )
    subprocess.run(["ip", "-n", netns, "-b", "-"], input="\n".join(lines), text=True, check=True)


def memory_mib(peers: int) -> float:
    """Of plan and view, beside the snapshot."""
    snapshot, paths = cluster(peers)
    gc.collect()
    tracemalloc.start()
    view = view_of(snapshot, "n0", paths, _OWN)
    plan = plan_overlay(view)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.parts
    return used / (1 << 20)


def main() -> None:
    for peers in [int(word) for word in sys.argv[1:]] or SIZES:
        print(f"{peers} peers")
        for name, value in {**planning(peers), **programming(peers)}.items():
            print(f"  {name:52} {value:9.2f} ms")
        print(f"  {'memory of view and plan':52} {memory_mib(peers):9.2f} MiB")


if __name__ == "__main__":
    main()
