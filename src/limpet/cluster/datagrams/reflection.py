"""Where a datagram came from, told to whoever asks: for machines that have joined no cluster yet.

    question: magic 3 | version 1 | kind 1 | nonce 16 | zeros, 64 bytes or more in all
    answer:   magic 3 | version 1 | kind 1 | nonce 16 | size 2 | IP version 1 | address 16 | port 2

Controllers and relays answer, which strangers may know anyway. An answer is never longer than its
question, so it is of no use to who forges a source; it is signed by nobody, costs no signature, and
proves nothing to anybody but the asker, who alone knows the nonce. Pure; time is passed in.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from limpet.base.addresses import Address, Endpoint
from limpet.base.bounds import strangers as bounds
from limpet.base.rate_limit import SourceRates
from limpet.cluster.datagrams.peer_datagram import MAGIC, BodyKind, DatagramError, DropReason

NONCE_BYTES = 16
QUESTION_BYTES = 64
"""The least; longer ones find out what size gets through."""
_QUESTION, _ANSWER = MAGIC + bytes((BodyKind.REFLECT,)), MAGIC + bytes((BodyKind.REFLECTED,))
_HEAD = len(_QUESTION)
_BODY = struct.Struct(f"!{NONCE_BYTES}sHB16sH")


@dataclass(frozen=True, slots=True)
class Reflected:
    """What an observer has seen."""

    nonce: bytes
    question_bytes: int
    seen_as: Endpoint


def is_question(data: bytes) -> bool:
    """Whether it asks for a reflection."""
    return data[:_HEAD] == _QUESTION and len(data) >= QUESTION_BYTES


def encode_question(nonce: bytes, size_bytes: int = QUESTION_BYTES) -> bytes:
    """A question of `size_bytes` in all."""
    return (_QUESTION + nonce).ljust(size_bytes, b"\0")


def encode_answer(question: bytes, seen_as: Endpoint) -> bytes:
    """The answer to a question that has come from `seen_as`."""
    nonce = question[_HEAD : _HEAD + NONCE_BYTES]
    address = _plain(seen_as[0])
    packed = address.packed.ljust(16, b"\0")
    return _ANSWER + _BODY.pack(
        nonce, min(len(question), 0xFFFF), address.version, packed, seen_as[1]
    )


def parse_answer(data: bytes) -> Reflected:
    """Raises: DatagramError."""
    if data[:_HEAD] != _ANSWER or len(data) != _HEAD + _BODY.size:
        raise DatagramError(DropReason.MALFORMED, "it is no reflection")
    nonce, size_bytes, version, packed, port = _BODY.unpack(data[_HEAD:])
    if version == 4 and not any(packed[4:]):
        address: Address = IPv4Address(packed[:4])
    elif version == 6:
        address = IPv6Address(packed)
    else:
        raise DatagramError(DropReason.MALFORMED, f"it tells an address of IPv{version}")
    return Reflected(nonce, size_bytes, (address, port))


def _plain(address: Address) -> Address:
    """As the packet had it: a socket for both families shows IPv4 addresses mapped."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


class AddressReflector:
    """Answers questions, as many as the bounds say."""

    def __init__(self) -> None:
        self.rates = SourceRates(
            each=(bounds.REFLECTIONS_OF_ONE_PER_S.most, bounds.REFLECTIONS_OF_ONE.most),
            strangers=(bounds.REFLECTIONS_PER_S.most, bounds.REFLECTIONS.most),
            members=None,
            most=bounds.REFLECTED_SOURCES.most,
        )

    def answer(self, data: bytes, source: Endpoint, now_s: float) -> bytes | None:
        """None: it is no question, or too many come."""
        if not is_question(data) or not self.rates.take(_site_of(source[0]), now_s):
            return None
        return encode_answer(data, source)


def _site_of(address: Address) -> Address:
    """Who has one IPv6 address has all of a /64."""
    plain = _plain(address)
    return plain if plain.version == 4 else IPv6Address(int(plain) >> 64 << 64)
