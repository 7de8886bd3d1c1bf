"""Plans the two tables that hold this node's pods to their policies.

`inet`: what is forwarded, after a Service's address was turned into a pod's and before a source is
turned into the node's. What the node itself sends and gets always passes, but for what its stack
sends by an address of others: so IPVS, to which packets for a Service are packets for the node,
sends them on. A packet of a new connection is looked up by its pod's address, which leads to a
chain for all pods that may do the same; there by its port, which leads to the sets of addresses
that may be the peer: so many steps, however many policies there are. Nothing but a rule lets it
pass: where it finds none, such as in a chain that was emptied, it is dropped.

`bridge`: packets between two pods of a bridge would pass no such hook, but where br_netfilter says
so. Those of an isolated pod, both ways, are handed to the node's own stack, which routes them back
to the bridge: on any kernel, with connections tracked, and by the same rules as all others. What
cannot be routed between them (link-local addresses, multicast, other protocols) does not pass, but
for ARP and neighbour discovery. A pod that is limited in what it sends sends from its own addresses
only.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from limpet.base.addresses import Address, is_plain_name, link_local_of
from limpet.base.ownership import NFT_POLICY_TABLE
from limpet.datapath.policy.peer_sets import (
    PASS,
    PeerLines,
    Planned,
    blocks_lines,
    named_ports_lines,
    pods_lines,
)
from limpet.datapath.policy.table import NamedSet, Table
from limpet.policies.compiled import (
    DIRECTIONS,
    Compiled,
    DirectionRules,
    RuleId,
)
from limpet.policies.policy import Direction, Key, PortSpan

DROPPED_COUNTER = "dropped"
"""Packets that no policy allows."""
_DROP = f'counter name "{DROPPED_COUNTER}" drop'
_NEIGHBOUR_DISCOVERY = (
    "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } "
    # As sent: what was routed has less, and would be a way out of a closed pod (RFC 4861).
    "ip6 hoplimit 255"
)
_LOOK_UP = (
    "ip saddr . ip daddr @self4 accept",
    "ip6 saddr . ip6 daddr @self6 accept",
    "ip saddr vmap @egress4",
    "ip6 saddr vmap @egress6",
    "goto enter",
)
_FORWARD = (
    "type filter hook forward priority filter; policy drop;",
    "ct state established,related accept",
    # Bridged ones come here too, where br_netfilter says so.
    f"{_NEIGHBOUR_DISCOVERY} accept",
    *_LOOK_UP,
)
_OUTPUT = (
    "type filter hook output priority filter; policy accept;",
    "ct state established,related accept",
    "fib saddr type local accept",
    f"{_NEIGHBOUR_DISCOVERY} accept",
    *_LOOK_UP,
)
_ENTER = ("ip daddr vmap @ingress4", "ip6 daddr vmap @ingress6", "accept")
_NEIGHBOURS = ("ether type arp", _NEIGHBOUR_DISCOVERY)
_BRIDGE_CHAINS: dict[str, tuple[str, ...]] = {
    "neighbours_only": (*(f"{each} accept" for each in _NEIGHBOURS), "drop"),
    "limited": (
        "iifname . ip saddr != @own4 drop",
        # Another link-local address than its link's is nobody's whose packets are looked up, and
        # what it sends to a pod of its bridge by way of the node is routed. Groups' is not.
        "ip6 saddr fe80::/10 ip6 daddr ff00::/8 return",
        "iifname . ip6 saddr != @own6 drop",
    ),
    "prerouting": (
        # Before others' NAT between ports, and before br_netfilter.
        "type filter hook prerouting priority dstnat - 10; policy accept;",
        *(f"{each} accept" for each in _NEIGHBOURS),
        "iifname @egress_ports jump limited",
        "meta pkttype { broadcast, multicast } accept",
        "iifname vmap @ports",
        "ether daddr vmap @macs",
    ),
    "forward": (
        "type filter hook forward priority filter; policy accept;",
        # A bridge that has just got another MAC would flood what is handed to it by the former one.
        "meta pkttype host ether daddr @routers drop",
        # Sent to the node, and then to another port of the bridge: br_netfilter has turned a
        # Service's address into a pod's, and asks the rules for what is forwarded (br_nf_forward).
        "meta pkttype host accept",
        "iifname @egress_ports goto neighbours_only",
        "oifname @ingress_ports goto neighbours_only",
    ),
}


@dataclass(frozen=True, slots=True)
class LocalPort:
    """A pod's interface on a bridge of this node."""

    key: Key
    ifname: str
    """Name of the host end; empty: another plugin made the interface and routes what it carries."""
    mac: str
    """MAC of the pod's end."""
    bridge_mac: str
    addresses: tuple[Address, ...]
    labels: tuple[tuple[str, str], ...] = ()
    """Labels told with its interface."""
    granted: tuple[Address, ...] = ()
    """What it may have beside its own, as others may: a virtual address that moves between pods."""

    @property
    def looked_up(self) -> tuple[Address, ...]:
        """With the one that its link has: Linux routes that too, back to the link it came by."""
        return (*self.addresses, link_local_of(self.mac)) if self.mac else self.addresses


