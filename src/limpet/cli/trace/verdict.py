"""From the kernel's trace of a packet to where it stopped, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from limpet.cli.trace.tables import TABLE

POLICY, RETURN, RULE = 1, 2, 3
"""Kinds of events. Source: include/uapi/linux/netfilter/nf_tables.h, enum nft_trace_types."""
DROP = 0

# In the order in which a packet comes to them.
_HOOK_WORDS = {
    ("inet", "ingress"): "in by a link",
    ("bridge", "prerouting"): "the pod's port of the bridge",
    ("bridge", "forward"): "from port to port of the bridge",
    ("bridge", "input"): "from the bridge into the node",
    ("inet", "prerouting"): "the node's IP stack, before routing",
    ("inet", "forward"): "forwarding, after routing",
    ("inet", "input"): "into the node itself",
    ("inet", "postrouting"): "out of the IP stack",
    ("bridge", "output"): "from the node onto the bridge",
    ("bridge", "postrouting"): "out by a port of the bridge",
    ("inet", "output"): "in a VXLAN packet of the node's own",
}


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of one packet through nftables."""

    packet: int
    family: str
    table: str
    chain: str
    kind: int
    verdict: int
    handle: int = 0
    link_in: str = ""
    link_out: str = ""
    arp: bool = False
    outward: bool = True
    """From the pod that asks; False: the answer."""


@dataclass(frozen=True, slots=True)
class Station:
    """A place that the packet passed, or where it stopped."""

    words: str
    link: str = ""
    stopped: bool = False
    by: str = ""
    """The rule or policy that stopped it."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What became of the packet."""

    words: str
    """The flow in words."""
    arrived: bool | None
    """None: this node cannot tell."""
    stations: list[Station] = field(default_factory=list)
    conclusion: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The chain and the rule that dropped a packet; no rule: the chain's policy."""

    family: str
    table: str
    chain: str
    handle: int


def dropped(events: Iterable[TraceStep]) -> Dropped | None:
    """The first drop of the packets; a later try meets the same."""
    for each in events:
        ends = each.kind in (POLICY, RULE) and each.verdict == DROP
        if ends and each.table != TABLE:
            handle = each.handle if each.kind == RULE else 0
            return Dropped(each.family, each.table, each.chain, handle)
    return None


def passed(events: Sequence[TraceStep]) -> list[Station]:
    """Hooks that the packets came to, in order, each once."""
    found: dict[tuple[str, str], Station] = {}
    for each in events:
        if each.table != TABLE:
            continue
        hook = each.chain.partition("_")[0]
        key = each.family, hook
        link = each.link_out if hook in ("postrouting", "forward", "output") else each.link_in
        words = _HOOK_WORDS.get(key, hook)
        if key not in found or (link and not found[key].link):
            found[key] = Station(words, link)
    return [found[key] for key in _HOOK_WORDS if key in found]


def reached(events: Iterable[TraceStep], family: str, chain: str) -> bool:
    """Whether a packet came to the end of a hook: `postrouting_last`, say."""
    return any(
        each.table == TABLE and (each.family, each.chain) == (family, chain) for each in events
    )


def link_out(events: Iterable[TraceStep]) -> str:
    """By which link the packet left the node's IP stack; empty: it did not."""
    found = [
        each.link_out
        for each in events
        if each.table == TABLE and (each.family, each.chain) == ("inet", "postrouting_last")
    ]
    return found[0] if found else ""  # what comes after is the packet that carries it
