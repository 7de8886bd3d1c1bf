"""A node's tunnel key is its identity's, converted: nobody can claim another's; its port follows.

Source: RFC 7748 section 4.1 (the map from edwards25519 to curve25519), RFC 8032 section 5.1.5.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from limpet.base.ownership import TUNNEL_PORTS
from limpet.datapath.tunnel.state import TunnelKey

_P = 2**255 - 19
_Y = (1 << 255) - 1


def tunnel_private_key(seed: bytes) -> bytes:
    """X25519, of the 32 bytes of an Ed25519 private key; clamped, as a device tells it again."""
    digest = hashlib.sha512(seed).digest()
    first, last = digest[0] & 248, digest[31] & 127 | 64
    return bytes([first]) + digest[1:31] + bytes([last])


@lru_cache(maxsize=8192)
def tunnel_public_key(public_key: bytes) -> bytes:
    """X25519, of an Ed25519 public key; all zeros for one that has no such counterpart."""
    y = int.from_bytes(public_key, "little") & _Y
    if len(public_key) != 32 or y % _P == 1:
        return bytes(32)
    return ((1 + y) * pow(1 - y, -1, _P) % _P).to_bytes(32, "little")


def tunnel_port(public_key: bytes) -> int:
    """UDP port made of a tunnel's public key: nodes behind one NAT have different ones, mostly."""
    return TUNNEL_PORTS[int.from_bytes(public_key[:4], "big") % len(TUNNEL_PORTS)]


def tunnel_key_of(private_key: bytes, public_key: bytes, *, port: int = 0) -> TunnelKey:
    """The same for ever for an identity, whose two Ed25519 keys are given.

    `port`: that the tunnel listens on; 0: one made of the key.
    """
    public = tunnel_public_key(public_key)
    return TunnelKey(tunnel_private_key(private_key), public, port or tunnel_port(public))
