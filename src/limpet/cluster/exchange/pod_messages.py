"""Where a pod is, asked and told among nodes: MessagePack arrays. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from limpet.base.bounds.members import TOLD_POD_ADDRESSES
from limpet.base.bounds.neighbours import FOUND_PODS
from limpet.base.bounds.words import NAME
from limpet.base.decoding import msgpack_decoder
from limpet.cluster.datagrams.peer_datagram import DatagramError, DropReason
from limpet.cluster.kinds import fields
from limpet.cluster.reported_pods import key_problem

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
_told_pods = msgpack_decoder(PodsTold)


def parse_ask(body: bytes) -> PodAsk:
    """Raises: DatagramError."""
    try:
        found: PodAsk = _asks.decode(body)
    except msgspec.MsgspecError as error:
        raise DatagramError(DropReason.MALFORMED, f"it asks for no pod: {error}") from error
    return found


def parse_told(body: bytes) -> PodsTold:
    """With addresses as they are written shortest. Raises: DatagramError."""
    try:
        found: PodsTold = _told_pods.decode(body)
        return replace(found, pods=tuple(map(_checked, found.pods)))
    except (msgspec.MsgspecError, ValueError) as error:
        raise DatagramError(DropReason.MALFORMED, f"it tells of no pods: {error}") from error


def told(nonce: bytes, pods: Iterable[ToldPod], most_bytes: int | None = None) -> PodsTold:
    """As many of them as an answer may have, without those that nobody would take. `most_bytes`: of
    the body; None: as large as it is."""
    fit = (each for each in pods if not _name_problem(each))
    answer = PodsTold(nonce, tuple(itertools.islice(fit, FOUND_PODS.most)))
    while answer.pods and most_bytes is not None and len(encode(answer)) > most_bytes:
        answer = replace(answer, pods=answer.pods[:-1])
    return answer


def _checked(pod: ToldPod) -> ToldPod:
    """Raises: ValueError for a name or an address that is none."""
    if problem := _name_problem(pod):
        raise ValueError(problem)
    return replace(pod, addresses=tuple(map(fields.address_text, pod.addresses)))


def _name_problem(pod: ToldPod) -> str | None:
    """As in a report to the controller."""
    return key_problem(("", pod.namespace, pod.name, ""))
