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
from limpet.cli.owners import our_tables
from limpet.datapath.node.forward import HandleNftables, base_chains, list_chain
from limpet.linux.netlink import address_codec, link_codec, route_codec
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NETLINK_NETFILTER, Notifications, RouteSocket
from limpet.linux.packets.frames import ip_packet
from limpet.linux.sysctl import write_sysctl

_TABLE = re.compile(r"^table (\S+) (\S+) \{[^\n]*\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_FILTERS = re.compile(r"^\t\ttype (?:filter|route) hook", re.MULTILINE)
_DEVICES = re.compile(r'\b[io]if (?:!= )?"([^"]+)"|^\t\tdevices = \{([^}]*)\}', re.MULTILINE)
"""nft takes these rules only where the devices are."""
_NOT_TOLD = re.compile(r"\bxt (?:match|target) |# xt_|^\t\t |^\t\t[^\t\"\n]*[^ ] {2}", re.MULTILINE)
"""A rule with an extension of iptables. Where libxtables has no file for it (a container brought
its own iptables), nft prints nothing in its place: what is left are the spaces around it."""
_COUNTED = re.compile(r" ?counter packets \d+ bytes \d+")
_HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
_SAVE = {"ip": ("iptables-nft", "iptables"), "ip6": ("ip6tables-nft", "ip6tables")}
_SAVED = frozenset({"raw", "mangle", "filter", "security"})
_TRIAL = """table inet limpet_trial {{
\tchain first {{
\t\ttype filter hook prerouting priority -1000000;
\t\tiifname "trial*" accept
\t\tiifname "lo" accept
\t\tmeta nftrace set 1
\t\t{0}
\t}}
\tchain leaving {{
\t\ttype filter hook output priority -1000000;
\t\tmeta l4proto udp meta nftrace set 1
\t\t{0}
\t}}
\tchain input {{ type filter hook input priority 1000000; }}
\tchain postrouting {{ type filter hook postrouting priority 1000000; }}
}}
"""
_BEGIN = ("first", "leaving")
"""Chains of the trial's where a packet begins; what leaves it comes in again at its own end."""
_FAMILIES = {1: "inet", 2: "ip", 10: "ip6"}
_TRACE_GROUP, _TRACE = 9, 10 << 8 | 17
"""NFNLGRP_NFTRACE; NFNL_SUBSYS_NFTABLES, NFT_MSG_TRACE.

Source: include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h, the attributes too.
"""
_TABLE_NAME, _CHAIN_NAME, _HANDLE, _TYPE, _VERDICT, _POLICY = *range(1, 6), 16
_OF_POLICY, _OF_RULE = 1, 3
_WITHIN_S = 2.0
"""The kernel is through with a packet when the call that sends it returns, or a moment later."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Others' rules that filter."""

    nftables: str
    saved: tuple[tuple[str, str], ...] = ()
    """Tables of iptables that nft cannot tell whole: the command that takes each back, its text."""


@dataclass(frozen=True, slots=True)
class Packet:
    """The first one of a flow."""

    link: str
    """Link that it comes in by, or leaves by."""
    source: Address
    target: Address
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class FirewallDrop:
    """What dropped a packet."""

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
        # As nft prints them, not compared with a plan (`Nftables.read_table`): they are put again
        # elsewhere, to be tried there.
        listing = nft.run("list ruleset", what="others' rules")
    finally:
        nft.close()
    ours = our_tables()
    told, saved = "", []
    for found in _TABLE.finditer(listing):
        text, family, table = found[0], found[1], found[2]
        is_judged = family in _FAMILIES.values() and _FILTERS.search(text)
        if not is_judged or (family, table) in ours:
            continue
        if _NOT_TOLD.search(text):
            saved.append(_save(family, table))
        else:
            told += text
    return Rules(told, tuple(saved))


def _save(family: str, table: str) -> tuple[str, str]:
    for name in _SAVE.get(family, ()) if table in _SAVED else ():
        if shutil.which(f"{name}-save"):
            return f"{name}-restore", _run(f"{name}-save", "-t", table)
    hint = "it has extensions of iptables, which is not installed"
    raise KernelError("read", f"table {family} {table}", 2, hint)


def _run(*command: str, given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError("run", " ".join(command), 22, done.stderr.strip())
    return done.stdout


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
            self._make_links(links, _devices(rules.nftables) - set(links) - {"lo"})
            self._nft = HandleNftables()
            stack.callback(self._nft.close)
            bypass = f"udp dport {{ {untracked} }} notrack" if untracked else ""
            self._nft.run(rules.nftables + _TRIAL.format(bypass), what="a copy of others' rules")
            for command, text in rules.saved:
                _run(command, given=text)
            chains = (chain for hook in _HOOKS for chain in base_chains(self._nft, hook))
            self._bases = {chain[:3] for chain in chains}
            self._sender = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM))
            self._trace = Notifications(NETLINK_NETFILTER, (_TRACE_GROUP,))
            stack.callback(self._trace.close)
            self.close = stack.pop_all().close

    def _make_links(
        self, links: Mapping[str, tuple[InterfaceAddress, ...]], named: set[str]
    ) -> None:
        """Each of `links` has another end, which packets are sent into."""
        apply = self._route.apply
        for name in named:
            apply(link_codec.new_link(ifname=name, kind="dummy"))
        self._peers: dict[str, str] = {}
        for number, (name, addresses) in enumerate(links.items()):
            before, peer = self._route.links().keys(), f"trial{number}"
            apply(link_codec.new_link(ifname=name, kind="veth", up=True))
            found = self._route.links()
            (made,) = found.keys() - before - {name}
            self._peers[name] = peer
            apply(
                link_codec.set_link(found[made].ifindex, what=peer, ifname=peer, up=True),
                *(
                    address_codec.new_address(found[name].ifindex, each, on=name)
                    for each in addresses
                ),
            )
        self._links = self._route.links()

    def route(self, target: Address, link: str) -> None:
        """What is for the target goes out by the link. Raises: KernelError."""
        self._route.apply(route_codec.route(ip_network(target), ifindex=self._links[link].ifindex))

    def send(self, packet: Packet) -> FirewallDrop | None:
        """What drops the packet; None: it gets through. Raises: KernelError."""
        list(self._trace.drain())
        kind = 0x0800 if packet.source.version == 4 else 0x86DD
        mac = wire.parse_mac(self._links[packet.link].mac)
        self._sender.sendto(_encode(packet), (self._peers[packet.link], kind, 0, 0, mac))
        return self._followed(packet)

    def send_out(self, packet: Packet, *, from_any: bool) -> FirewallDrop | None:
        """What drops a datagram that this machine sends by the link; None: it gets out. `from_any`:
        from a port of the kernel's choice, else from the one that it is for. Raises:
        KernelError."""
        self.route(packet.target, packet.link)
        list(self._trace.drain())
        family = socket.AF_INET if packet.source.version == 4 else socket.AF_INET6
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sender:
                sender.bind((str(packet.source), 0 if from_any else packet.port))
                sender.sendto(b"", (str(packet.target), packet.port))
        except PermissionError:  # so a sender hears of what dropped it
            pass
        except OSError:
            return None  # no packet, which no rule can have dropped
        return self._followed(packet)

    def _followed(self, packet: Packet) -> FirewallDrop | None:
        base = ("", "", "")
        for family, attrs in self._traced():
            table, name = (attrs.get(at, b"")[:-1].decode() for at in (_TABLE_NAME, _CHAIN_NAME))
            chain = (family, table, name)
            base = chain if chain in self._bases else base
            step = int.from_bytes(attrs.get(_TYPE, b""), "big")
            verdict = wire.parse_attrs(memoryview(attrs.get(_VERDICT, b"")), 0).get(1, b"\1")
            if step == _OF_POLICY:
                verdict = attrs.get(_POLICY, verdict)
                if table == "limpet_trial" and name not in _BEGIN:
                    return None
            if step in (_OF_POLICY, _OF_RULE) and not any(verdict):
                rule = self._words(chain, attrs[_HANDLE]) if step == _OF_RULE else ""
                return FirewallDrop(f"nftables chain {' '.join(base)}", name, rule)
        what = f"{packet.protocol} from {packet.source} to {packet.target} by {packet.link}"
        raise KernelError("follow a packet through others' rules", what, 110)

    def _traced(self) -> Iterator[tuple[str, dict[int, bytes]]]:
        """Family and attributes of each step of the packet, until none comes any more."""
        while select.select([self._trace], [], [], _WITHIN_S)[0]:
            for message in self._trace.drain():
                if message is not None and message.type == _TRACE:
                    yield _FAMILIES.get(message.body[0], ""), wire.parse_attrs(message.body, 4)

    def _words(self, chain: tuple[str, str, str], number: bytes) -> str:
        """A rule as a person finds it in the listing."""
        handle = int.from_bytes(number, "big")
        for line in list_chain(self._nft, *chain):
            text, _, found = line.rpartition(" # handle ")
            if found == str(handle):
                return " ".join(_COUNTED.sub("", text).split())
        return f"handle {handle}"


def _devices(text: str) -> set[str]:
    found = (one or many for one, many in _DEVICES.findall(text))
    return {name.strip(' "') for names in found for name in names.split(",")}


def _encode(packet: Packet) -> bytes:
    """A UDP datagram or the first segment of a TCP connection. Source: RFC 768, RFC 9293."""
    ports = struct.pack(">HH", 40000, packet.port)
    protocol, at, body = (
        (socket.IPPROTO_UDP, 6, struct.pack(">HH", 8, 0))
        if packet.protocol == "udp"
        else (socket.IPPROTO_TCP, 16, struct.pack(">IIBBHHH", 1, 0, 0x50, 2, 64240, 0, 0))
    )
    return ip_packet(packet.source, packet.target, protocol, ports + body, checksum_at=at, hops=64)