@dataclass(frozen=True, slots=True)
class PolicyTables:
    """What should be; as an observation, what is."""

    inet: Table = Table("inet", NFT_POLICY_TABLE)
    bridge: Table = Table("bridge", NFT_POLICY_TABLE)


NOTHING = PolicyTables()


def plan_tables(
    compiled: Compiled, ports: Collection[LocalPort], planned: Planned | None = None
) -> PolicyTables:
    """Both empty where no pod is isolated. `planned`: of the last time, by the same caller."""
    sides = {
        (port, direction): side
        for port in ports
        for direction in DIRECTIONS
        if (side := compiled.sides.get((port.key, direction))) is not None
        and not _is_open(compiled, side)
    }
    if not sides:
        return NOTHING
    planned = planned or Planned()
    inet = _Inet(compiled, planned).table(sides, ports)
    planned.end()
    return PolicyTables(inet, _bridge_table(sides))


def _is_open(compiled: Compiled, side: DirectionRules) -> bool:
    return any(compiled.peers[rule].everybody for rule in side.always)


Sides = dict[tuple[LocalPort, Direction], DirectionRules]


class _Inet:
    def __init__(self, compiled: Compiled, planned: Planned) -> None:
        self._compiled = compiled
        self._planned = planned
        self._sets: dict[str, NamedSet] = {}
        self._chains: dict[str, tuple[str, ...]] = {}
        self._verdicts: dict[tuple[Direction, frozenset[RuleId]], str] = {}
        self._side_chains: dict[tuple[Direction, int], str] = {}
        """By the identity of the side: pods that are alike have the same."""

    def table(self, sides: Sides, ports: Collection[LocalPort]) -> Table:
        elements: dict[str, set[str]] = {
            f"{kind}{version}": set() for kind in ("self", *DIRECTIONS) for version in (4, 6)
        }
        held: dict[tuple[Direction, Address], dict[Key, DirectionRules]] = defaultdict(dict)
        for (port, direction), side in sides.items():
            for address in port.looked_up:
                held[direction, address][port.key] = side
                elements[f"self{address.version}"].add(f"{address} . {address}")
        for (direction, address), holders in held.items():
            chain = self._chain_of(direction, holders)
            elements[f"{direction}{address.version}"].add(f"{address} : goto {chain}")
        for address, verdict in self._granted(sides, ports):
            elements[f"ingress{address.version}"].add(f"{address} : {verdict}")
        heads = {
            f"{kind}{version}": self._head(kind, version)
            for kind in ("self", *DIRECTIONS)
            for version in (4, 6)
        }
        fixed = {
            name: NamedSet("set" if name[:4] == "self" else "map", head, frozenset(elements[name]))
            for name, head in heads.items()
        }
        return Table(
            "inet",
            NFT_POLICY_TABLE,
            (DROPPED_COUNTER,),
            {**self._sets, **fixed},
            {"enter": _ENTER, **self._chains, "forward": _FORWARD, "output": _OUTPUT},
        )

    def _chain_of(self, direction: Direction, holders: Mapping[Key, DirectionRules]) -> str:
        """The chain of one pod, or of several that have one address: an element of a map has one
        verdict, and two of them would be refused with all else that changes."""
        # A packet sees all rules of a chain as of one moment, and an element of a map perhaps as of
        # a later one: so it is the pod's chain that changes, and not what leads there.
        keys = sorted(holders)
        name = f"pod_{_hash((keys[0], direction))}"
        if len(keys) > 1:
            name = f"shared_{_hash((keys, direction))}"
        self._chains[name] = (self._alike(direction, holders.values()),)
        return name

    def _alike(self, direction: Direction, found: Iterable[DirectionRules | None]) -> str:
        """The verdict where nobody knows which of several pods it is: what all of them may alike,
        or nothing. None: of one that is not isolated."""
        side, *others = {id(each): each for each in found}.values()
        return f"goto {self._side_chain(direction, side)}" if side and not others else _DROP

    def _granted(self, sides: Sides, ports: Collection[LocalPort]) -> Iterable[tuple[Address, str]]:
        """Verdicts for addresses that pods may have beside their own. Which of several has one now,
        nobody knows: it passes what all of them let in alike, or nothing."""
        holders: dict[Address, list[LocalPort]] = defaultdict(list)
        for port in ports:
            for address in port.granted:
                holders[address].append(port)
        for address in holders.keys() & {each for port in ports for each in port.looked_up}:
            del holders[address]
        for address, held in holders.items():
            found = [sides.get((port, "ingress")) for port in held]
            if not any(found):
                continue
            chain = f"granted_{_hash(sorted({port.key for port in held}))}"
            self._chains[chain] = (self._alike("ingress", found),)
            yield address, f"goto {chain}"

    @staticmethod
    def _head(kind: str, version: int) -> tuple[str, ...]:
        address = f"ipv{version}_addr"
        return (f"type {address} . {address}" if kind == "self" else f"type {address} : verdict",)

    def _side_chain(self, direction: Direction, side: DirectionRules) -> str:
        at = (direction, id(side))
        if at not in self._side_chains:
            self._side_chains[at] = self._chain(
                "side", [*self._named(side), *self._by_port(direction, side)]
            )
        return self._side_chains[at]

    def _named(self, side: DirectionRules) -> Iterable[str]:
        if not side.named:
            return ()
        rules = sorted(side.named)
        found = [self._compiled.named[rule] for rule in rules]

        whose = _hash(rules)
        return self._take(
            self._planned.part(
                ("named", side.named),
                tuple(found),
                lambda held: named_ports_lines(whose, found, held),
            )
        )

    def _take(self, part: PeerLines) -> tuple[str, ...]:
        self._sets |= part.sets
        return part.lines

    def _by_port(self, direction: Direction, side: DirectionRules) -> Iterable[str]:
        """What is allowed at all ports is asked first: its sets are in the processor's cache, those
        of a single port seldom are."""
        yield from self._peers(direction, side.always)
        if side.windows:
            verdicts = {id(each): self._verdict(direction, each) for each in side.sets_of_rules}
            elements = frozenset(
                f"{window.span.protocol} . {_span(window.span)} : {verdicts[id(window.rules)]}"
                for window in side.windows
            )
            name = f"ports_{_hash(sorted(elements))}"
            wide = any(window.span.first < window.span.last for window in side.windows)
            head = ("type inet_proto . inet_service : verdict",)
            self._sets[name] = NamedSet(
                "map", (*head, "flags interval") if wide else head, elements
            )
            yield f"meta l4proto . th dport vmap @{name}"
        yield _DROP

    def _verdict(self, direction: Direction, rules: frozenset[RuleId]) -> str:
        """For those who come by these rules, and no others."""
        if (direction, rules) not in self._verdicts:
            if any(self._compiled.peers[rule].everybody for rule in rules):
                verdict = PASS[direction]
            else:
                lines = (*self._peers(direction, rules), _DROP)
                verdict = f"goto {self._chain('peers', lines)}"
            self._verdicts[direction, rules] = verdict
        return self._verdicts[direction, rules]

    def _peers(self, direction: Direction, rules: frozenset[RuleId]) -> Iterable[str]:
        """Lines that let the peers pass."""
        found = tuple(self._compiled.peers[rule] for rule in rules)
        whose = self._planned.part(("whose", rules), (), lambda _: _named_after(rules)).lines[0]
        ranges = tuple(each.ranges for each in found)
        yield from self._take(
            self._planned.part(
                ("pods", direction, rules),
                found,
                lambda held: pods_lines(direction, whose, found, held, self._planned.texts),
            )
        )
        yield from self._take(
            self._planned.part(
                ("blocks", direction, rules),
                ranges,
                lambda _: blocks_lines(direction, whose, ranges),
            )
        )

    def _chain(self, kind: str, rules: Iterable[str]) -> str:
        lines = tuple(rules)
        name = f"{kind}_{_hash(lines)}"
        self._chains[name] = lines
        return name


