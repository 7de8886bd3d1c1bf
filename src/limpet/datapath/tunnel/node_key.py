"""The key and the port of the node's encrypted tunnel: both follow from its identity."""

from __future__ import annotations

from limpet.datapath.tunnel.key import tunnel_port, tunnel_private_key, tunnel_public_key
from limpet.datapath.tunnel.state import TunnelKey


def tunnel_key_of(private_key: bytes, public_key: bytes, *, port: int = 0) -> TunnelKey:
    """The same for ever for an identity, whose two Ed25519 keys are given.

    `port`: that the tunnel listens on; 0: one made of the key.
    """
    public = tunnel_public_key(public_key)
    return TunnelKey(tunnel_private_key(private_key), public, port or tunnel_port(public))
