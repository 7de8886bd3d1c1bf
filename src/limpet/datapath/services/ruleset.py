"""nftables text of the table of Services, all but its elements.

A packet that begins a flow is looked up once by address, protocol and port; the verdict names a
chain for the number of endpoints that there are, which draws one of them from a second map. So the
cost is the same for one Service and for 10,000, and a changed endpoint is a few elements. Packets
of flows that are known do not come here: chains of type nat are asked for the first one only. What
was led nowhere, by others neither, and is for an address that only a Service can have is dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from ipaddress import collapse_addresses, ip_address, ip_network
from typing import NamedTuple

from limpet.base.addresses import Prefix, bounds_by_version, bounds_of, is_within
from limpet.base.ownership import NFT_SERVICES_TABLE, SERVICE_MARK
from limpet.datapath.services.elements import CLIENT_SEEDS, MOST_HASH, MOST_SLOTS
from limpet.datapath.services.state import (
    PREFIX_NAMES,
    PREFIX_SETS,
    PROTOCOLS,
    VERSIONS,
    Surroundings,
)

LOCAL_SLOTS = MOST_SLOTS
"""Slots from there on are of endpoints of this node, for traffic that must not leave it."""
LOCAL_MARK = "local"
"""In the name of a chain for what must not leave the node."""
_MOST_CLIENTS = 1 << 16
_FAMILY = {4: "ip", 6: "ip6"}
_LOCAL_ONLY = "fc00::/7"
"""RFC 4193. A process of the node that asks such a cluster address has such an address, too, where
there is one (RFC 6724), and nobody on the Internet answers that."""
_MARK = f"{SERVICE_MARK:#010x}"


class Pick(NamedTuple):
    """A chain that draws an endpoint: for all Services that are alike in this."""

    version: int
    protocol: str
    at_node: bool
    """Asked for by a port of the node, at whatever address."""
    near: int
    """Slots for whom every endpoint would do."""
    local: int = -1
    """Slots for what comes from outside of the cluster and must not leave the node; -1: it may."""
    sticky: bool = False
    sources: tuple[str, ...] = ()
    """Prefixes of this IP version: who comes from elsewhere is dropped; empty: nobody is."""

    @property
    def name(self) -> str:
        parts = ["node" if self.at_node else "pick", self.protocol.lower()]
        parts += [str(self.version), str(self.near)]
        if self.local >= 0:
            parts.append(f"{LOCAL_MARK}{self.local}")
        if self.sources:
            parts.append("from" + hashlib.sha256(" ".join(self.sources).encode()).hexdigest()[:16])
        return "_".join([*parts, "sticky"] if self.sticky else parts)

    def rules(self) -> str:
        """Text of the chain."""
        ip, version = _FAMILY[self.version], self.version
        protocol = self.protocol.lower()
        asked = f"meta l4proto . {protocol} dport"
        own = asked if self.at_node else f"{ip} daddr . {asked}"
        slots = slots_name(version, self.protocol, at_node=self.at_node)
        mark = f"meta mark set meta mark | {_MARK}"
        near = f"dnat {ip} to {own} . numgen random mod {self.near} map @{slots}"
        allowed = []
        if self.sources:
            allowed = [f"{ip} saddr != {{ {', '.join(self.sources)} }} drop"]
        sticky = []
        if self.sticky:
            client = _client(version, f"{ip} daddr", f"{protocol} dport")
            names = affinity_names(version, self.protocol)
            sticky = [f"dnat {ip} to " + " : ".join(f"{client} map @{name}" for name in names)]
        if self.local < 0:
            # A pod of another node, too: it asks an address of this one, which has to answer it.
            marked = f"{ip} saddr != @pods{version} {mark}"
            return _chain(self.name, [*allowed, marked, *sticky, near])
        far = f"{ip} saddr @cluster{version} {ip} saddr != @pods{version} {mark}"
        inside = [f"{ip} saddr @pods{version} {near}", f"meta mark & {_MARK} != 0 {near}"]
        local = f"{own} . numgen random mod {self.local} offset {LOCAL_SLOTS} map @{slots}"
        outside = [f"dnat {ip} to {local}"] if self.local else ["drop"]
        own = f"fib saddr type local {mark}"
        return _chain(self.name, [*allowed, own, far, *sticky, *inside, *outside])


REFUSE, HAIRPIN = "refuse", "hairpin"
AT_NODE, LEAVE, ARRIVE = "at_node", "leave", "arrive"
NOBODYS = "nobodys"
SURROUNDING = frozenset((AT_NODE, LEAVE, ARRIVE, *(f"set {name}" for name in PREFIX_SETS)))
"""Chains and sets that what is around the pods decides."""


_KINDS = [(version, protocol.lower()) for version in VERSIONS for protocol in PROTOCOLS]
_BY_KIND = ", ".join(
    f"ipv{version} . {name} : jump asked_{name}_{version}" for version, name in _KINDS
)


@cache
def slots_name(version: int, protocol: str, *, at_node: bool) -> str:
    """A map for each protocol: nft takes a port for one of the protocol that its map says."""
    return f"{'node_slots' if at_node else 'slots'}_{protocol.lower()}_{version}"


def affinity_names(version: int, protocol: str) -> tuple[str, ...]:
    """Where a client's endpoint is noted: of IPv6 address and port apart, with the same key."""
    name = f"affinity_{protocol.lower()}_{version}"
    return (name, f"{name}_port") if version == 6 else (name,)