def _bridge_table(sides: Sides) -> Table:
    elements: dict[str, set[str]] = {name: set() for name in _BRIDGE_SETS}
    chains: dict[str, tuple[str, ...]] = {}
    leads: dict[tuple[str, str], set[str]] = defaultdict(set)  # chains by the map and its key
    for port, direction in sides:
        if not is_plain_name(port.ifname):
            continue
        # As long as nobody knows the bridge, what would pass it unseen does not.
        chain = f"router_{port.bridge_mac.replace(':', '')}" if port.bridge_mac else _NO_ROUTER
        if port.bridge_mac:
            chains[chain] = (
                f"ether daddr {port.bridge_mac} accept",
                "ip6 saddr fe80::/10 drop",
                "ip6 daddr fe80::/10 drop",
                f"ether daddr set {port.bridge_mac} meta pkttype set host accept",
            )
            elements["routers"].add(port.bridge_mac)
        leads["ports", f'"{port.ifname}"'].add(chain)
        leads["macs", port.mac].add(chain)
        elements[f"{direction}_ports"].add(f'"{port.ifname}"')
        if direction == "egress":
            for address in port.looked_up:
                elements[f"own{address.version}"].add(f'"{port.ifname}" . {address}')
    if not leads:
        return Table("bridge", NFT_POLICY_TABLE)
    for (name, key), found in leads.items():
        # Of a MAC that pods of two bridges have nobody knows which router it is.
        to = next(iter(found)) if len(found) == 1 else _NO_ROUTER
        elements[name].add(f"{key} : goto {to}")
        if to == _NO_ROUTER:
            chains[_NO_ROUTER] = ("drop",)
    sets = {
        name: NamedSet("map" if "verdict" in head else "set", (head,), frozenset(elements[name]))
        for name, head in _BRIDGE_SETS.items()
    }
    return Table("bridge", NFT_POLICY_TABLE, (), sets, {**chains, **_BRIDGE_CHAINS})


_NO_ROUTER = "router_unknown"
_BRIDGE_SETS = {
    "ports": "type ifname : verdict",
    "macs": "type ether_addr : verdict",
    "routers": "type ether_addr",
    "egress_ports": "type ifname",
    "ingress_ports": "type ifname",
    "own4": "type ifname . ipv4_addr",
    "own6": "type ifname . ipv6_addr",
}


def _named_after(rules: frozenset[RuleId]) -> PeerLines:
    return PeerLines((), (_hash(sorted(rules)),), {})


def _span(span: PortSpan) -> str:
    return str(span.first) if span.first == span.last else f"{span.first}-{span.last}"


def _hash(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]
