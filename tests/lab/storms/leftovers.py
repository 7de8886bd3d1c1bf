"""What is left over on a node that nothing wants any more, and what its agent takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from limpet.lab.world.machine import UPLINK, Machine
from limpet.lab.world.tunnels import ipsec_pid
from limpet.lab.world.world import World

_FAMILIES = ("4", "6")


def leaks(world: World, machine: Machine) -> list[str]:
    """What the node's kernel holds and nothing wants any more, in words."""
    others = [each for each in world.machines.values() if each is not machine]
    peers = {str(address.ip) for each in others for address in each.addresses}
    segments = {
        ip_network(segment["prefix"])
        for each in world.machines.values()
        for segment in each.ask("status")["segments"]
    }
    cidrs = {ip_network(cidr) for cidr in machine.ask("status")["cluster"]["pod_cidrs"]}
    firsts = {str(segment.network_address) for segment in segments}
    return [
        *_leaked_links(machine),
        *_leaked_rules(machine),
        *(
            f"route to {route['dst']}"
            for route in _json(
                machine, "ip -j route show table 5148", "ip -6 -j route show table 5148"
            )
            if ip_network(route["dst"]) not in segments | cidrs
        ),
        *(
            f"entry of {entry['mac']} to {entry['dst']}"
            for entry in _json(machine, "bridge -j fdb show")
            if "dst" in entry and entry["dst"] not in peers
        ),
        *(
            f"neighbour {entry['dst']} on {entry['dev']}"
            for entry in _json(machine, "ip -j neigh show nud permanent")
            if entry["dev"].startswith("limvx") and entry["dst"] not in firsts
        ),
        *(
            f"element {each} of the filter's {kind}"
            for kind, known in (("vxlan", peers), ("tunnels", peers | _outside(world)))
            for each in _of_filter(machine, kind) - known
        ),
    ]


def _json(machine: Machine, *commands: str) -> Iterator[dict[str, Any]]:
    for command in commands:
        yield from json.loads(machine.run(*command.split()) or "[]")


def _leaked_links(machine: Machine) -> Iterator[str]:
    own = {"lo", UPLINK, "limpet0", "limvx4", "limvx6", machine.settings["tunnel_ifname"]}
    own |= {"ipsec0"} if _has_ipsec(machine) else set()
    found = machine.links().keys() - own
    if len(found) != len(machine.pods):
        yield f"links {sorted(found)} for {len(machine.pods)} pods"


def _has_ipsec(machine: Machine) -> bool:
    return ipsec_pid(machine.name) is not None


def _leaked_rules(machine: Machine) -> Iterator[str]:
    most = 6 if _has_ipsec(machine) else 5  # charon adds one of its own
    for family in _FAMILIES:
        rules = list(_json(machine, f"ip -{family} -j rule show"))
        if len(rules) != len({rule["priority"] for rule in rules}) or len(rules) > most:
            yield f"IPv{family} rules {rules}"


def _outside(world: World) -> set[str]:
    """What others see of the sites: where tunnels of nodes behind NATs end."""
    return {str(each.ip) for gate in world.gateways.values() for each in gate.public_addresses}


def _of_filter(machine: Machine, kind: str) -> set[str]:
    """Addresses in the filter's sets of a kind: `vxlan`, where its packets are let in from;
    `tunnels`, where peers hear tunnels' packets."""
    listed = json.loads(machine.run("nft", "-j", "list", "table", "inet", "limpet_overlay"))
    found = set()
    for each in listed["nftables"]:
        if not each.get("set", {}).get("name", "").startswith(kind):
            continue
        for element in each["set"].get("elem", ()):
            parts = element.get("concat") if isinstance(element, dict) else None
            if parts:
                found.add(str(ip_address(parts[0])))
    return found


# What an agent takes


@dataclass(frozen=True, slots=True)
class Usage:
    descriptors: int
    threads: int
    resident_mib: float
    cpu_s: float


def usage_of(pid: int) -> Usage:
    folder = Path(f"/proc/{pid}")
    lines = (folder / "status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return Usage(
        descriptors=len(list((folder / "fd").iterdir())),
        threads=int(status["Threads"]),
        resident_mib=int(status["VmRSS"].split()[0]) / 1024,
        cpu_s=(int(fields[11]) + int(fields[12])) / 100,
    )
