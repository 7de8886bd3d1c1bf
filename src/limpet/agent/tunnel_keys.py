"""The key and the port of the node's encrypted tunnel: made once on the node, kept for life."""

from __future__ import annotations

from pathlib import Path

import msgspec

from limpet.agent.identity import write_durably
from limpet.model.errors import ConfigError, StorageError
from limpet.model.tunnel import KEY_BYTES, TunnelKey

_FIRST_PORT, _PORTS = 20000, 12000
"""Below the ports that kernels give to sockets that ask for any (32768 and up)."""


class TunnelFile(msgspec.Struct, frozen=True):
    """What the file holds; only its owner may read it."""

    private_key: bytes
    port: int


def keep_tunnel_key(path: Path, *, port: int = 0) -> TunnelKey:
    """What `path` holds; made, and on the disk when this returns, if there is no such file.

    `port`: that a new key goes with; 0: one made of the key, so that nodes behind one NAT have
    different ones.

    Raises: StorageError; ConfigError: the file is damaged; a new key is never made in its place.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    try:
        text = path.read_bytes()
    except FileNotFoundError:
        secret = _clamped(X25519PrivateKey.generate().private_bytes_raw())
        private_key = X25519PrivateKey.from_private_bytes(secret)
        public_key = private_key.public_key().public_bytes_raw()
        made = port or _FIRST_PORT + int.from_bytes(public_key[:4], "big") % _PORTS
        write_durably(path, msgspec.json.encode(TunnelFile(secret, made)))
        return TunnelKey(secret, public_key, made)
    except OSError as error:
        raise StorageError("read", str(path), error.strerror or str(error)) from error
    try:
        found = msgspec.json.decode(text, type=TunnelFile)
    except msgspec.MsgspecError as error:
        raise _damaged(path, str(error)) from error
    if len(found.private_key) != KEY_BYTES or not 0 < found.port < 65536:
        cause = f"a key of {len(found.private_key)} bytes and port {found.port}"
        raise _damaged(path, cause)
    private_key = X25519PrivateKey.from_private_bytes(found.private_key)
    return TunnelKey(found.private_key, private_key.public_key().public_bytes_raw(), found.port)


def _clamped(private_key: bytes) -> bytes:
    """As the device tells it again, whatever bytes it was given. Source: RFC 7748, section 5."""
    first, last = private_key[0] & 248, private_key[31] & 127 | 64
    return bytes([first]) + private_key[1:31] + bytes([last])


def _damaged(path: Path, cause: str) -> ConfigError:
    return ConfigError(
        f"read {path}: {cause} (the key of this node's tunnels is damaged; put the file back from "
        "a back-up, or remove it: the node then makes another key, and peers that it can tell of "
        "that follow)"
    )
