"""What the table of Services, and the maps of the programs, say to a first packet: by their text
and elements alone, as the kernel would go through them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network

from tests.service_oracle import Answer, Drawn, Prefixes, Question

from limpet.base.addresses import packed
from limpet.datapath.services.elements import frontend_key, read_target, slot_key
from limpet.datapath.services.sockets import layout
from limpet.datapath.services.state import ServicesState

_SOURCES = re.compile(r"ip6? saddr != \{ (.*?) \} (.*)")
_SET = re.compile(r"ip6? saddr (!= )?@(\w+)[46] (.*)")
_MARKED = re.compile(r"meta mark & \S+ != 0 (.*)")
_OWN = re.compile(r"fib saddr type local (.*)")
_DRAW = re.compile(
    r"dnat (ip6?) to (ip6? daddr \. )?meta l4proto \. (\w+) dport \. "
    r"numgen random mod (\d+)(?: offset (\d+))? map @(\w+)"
)
_SOURCE_KEPT = re.compile(r"dnat ip6? to (ip|jhash ip6) saddr .* map @affinity_\w+")
Found = Answer | None


def by_table(state: ServicesState, asked: Question, sets: Mapping[str, Prefixes]) -> Answer:
    """Of a client that no endpoint is noted for. `sets`: of prefixes, by their names in the
    table."""
    version = asked.version
    for name, address in (("services", packed(asked.address)), ("node_ports", b"")):
        key = frontend_key(address, asked.protocol, asked.port)
        verdict = state.elements[f"{name}{version}"].get(key)
        if verdict is not None and (address or asked.is_at_node):
            chain = verdict.removeprefix(b"goto ").decode()
            return "refused" if chain == "refuse" else _through(state, chain, key, asked, sets)
        if address and (verdict := state.elements[f"addresses{version}"].get(address)):
            assert verdict == b"goto refuse"
            return "refused"
    return "let be"


def _through(
    state: ServicesState, chain: str, key: bytes, asked: Question, sets: Mapping[str, Prefixes]
) -> Answer:
    is_marked = False
    for rule in _rules(state.chains[chain]):
        rest = rule
        if match := _SOURCES.fullmatch(rest):
            if asked.is_from([ip_network(each) for each in match[1].split(", ")]):
                continue
            rest = match[2]
        rest = _from_sets(rest, asked, sets)
        if not rest:
            continue
        if match := _MARKED.fullmatch(rest):
            if not is_marked:
                continue
            rest = match[1]
        if match := _OWN.fullmatch(rest):
            if not asked.is_own:
                continue
            rest = match[1]
        if rest == "drop":
            return "dropped"
        if rest.startswith("meta mark set "):
            is_marked = True
        elif match := _DRAW.fullmatch(rest):
            family, with_address, protocol, count, first, name = match.groups()
            assert family == ("ip" if asked.version == 4 else "ip6")
            assert protocol == asked.protocol.lower()
            assert bool(with_address) == (len(key) > len(frontend_key(b"", asked.protocol, 0)))
            numbers = range(int(first or 0), int(first or 0) + int(count))
            return _drawn(state.elements[name][slot_key(key, number)] for number in numbers)
        else:
            assert _SOURCE_KEPT.fullmatch(rest), rule
    return "let be"


def _from_sets(rule: str, asked: Question, sets: Mapping[str, Prefixes]) -> str:
    """The rest of a rule; empty: it is not for whom asks."""
    while match := _SET.fullmatch(rule):
        if asked.is_from(sets[match[2]]) == bool(match[1]):
            return ""
        rule = match[3]
    return rule


def _rules(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("\t\t"):
            yield line.strip()


def by_programs(state: ServicesState, asked: Question) -> Found:
    """None: they leave it alone, and the table serves."""
    if asked.protocol == "SCTP":  # for which they are never called
        return None
    key = layout.service(frontend_key(packed(asked.address), asked.protocol, asked.port))
    frontends, slots, members = (state.sockets[name] for name in layout.SOCKET_MAPS)
    frontend = frontends.get(key)
    if frontend is None:
        return None
    count, affinity_s = (int.from_bytes(frontend[at : at + 4], sys.byteorder) for at in (0, 4))
    few = [frontend[at : at + 20] for at in range(12, len(frontend), 20)]
    if count <= len(few):
        found = few[:count]
        assert slot_key(key, 0) not in slots
    else:
        found = [slots[slot_key(key, number)] for number in range(count)]
    if affinity_s or asked.protocol == "UDP":
        assert {key + each for each in found} <= members.keys(), "who is kept has to be one"
    return _drawn(each.removeprefix(b"\0" * 10 + b"\xff\xff") for each in found)


def _drawn(values: Iterator[bytes]) -> Drawn:
    found: Drawn = Counter()
    for each in values:
        address, port = read_target(each)
        found[str(ip_address(address)), port] += 1
    return found
