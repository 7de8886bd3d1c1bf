"""The first message of WireGuard's handshake, made by hand: with whatever timestamp.

Source: WireGuard's paper, section 5.4.2.
"""

from __future__ import annotations

import hmac
from hashlib import blake2s

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

RESPONSE = 2
_TAI_EPOCH = 0x400000000000000A
_NONCE = bytes(12)


def _hash(*parts: bytes) -> bytes:
    return blake2s(b"".join(parts)).digest()


def _kdf(key: bytes, material: bytes) -> tuple[bytes, bytes]:
    secret = hmac.digest(key, material, "blake2s")
    first = hmac.digest(secret, b"\1", "blake2s")
    return first, hmac.digest(secret, first + b"\2", "blake2s")


def initiation(private: X25519PrivateKey, responder: bytes, *, timestamp_s: int) -> bytes:
    """Message 1, from the holder of `private` to the one with the public key `responder`."""
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    static = private.public_key().public_bytes_raw()
    peer = X25519PublicKey.from_public_bytes(responder)

    chain = _hash(b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s")
    digest = _hash(_hash(chain, b"WireGuard v1 zx2c4 Jason@zx2c4.com"), responder)
    chain, _ = _kdf(chain, public)
    digest = _hash(digest, public)
    chain, key = _kdf(chain, ephemeral.exchange(peer))
    sealed_static = ChaCha20Poly1305(key).encrypt(_NONCE, static, digest)
    digest = _hash(digest, sealed_static)
    chain, key = _kdf(chain, private.exchange(peer))
    time = (_TAI_EPOCH + timestamp_s).to_bytes(8, "big") + bytes(4)
    sealed_time = ChaCha20Poly1305(key).encrypt(_NONCE, time, digest)

    message = b"\1\0\0\0" + b"\x2a\0\0\0" + public + sealed_static + sealed_time
    mac_key = _hash(b"mac1----", responder)
    return message + blake2s(message, digest_size=16, key=mac_key).digest() + bytes(16)
