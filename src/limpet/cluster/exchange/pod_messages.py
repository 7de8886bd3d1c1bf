"""Where a pod is, asked and told among nodes: MessagePack arrays. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from limpet.base.bounds.members import TOLD_POD_ADDRESSES
from limpet.base.bounds.neighbours import FOUND_PODS
from limpet.base.bounds.words import NAME
from limpet.base.decoding import msgpack_decoder
from limpet.cluster.datagrams.peer_datagram import DatagramError, DropReason

NONCE_BYTES = 8

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Name = Annotated[str, Meta(max_length=NAME.most)]
_LONGEST_ADDRESS = 45
"""Characters. Source: INET6_ADDRSTRLEN in netinet/in.h."""


class PodAsk(Struct, frozen=True, array_like=True):
    """Whether the other node has a pod of that name."""

    nonce: _Nonce
    namespace: _Name
    """Empty: in any."""
    name: _Name


class ToldPod(Struct, frozen=True, array_like=True):
    """A pod that the telling node has."""

    namespace: _Name
    name: _Name
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=_LONGEST_ADDRESS)], ...],
        Meta(max_length=TOLD_POD_ADDRESSES.most),
    ]


class PodsTold(Struct, frozen=True, array_like=True):
    """The answer; also where there is none."""

    nonce: _Nonce
    pods: Annotated[tuple[ToldPod, ...], Meta(max_length=FOUND_PODS.most)] = ()


encode = msgspec.msgpack.Encoder().encode
_asks = msgpack_decoder(PodAsk)
_tellings = msgpack_decoder(PodsTold)


def parse_ask(body: bytes) -> PodAsk:
    """Raises: DatagramError."""
    try:
        found: PodAsk = _asks.decode(body)
    except msgspec.MsgspecError as error:
        raise DatagramError(DropReason.MALFORMED, f"it asks for no pod: {error}") from error
    return found


def parse_told(body: bytes) -> PodsTold:
    """Raises: DatagramError."""
    try:
        found: PodsTold = _tellings.decode(body)
    except msgspec.MsgspecError as error:
        raise DatagramError(DropReason.MALFORMED, f"it tells of no pods: {error}") from error
    return found


def told(nonce: bytes, pods: Iterable[ToldPod]) -> PodsTold:
    """As many of them as an answer may have."""
    return PodsTold(nonce, tuple(pods)[: FOUND_PODS.most])
