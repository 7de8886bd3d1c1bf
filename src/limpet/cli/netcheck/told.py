"""What `limpet netcheck` found, as values; JSON output has these keys."""

from __future__ import annotations

from msgspec import field

from limpet.cli.answers import Answered
from limpet.cli.doctor.findings import Level
from limpet.datapath.together.kernel_trial import Lack


class Remark(Answered, frozen=True, kw_only=True):
    """What something of it means: why it matters, what to do."""

    level: Level
    what: str
    why: str = ""
    advice: str = ""

    def lines(self) -> list[str]:
        """As text; nothing is wrapped, so that it can be copied."""
        lines = [f"{self.level.value:<6} {self.what}"]
        if self.why:
            lines.append(f"       why: {self.why}")
        if self.advice:
            lines.append(f"       do:  {self.advice}")
        return lines


def ok(what: str) -> Remark:
    return Remark(level=Level.OK, what=what)


def warn(what: str, why: str, advice: str) -> Remark:
    return Remark(level=Level.WARN, what=what, why=why, advice=advice)


def error(what: str, why: str, advice: str) -> Remark:
    return Remark(level=Level.ERROR, what=what, why=why, advice=advice)


class ObserverSaid(Answered, frozen=True, kw_only=True):
    """What gets to a controller or a relay, at one of its addresses."""

    kind: str
    host: str
    address: str
    version: int
    udp_port: int
    udp_ms: float | None
    """Round trip; None: no answer over UDP."""
    seen_as: str
    """Address and port that it saw us at; empty: it does not answer."""
    tcp_port: int
    tcp_ms: float | None
    """None: no connection comes about."""
    tcp_problem: str
    """Why the connection is of no use; empty: TLS comes about in it."""
    packet_bytes: int | None = None
    """The largest IP packet that gets there whole; None: not tried, or none does."""


class PortMappingSaid(Answered, frozen=True, kw_only=True):
    """What the gateway was asked for, and has back."""

    by: str
    """Protocol; empty: the gateway gives no port."""
    gateway: str
    endpoint: str
    problem: str


class Netcheck(Answered, frozen=True, kw_only=True):
    """`limpet netcheck`."""

    observers: list[ObserverSaid]
    unresolved: dict[str, str]
    """Those that were named and have no address, and why."""
    nat: dict[str, str]
    """By IP version: none, same (endpoint-independent mapping), symmetric, unknown, blocked."""
    public: list[str]
    """Endpoints that others see us at; with a symmetric NAT each sees another."""
    hairpin: bool | None
    """Whether packets to our own public endpoint come back; None: not tried."""
    ipv6: str
    """Our address towards the outside; empty: there is no way out."""
    clock_ahead_s: float | None
    """How far our clock is ahead of the controller's, in seconds; None: no controller said."""
    port_mapping: PortMappingSaid | None
    """None: not asked."""
    lacks: list[Lack] | None
    """What the kernel can't do; None: only root can try."""
    findings: list[Remark] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """A node here could."""
        return all(each.level is not Level.ERROR for each in self.findings)
