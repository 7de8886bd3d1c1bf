"""What an agent costs that has a thousand tunnelled peers and nothing to do for its pods.

    agent, wireguard-go ── [node] uplink ──── outside [namespace]: its peers, in one process

All peers answer, ask as often as nodes do that have as many peers themselves, and compare with
the agent, through the tunnel, what both know.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack

from bench.bed import Bed
from bench.figures import Figure, Target
from bench.nodes.member import FIRST_ADDRESS, write_cluster
from bench.nodes.node import Node, ip
from bench.nodes.part import Part
from bench.nodes.plugins import Limpet
from bench.nodes.resident import cpu_s
from bench.paths.tunnel import PEERS, program
from limpet.datapath.tunnel.wireguard.process import WireguardProcess

_PART_S = 20.0
"""Of the time that is watched; a thousand idle peers are asked once in ten of them."""
_WITHIN_S = 300.0
_CHANGES, _CHANGE_EVERY_S, _AFTERWARDS_S = 40, 0.25, 15.0
"""Afterwards: until who has been told of a change counts as idle again."""


def tunnel_idle(bed: Bed, rounds: int) -> list[Figure]:
    """Processor time, over `rounds` times 20 s, once every peer was asked and has asked."""
    if bed.reference_only:
        return []
    ifname = f"lbn{os.getpid()}i"
    with ExitStack() as undo:
        node = Node("idle", bed.disk_folder)
        undo.callback(node.close)
        wireguard = WireguardProcess(ifname, log=node.folder / "wireguard.log", program=program())
        undo.callback(_end, node, wireguard)
        cluster = node.folder / "state" / "cluster"
        write_cluster(cluster, PEERS + 1, tunnelled=True)
        others = node.folder / "others"
        shutil.copytree(cluster, others)
        with node.outside.inside():
            ip(f"route add local {FIRST_ADDRESS}/16 dev lo")
        peers = Part(node.outside, ["bench.paths.peers_part", str(others), str(PEERS)], undo)
        settings = {
            "segments": [],
            "peer_port": 7471,
            "tunnel_ifname": ifname,
            "tunnel_program": program(),
        }
        plugin = Limpet(node, settings=settings)
        undo.callback(plugin.close)
        try:
            _wait_until_idle(peers)
            with node.netns.inside():
                pids = plugin.agent_pid, wireguard.pid or 0
            found = _watch(bed, pids, peers, rounds * _PART_S)
            return [*found, _changes(bed, pids[0], peers, found[0].ours[0])]
        except Exception as error:
            error.add_note(plugin.log_tail())
            raise


def _end(node: Node, wireguard: WireguardProcess) -> None:
    with node.netns.inside():
        wireguard.stop()


def _wait_until_idle(peers: Part) -> None:
    """Until every peer was asked, and no way's size is asked any more."""
    limit_s = time.monotonic() + _WITHIN_S
    before = -1
    while time.monotonic() < limit_s:
        told = peers.ask({})
        if told["reached"] == PEERS and told["answered_of_size"] == before:
            return
        before = told.get("answered_of_size", 0)
        time.sleep(2.0)
    raise RuntimeError(f"idle: after {_WITHIN_S:g} s only {told} of {PEERS} peers")


def _watch(bed: Bed, pids: tuple[int, int], peers: Part, watched_s: float) -> list[Figure]:
    """`pids`: of the agent and of its wireguard-go."""
    before, told = [cpu_s(pid) for pid in pids], peers.ask({})
    began_s = time.monotonic()
    time.sleep(watched_s)
    now = peers.ask({})
    took_s = time.monotonic() - began_s
    of_agent, of_wireguard = (
        (cpu_s(pid) - used_s) / took_s * 100 for pid, used_s in zip(pids, before, strict=True)
    )
    rates = {key: (now[key] - told.get(key, 0)) / took_s for key in now}
    bed.notes.append(
        f"idle: {took_s:.0f} s; probes a second: {rates['answered']:.1f} asked by the agent, "
        f"{rates['asked']:.1f} by its peers; digests: {rates['digests_heard']:.2f} and "
        f"{rates['digests_told']:.2f}; handshakes {rates['handshakes']:.2f}; "
        f"the peers' process took {rates['cpu_s'] * 100:.1f} % of a core"
    )
    what = f"{PEERS} idle tunnel peers that all answer"
    return [
        Figure(
            "tunnel-idle",
            f"{what}: the agent, of one core",
            "CPU %",
            [of_agent],
            target=Target(1.5, of_ratio=False),
        ),
        Figure("tunnel-idle-wireguard", "... wireguard-go", "CPU %", [of_wireguard]),
    ]


def _changes(bed: Bed, agent: int, peers: Part, idle_percent: float) -> Figure:
    """Some peers tell that they are reached at another place too, one after the other."""
    used_s, began_s, before = cpu_s(agent), time.monotonic(), peers.ask({})
    for number in range(1, _CHANGES + 1):
        peers.ask({"change": number})
        time.sleep(_CHANGE_EVERY_S)
    time.sleep(_AFTERWARDS_S)
    used_s = cpu_s(agent) - used_s - idle_percent / 100 * (time.monotonic() - began_s)
    now = peers.ask({})
    asked, begun = (
        (now[key] - before.get(key, 0)) / _CHANGES for key in ("answered", "handshakes")
    )
    bed.notes.append(
        f"idle: for each change the agent has begun {begun:.1f} handshakes with those that it has "
        f"told, and asked them and others {asked:.0f} times by which way they are reached"
    )
    return Figure(
        "tunnel-idle-change",
        "... one of them that changes: all that follows in the agent",
        "CPU ms",
        [used_s / _CHANGES * 1e3],
        target=Target(20, of_ratio=False),
    )
