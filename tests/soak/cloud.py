"""What a person and further nodes ask of the controller, and what it has acknowledged."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from limpet.base.errors import ControllerUnavailable, LimpetError
from limpet.cluster.api import InterfaceAddresses
from limpet.lab.world.controller import PORT
from limpet.lab.world.world import World
from tests.beds.namespaces import Netns
from tests.controller.machines import Node
from tests.soak.load import Load

_PERSON_RESTS_S = 0.2
_GUEST_RESTS_S = 3.0
_ASKS_AGAIN_S = 0.05
_COMMUNITIES = 8
GUESTS = "guests"
"""Community of the nodes that come and go: no other node talks to them, but for the cloud's."""


class Asking(Load):
    """Asks the controller until there is an answer."""

    def __init__(self, name: str, rest_s: float, world: World, chance: random.Random) -> None:
        super().__init__(name, rest_s, chance)
        self.world = world

    def insist(self, verb: str, *, already: str = "", **arguments: Any) -> dict[str, Any]:
        """As a person who asks again.

        `already`: what it is refused with when it was done, and the answer was lost. Raises:
        LimpetError.
        """
        while True:
            try:
                answer = self.world.controller.ask(verb, **arguments)
            except ControllerUnavailable:
                time.sleep(_ASKS_AGAIN_S)
                continue
            except LimpetError as error:
                if not already or already not in str(error):
                    raise
                answer = {}
            self.acknowledged += 1
            return answer


class Person(Asking):
    """Labels nodes, makes communities and dissolves them."""

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__("person", _PERSON_RESTS_S, world, chance)
        self.labels: dict[str, str] = {}
        """By node, the value of the label `turn` that was acknowledged."""
        self.communities = {GUESTS}
        self.insist("community.create", community=GUESTS)

    def work(self) -> None:
        if self.chance.random() < 0.7:
            node, turn = self.chance.choice(list(self.world.machines)), str(self.acknowledged)
            self.insist("node.label", node=node, add={"turn": turn})
            self.labels[node] = turn
            return
        community = f"works-{self.chance.randrange(_COMMUNITIES)}"
        if community in self.communities:
            self.insist("community.dissolve", community=community, already="there is none")
            self.communities.remove(community)
        else:
            self.insist("community.create", community=community, already="there is one")
            self.communities.add(community)


class Guests(Asking):
    """Nodes that join, grow, tell of a pod, and are removed by a person."""

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__("guests", _GUEST_RESTS_S, world, chance)
        self.known: list[Node] = []
        """Those that have joined and are not removed."""
        self.removed: set[str] = set()
        """Uids."""
        self._cloud = Netns(world.controller.netns)
        self._came = 0

    def work(self) -> None:
        self._came += 1
        node = Node(f"https://127.0.0.1:{PORT}", f"guest-{self._came}")
        token = self.insist(
            "token.create", ttl_s=3600, roles=["edge"], communities=[GUESTS], labels={}
        )["token"]
        with self._cloud.entered():
            asyncio.run(self._live(node, token))
        self.known.append(node)
        if len(self.known) > 1:
            gone = self.known.pop(self.chance.randrange(len(self.known)))
            self.insist("node.remove", node=gone.uid, already="was removed")
            self.removed.add(gone.uid)

    async def _live(self, node: Node, token: str) -> None:
        pods = [InterfaceAddresses("limpet", "default", node.name, "eth0", ("10.0.0.1",))]
        await self._insist(lambda: node.join(token))
        await self._insist(lambda: node.publish(sequence=1))
        await self._insist(lambda: node.request_segments(4, 6))
        await self._insist(lambda: node.report(1, pods, None))
        await self._insist(lambda: node.publish(sequence=2))
        await node.close()

    async def _insist(self, ask: Callable[[], Awaitable[object]]) -> None:
        """As an agent does."""
        while True:
            try:
                await ask()
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(_ASKS_AGAIN_S)
            else:
                self.acknowledged += 1
                return
