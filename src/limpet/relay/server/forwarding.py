"""The relay's fast path: an nftables table that hands on packets of pairs, and remembers nothing.

What comes for a port of the relay's, to an address of the node's own, before connection tracking:

    begins with "Lmr" 1                   to the tunnel's port, where the agent hears it
    from the place of the port's end      on to the place of the other end, from the other's port
    from anywhere else                    dropped and counted

The other address of ours is written into a packet only once it has been routed: one that comes from
outside with a source of our own would not be. The mark of the packets that carry a tunnel, which
keeps them out of the table that leads into tunnels, says until then that it is to be done. What the
agent answers to a check leaves from the port that its text names, since the check came to that.

The elements say whose they are, so that an agent that starts again takes up the pairs from the
kernel, which has handed on their packets meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from limpet.base.ownership import NFT_RELAY_TABLE, TUNNEL_MARK
from limpet.cluster.datagrams.peer_datagram import MAGIC, RELAY_MAGIC, BodyKind
from limpet.datapath.node.forward import HandleNftables, read_forward_chains
from limpet.linux.nftables import Nftables, TableListing
from limpet.linux.owned import Owned
from limpet.linux.sysctl import read_sysctl
from limpet.relay.server.pairs import ForwardingEntry, PairEnd, UdpFlow

OWNED = Owned(nft_tables=(NFT_RELAY_TABLE,))
_HEADER_BYTES, _KIND_AT, _PORT_AT = 8, 4, 68
"""Bytes of a UDP header; offsets of a datagram's kind, of the relay's port in a token or bound."""
_FAMILIES = {4: "ip", 6: "ip6"}
_FORWARDING = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}
_VERSIONS = {"ip": (4,), "ip6": (6,), "inet": (4, 6)}
"""IP versions of nftables' families."""
_BURST_S = 0.25


class CounterReading(NamedTuple):
    """Reading of a counter of the kernel's."""

    packets: int
    size_bytes: int


_Elements = dict[str, dict[str, str]]
"""As nft takes them, by the name of the map and the key."""


class RelayKernel:
    """For the network namespace of the thread that makes it."""

    def __init__(self, ports: tuple[int, int], *, bytes_per_s: int = 0) -> None:
        """`ports`: first and last. `bytes_per_s`: of one node's packets; 0: no limit.

        Raises: LimpetError without libnftables.
        """
        self._nft = Nftables(NFT_RELAY_TABLE)
        self._ports = ports
        self._bytes_per_s = bytes_per_s
        self._tunnel_port = 0
        self._entries: dict[int, ForwardingEntry] = {}
        self._named: set[int] = set()
        """Ports that the agent answers from."""

    def close(self) -> None:
        """Leaves the table, which goes on forwarding."""
        self._nft.close()

    def read(self) -> list[PairEnd]:
        """Ends whose packets the table hands on, whoever has put it there. Raises: KernelError."""
        return parse_ends(self._nft.read_table())

    def put(self, tunnel_port: int, entries: Iterable[ForwardingEntry]) -> None:
        """Replaces the table in one transaction. Raises: KernelError."""
        self._tunnel_port = tunnel_port
        self._entries = {entry.end.port: entry for entry in entries}
        self._named = set(self._entries)
        self._nft.put_table(self._ruleset())

    def name(self, port: int) -> None:
        """What the agent answers to a check of this port leaves from it. Raises: KernelError."""
        if port not in self._named:
            self._named.add(port)
            self._nft.run(
                _difference({}, elements_of((), limited=False, named=(port,))),
                what=f"table {NFT_RELAY_TABLE}",
            )

    def apply(
        self, changes: Mapping[int, ForwardingEntry | None], *, freed: Collection[int] = ()
    ) -> None:
        """By port; None: what comes there is dropped. `freed`: ports of no pair any more.

        Raises: KernelError, then nothing is changed but what `repair` will put.
        """
        named = self._named - set(freed)
        after = dict(self._entries)
        for port, entry in changes.items():
            if entry is not None:
                after[port] = entry
            else:
                after.pop(port, None)
        old, new = (
            self._elements(
                [held[port] for port in changes if port in held], names.intersection(freed)
            )
            for held, names in ((self._entries, self._named), (after, named))
        )
        self._entries, self._named = after, named
        commands = _difference(old, new)
        if commands:
            self._nft.run(commands, what=f"table {NFT_RELAY_TABLE}")

    def repair(self) -> bool:
        """Puts the table anew where it is not as it should be, and says whether that was so.

        Raises: KernelError.
        """
        return self._nft.keep(self._ruleset())

    def remove(self) -> None:
        """Raises: KernelError."""
        self._entries, self._named = {}, set()
        self._nft.keep("")

    def counters(self) -> dict[str, CounterReading]:
        """Since the table was put, by what became of packets. Raises: KernelError."""
        listed = self._nft.run(f"list counters table inet {NFT_RELAY_TABLE}", what="counters")
        return parse_counters(listed)

    def _ruleset(self) -> str:
        elements = self._elements(self._entries.values(), self._named)
        return ruleset(self._ports, self._tunnel_port, self._bytes_per_s, elements)

    def _elements(self, entries: Iterable[ForwardingEntry], named: Iterable[int]) -> _Elements:
        return elements_of(entries, limited=self._bytes_per_s > 0, named=named)


