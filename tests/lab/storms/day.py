"""What must be true of sites behind NATs when all is over that happened to them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from limpet.base.ownership import (
    NFT_OVERLAY_TABLE,
    NFT_PORTS_TABLE,
    NFT_RELAY_TABLE,
    NFT_SHARED_PORT_TABLE,
    NFT_TABLE,
)
from limpet.lab.world.machine import Machine
from limpet.lab.world.site import Nat
from limpet.lab.world.world import World
from tests.lab.rungs import rung
from tests.lab.storms.chaos import Chaos, until_empty
from tests.lab.strangers import tunnel_key, tunnel_peers

_FILTERS_BY_PORT = (Nat.PORT_RESTRICTED, Nat.SYMMETRIC, Nat.CGN)
_PLAIN_TABLES = {NFT_TABLE, NFT_OVERLAY_TABLE, NFT_PORTS_TABLE, NFT_SHARED_PORT_TABLE}
_ENDS, _OTHERS = ("ends4", "ends6"), ("to4", "to6", "to_port", "from_port", "source4", "source6")
"""Maps of a relay's table: the ones say whose an end is, the others what becomes of its packets."""


def right_rung(one: Machine, other: Machine) -> str:
    """That a pair ends on: a symmetric NAT's next port is known to nobody who filters by port."""
    if one.site is other.site:
        return "vxlan" if one.site.drops_unknown_sources else "route"
    nats = {one.site.nat, other.site.nat}
    if Nat.SYMMETRIC in nats and all(each.site.nat in _FILTERS_BY_PORT for each in (one, other)):
        return "relay"
    return "tunnel"


def wrong_rungs(world: World) -> list[str]:
    found = []
    for one, other in itertools.combinations(world.machines.values(), 2):
        now, right = rung(world, one.label, other.label), right_rung(one, other)
        if set(now) != {right}:
            found.append(f"{one.label} - {other.label}: {now} instead of {right}")
    return found


def nat_kinds(world: World) -> dict[str, Any]:
    return {
        name: machine.ask("status")["cluster"]["nat_traversal"]["relays"]["nat"]["ipv4"]
        for name, machine in world.machines.items()
    }


def descriptors(world: World) -> int:
    """That a relay may have open for a while: TLS connections, and ways in them for each pair."""
    return 4 + len(world.machines) ** 2


def check_across(chaos: Chaos, *, within_s: float) -> None:
    """Raises: AssertionError with what is wrong."""
    world = chaos.world
    until_empty(lambda: wrong_rungs(world), within_s=within_s)
    until_empty(
        lambda: [line for each in world.machines.values() for line in tunnel_leaks(world, each)],
        within_s=within_s,
    )


def tunnel_leaks(world: World, machine: Machine) -> list[str]:
    """What a node holds of tunnels and relays, and nothing wants any more."""
    return [
        f"{machine.label}: {each}"
        for each in (
            *_tunnels(world, machine),
            *_tables(machine),
            *(_relayed(machine) if "relay" in machine.node.roles else ()),
        )
    ]


def _tunnels(world: World, machine: Machine) -> Iterator[str]:
    ifname = machine.settings["tunnel_ifname"]
    running = processes_of(ifname)
    if len(running) != int(ifname in machine.links()):
        yield f"processes {running} serve {ifname}"
    if ifname in machine.links():
        known = {tunnel_key(each) for each in world.machines.values() if each is not machine}
        if not tunnel_peers(machine) <= known:
            yield "its tunnel has peers that are no nodes"


def processes_of(ifname: str) -> list[int]:
    """Userspace WireGuards of a device."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[-2:] == [ifname.encode(), b""] and b"wireguard" in words[0]:
            found.append(int(entry.name))
    return found


def _tables(machine: Machine) -> Iterator[str]:
    listed = json.loads(machine.run("nft", "-j", "list", "tables"))["nftables"]
    found = {each["table"]["name"] for each in listed if "table" in each}
    known = _PLAIN_TABLES | ({NFT_RELAY_TABLE} if "relay" in machine.node.roles else set())
    if found != known:
        yield f"tables {sorted(found)}"


def _relayed(machine: Machine) -> Iterator[str]:
    """The kernel joins what the agent knows as pairs, and nothing else."""
    maps = _relay_maps(machine)
    service = machine.ask("status")["cluster"]["nat_traversal"]["relaying"]
    pairs = {frozenset(pair["nodes"]) for pair in service["pairs"]}
    ports = set()
    for name in _ENDS:
        for key, comment in maps[name]:
            ports.add(key["concat"][2])
            if frozenset(comment.split()[:2]) not in pairs:
                yield f"an end of no pair in the kernel: {comment}"
    for name in _OTHERS:
        for key, _ in maps[name]:
            if key not in ports:
                yield f"port {key} in {name} and of no end"


def _relay_maps(machine: Machine) -> dict[str, list[tuple[Any, str]]]:
    """Keys and comments of a relay's elements by the name of the map."""
    listed = json.loads(machine.run("nft", "-j", "list", "table", "inet", NFT_RELAY_TABLE))
    found: dict[str, list[tuple[Any, str]]] = {}
    for each in listed["nftables"]:
        if "map" in each:
            elements = [key for key, _ in each["map"].get("elem", ())]
            found[each["map"]["name"]] = [
                (key["elem"]["val"], key["elem"].get("comment", ""))
                if isinstance(key, dict) and "elem" in key
                else (key, "")
                for key in elements
            ]
    return found


def unwanted_pairs(world: World) -> list[str]:
    """Pairs that a relay holds for nodes that have no end there."""
    wanted = set()
    names = {}
    for machine in world.machines.values():
        document = machine.ask("status")["cluster"]
        names[document["uid"]] = machine.label
        for pair in document["nat_traversal"]["relays"]["pairs"]:
            wanted.add((pair["relay"], frozenset((machine.label, pair["peer"]))))
    found = []
    for machine in world.machines.values():
        relaying = machine.ask("status")["cluster"]["nat_traversal"]["relaying"]
        for pair in relaying["pairs"] if relaying is not None else ():
            nodes = frozenset(names.get(uid, uid) for uid in pair["nodes"])
            if (machine.label, nodes) not in wanted:
                found.append(f"{machine.label} joins {sorted(nodes)}, who do not need it")
    return found
