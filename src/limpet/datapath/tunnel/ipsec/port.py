"""One visible UDP port for IPsec and WireGuard: an nftables table, where a node has both.

The daemon listens on a port of its own. What comes to the tunnel's port and is neither WireGuard's
nor the agent's goes there, and what it sends leaves from the tunnel's port: so the ways to peers
that were proven for the one hold for the other. As with `nat.shared_port`, which does the same
for the agent's probes, nothing is remembered for it.
"""

from __future__ import annotations

from limpet.base.ownership import IPSEC_PORT_TABLE
from limpet.cluster.datagrams.peer_datagram import MAGIC, RELAY_MAGIC
from limpet.linux.nftables import Nftables

IPSEC_PORT = 20500
"""Where the daemon listens then; below a relay's usual ports."""
_WIREGUARD = tuple(bytes((kind, 0, 0, 0)) for kind in (1, 2, 3, 4))
"""How its messages begin. IKE begins with four zeros, ESP with an SPI that is none of these.

Source: WireGuard's paper, section 5.4; RFC 3948, section 2.2; `spi_min` in codec.py.
"""
_BARE, _BARE_AGAIN = "udp checksum 0", "udp checksum set 0"
"""The kernel's ESP has no checksum over IPv4, and a changed port would make a wrong one of none.

Source: nft_payload_csum_inet in net/netfilter/nft_payload.c; RFC 3948, section 2.1.
"""


class IpsecPort:
    """The nftables table, in the network namespace of the thread that uses it first."""

    def __init__(self, inner_port: int) -> None:
        """`inner_port`: where the daemon listens; 0: it has the tunnel's port itself."""
        self.inner_port = inner_port
        self._nft: Nftables | None = None

    def is_put(self, tunnel_port: int) -> bool:
        """Raises: KernelError, LimpetError."""
        text = ruleset(tunnel_port, self.inner_port)
        return not self.inner_port or self._opened().read_ruleset(text) == text

    def put(self, tunnel_port: int) -> None:
        """Raises: KernelError, LimpetError."""
        self._opened().keep(ruleset(tunnel_port, self.inner_port) if self.inner_port else "")

    def drop(self) -> None:
        """Raises: KernelError, LimpetError."""
        self._opened().keep("")

    def close(self) -> None:
        """The table stays."""
        if self._nft is not None:
            self._nft.close()
            self._nft = None

    def _opened(self) -> Nftables:
        if self._nft is None:
            self._nft = Nftables(IPSEC_PORT_TABLE)
        return self._nft


def ruleset(tunnel_port: int, inner_port: int) -> str:
    """The table's text. `@th,64,32` are the first four bytes after the UDP header."""
    others = sorted((*_WIREGUARD, MAGIC, RELAY_MAGIC))
    words = ", ".join(f"0x{int.from_bytes(each):x}" for each in others)
    comes = f"udp dport {tunnel_port} @th,64,32 != {{ {words} }}"
    leaves = f"udp sport {inner_port}"
    to_inner, to_tunnel = f"udp dport set {inner_port}", f"udp sport set {tunnel_port}"
    return "\n".join(
        (
            f"table inet {IPSEC_PORT_TABLE} {{",
            "\tchain input {",
            "\t\ttype filter hook input priority 300; policy accept;",
            f"\t\t{comes} {_BARE} {to_inner} {_BARE_AGAIN}",
            f"\t\t{comes} {to_inner}",
            "\t}",
            "",
            "\tchain output {",
            "\t\ttype filter hook output priority raw; policy accept;",
            f"\t\t{leaves} {_BARE} {to_tunnel} {_BARE_AGAIN}",
            f"\t\t{leaves} {to_tunnel}",
            "\t}",
            "}",
            "",
        )
    )
