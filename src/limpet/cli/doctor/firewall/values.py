"""Others' firewall rules, and the packets that they are judged by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from limpet.base.addresses import Prefix

Span = tuple[int, int]
"""First and last: ports, or addresses as numbers."""


class Field(StrEnum):
    """What a rule may ask of a packet, as far as it is understood."""

    IIF = "iif"
    OIF = "oif"
    VERSION = "version"
    PROTOCOL = "protocol"
    PORT = "port"
    """Destination port, whichever the protocol."""
    SOURCE = "source"
    TARGET = "target"
    STATE = "state"
    """Of connection tracking."""
    PORTS_UNREAD = "ports unread"
    """Ports or addresses, in a form that nft shows no content of."""
    ODD = "odd"
    """Anything else: whether a packet has it is not known."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One field is one of `values`: names (a final `*` stands for any end), or spans."""

    field: Field
    values: tuple[str | Span, ...] | None = ()
    """None: not known, as of a set that programs fill."""
    version: int = 0
    """Addresses: IP version of the field; 0: both."""


@dataclass(frozen=True, slots=True)
class Match:
    """True where all tests of one alternative are."""

    alternatives: tuple[tuple[Condition, ...], ...]
    negated: bool = False


class Action(Enum):
    ACCEPT = "accept"
    DROP = "drop"
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"


@dataclass(frozen=True, slots=True)
class Verdict:
    action: Action
    target: str = ""
    """Chain of a jump or goto."""
    only: Match | None = None
    """Of a verdict map: for these packets."""


@dataclass(frozen=True, slots=True)
class Rule:
    handle: int
    matches: tuple[Match, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    family: str
    table: str
    name: str
    hook: str = ""
    """Empty: only jumped to."""
    drops: bool = False
    """Policy: what no rule decides is dropped."""
    filters: bool = True
    """False: of another type (nat, route)."""
    rules: tuple[Rule, ...] = ()

    def __str__(self) -> str:
        return f"nftables chain {self.family} {self.table} {self.name}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """A kind of packets; what is empty is not told: any."""

    version: int
    iifs: frozenset[str] = frozenset()
    oifs: frozenset[str] = frozenset()
    protocol: str = ""
    port: int | None = None
    sources: tuple[Prefix, ...] = ()
    targets: tuple[Prefix, ...] = ()
    state: str = "new"
    telling: frozenset[Field] = frozenset()
    """A rule that asks for one of these, and gets it, is about just these packets."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A chain that drops packets of a kind."""

    chain: Chain
    """Where the rule stands, or whose policy it is."""
    rule: Rule | None
    """None: the chain's policy."""
    surely: bool
    """False: only packets with something that is not known here."""
