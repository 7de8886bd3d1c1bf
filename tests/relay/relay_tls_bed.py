"""A relay and nodes of one cluster, with the certificates that its controller would give them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from limpet.base.addresses import Endpoint
from limpet.cluster.documents import Source
from limpet.cluster.identity import Identity
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds.grant import Role
from limpet.cluster.membership import Membership
from limpet.controller.registry.tables import Tables
from limpet.controller.state.authority import create_cluster, node_certificate
from limpet.datapath.event import Event
from limpet.relay.client import link as relay_link
from limpet.relay.client import tls_client as relay_tls_client
from limpet.relay.client.peer import StreamEvent, StreamFailed
from limpet.relay.client.tls_client import TlsRelays
from limpet.relay.messages import Refusal
from limpet.relay.server import streams as relayed_node
from limpet.relay.server import tls_server as relay_tls_server
from limpet.relay.server.streams import RelayRefused, StreamEnd
from limpet.relay.server.tls_server import RelayTlsServer
from limpet.relay.stream.packet_socket import Sink
from tests.beds.member import membership_of
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
)
from tests.waiting import PATIENCE_S

RELAY = 9
NUMBERS = (1, 2, 3, RELAY)


def uid(number: int) -> str:
    return uid_of(public_key_of(node_key(number)))


class Cluster:
    """Nodes 1 to 3, and the relay; more are strangers, until somebody tells of them."""

    def __init__(self, folder: Path) -> None:
        self.undo = ExitStack()
        self._folder = folder
        tables = Tables(quarantine_s=600.0)
        create_cluster(tables, network())
        self._authority = tables.authority

    def identity(self, number: int) -> Identity:
        """On the disk, as `limpet join` leaves it."""
        folder = self._folder / f"n{number}"
        key = node_key(number)
        if not folder.exists():
            folder.mkdir()
            pem = Ed25519PrivateKey.from_private_bytes(key).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            (folder / "node.key.pem").write_bytes(pem)
            certificate = node_certificate(self._authority, public_key_of(key))
            (folder / "node.pem").write_text(certificate)
            (folder / "ca.pem").write_text(self._authority.ca_certificate)
        return Identity(folder, key, f"node-{number}", PINNED, ())

    def membership(self, number: int) -> Membership:
        made = membership_of(self.identity(number), seal_network(network(), CLUSTER_KEY))
        self.undo.callback(made.close)
        for other in NUMBERS:
            tell(made, other)
        return made


def tell(membership: Membership, number: int, generation: int = 1, **changes: object) -> None:
    """The cloud says this of a node."""
    changes.setdefault("roles", frozenset({Role.RELAY if number == RELAY else Role.EDGE}))
    said = grant(number, generation=generation, revision=generation, **changes)
    membership.offer([seal_grant(said, CLUSTER_KEY)], source=Source.CLOUD)


class Switchboard:
    """Joins TLS connections of every two nodes but those in `apart`."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, str], StreamEnd] = {}
        """By node and peer."""
        self.apart: set[str] = set()

    def attach(
        self, uid: str, peer_uid: str, on_packet: Sink, on_gone: Callable[[], None]
    ) -> StreamEnd:
        if {uid, peer_uid} & self.apart:
            raise RelayRefused(Refusal.MAY_NOT_TALK, uid, peer_uid)

        def onward(packet: bytes) -> None:
            other = self.ends.get((peer_uid, uid))
            if other is not None:
                other.on_packet(packet)

        def close(end: StreamEnd) -> None:
            if self.ends.get((uid, peer_uid)) is end:
                del self.ends[uid, peer_uid]

        end = self.ends[uid, peer_uid] = StreamEnd(on_packet, on_gone, close, onward=onward)
        return end


class Relay:
    """Its server, on a port of loopback unless said otherwise."""

    def __init__(self, cluster: Cluster, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.membership = cluster.membership(RELAY)
        self.board = Switchboard()
        self.told: list[Event] = []
        self.server = RelayTlsServer(
            self.board.attach, self.membership, [(host, port)], self.told.append
        )

    async def start(self) -> None:
        await self.server.start()
        self.membership.subscribe(self.server.hear)
        assert self.server.listeners.troubles == {}

    @property
    def address(self) -> Endpoint:
        host, port = self.server.listeners.addresses[0]
        return ip_address(host), port

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.server.counters)


class Site:
    """A node with a socket in its tunnel's place. Within a running loop."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.uid = uid(number)
        self.tunnel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.tunnel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.tunnel.bind(("127.0.0.1", 0))
        self.membership = cluster.membership(number)
        self.told: list[StreamEvent] = []
        self.relays = TlsRelays(
            self.membership, tunnel_port=self.tunnel.getsockname()[1], tell=self.told.append
        )
        self.membership.subscribe(self.relays.hear)

    @property
    def lost(self) -> list[str]:
        """Relays, each time that an end at them was lost with the connection."""
        return lost(self.told)

    async def end_for(self, peer: Site, relay: Relay) -> tuple[str, int]:
        """Where its tunnel sends what is for the peer."""
        end = await self.relays.end_for(uid(RELAY), (relay.address,), peer.uid)
        return str(end.endpoint[0]), end.endpoint[1]

    async def receive(self) -> tuple[bytes, tuple[str, int]]:
        """Raises: TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.get_running_loop().sock_recvfrom(self.tunnel, 1 << 16)


def lost(told: Iterable[StreamEvent]) -> list[str]:
    """Relays, each time that an end at them was lost with the connection."""
    gone = (each for each in told if isinstance(each, StreamFailed))
    return [each.relay for each in gone if each.problem == "the connection was lost"]


@contextmanager
def tls_client(cluster: Cluster, number: int, at: Endpoint) -> Iterator[ssl.SSLSocket]:
    """A connection with the node's certificate, blocking; nothing has been sent on it."""
    identity = cluster.identity(number)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(identity.ca_path)
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    with (
        socket.create_connection((str(at[0]), at[1]), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as tls,
    ):
        yield tls


@contextmanager
def patient_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """On a busy machine, what is on its way is not lost."""
    monkeypatch.setattr(relay_tls_client, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(relay_tls_server, "GREETING_S", PATIENCE_S)
    monkeypatch.setattr(relay_link, "PONG_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(relayed_node, "IDLE_S", 3 * PATIENCE_S)
    made = Cluster(folder)
    with made.undo:
        yield made


@asynccontextmanager
async def relay_of(cluster: Cluster, *, port: int = 0) -> AsyncIterator[Relay]:
    relay = Relay(cluster, port=port)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.server.stop()


@asynccontextmanager
async def site_of(cluster: Cluster, number: int) -> AsyncIterator[Site]:
    site = Site(cluster, number)
    try:
        yield site
    finally:
        await site.relays.stop()
        site.tunnel.close()


Scenario = Callable[[Relay, Site, Site], Awaitable[None]]


def play(cluster: Cluster, scenario: Scenario) -> None:
    """With a relay and two nodes."""

    async def main() -> None:
        async with (
            relay_of(cluster) as relay,
            site_of(cluster, 1) as one,
            site_of(cluster, 2) as other,
        ):
            await scenario(relay, one, other)

    asyncio.run(main())
