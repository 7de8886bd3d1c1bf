"""What a node answers a member that looks for a pod by its name."""

from __future__ import annotations

import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from limpet.base.bounds.neighbours import AMPLIFICATION, FOUND_PODS
from limpet.cluster.datagrams.peer_datagram import OVERHEAD_BYTES, BodyKind
from limpet.cluster.datagrams.peer_socket import Handler, PeerSocket, Received
from limpet.cluster.exchange.pod_lookup import PodLookup
from limpet.cluster.exchange.pod_messages import PodAsk, ToldPod, encode, parse_told
from limpet.cluster.identity import Identity
from tests.beds.member import member_without_disk
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_network,
    told,
)

WHERE = ip_address("192.0.2.2")
ADDRESSES = tuple(f"2001:db8:aaaa:bbbb:cccc:dddd:eeee:{n:x}" for n in range(16))


class Courier(PeerSocket):
    """Keeps what is answered."""

    def __init__(self) -> None:
        own = Identity(Path("/nonexistent"), node_key(1), "node-1", PINNED, ())
        super().__init__(own, port=7471, is_member=lambda _: True, is_removed=lambda _: ())
        self.answers: list[bytes] = []
        self.handlers: dict[BodyKind, Handler] = {}

    def on(self, kind: BodyKind, handler: Handler) -> None:
        self.handlers[kind] = handler

    def answer(self, received: Received, kind: BodyKind, body: bytes) -> bool:
        self.answers.append(body)
        return True


@pytest.mark.parametrize("is_proven", [False, True])
def test_who_has_not_answered_where_it_asks_from_gets_a_few_times_what_it_sent(
    is_proven: bool,
) -> None:
    """It may name a stranger as its source; a peer that is known there is told of all pods."""
    courier, uid = Courier(), grant(2).uid
    membership = member_without_disk(seal_network(network(), CLUSTER_KEY), *told(1), *told(2))
    pods = [ToldPod("n" * 63 + str(number), "web", ADDRESSES) for number in range(FOUND_PODS.most)]
    PodLookup(membership, courier, lambda _uid: [], lambda *_: pods)
    if is_proven:
        courier.unproven.answered(uid, WHERE, time.monotonic())
    ask = encode(PodAsk(bytes(8), "", "web"))
    courier.handlers[BodyKind.POD_ASK](
        Received(WHERE, 7471, 1, 64, WHERE, BodyKind.POD_ASK, ask, uid, to_anybody=False)
    )

    (answer,) = courier.answers
    is_few_times = OVERHEAD_BYTES + len(answer) <= AMPLIFICATION.most * (OVERHEAD_BYTES + len(ask))
    assert is_few_times is not is_proven
    assert (len(parse_told(answer).pods) == len(pods)) is is_proven
