"""The temporary tables: they mark one flow for the kernel's own trace, and tell its way. Pure.

Both are owned by the socket that made them (Linux 5.12): when that is closed, by `kill -9` too, the
kernel removes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from limpet.base.addresses import Address

TABLE = "limpet_trace"
_FIRST, _LAST = -2_000_000_000, 2_000_000_000
_HOOKS = {
    "bridge": ("prerouting", "input", "forward", "output", "postrouting"),
    "inet": ("prerouting", "input", "forward", "output", "postrouting"),
}
_VXLAN_INNER_BITS = 336
"""From the UDP header to the source of the IPv4 packet inside: UDP, VXLAN, Ethernet, 12 bytes."""


@dataclass(frozen=True, slots=True)
class TracedFlow:
    """What is sent: one flow that nobody else has."""

    source: Address
    target: Address
    protocol: str
    """icmp, tcp or udp."""
    number: int
    """The identifier of the echo, or the source port; 0: any, somebody else sends."""
    port: int = 0
    """Port that is asked; 0: an echo."""

    @property
    def words(self) -> str:
        to = f"{self.protocol} {self.port}" if self.port else "an echo"
        return f"{to} from {self.source} to {self.target}"


def ruleset(
    flow: TracedFlow, *, port_link: str, uplinks: Iterable[str], vxlan_port: int = 0
) -> str:
    """Both tables. `port_link`: the host end of the pod's interface, empty: it is not here;
    `uplinks`: links by which packets of other nodes come in."""
    there, back = _there(flow), _back(flow)
    version = flow.source.version
    ether = "ip" if version == 4 else "ip6"
    text = ""
    for family, hooks in _HOOKS.items():
        chains = []
        for hook in hooks:
            marks = [f"{there} meta nftrace set 1", f"{back} meta nftrace set 1"]
            if family == "bridge":
                marks = [f"ether type {ether} {each}" for each in marks]
                if hook == "prerouting" and port_link:
                    marks.append(f'iifname "{port_link}" {_asks(version)} meta nftrace set 1')
            if (family, hook) == ("inet", "output") and (outer := _outer(flow, vxlan_port)):
                marks.append(outer)
            chains.append(_chain(f"{hook}_first", hook, _FIRST, "; ".join(marks)))
            chains.append(_chain(f"{hook}_last", hook, _LAST, ""))
        links = ", ".join(f'"{each}"' for each in sorted(set(uplinks)))
        if family == "inet" and links:
            devices = f"ingress devices = {{ {links} }}"
            body = f"{there} meta nftrace set 1; {back} meta nftrace set 1"
            chains.append(_chain("ingress_first", devices, -500, body))
        text += f"table {family} {TABLE} {{ flags owner; {' '.join(chains)} }}\n"
    return text


def _chain(name: str, hook: str, priority: int, body: str) -> str:
    rules = f" {body};" if body else ""
    return f"chain {name} {{ type filter hook {hook} priority {priority};{rules} }};"


def _there(flow: TracedFlow) -> str:
    """Whatever a Service's translation makes of the target, source and number stay."""
    return _match(flow, "saddr", "sport", "echo-request")


def _back(flow: TracedFlow) -> str:
    return _match(flow, "daddr", "dport", "echo-reply")


def _match(flow: TracedFlow, end: str, port: str, echo: str) -> str:
    ip, icmp = ("ip", "icmp") if flow.source.version == 4 else ("ip6", "icmpv6")
    at = f"{ip} {end} {flow.source}"
    if not flow.number:
        other = "daddr" if end == "saddr" else "saddr"
        return f"{at} {ip} {other} {flow.target}"
    if flow.port:
        return f"{at} {flow.protocol} {port} {flow.number}"
    return f"{at} {icmp} type {echo} {icmp} id {flow.number}"


def _asks(version: int) -> str:
    """A pod that asks for the MAC of its gateway."""
    return "arp operation request" if version == 4 else "icmpv6 type nd-neighbor-solicit"


def _outer(flow: TracedFlow, vxlan_port: int) -> str:
    """A VXLAN packet with one of the flow inside."""
    if not vxlan_port or flow.source.version != 4:
        return ""
    source = f"@th,{_VXLAN_INNER_BITS},32 {int(flow.source):#x}"
    target = f"@th,{_VXLAN_INNER_BITS + 32},32 {int(flow.target):#x}"
    return f"udp dport {vxlan_port} {source} {target} meta nftrace set 1"
