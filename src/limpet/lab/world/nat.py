"""Rules of a gateway: what it translates, whom it lets in. nftables text, made of values.

A gateway drops what nobody behind it asked for, also at its own input: a NAT that accepts such a
packet tracks it, and the mapping that the packet was too early for gets another port.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address

LAN, WAN = "lan", "wan"
"""Devices of every gateway."""

_SHOWN_PORTS = "10000-19999"
"""Where a port is not kept. The kernel takes one at random and stays with it for all that comes
from the same port behind (find_appropriate_src, net/netfilter/nf_nat_core.c). Nobody in a LAN sends
from a port of these, which would be kept."""


@dataclass(frozen=True, slots=True)
class Translation:
    """How IPv4 of a LAN goes out, and what comes in."""

    public: IPv4Address
    keeps_port: bool
    """The LAN's own UDP port is shown, where it is free; else another, the same to everybody."""
    per_destination: bool
    """Another port for each destination; then `keeps_port` says nothing."""
    lets_anybody_in: bool
    """Whoever sends to a mapped port; else only who was sent to from it."""
    hairpin: bool
    timeout_s: int


def gate_rules(*, guarded: bool) -> str:
    """What passes; `guarded`: only answers come in. UDP stops when `datagrams` has a drop."""
    guard = f"""
        iifname {WAN} ct state established,related accept
        iifname {WAN} ct status dnat accept
        iifname {WAN} drop"""
    own = f"""
    chain input {{
        type filter hook input priority 0;
        iifname {WAN} ct state established,related accept
        iifname {WAN} meta l4proto {{ icmp, ipv6-icmp }} accept
        iifname {WAN} drop
    }}"""
    return f"""
table inet gate {{
    chain datagrams {{ }}
    chain forward {{
        type filter hook forward priority 0;
        meta l4proto udp jump datagrams{guard if guarded else ""}
    }}{own if guarded else ""}
}}
"""


def translation_rules(nat: Translation) -> str:
    """The kernel shows one port for two of the LAN that speak to different places, and `update`
    leaves what a key leads to as it was (net/netfilter/nft_dynset.c): so whoever is new takes the
    port over from the one before. `owners` are those who did, so that it is done once of each, and
    a port does not lead nowhere for a moment with every packet.
    """
    if nat.per_destination:
        udp = f"snat to {nat.public} fully-random"
    elif nat.keeps_port:
        udp = f"snat to {nat.public}"
    else:
        udp = f"snat to {nat.public} : {_SHOWN_PORTS}"
    learned = "dnat to udp dport map @hosts : udp dport map @ports"
    inbound = f"iifname {WAN} ip daddr {nat.public} meta l4proto udp {learned}"
    hairpin_in = f"iifname {LAN} ip daddr {nat.public} meta l4proto udp {learned}"
    hairpin_out = f"iifname {LAN} oifname {LAN} ct status dnat meta l4proto udp {udp}"
    memory = f"flags dynamic,timeout; timeout {nat.timeout_s}s; size 65535;"
    mapped = f"oifname {{ {LAN}, {WAN} }} ip saddr {nat.public} meta l4proto udp"
    owner = "udp sport . ct original ip saddr . ct original proto-src"
    newer = f"{mapped} ct state new {owner} != @owners"
    return f"""
table ip translate {{
    map hosts {{ type inet_service : ipv4_addr; {memory} }}
    map ports {{ type inet_service : inet_service; {memory} }}
    set owners {{ type inet_service . ipv4_addr . inet_service; {memory} }}
    chain prerouting {{
        type nat hook prerouting priority -100;
        {inbound if nat.lets_anybody_in else ""}
        {hairpin_in if nat.hairpin else ""}
    }}
    chain postrouting {{
        type nat hook postrouting priority 100;
        oifname {WAN} meta l4proto udp {udp}
        oifname {WAN} snat to {nat.public}
        {hairpin_out if nat.hairpin else ""}
    }}
    chain learn {{
        type filter hook postrouting priority 150;
        {newer} delete @hosts {{ udp sport : ct original ip saddr }}
        {newer} delete @ports {{ udp sport : ct original proto-src }}
        {mapped} ct direction original update @owners {{ {owner} }}
        {mapped} ct direction original update @hosts {{ udp sport : ct original ip saddr }}
        {mapped} ct direction original update @ports {{ udp sport : ct original proto-src }}
        {mapped} ct direction reply update @hosts {{ udp sport : ct reply ip saddr }}
        {mapped} ct direction reply update @ports {{ udp sport : ct reply proto-src }}
    }}
    chain own {{
        type filter hook input priority 0;
        iifname {LAN} ip daddr {nat.public} meta l4proto udp drop
    }}
}}
"""
