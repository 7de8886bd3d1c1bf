"""The answering end of WireGuard, for many keys at once and little traffic.

Source: WireGuard's paper, sections 5.4.2, 5.4.3 and 5.4.6. What it leaves out (cookies, windows,
rekeys of its own) the other end of a bench does not ask for.
"""

from __future__ import annotations

import hmac
import os
import struct
import time
from dataclasses import dataclass
from hashlib import blake2s

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

INITIATION, DATA = b"\1\0\0\0", b"\4\0\0\0"
_RESPONSE = b"\2\0\0\0"
_USABLE_S = 120.0
"""Afterwards the end that has begun the session begins another."""
_DATA_HEAD = struct.Struct("<4sIQ")
_NO_NONCE = bytes(12)
_PAD = 16


def _hash(*parts: bytes) -> bytes:
    return blake2s(b"".join(parts)).digest()


def _kdf(key: bytes, material: bytes, count: int) -> list[bytes]:
    secret = hmac.digest(key, material, "blake2s")
    found: list[bytes] = []
    for number in range(count):
        before = found[-1] if found else b""
        found.append(hmac.digest(secret, before + bytes((number + 1,)), "blake2s"))
    return found


_CHAIN = _hash(b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s")
_HASH = _hash(_CHAIN, b"WireGuard v1 zx2c4 Jason@zx2c4.com")


@dataclass(slots=True)
class Session:
    """Of one key of ours with the other end."""

    number: int
    """Whose key it is."""
    theirs: int
    """The other end's index of it."""
    sending: ChaCha20Poly1305
    receiving: ChaCha20Poly1305
    began_s: float
    sent: int = 0

    @property
    def usable(self) -> bool:
        return time.monotonic() - self.began_s < _USABLE_S

    def seal(self, packet: bytes) -> bytes:
        """A message with the packet; with none it keeps alive."""
        head = _DATA_HEAD.pack(DATA, self.theirs, self.sent)
        nonce = bytes(4) + head[8:]
        self.sent += 1
        return head + self.sending.encrypt(nonce, packet + bytes(-len(packet) % _PAD), None)


class WireguardEnds:
    """The keys' sessions with one other end, by this end's index."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self.latest: dict[int, Session] = {}
        """By the number of the key."""

    def respond(self, number: int, private_key: bytes, message: bytes) -> bytes:
        """The answer to a handshake's first message for that key.

        Raises: ValueError, cryptography's InvalidTag.
        """
        private = X25519PrivateKey.from_private_bytes(private_key)
        sender, public = message[4:8], message[8:40]
        chain = _kdf(_CHAIN, public, 1)[0]
        digest = _hash(_hash(_HASH, private.public_key().public_bytes_raw()), public)
        theirs = X25519PublicKey.from_public_bytes(public)
        chain, key = _kdf(chain, private.exchange(theirs), 2)
        static = ChaCha20Poly1305(key).decrypt(_NO_NONCE, message[40:88], digest)
        digest = _hash(digest, message[40:88])
        peer = X25519PublicKey.from_public_bytes(static)
        chain, key = _kdf(chain, private.exchange(peer), 2)
        ChaCha20Poly1305(key).decrypt(_NO_NONCE, message[88:116], digest)
        digest = _hash(digest, message[88:116])

        ephemeral = X25519PrivateKey.generate()
        ours = ephemeral.public_key().public_bytes_raw()
        chain = _kdf(chain, ours, 1)[0]
        digest = _hash(digest, ours)
        chain = _kdf(chain, ephemeral.exchange(theirs), 1)[0]
        chain = _kdf(chain, ephemeral.exchange(peer), 1)[0]
        chain, shared, key = _kdf(chain, bytes(32), 3)
        nothing = ChaCha20Poly1305(key).encrypt(_NO_NONCE, b"", _hash(digest, shared))
        index = os.urandom(4)
        answer = _RESPONSE + index + sender + ours + nothing
        mac_key = _hash(b"mac1----", static)
        first, second = _kdf(chain, b"", 2)
        self._keep(
            index,
            Session(
                number,
                int.from_bytes(sender, "little"),
                ChaCha20Poly1305(second),
                ChaCha20Poly1305(first),
                time.monotonic(),
            ),
        )
        return answer + blake2s(answer, digest_size=16, key=mac_key).digest() + bytes(16)

    def _keep(self, index: bytes, session: Session) -> None:
        self._sessions = {key: each for key, each in self._sessions.items() if each.usable}
        self._sessions[int.from_bytes(index, "little")] = session
        self.latest = {key: each for key, each in self.latest.items() if each.usable}
        self.latest[session.number] = session

    def open(self, message: bytes) -> tuple[Session, bytes] | None:
        """The packet in a message, empty if it only keeps alive; None: of no session.

        Raises: cryptography's InvalidTag.
        """
        _kind, index, _counter = _DATA_HEAD.unpack_from(message)
        session = self._sessions.get(index)
        if session is None:
            return None
        nonce = bytes(4) + message[8:16]
        return session, session.receiving.decrypt(nonce, message[_DATA_HEAD.size :], None)
