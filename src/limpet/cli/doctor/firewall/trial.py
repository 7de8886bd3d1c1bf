"""Others' nftables rules, and packets that meet a copy of them in a namespace that is thrown away.

The copy has links of the same names. The kernel's own trace says what became of a packet, so
whatever a rule may ask for is judged by what will judge it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_network

from limpet.base.addresses import Address, InterfaceAddress
from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_TABLE
from limpet.datapath.node.forward import HandleNftables, base_chains, list_chain
from limpet.linux.frames import checksum
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import Notifications, RouteSocket
from limpet.linux.sysctl import write_sysctl

_TABLE = re.compile(r"^table (\S+) (\S+) \{[^\n]*\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_FILTERS = re.compile(r"^\t\ttype (?:filter|route) hook", re.MULTILINE)
_DEVICES = re.compile(r'\b[io]if (?:!= )?"([^"]+)"|^\t\tdevices = \{([^}]*)\}', re.MULTILINE)
"""nft takes these rules only where the devices are."""
_NOT_TOLD = re.compile(r"\bxt (?:match|target) |# xt_")
_COUNTED = re.compile(r" ?counter packets \d+ bytes \d+")
_HOOKS = ("prerouting", "input", "forward", "postrouting")
_SAVED = frozenset({"raw", "mangle", "filter", "security"})
_TRIAL = """table inet limpet_trial {{
\tchain first {{ type filter hook prerouting priority -1000000; meta nftrace set 1; {} }}
\tchain input {{ type filter hook input priority 1000000; }}
\tchain postrouting {{ type filter hook postrouting priority 1000000; }}
}}
"""
_MAC, _PEER_MAC = "0a:58:c0:00:02:01", "0a:58:c0:00:02:02"
_FROM_PORT = 40000
_PROTOCOLS = {"udp": socket.IPPROTO_UDP, "tcp": socket.IPPROTO_TCP}
_FAMILIES = {1: "inet", 2: "ip", 10: "ip6"}
_TRACE = 10 << 8 | 17
"""NFNL_SUBSYS_NFTABLES, NFT_MSG_TRACE; NFNLGRP_NFTRACE.

Source: include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h, the attributes too.
"""
_TRACE_GROUP, _NETLINK_NETFILTER = 9, 12
_TABLE_NAME, _CHAIN_NAME, _HANDLE, _TYPE, _VERDICT, _POLICY = *range(1, 6), 16
_OF_POLICY, _OF_RULE = 1, 3
_WITHIN_S = 2.0
"""The kernel is through with a packet when the call that sends it returns, or a moment later."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Of others that filter."""

    nftables: str
    saved: tuple[tuple[str, str], ...] = ()
    """Of iptables, where nft cannot tell a rule whole: the command that takes it back, the text."""


@dataclass(frozen=True, slots=True)
class Packet:
    """The first one of a flow."""

    link: str
    """That it comes in by."""
    source: Address
    target: Address
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class Dropped:
    base: str
    """The base chain, with its family and table."""
    chain: str
    """The rule's: the base chain, or one that it led to."""
    rule: str
    """As nft prints it; empty: the base chain's policy."""


def read_rules() -> Rules:
    """Raises: LimpetError without libnftables, KernelError."""
    nft = HandleNftables()
    try:
        listing = nft.run("list ruleset", what="others' rules")
    finally:
        nft.close()
    told, saved = "", []
    for found in _TABLE.finditer(listing):
        text, family, table = found[0], found[1], found[2]
        if _is_ours(family, table) or not _FILTERS.search(text):
            continue
        if _NOT_TOLD.search(text):
            saved.append(_save(family, table))
        else:
            told += text
    return Rules(told, tuple(saved))


def _is_ours(family: str, table: str) -> bool:
    ours = family == "inet" and (table == NFT_TABLE or table.startswith(f"{NFT_TABLE}_"))
    return ours or family not in _FAMILIES.values()


def _save(family: str, table: str) -> tuple[str, str]:
    names = {"ip": ("iptables-nft", "iptables"), "ip6": ("ip6tables-nft", "ip6tables")}
    for name in names.get(family, ()) if table in _SAVED else ():
        if shutil.which(f"{name}-save"):
            return f"{name}-restore", _run([f"{name}-save", "-t", table], "")
    hint = "it has extensions of iptables, which is not installed"
    raise KernelError("read", f"table {family} {table}", 2, hint)


def _run(command: list[str], given: str) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError("run", " ".join(command), 22, done.stderr.strip())
    return done.stdout


@dataclass(frozen=True, slots=True)
class _Link:
    ifindex: int
    peer: str