def _client(version: int, asked: str, port: str) -> str:
    """Who asks for whom. nft 1.0.6 dies of an assertion when it is told to note anything by more
    than 16 bytes: of IPv6, hashes stand for addresses. Two clients of one hash share an endpoint;
    of the Service there are two, so that nobody is led to another's endpoint."""
    if version == 4:
        return f"ip saddr . {asked} . meta l4proto . {port}"
    words = ("ip6 saddr", asked, asked)
    seeded = zip(words, CLIENT_SEEDS, strict=True)
    hashes = (f"jhash {word} mod {MOST_HASH} seed {seed:#x}" for word, seed in seeded)
    return " . ".join([*hashes, port])


def record_name(version: int, protocol: str, timeout_s: int) -> str:
    return f"remember_{protocol.lower()}_{version}_{timeout_s}"


def record_rules(version: int, protocol: str, timeout_s: int) -> str:
    """The chain that notes which endpoint a client got, after its address was put in."""
    ip, port = _FAMILY[version], f"{protocol.lower()} dport"
    client = _client(version, f"ct original {ip} daddr", "ct original proto-dst")
    names = affinity_names(version, protocol)
    targets = (f"{ip} daddr", port) if len(names) > 1 else (f"{ip} daddr . {port}",)
    notes = (
        f"update @{name} {{ {client} timeout {timeout_s}s : {target} }}"
        for name, target in zip(names, targets, strict=True)
    )
    rule = " ".join([f"meta l4proto {protocol.lower()}", *notes])
    return _chain(record_name(version, protocol, timeout_s), [rule])


def base_text() -> str:
    """Maps without elements, and the chains that are always there."""
    lines = [f"table inet {NFT_SERVICES_TABLE} {{"]
    for version in VERSIONS:
        lines += _maps(version)
    return "\n".join(lines) + "\n" + _BASE + "}\n"


