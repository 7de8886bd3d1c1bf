"""Finds the node that has a pod of a name, for a person: asks all nodes that this one may talk to.

Nobody but the node that has a pod and the controller knows what it is called; without the
controller, the nodes are asked themselves. Each is asked at most three times and answers members
that it may talk to, of which each has a rate of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from limpet.base.bounds import neighbours as bounds
from limpet.base.rate_limit import TokenBuckets
from limpet.cluster.datagrams.peer_datagram import (
    OVERHEAD_BYTES,
    BodyKind,
    DatagramError,
    DropReason,
)
from limpet.cluster.datagrams.peer_socket import PeerSocket, Received
from limpet.cluster.exchange.neighbours import Destination
from limpet.cluster.exchange.pod_messages import (
    NONCE_BYTES,
    PodAsk,
    ToldPod,
    encode,
    parse_ask,
    parse_told,
    told,
)
from limpet.cluster.membership import Membership

_AGAIN_S = (0.4, 0.6, 1.0)
"""How long answers are waited for after each asking; a satellite takes 0.6 s."""
_AT_ONCE, _PAUSE_S = 50, 0.02
"""So many are asked before others get their turn: their answers come together."""

OwnPods = Callable[[str, str], Iterable[ToldPod]]
"""Pods of this node by namespace (empty: any) and name."""


@dataclass(slots=True)
class Looked:
    """What came of a question."""

    asked: int = 0
    """Nodes."""
    answered: set[str] = field(default_factory=set)
    pods: dict[str, tuple[ToldPod, ...]] = field(default_factory=dict)
    """By the uid of the node that says to have them."""


class PodLookup:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        places: Callable[[str], list[Destination]],
        own_pods: OwnPods,
    ) -> None:
        """`places`: where a node is written to, by its uid."""
        self._membership = membership
        self._courier = courier
        self._places = places
        self._own_pods = own_pods
        self.rates = TokenBuckets(
            bounds.POD_QUESTIONS_PER_S.most,
            bounds.POD_QUESTIONS_AT_ONCE.most,
            most=bounds.POD_ASKERS.most,
        )
        """Questions that are answered, by the uid of who asks."""
        self._open: dict[bytes, Looked] = {}
        courier.on(BodyKind.POD_ASK, self._asked)
        courier.on(BodyKind.POD_TOLD, self._told)

    async def find(self, namespace: str, name: str) -> Looked:
        """Asks until every node has answered, or once more after the first that has it.

        `namespace` empty: in any.
        """
        ours = self._membership.uid
        uids = [uid for uid in self._membership.snapshot.nodes if uid != ours]
        waiting = [uid for uid in uids if self._membership.may_talk(uid) and self._places(uid)]
        looked = Looked(asked=len(waiting))
        nonce = os.urandom(NONCE_BYTES)
        self._open[nonce] = looked
        try:
            for wait_s in _AGAIN_S:
                rest = [uid for uid in waiting if uid not in looked.answered]
                await self._ask(rest, encode(PodAsk(nonce, namespace, name)))
                await self._wait(looked, wait_s)
                if looked.pods or len(looked.answered) == looked.asked:
                    break
        finally:
            del self._open[nonce]
        return looked

    async def _ask(self, uids: list[str], body: bytes) -> None:
        for number, uid in enumerate(uids):
            for place in self._places(uid):
                self._courier.send(
                    BodyKind.POD_ASK,
                    body,
                    to_uid=uid,
                    address=place.address,
                    port=place.port,
                    ifindex=place.ifindex,
                )
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(_PAUSE_S)

    async def _wait(self, looked: Looked, wait_s: float) -> None:
        end_s = time.monotonic() + wait_s
        while len(looked.answered) < looked.asked and time.monotonic() < end_s:
            await asyncio.sleep(_PAUSE_S)

    def _asked(self, received: Received) -> None:
        """Raises: DatagramError."""
        if not self._membership.may_talk(received.uid):
            raise DatagramError(DropReason.UNHANDLED, "its sender is not to know of pods here")
        now_s = time.monotonic()
        if not self.rates.take(received.uid, now_s):
            raise DatagramError(DropReason.OVER_RATE, "it asks for too many pods")
        ask = parse_ask(received.body)
        # Who has not answered there may have forged its address.
        is_proven = self._courier.unproven.has_answered((received.uid, received.address), now_s)
        came = OVERHEAD_BYTES + len(received.body)
        most = None if is_proven else bounds.AMPLIFICATION.most * came - OVERHEAD_BYTES
        answer = told(ask.nonce, self._own_pods(ask.namespace, ask.name), most)
        self._courier.answer(received, BodyKind.POD_TOLD, encode(answer))

    def _told(self, received: Received) -> None:
        """Raises: DatagramError."""
        found = parse_told(received.body)
        looked = self._open.get(found.nonce)
        if looked is None or not self._membership.may_talk(received.uid):
            raise DatagramError(DropReason.UNHANDLED, "it was not asked for")
        looked.answered.add(received.uid)
        if found.pods:
            looked.pods[received.uid] = found.pods