class Trial:
    """In the network namespace of the calling thread, which nobody else uses."""

    def __init__(
        self, rules: Rules, links: Mapping[str, tuple[InterfaceAddress, ...]], untracked: str
    ) -> None:
        """`untracked`: UDP ports that connection tracking passes by, as nft writes them.

        Raises: LimpetError.
        """
        with ExitStack() as stack:
            self._route = stack.enter_context(RouteSocket())
            for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
                if os.path.exists(f"/proc/sys/net/{name}"):
                    write_sysctl(f"net/{name}", "1")
            for name in ("all", "default"):
                write_sysctl(f"net/ipv4/conf/{name}/rp_filter", "0")
            self._links = {
                name: self._link(f"peer{i}", name, links[name]) for i, name in enumerate(links)
            }
            for name in _devices(rules.nftables) - set(links) - {"lo"}:
                self._route.apply(wire.new_link(ifname=name, kind="dummy"))
            self._nft = HandleNftables()
            stack.callback(self._nft.close)
            bypass = f"udp dport {{ {untracked} }} notrack;" if untracked else ""
            self._nft.run(rules.nftables + _TRIAL.format(bypass), what="a copy of others' rules")
            for command, text in rules.saved:
                _run([command], text)
            self._bases = {
                (family, table, name)
                for hook in _HOOKS
                for family, table, name, _ in base_chains(self._nft, hook)
            }
            self._sender = stack.enter_context(
                socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
            )
            self._trace = Notifications(_NETLINK_NETFILTER, (_TRACE_GROUP,))
            stack.callback(self._trace.close)
            self.close = stack.pop_all().close

    def _link(self, peer: str, name: str, addresses: tuple[InterfaceAddress, ...]) -> _Link:
        """A link of that name, whose other end we send into."""
        with open("/proc/thread-self/ns/net", "rb") as here:
            self._route.apply(
                wire.new_veth(
                    ifname=name,
                    mac=_MAC,
                    mtu_bytes=1500,
                    group=0,
                    master_ifindex=None,
                    peer_ifname=peer,
                    peer_mac=_PEER_MAC,
                    peer_netns_fd=here.fileno(),
                )
            )
        found = self._route.links()
        self._route.apply(
            wire.set_link(found[peer].ifindex, what=peer, up=True),
            *(wire.new_address(found[name].ifindex, each, on=name) for each in addresses),
        )
        return _Link(found[name].ifindex, peer)

    def route(self, target: Address, link: str) -> None:
        """What is for the target goes out by the link. Raises: KernelError."""
        self._route.apply(wire.route(ip_network(target), ifindex=self._links[link].ifindex))

    def send(self, packet: Packet) -> Dropped | None:
        """What drops the packet; None: it gets through. Raises: KernelError."""
        list(self._trace.drain())
        kind = 0x0800 if packet.source.version == 4 else 0x86DD
        place = (self._links[packet.link].peer, kind, 0, 0, wire.parse_mac(_MAC))
        self._sender.sendto(encode_packet(packet), place)
        base = ("", "", "")
        while select.select([self._trace], [], [], _WITHIN_S)[0]:
            for event in _parse_trace(self._trace):
                if event.chain in self._bases:
                    base = event.chain
                if event.ends and event.chain[1] == "limpet_trial" and event.chain[2] != "first":
                    return None
                if event.drops:
                    words = self._words(event) if event.handle else ""
                    return Dropped(f"nftables chain {' '.join(base)}", event.chain[2], words)
        what = f"{packet.protocol} from {packet.source} to {packet.target} by {packet.link}"
        raise KernelError("follow a packet through others' rules", what, 110)

    def _words(self, event: _Event) -> str:
        """A rule as a person finds it in the listing."""
        for line in list_chain(self._nft, *event.chain):
            text, _, handle = line.rpartition(" # handle ")
            if handle == str(event.handle):
                return " ".join(_COUNTED.sub("", text).split())
        return f"handle {event.handle}"


def _devices(text: str) -> set[str]:
    found = (one or many for one, many in _DEVICES.findall(text))
    return {name.strip(' "') for names in found for name in names.split(",")}


@dataclass(frozen=True, slots=True)
class _Event:
    chain: tuple[str, str, str]
    handle: int
    """Of the rule; 0: the chain's policy."""
    ends: bool
    drops: bool


def _parse_trace(trace: Notifications) -> Iterator[_Event]:
    for message in trace.drain():
        if message is None or message.type != _TRACE:
            continue
        attrs = wire.parse_attrs(message.body, 4)
        table, chain = (attrs.get(kind, b"")[:-1].decode() for kind in (_TABLE_NAME, _CHAIN_NAME))
        kind = int.from_bytes(attrs.get(_TYPE, b""), "big")
        verdict = wire.parse_attrs(memoryview(attrs.get(_VERDICT, b"")), 0).get(1, b"\1")
        if kind == _OF_POLICY:
            verdict = attrs.get(_POLICY, verdict)
        yield _Event(
            (_FAMILIES.get(message.body[0], ""), table, chain),
            int.from_bytes(attrs.get(_HANDLE, b""), "big") if kind == _OF_RULE else 0,
            ends=kind == _OF_POLICY,
            drops=kind in (_OF_POLICY, _OF_RULE) and not any(verdict),
        )


def encode_packet(packet: Packet) -> bytes:
    """A UDP datagram or the first segment of a TCP connection, in IP.

    Source: RFC 791, RFC 8200, RFC 768, RFC 9293.
    """
    number = _PROTOCOLS[packet.protocol]
    if number == socket.IPPROTO_UDP:
        body = struct.pack(">HHHH", _FROM_PORT, packet.port, 8, 0)
        at = 6
    else:
        body = struct.pack(">HHIIBBHHH", _FROM_PORT, packet.port, 1, 0, 0x50, 2, 64240, 0, 0)
        at = 16
    ends = packet.source.packed + packet.target.packed
    total = checksum(ends + struct.pack(">II", len(body), number) + body) or 0xFFFF
    body = body[:at] + struct.pack(">H", total) + body[at + 2 :]
    if packet.source.version == 6:
        return struct.pack(">IHBB", 6 << 28, len(body), number, 64) + ends + body
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0x4000, 64, number, 0) + ends
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body
