"""Others' chains on the input hook that may drop what nodes send each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from limpet.kernel.forward import HandleNftables, base_chains, drop_cause, list_chain

_PORTS = re.compile(r"\b(?:udp|th) dport (?P<not>!= )?(?P<ports>vmap \{[^}]*\}|\{[^}]*\}|\S+)")
_NUMBER = re.compile(r"\b(\d+)(?:-(\d+))?\b")
_ANYTHING_UDP = re.compile(
    r'(?:(?:iifname|iif) (?!"lo")(?:\{[^}]*\}|\S+) |ip6? [sd]addr (?:!= )?(?:\{[^}]*\}|\S+) '
    r"|meta nfproto \S+ |meta l4proto (?:udp|17) |ip protocol (?:udp|17) "
    r'|counter(?: packets \d+ bytes \d+)? )*accept(?: comment "[^"]*")?(?: # handle \d+)?'
)
"""Accepts whatever comes over some links, from some addresses."""
_OPAQUE = re.compile(r'xt match "(?:udp|multiport|set)"')
"""Matches of iptables that nft has no words for."""
_TARGET = re.compile(r"\b(?:jump|goto) (\S+?)(?=[ ,}]|$)")


@dataclass(frozen=True, slots=True)
class InboundChain:
    """A base chain on the input hook that drops what no rule of it accepts."""

    name: str
    """As a person finds it: family, table and chain."""
    cause: str
    rules: tuple[str, ...]
    """As nft prints them, with those of the chains that they lead to."""

    def may_admit(self, port: int) -> bool:
        """A rule seems to accept UDP to that port, from somewhere at least."""
        return any(_may_admit(rule, port) for rule in self.rules)


def read_dropping_inbound(nft: HandleNftables) -> list[InboundChain]:
    """Base chains of others on the input hook that drop. Raises: KernelError."""
    return [
        InboundChain(f"{family} {table} {name}", cause, tuple(_rules(nft, family, table, name)))
        for family, table, name, policy in base_chains(nft, "input")
        if (cause := drop_cause(nft, family, table, name, policy))
    ]


def _rules(nft: HandleNftables, family: str, table: str, name: str) -> Iterator[str]:
    seen, todo = {name}, [name]
    while todo:
        for line in list_chain(nft, family, table, todo.pop()):
            rule = line.strip()
            yield rule
            new = [target for target in _TARGET.findall(rule) if target not in seen]
            seen.update(new)
            todo += new


def _may_admit(rule: str, port: int) -> bool:
    if "accept" not in rule and 'xt target "ACCEPT"' not in rule and not _TARGET.search(rule):
        return False
    found = _PORTS.search(rule)
    if found is None:
        # Some matches of iptables are printed as nothing, two blanks, by a process that has printed
        # those of IPv6 before (nft 1.0.6).
        return bool(_OPAQUE.search(rule) or _ANYTHING_UDP.fullmatch(" ".join(rule.split())))
    if "@" in found["ports"]:
        return True  # a set with a name: not looked up
    ranges = _NUMBER.findall(found["ports"])
    named = any(int(first) <= port <= int(last or first) for first, last in ranges)
    return named != bool(found["not"])