def surroundings_text(
    around: Surroundings, servers: Collection[bytes] = (), *, is_affine: bool = False
) -> str:
    """Commands that set what follows from the node's pods, whatever was there.

    `servers`: addresses of API servers; until they are known nothing is dropped, since one may be
    where only Services should be. `is_affine`: there are Services that remember who asked; of no
    others a new connection is looked up for it."""
    table = f"inet {NFT_SERVICES_TABLE}"
    lines = []
    ranges = around.services if servers else ()
    sets: dict[str, Sequence[Prefix]] = {
        "cluster": (*around.cluster, *around.pods),
        "pods": around.pods,
        "ranges": ranges,
        "spared": _spared(around, ranges, servers),
    }
    for name, prefixes in sets.items():
        for version in VERSIONS:
            merged = _merged(prefixes, version)
            lines.append(f"flush set {table} {name}{version}")
            if merged:
                joined = ", ".join(merged)
                lines.append(f"add element {table} {name}{version} {{ {joined} }}")
    lines.append(f"flush chain {table} {AT_NODE}")
    for version in VERSIONS:
        found = _merged(around.node_ports, version)
        only = f"{_FAMILY[version]} daddr {{ {', '.join(found)} }} " if found else ""
        lines.append(
            f"add rule {table} {AT_NODE} meta nfproto ipv{version} {only}"
            f"meta l4proto . th dport vmap @node_ports{version}"
        )
    rules = [f"meta nfproto . meta l4proto vmap {{ {_BY_KIND} }}"] if is_affine else []
    lines += (f"flush chain {table} {each}" for each in (ARRIVE, LEAVE))
    lines += (f"add rule {table} {ARRIVE} {each}" for each in rules)
    for version in VERSIONS:
        ip = _FAMILY[version]
        if not around.is_bridge_filtered:
            # The bridge hands the answer from pod to pod, and nothing puts the Service's address
            # back in: so it has to come by the node.
            rules.append(f"{ip} saddr @pods{version} {ip} daddr @pods{version} masquerade")
        else:
            rules.append(f"{ip} saddr . {ip} daddr vmap @hairpin{version}")
    rules += [f"meta mark & {_MARK} == 0 return", "fib daddr type local return"]
    for version in VERSIONS:
        ip = _FAMILY[version]
        # Pods of this node answer by it, so they may see who asks.
        rules.append(f"{ip} daddr @pods{version} return")
        for gateway in around.gateways:
            if gateway.version == version:
                rules.append(f"{ip} daddr @cluster{version} snat {ip} to {gateway}")
    rules += [f"ip6 saddr {_LOCAL_ONLY} ip6 daddr != {_LOCAL_ONLY} masquerade"]
    rules += ["fib saddr . oif type local return", "masquerade"]
    return "\n".join([*lines, *(f"add rule {table} {LEAVE} {rule}" for rule in rules)]) + "\n"


def _spared(
    around: Surroundings, ranges: Collection[Prefix], servers: Iterable[bytes]
) -> list[Prefix]:
    """Subnets of this node's links, other nodes and API servers in these ranges, which somebody may
    have said too wide."""
    bounds = bounds_by_version(ranges)
    others = {*(each for each, _ in around.reached), *map(ip_address, servers)}
    found = [ip_network(x.packed) for x in others if is_within(int(x), bounds[x.version])]
    # A link's subnet that is wider than a range leaves it to Services, as routes would.
    return found + [
        link
        for link in around.links
        if all(is_within(each, bounds[link.version]) for each in bounds_of(link))
    ]


def sources_of(ranges: Iterable[str], version: int) -> tuple[str, ...]:
    """Those of one IP version, without what others of them hold."""
    return tuple(_merged(map(ip_network, ranges), version))


def _merged(prefixes: Iterable[Prefix], version: int) -> list[str]:
    if version == 4:
        return [str(p) for p in collapse_addresses(p for p in prefixes if p.version == 4)]
    return [str(p) for p in collapse_addresses(p for p in prefixes if p.version == 6)]


def _chain(name: str, rules: Iterable[str]) -> str:
    lines = [f"table inet {NFT_SERVICES_TABLE} {{", f"\tchain {name} {{"]
    return "\n".join([*lines, *(f"\t\t{rule}" for rule in rules), "\t}", "}"]) + "\n"