def forwarded_versions() -> frozenset[int]:
    """IP versions that the node forwards at all, in the calling thread's namespace."""
    return frozenset(v for v, path in _FORWARDING.items() if read_sysctl(path) not in (None, "0"))


def blocked_versions() -> dict[int, str]:
    """IP versions whose forwarding others' firewall chains drop, unless a rule of theirs lets it
    pass, each with the first of these chains. An accept of ours would not help.

    Raises: KernelError, LimpetError.
    """
    nft = HandleNftables()
    try:
        found: dict[int, str] = {}
        for chain in read_forward_chains(nft):
            if chain.cause:
                for version in _VERSIONS[chain.family]:
                    found.setdefault(version, f"{chain}: {chain.cause}")
        return found
    finally:
        nft.close()


def ruleset(ports: tuple[int, int], tunnel_port: int, bytes_per_s: int, elements: _Elements) -> str:
    """The table's text, indented by tabs as nft prints it."""
    span = f"{ports[0]}-{ports[1]}"
    answers = f"{{ {BodyKind.RELAY_TOKEN:d}, {BodyKind.RELAY_BOUND:d} }}"
    limit = ""
    if bytes_per_s:  # of all that one node sends, by whichever of its ports
        burst = max(65536, int(bytes_per_s * _BURST_S))
        rate = f"limit rate over {bytes_per_s} bytes/second burst {burst} bytes"
        limit = f"""meta mark set udp dport map @owner
        update @rates {{ meta mark {rate} }} counter name over_rate drop"""
    counters = "".join(f"\n    counter {name} {{\n    }}" for name in COUNTERS)
    maps = "".join(_map(name, kind, elements.get(name, {})) for name, kind in _MAPS.items())
    forward_chains = "".join(
        f"""
    chain forward{version} {{
        notrack
        {limit}
        meta mark set {TUNNEL_MARK:#x}
        {family} daddr set udp dport map @to{version}
        udp checksum 0 goto bare
        {_SET_PORTS}
        counter name forwarded accept
    }}"""
        for version, family in _FAMILIES.items()
    )
    # The bytes that name a port are a number to nft; 1.0.6 takes that for a port, 1.1.3 and newer
    # by a map alone. A datagram without a checksum would get a wrong one from the kernel's ESP over
    # IPv4. The postrouting chain comes after masquerading of others, which leaves alone what is not
    # tracked.
    text = f"""table inet {NFT_RELAY_TABLE} {{{counters}{maps}
    set rates {{
        type mark
        size 65535
        flags dynamic,timeout
        timeout 1m
    }}
    chain bare {{
        {_SET_PORTS}
        udp checksum set 0
        counter name forwarded accept
    }}{forward_chains}
    chain hand_up {{
        notrack
        {limit}
        meta mark set 0x0
        counter name handed_up accept
    }}
    chain relay {{
        {_bits(0, 4)} 0x{RELAY_MAGIC.hex()} udp dport set {tunnel_port} accept
        ip saddr . udp sport . udp dport vmap @ends4
        ip6 saddr . udp sport . udp dport vmap @ends6
        counter name not_bound drop
    }}
    chain prerouting {{
        type filter hook prerouting priority raw; policy accept;
        udp dport {span} fib daddr type local goto relay
    }}
    chain postrouting {{
        type filter hook postrouting priority 300; policy accept;
        meta mark {TUNNEL_MARK:#x} udp sport {span} ip saddr set udp sport map @source4
        meta mark {TUNNEL_MARK:#x} udp sport {span} ip6 saddr set udp sport map @source6
        udp sport {tunnel_port} {_bits(0, 4)} 0x{MAGIC.hex()} \
            {_bits(_KIND_AT, 1)} {answers} udp sport set {_NAMED_PORT} map @named
    }}
}}
"""
    return text.replace("    ", "\t")


