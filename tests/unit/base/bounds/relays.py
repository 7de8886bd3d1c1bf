"""Probes of what nodes and relays take of each other over TLS, and of where a relay says it is."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections import Counter
from contextlib import ExitStack
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import cast

from limpet.base.addresses import Endpoint
from limpet.base.bounds import members
from limpet.base.errors import LimpetError
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.kinds.grant import Role
from limpet.relay.client.choice import RelayChoice
from limpet.relay.client.contact import Contacts, Line, RelaySite
from limpet.relay.client.tls_client import TlsRelays
from limpet.relay.messages import Hello, Pair, Refusal, Seen
from limpet.relay.server.pair_paths import throughput_rates
from limpet.relay.server.streams import RelayedNode, StreamEnd
from limpet.relay.stream.codec import FrameParser, Opened, Ping, StreamError
from limpet.relay.stream.session import _Waiting, rest_after
from tests.beds.member import membership_of
from tests.beds.rogue import Authority
from tests.unit.base.bounds.probes import is_remembered, probe
from tests.unit.cluster_values import CLUSTER_KEY, PINNED, grant, seal_grant

_PLACE = IPv4Address("203.0.113.1")


@probe(members.RELAY_PACKET)
def _(amount: int) -> bool:
    try:
        frames = FrameParser().feed(amount.to_bytes(2) + (7).to_bytes(2) + bytes(amount))
    except StreamError:
        return False
    return frames == [(7, bytes(amount))]


@probe(members.RELAY_THROUGHPUTS)
def _(amount: int) -> bool:
    class Packets:
        """Of 9,000 bytes."""

        rates = throughput_rates(1_000_000)

        def take(self, key: int, now_s: float, /) -> bool:
            return self.rates.take(key, now_s, 9_000)

    return is_remembered(amount, Packets())


@probe(members.RELAY_TINY_PACKETS_PER_S)
def _(amount: int) -> bool:
    """Beside those that have their 64 bytes."""
    return rest_after(amount + 10, 64 * 10) <= 1.0


@probe(members.RELAY_UNREAD)
def _(amount: int) -> bool:
    """With the heads of their frames."""
    waiting, size = _Waiting(), 4096
    sizes = [size] * (amount // size - 1) + [size + amount % size]
    return all(waiting.take_packet(7, bytes(each - 4)) for each in sizes)


@probe(members.RELAY_UNREAD_WORDS)
def _(amount: int) -> bool:
    """A PING has six bytes, OPENED seven."""
    waiting, longer = _Waiting(), amount % 6
    words = [Opened(7)] * longer + [Ping()] * ((amount - 7 * longer) // 6)
    return all(waiting.take_control(each) for each in words)


def _nobody(*_: object) -> None: ...


@probe(members.RELAY_SILENT_S)
def _(amount: int) -> bool:
    """Less than a second before, so that a machine that is busy has time to look."""

    async def body() -> bool:
        with ExitStack() as undo:
            ours, _ = map(undo.enter_context, socket.socketpair())
            node = RelayedNode(
                "a",
                cast(ssl.SSLSocket, ours),
                _attach,
                Counter[str](),
                admit=lambda _: True,
                on_end=_nobody,
            )
            undo.callback(node.close)
            node.session.heard_s -= amount - 0.9
            await asyncio.sleep(0)
            return not node.silent

    return asyncio.run(body())


def _attach(*_: object) -> StreamEnd:
    raise LimpetError("nobody is attached")


def _choice() -> RelayChoice:
    """Of a node that knows one relay, which has answered."""
    nonces = iter(number.to_bytes(8) for number in range(1, 1 << 16))
    contacts = Contacts(lambda: next(nonces), UnprovenBudget())
    choice = RelayChoice("own", contacts)
    choice.set_sites({"relay": RelaySite(((_PLACE, 7472),))}, 0.0)
    (hello,) = (each.message for each in choice.tick(0.0) if hasattr(each, "message"))
    assert isinstance(hello, Hello)
    choice.heard("relay", Seen(hello.nonce, (_PLACE, 4000), 1000), (_PLACE, 7472), 0.01)
    return choice


@probe(members.RELAY_ENDS)
def _(amount: int) -> bool:
    choice = _choice()
    for number in range(amount):
        told = Pair(bytes(8), f"{number:024}", 20_000 + number, Refusal.NONE, 120, number + 1)
        choice.heard("relay", told, (_PLACE, 7472), 0.02)
    return sum("relay" in peer.ends for peer in choice.peers.values()) == amount


def _endpoints(amount: int, first: int = 0) -> tuple[Endpoint, ...]:
    return tuple((_PLACE + first + number, 7472) for number in range(amount))


@probe(members.RELAY_PLACES)
def _(amount: int) -> bool:
    return len(Line("relay", 4, endpoints=_endpoints(amount)).targets()) == amount


@probe(members.RELAY_MOVES)
def _(amount: int) -> bool:
    line = Line("relay", 4, next_s=1e9)
    for number in range(amount):
        line.next_s = 1e9
        line.rename(_endpoints(1, number), (), 0.0)
    return line.next_s == 0.0


@probe(members.RELAY_TLS_PLACES)
def _(amount: int) -> bool:
    """At no place anybody listens: each that was tried is named."""
    places = [(ip_address(f"127.0.1.{number + 1}"), 9) for number in range(amount)]
    relay = grant(2, roles=frozenset({Role.RELAY}))
    told_relay = (seal_grant(relay, CLUSTER_KEY),)

    async def body(folder: Path) -> bool:
        authority = Authority(folder / "authority")
        known = membership_of(authority.identity("controller", pinned_key=PINNED), *told_relay)
        relays = TlsRelays(known, tunnel_port=7472, tell=_nobody)
        try:
            await relays.end_for(relay.uid, places, "peer")
        except LimpetError as error:
            return all(f"{address}:9: " in str(error) for address, _ in places)
        finally:
            await relays.stop()
            known.close()  # what it still writes must not come into a folder that is taken away
        raise AssertionError("somebody listens there")

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(body(Path(folder)))
