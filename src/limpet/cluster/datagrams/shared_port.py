"""One visible UDP port for the tunnel and for the agent: an nftables table.

What comes to the tunnel's port and begins with a magic word of ours goes to a socket of the agent,
everything else to the tunnel; what that socket sends leaves from the tunnel's port. So NATs map
both alike, and what a probe proves holds for the tunnel. Nothing is remembered for it, and other
tables and connection tracking see the tunnel's port only.
"""

from __future__ import annotations

from collections.abc import Mapping

from limpet.base.ownership import NFT_SHARED_PORT_TABLE
from limpet.cluster.datagrams.peer_datagram import MAGIC, RELAY_MAGIC
from limpet.linux.nftables import Nftables
from limpet.linux.owned import Owned

OWNED = Owned(nft_tables=(NFT_SHARED_PORT_TABLE,))
_FAMILIES = {4: "ipv4", 6: "ipv6"}


class SharedPort:
    """In the network namespace of the thread that uses it first."""

    def __init__(self) -> None:
        self._nft: Nftables | None = None

    def put(self, tunnel_port: int, agent_ports: Mapping[int, int]) -> None:
        """`agent_ports`: of the agent's sockets, by IP version.

        Raises: KernelError, LimpetError.
        """
        if self._nft is None:
            self._nft = Nftables(NFT_SHARED_PORT_TABLE)
        self._nft.keep(ruleset(tunnel_port, agent_ports))

    def close(self) -> None:
        """The table stays."""
        if self._nft is not None:
            self._nft.close()
            self._nft = None


def ruleset(tunnel_port: int, agent_ports: Mapping[int, int]) -> str:
    """The table's text. `@th,64,32` are the first four bytes after the UDP header."""
    magics = ", ".join(f"0x{magic.hex()}" for magic in (MAGIC, RELAY_MAGIC))
    incoming, outgoing = [], []
    for version, port in sorted(agent_ports.items()):
        udp = f"\t\tmeta nfproto {_FAMILIES[version]} udp"
        incoming.append(f"{udp} dport {tunnel_port} @th,64,32 {{ {magics} }} udp dport set {port}")
        outgoing.append(f"{udp} sport {port} udp sport set {tunnel_port}")
    newline = "\n"
    return f"""\
table inet {NFT_SHARED_PORT_TABLE} {{
\tchain input {{
\t\ttype filter hook input priority 300; policy accept;
{newline.join(incoming)}
\t}}

\tchain output {{
\t\ttype filter hook output priority raw; policy accept;
{newline.join(outgoing)}
\t}}
}}
"""