def _maps(version: int) -> list[str]:
    ip = _FAMILY[version]
    address = f"ipv{version}_addr"
    lines = []
    for name in ("services", "sticky"):
        lines += _block(
            f"map {name}{version}", [f"type {address} . inet_proto . inet_service : verdict"]
        )
    for name in ("node_ports", "sticky_ports"):
        lines += _block(f"map {name}{version}", ["type inet_proto . inet_service : verdict"])
    lines += _block(f"map hairpin{version}", [f"type {address} . {address} : verdict"])
    lines += _block(f"map addresses{version}", [f"type {address} : verdict"])
    for protocol in PROTOCOLS:
        port = f"{protocol.lower()} dport"
        key, target = f"meta l4proto . {port}", f"{ip} daddr . {port}"
        for at_node, asked in ((False, f"{ip} daddr . {key}"), (True, key)):
            name = slots_name(version, protocol, at_node=at_node)
            lines += _block(f"map {name}", [f"typeof {asked} . numgen random mod 2 : {target}"])
        names = affinity_names(version, protocol)
        drawn = "numgen random mod 2"  # as wide as a hash
        client = f"{ip} saddr . {ip} daddr . {key}"
        kinds = [f"{client} : {target}"]
        if len(names) > 1:
            client = f"{drawn} . {drawn} . {drawn} . {port}"
            kinds = [f"{client} : {ip} daddr", f"{client} : {port}"]
        for name, kind in zip(names, kinds, strict=True):
            body = [f"typeof {kind}", f"size {_MOST_CLIENTS}", "flags dynamic,timeout"]
            lines += _block(f"map {name}", body)
    for name in PREFIX_NAMES:
        lines += _block(f"set {name}{version}", [f"type {address}", "flags interval", "auto-merge"])
    return lines


def _block(head: str, body: list[str]) -> list[str]:
    return [f"\t{head} {{", *(f"\t\t{line}" for line in body), "\t}", ""]


def _asked(version: int, protocol: str) -> str:
    """Chain for what an address of a Service was translated of: who asked may be remembered."""
    about = f"\t\tmeta l4proto {protocol} "
    return (
        f"\tchain asked_{protocol}_{version} {{\n"
        f"{about}ct original {_FAMILY[version]} daddr . meta l4proto . ct original proto-dst "
        f"vmap @sticky{version}\n"
        f"{about}meta l4proto . ct original proto-dst vmap @sticky_ports{version}\n\t}}\n\n"
    )


# Before other tables' NAT: an address of a Service is nobody else's.
_BASE = f"""\
	chain {REFUSE} {{
		meta l4proto tcp reject with tcp reset
		reject
	}}

	chain {HAIRPIN} {{
		masquerade
	}}

	chain services {{
		ip daddr . meta l4proto . th dport vmap @services4
		ip6 daddr . meta l4proto . th dport vmap @services6
		ip daddr vmap @addresses4
		ip6 daddr vmap @addresses6
		fib daddr type != local return
		ip daddr 127.0.0.0/8 return
		ip6 daddr ::1 return
		jump {AT_NODE}
	}}

	chain {AT_NODE} {{
	}}

	chain prerouting {{
		type nat hook prerouting priority -110; policy accept;
		jump services
	}}

	chain output {{
		type nat hook output priority -110; policy accept;
		jump services
	}}

	chain {LEAVE} {{
	}}

	chain {ARRIVE} {{
	}}

{"".join(_asked(*each) for each in _KINDS)}\
	chain input {{
		type nat hook input priority 90; policy accept;
		ct status dnat jump {ARRIVE}
	}}

	chain postrouting {{
		type nat hook postrouting priority 90; policy accept;
		ct status dnat jump {LEAVE}
	}}

	chain {NOBODYS} {{
		ip daddr @ranges4 ip daddr != @spared4 ip daddr != @cluster4 fib daddr type != local drop
		ip6 daddr @ranges6 ip6 daddr != @spared6 ip6 daddr != @cluster6 fib daddr type != local drop
	}}

	chain forward {{
		type filter hook forward priority 0; policy accept;
		ct state new jump {NOBODYS}
	}}

	chain send {{
		type filter hook output priority 0; policy accept;
		ct state new jump {NOBODYS}
	}}
"""
