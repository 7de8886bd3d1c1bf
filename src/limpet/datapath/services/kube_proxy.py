"""Whether somebody else serves Kubernetes' Services on this node, and what they set for it."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from limpet.base.errors import KernelError
from limpet.linux.netlink.codec import Request, attr_text
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

HALF_CLOSED = "net/netfilter/nf_conntrack_tcp_timeout_close_wait"
HALF_CLOSED_S = 3600
"""As kube-proxy has it, where the kernel takes 60 s: a client that has said all, and waits longer
for the answer, would find its connection translated no more. Source: conntrack.tcpCloseWaitTimeout
in pkg/proxy/apis/config/v1alpha1/defaults.go."""
_GET_CHAIN = 10 << 8 | 4
_TABLE, _NAME = 1, 3
_IPV4, _IPV6 = 2, 10
_CHAINS = (
    (_IPV4, "kube-proxy", "services", "nftables table kube-proxy"),
    (_IPV6, "kube-proxy", "services", "nftables table kube-proxy of IPv6"),
    (_IPV4, "nat", "KUBE-SERVICES", "iptables chain KUBE-SERVICES"),
    (_IPV6, "nat", "KUBE-SERVICES", "ip6tables chain KUBE-SERVICES"),
)
IPVS_LINK = "kube-ipvs0"
"""Has the addresses of all Services that kube-proxy serves by ipvs."""
_TABLES, _KUBE_SERVICES = ("filter", "nat"), b"KUBE-SERVICES"
"""Tables of the older iptables, the smaller first: kube-proxy has that chain in both, and the
kernel tells all rules of a table or none."""
_MOST_BYTES = 4 << 20
"""Largest table that is read, in some 20 ms; that of 10,000 Services is 60 MB."""
_LEGACY = (
    # Where its tables are listed, and of its sockets: family, level.
    ("ip_tables_names", socket.AF_INET, socket.IPPROTO_IP, "iptables-legacy chain KUBE-SERVICES"),
    (
        *("ip6_tables_names", socket.AF_INET6, socket.IPPROTO_IPV6),
        "ip6tables-legacy chain KUBE-SERVICES",
    ),
)
_SO_GET_INFO, _SO_GET_ENTRIES = 64, 65
"""Source: include/uapi/linux/netfilter_ipv4/ip_tables.h; those of IPv6 have the same numbers."""
_INFO, _ENTRIES = struct.Struct("=32s13I"), struct.Struct("=32sI4x")
"""struct ipt_getinfo: table, hooks, entries, bytes of them; head of struct ipt_get_entries."""
_CHAIN_HEAD = b"ERROR".ljust(30, b"\0")
"""Name and revision of the target that a chain of a user begins with, its own name behind it."""
_TRIES = 3


def find_kube_proxy() -> str:
    """Where rules of kube-proxy are, of whichever of its modes; empty: nowhere.

    Asks for single chains: libnftables would read a table of thousands of Services for it. Raises:
    KernelError.
    """
    with suppress(OSError):
        socket.if_nametoindex(IPVS_LINK)
        return f"ipvs, with the link {IPVS_LINK}"
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        for family, table, chain, what in _CHAINS:
            with suppress(KernelError):
                netfilter.query(_question(family, table, chain))
                return what
    for names, family, level, what in _LEGACY:
        with suppress(OSError):
            if _has_legacy(names, family, level):
                return what
    return ""


def _question(family: int, table: str, chain: str) -> Request:
    body = struct.pack(">BBH", family, 0, 0) + attr_text(_TABLE, table) + attr_text(_NAME, chain)
    return Request(_GET_CHAIN, 0, body, (f"chain {chain}",))


def _has_legacy(names: str, family: int, level: int) -> bool:
    """Whether kube-proxy's chain is in a table of the older iptables, which has no netlink.

    Raises: OSError: there is no such iptables, or it may not be asked.
    """
    # Who asks for a table that is not there makes it, and connection tracking with it.
    listed = Path(f"/proc/thread-self/net/{names}").read_text(encoding="ascii").split()
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        return any(
            _CHAIN_HEAD + _KUBE_SERVICES + b"\0" in _legacy_rules(raw, level, table.encode())
            for table in _TABLES
            if table in listed
        )


def _legacy_rules(raw: socket.socket, level: int, table: bytes) -> bytearray:
    """As the kernel holds them; none of a table that is larger than is read. Raises: OSError."""
    for left in reversed(range(_TRIES)):
        info = bytearray(_INFO.pack(table, *[0] * 13))
        _get_option(raw, level, _SO_GET_INFO, info)
        size = _INFO.unpack(info)[-1]
        if size > _MOST_BYTES:
            break
        rules = bytearray(_ENTRIES.size + size)
        _ENTRIES.pack_into(rules, 0, table, size)
        try:
            _get_option(raw, level, _SO_GET_ENTRIES, rules)
        except OSError as error:
            if error.errno == errno.EAGAIN and left:  # it has changed meanwhile
                continue
            raise
        return rules
    return bytearray()


def _get_option(raw: socket.socket, level: int, option: int, content: bytearray) -> None:
    """`getsockopt` with a question in `content`, where the answer is then. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    space = (ctypes.c_char * len(content)).from_buffer(content)
    size = ctypes.c_uint32(len(content))
    if libc.getsockopt(raw.fileno(), level, option, space, ctypes.byref(size)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
