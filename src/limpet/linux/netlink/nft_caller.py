"""By which number the kernel tells of the calling thread where it changes tables of nftables.

Source: nf_tables_fill_gen_info in net/netfilter/nf_tables_api.c.
"""

from __future__ import annotations

import struct

from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

_GET_GENERATION = (10 << 8) | 16
"""NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN."""
_HEADER = bytes(4)
"""struct nfgenmsg: of no family."""
_NFTA_GEN_PROC_PID = 2


def caller_in(generation: wire.Message) -> int | None:
    """Number of the thread that a message about a generation is about; None: it names none."""
    number = wire.parse_attrs(generation.body, len(_HEADER)).get(_NFTA_GEN_PROC_PID, b"")
    return int(struct.unpack(">I", number)[0]) if len(number) == 4 else None


def own_number() -> int | None:
    """The calling thread's number on the machine, also in a PID namespace, where `gettid` does not
    tell it. None: this kernel does not say. Raises: KernelError."""
    request = wire.Request(_GET_GENERATION, 0, _HEADER, ("nftables' generation",))
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        return caller_in(netlink.query(request))