COUNTERS = ("forwarded", "handed_up", "not_bound", "over_rate")
"""`handed_up`: to the agent, for a stream or for the other IP version."""
_MAPS = {
    "ends4": "ipv4_addr . inet_service . inet_service : verdict",
    "ends6": "ipv6_addr . inet_service . inet_service : verdict",
    "to4": "inet_service : ipv4_addr",
    "to6": "inet_service : ipv6_addr",
    "to_port": "inet_service : inet_service",
    "from_port": "inet_service : inet_service",
    "source4": "inet_service : ipv4_addr",
    "source6": "inet_service : ipv6_addr",
    "owner": "inet_service : mark",
    "named": "",
}
_SET_PORTS = """udp sport set udp dport map @from_port
        udp dport set udp dport map @to_port"""


def _map(name: str, kind: str, held: Mapping[str, str]) -> str:
    items = ", ".join(held[key] for key in sorted(held))
    elements = f"\n        elements = {{ {items} }}" if held else ""
    kind = f"type {kind}" if kind else f"typeof {_NAMED_PORT} : udp sport"
    return f"\n    map {name} {{\n        {kind}{elements}\n    }}"


def _bits(at: int, count: int) -> str:
    """Bytes of the datagram as nft's raw payload, counted in bits from the UDP header on."""
    return f"@th,{(_HEADER_BYTES + at) * 8},{count * 8}"


_NAMED_PORT = _bits(_PORT_AT, 2)


# Elements


def elements_of(
    entries: Iterable[ForwardingEntry], *, limited: bool, named: Iterable[int] = ()
) -> _Elements:
    """`named`: ports that the agent answers from."""
    found: _Elements = {}

    def put(name: str, key: object, value: object, comment: str = "") -> None:
        said = f' comment "{comment}"' if comment else ""
        found.setdefault(name, {})[str(key)] = f"{key}{said} : {value}"

    for end, onward in entries:
        assert end.place is not None
        (address, udp_port), local = end.place
        verdict = f"goto forward{address.version}" if onward else "goto hand_up"
        owner = f"{end.uid} {end.peer} {end.other} {local}"
        put(f"ends{address.version}", f"{address} . {udp_port} . {end.port}", verdict, owner)
        if limited:
            digest = hashlib.blake2s(end.uid.encode(), digest_size=4).hexdigest()
            put("owner", end.port, f"0x{digest}")
        if onward is not None:
            (to_address, to_port), from_address = onward
            put(f"to{to_address.version}", end.port, to_address)
            put("to_port", end.port, to_port)
            put("from_port", end.port, end.other)
            put(f"source{from_address.version}", end.other, from_address)
    for port in named:
        put("named", f"{port:#x}", port)
    return found


def parse_counters(listing: str) -> dict[str, CounterReading]:
    """Counters by their names, in a listing of nft's."""
    found = re.findall(r"counter (\w+) \{\s*packets (\d+) bytes (\d+)", listing)
    return {name: CounterReading(int(packets), int(size)) for name, packets, size in found}


_ITEM = re.compile(r"(?P<key>\S.*?) comment (?P<comment>.*) : \S.*")


def parse_ends(table: TableListing) -> list[PairEnd]:
    """Ends and places in a table that nft has listed, without where their packets go."""
    found = []
    for item in sorted({*table.elements.get("ends4", ()), *table.elements.get("ends6", ())}):
        match = _ITEM.fullmatch(item)
        if match is None:
            continue  # none of ours
        try:
            address, udp_port, port = match["key"].split(" . ")
            uid, peer, other, local = match["comment"].split()
            place = UdpFlow((ip_address(address), int(udp_port)), ip_address(local))
            found.append(PairEnd(uid, peer, int(port), int(other), place))
        except ValueError:
            continue
    return found


def _difference(old: _Elements, new: _Elements) -> str:
    """nft commands; an element with other data is deleted first: nft does not replace it."""
    commands = []
    for verb, more, less in (("delete", old, new), ("add", new, old)):
        for name, held in sorted(more.items()):
            kept = less.get(name, {})
            changed = [
                key if verb == "delete" else element
                for key, element in sorted(held.items())
                if kept.get(key) != element
            ]
            if changed:
                commands.append(
                    f"{verb} element inet {NFT_RELAY_TABLE} {name} {{ {', '.join(changed)} }}\n"
                )
    return "".join(commands)
