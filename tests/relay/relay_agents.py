"""Agents on the hosts of a relay's bed: real couriers and memberships, and a real relay service.

The loop runs in the relay's namespace, where its service opens sockets whenever it needs them.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from limpet.base.addresses import Address, Endpoint
from limpet.base.ownership import NFT_RELAY_TABLE
from limpet.base.settings import RelaySettings
from limpet.cluster.datagrams.peer_socket import Received
from limpet.cluster.documents import Source
from limpet.cluster.identity import Identity
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import Network
from limpet.datapath.event import Event, RelayingChanged
from limpet.linux.nftables import Nftables
from limpet.relay.messages import (
    KIND_OF,
    AskPair,
    Bound,
    Check,
    Pair,
    RelayMessage,
    Token,
    encode,
    parse,
)
from limpet.relay.server.service import RelayService
from tests.beds.member import membership_of
from tests.relay.relay_bed import PORT, TUNNEL_PORT, Host, courier_of
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
)
from tests.waiting import PATIENCE_S, until

RELAY_PORTS = (21000, 21019)
_nonces = itertools.count(1)

Where = tuple[str, int]
T = TypeVar("T")
M = TypeVar("M", bound=RelayMessage)


def nonce() -> bytes:
    return next(_nonces).to_bytes(8)


class Agent:
    """What there is of an agent on each host: membership, and a courier on the tunnel's port."""

    def __init__(self, host: Host, *, told: Network | None = None) -> None:
        """Within a running loop. `told`: the network, if not the usual one."""
        self.host = host
        folder = host.bed.folder / f"a{host.number}.{next(_nonces)}"
        self.identity = Identity(folder, node_key(host.number), f"n{host.number}", PINNED, ())
        self.uid = self.identity.uid
        self.told = told or network()
        self.membership = membership_of(self.identity, seal_network(self.told, CLUSTER_KEY))
        self.public: Address | None = None
        """What others reach it by, where that is no address of its own."""
        self.got: list[tuple[Received, RelayMessage]] = []
        self.changed = asyncio.Event()
        with host.netns.entered():
            self.courier = courier_of(self.membership)
        for kind in KIND_OF.values():
            self.courier.on(kind, self._take)

    def _take(self, received: Received) -> None:
        self.got.append((received, parse(received.kind, received.body)))
        self.changed.set()

    def close(self) -> None:
        self.courier.stop()
        self.membership.close()

    def learn(self, number: int, **changes: object) -> None:
        """The grant of a node."""
        sealed = seal_grant(grant(number, **changes), CLUSTER_KEY)
        self.membership.offer([sealed], source=Source.CLOUD)

    def say(self, relay: Agent, message: RelayMessage, *, version: int = 4, port: int = 0) -> None:
        """`port`: of the relay; 0: its tunnel's."""
        with self.host.netns.entered():
            assert self.courier.send(
                KIND_OF[type(message)],
                encode(message),
                to_uid=relay.uid,
                address=relay.public or relay.host.address(version),
                port=port or TUNNEL_PORT,
                by_tunnel=True,
                to_relay=bool(port),
            )

    async def hears(self, kind: type[M], matches: Callable[[M], bool] = lambda _: True) -> M:
        """The first of the kind, whenever it has come. Raises: TimeoutError."""
        return (await self.receives(kind, matches))[1]

    async def receives(
        self, kind: type[M], matches: Callable[[M], bool] = lambda _: True
    ) -> tuple[Received, M]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for received, message in self.got:
                    if isinstance(message, kind) and matches(message):
                        return received, message
                self.changed.clear()
                await self.changed.wait()

    # As an agent does that wants a pair

    async def ask(self, relay: Agent, peer: Agent, *, version: int = 4) -> Pair:
        mine = nonce()
        self.say(relay, AskPair(mine, peer.uid), version=version)
        return await self.hears(Pair, lambda pair: pair.nonce == mine)

    async def bind(self, relay: Agent, port: int, *, version: int = 4) -> Endpoint:
        """Where the relay sees this node from now on."""
        first, second = nonce(), nonce()
        self.say(relay, Check(first, port), version=version, port=port)
        token = await self.hears(Token, lambda told: told.nonce == first)
        self.say(relay, Check(second, port, token.token), version=version, port=port)
        return (await self.hears(Bound, lambda told: told.nonce == second)).endpoint


class Relay(Agent):
    """With the role, and the service in its namespace."""

    def __init__(
        self,
        host: Host,
        settings: RelaySettings,
        *,
        told: Network | None = None,
        knows: Iterable[Host] = (),
    ) -> None:
        """`knows`: the hosts whose agents are members."""
        super().__init__(host, told=told)
        host.forward()
        for each in knows:
            self.learn(each.number)
        self.learn(host.number, roles=frozenset({Role.EDGE, Role.RELAY}))
        self.announce()
        self.settings = settings
        self.was_active: list[bool] = []
        self.service = RelayService(
            self.membership,
            self.courier,
            settings,
            resync_s=60.0,
            tell=self.hear,
        )
        self.service.start()
        self.membership.subscribe(self.service.hear)

    def hear(self, event: Event) -> None:
        if isinstance(event, RelayingChanged):
            self.was_active.append(self.service.active)

    def announce(self, **changes: object) -> None:
        values = {
            "addresses": (self.host.address(), self.host.address(6)),
            "port": PORT,
            "vtep_macs": {},
            "link_mtu_bytes": 1500,
            "tunnel_port": TUNNEL_PORT,
            **changes,
        }
        self.membership.announce(**values)  # type: ignore[arg-type]

    async def stop(self) -> None:
        await self.service.stop()
        self.close()

    def counted(self, name: str) -> int:
        """Packets, by the kernel."""
        return int(self.service.report().packets[name])

    async def until_counted(self, name: str, count: int = 1) -> None:
        """Raises: TimeoutError."""
        await until(lambda: self.counted(name) >= count)

    def table(self) -> str:
        """As nft prints it; empty: there is none."""
        with self.host.netns.entered():
            nft = Nftables(NFT_RELAY_TABLE)
            try:
                return nft.list_table() or ""
            finally:
                nft.close()


SETTINGS = RelaySettings(ports=RELAY_PORTS, pairs_per_node=4)


class Cluster:
    """A relay on the last host, and an agent on each other one; all know each other."""

    def __init__(
        self,
        hosts: Iterable[Host],
        *,
        settings: RelaySettings = SETTINGS,
        told: Network | None = None,
    ) -> None:
        *others, last = hosts
        self.relay = Relay(last, settings, told=told, knows=others)
        self.agents = [Agent(host, told=told) for host in others]

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for agent in self.agents:
            agent.close()
        await self.relay.stop()

    async def join(self, versions: tuple[int, int] = (4, 4)) -> tuple[int, int]:
        """The relay's ports for the first two, both bound, each by its IP version."""
        one, other = self.agents[:2]
        port = (await one.ask(self.relay, other, version=versions[0])).port
        its_port = (await other.ask(self.relay, one, version=versions[1])).port
        await one.bind(self.relay, port, version=versions[0])
        await other.bind(self.relay, its_port, version=versions[1])
        return port, its_port


def at(address: Address, port: int) -> Where:
    return str(address), port


async def hears(opened: socket.socket) -> tuple[bytes, Where]:
    """What comes next, and where from. Raises: TimeoutError."""
    data, where = await asyncio.to_thread(opened.recvfrom, 1 << 16)
    return data, (where[0], where[1])


def run(relay: Host, scenario: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await scenario()

    with relay.netns.entered():
        return asyncio.run(main())
