"""Whether somebody else serves Kubernetes' Services on this node."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from limpet.base.errors import KernelError
from limpet.linux.netlink.codec import Request, attr_text
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

_GET_CHAIN = 10 << 8 | 4
_TABLE, _NAME = 1, 3
_IPV4, _IPV6 = 2, 10
_CHAINS = (
    (_IPV4, "kube-proxy", "services", "nftables table kube-proxy"),
    (_IPV6, "kube-proxy", "services", "nftables table kube-proxy of IPv6"),
    (_IPV4, "nat", "KUBE-SERVICES", "iptables chain KUBE-SERVICES"),
    (_IPV6, "nat", "KUBE-SERVICES", "ip6tables chain KUBE-SERVICES"),
)
_IPVS_LINK = "kube-ipvs0"


def find_kube_proxy() -> str:
    """Where rules of kube-proxy are, of whichever of its modes; empty: nowhere.

    Asks for single chains: libnftables would read a table of thousands of Services for it. Those of
    the older iptables (not of nftables) are not seen. Raises: KernelError.
    """
    with suppress(OSError):
        socket.if_nametoindex(_IPVS_LINK)
        return f"ipvs, with the link {_IPVS_LINK}"
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        for family, table, chain, what in _CHAINS:
            with suppress(KernelError):
                netfilter.query(_question(family, table, chain))
                return what
    return ""


def _question(family: int, table: str, chain: str) -> Request:
    body = struct.pack(">BBH", family, 0, 0) + attr_text(_TABLE, table) + attr_text(_NAME, chain)
    return Request(_GET_CHAIN, 0, body, (f"chain {chain}",))
