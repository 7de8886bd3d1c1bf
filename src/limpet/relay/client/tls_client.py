"""A node's TLS connections to relays, for peers that no packet reaches over UDP.

One connection for each relay; for each peer a UDP socket on loopback, which stands for the peer:
what the node's tunnel sends there goes to the peer, and what the peer sends comes from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import structlog

from limpet.base.addresses import Endpoint, endpoint_text
from limpet.base.bounds.members import RELAY_TLS_PLACES
from limpet.base.errors import LimpetError
from limpet.base.process.connecting import cause_of
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.membership import Membership, News
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import RelayEnd
from limpet.relay.client.link import RelayLink
from limpet.relay.client.peer import OpenStream, StreamEvent, StreamFailed, StreamOpened
from limpet.relay.status import TlsRelay
from limpet.relay.stream.tls import mutual_context, shake_hands, tune

_log = structlog.get_logger("relay-tls")

PATIENCE_S = 3.0
"""Longest time until a relay has opened a peer's channel, the connection included."""
_NEXT_ADDRESS_S = 0.25
"""Another address is tried as well when those before have not answered for so long.

Source: RFC 8305, section 5.
"""
_OPENED_AT_ONCE = 16


class TlsRelays:
    """Runs on the event loop. Connects, and connects again, only when an end is asked for."""

    def __init__(
        self,
        membership: Membership,
        *,
        tunnel_port: int,
        tell: Callable[[StreamEvent], None],
    ) -> None:
        """`tunnel_port`: of the node's tunnel, on loopback."""
        self._membership = membership
        self._tunnel_port = tunnel_port
        self._tell = tell
        self._context: ssl.SSLContext | None = None
        self._links: dict[str, RelayLink] = {}
        self._connecting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._opening: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_OPENED_AT_ONCE)
        self._stopped = False
        self._unproven = UnprovenBudget()
        """Budget of connections, apart from that of datagrams: where no UDP gets out, what is asked
        so in vain must not use up the only way."""

    def open(self, wanted: OpenStream, addresses: Iterable[Endpoint]) -> None:
        """Tells StreamOpened or StreamFailed in a while. `addresses`: of the relay, TCP."""
        task = asyncio.get_running_loop().create_task(self._open(wanted, addresses))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, wanted: OpenStream, addresses: Iterable[Endpoint]) -> None:
        event: StreamEvent
        try:
            async with self._room:
                end = await self.end_for(wanted.relay, addresses, wanted.peer)
            event = StreamOpened(wanted.peer, end)
        except LimpetError as error:
            _log.debug("no end at a relay over TLS", relay=wanted.relay, error=str(error))
            event = StreamFailed(wanted.peer, wanted.relay, str(error))
        self._tell(event)

    async def end_for(
        self, relay_uid: str, addresses: Iterable[Endpoint], peer_uid: str
    ) -> RelayEnd:
        """An open end of the pair with the peer. `addresses`: of the relay, TCP.

        Raises: LimpetError, within 3 s.
        """
        where = tuple(addresses)[: RELAY_TLS_PLACES.most]
        name = self._membership.name_of
        what = f"reach {name(peer_uid)} over TLS by relay {name(relay_uid)}"
        try:
            async with asyncio.timeout(PATIENCE_S):
                link = await self._link(relay_uid, where)
                endpoint = await link.open(peer_uid)
        except TimeoutError as error:
            raise LimpetError(
                f"{what}: no answer from {', '.join(map(endpoint_text, where))} within "
                f"{PATIENCE_S:g} s (does the site's firewall let TCP out to there? Where neither "
                "UDP nor TCP gets out, no way is left)"
            ) from error
        except LimpetError as error:
            raise LimpetError(f"{what}: {error}") from error
        return RelayEnd(relay_uid, endpoint, transports.RELAY_TLS, rtt_s=link.rtt_s)

    def release(self, peer_uid: str) -> None:
        """No end of a pair with the peer is needed any more."""
        for link in self._links.values():
            link.release(peer_uid)

    async def stop(self) -> None:
        self._stopped = True
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        links, self._links = self._links, {}
        for link in links.values():
            link.end("the agent stops")

    def report(self) -> dict[str, TlsRelay]:
        """For `limpet status`, by the relay's uid."""
        return {
            uid: TlsRelay(rtt_ms=round(link.rtt_s * 1e3, 1), peers=link.peers, lost=link.lost)
            for uid, link in self._links.items()
        }

    # Connections

    async def _link(self, uid: str, where: Sequence[Endpoint]) -> RelayLink:
        """Raises: LimpetError."""
        async with self._connecting[uid]:
            self._check(uid)
            link = self._links.get(uid)
            if link is None:
                link = await self._connect(uid, where)
                self._links[uid] = link
                _log.info(
                    "relayed over TLS",
                    relay=self._membership.name_of(uid),
                    rtt_ms=f"{link.rtt_s * 1e3:.1f}",
                )
        return link

    async def _connect(self, uid: str, where: Sequence[Endpoint]) -> RelayLink:
        """Raises: LimpetError."""
        if self._context is None:
            self._context = mutual_context(self._membership.identity, server=False)
        connection = await first_of(where, partial(self._try, uid=uid, context=self._context))
        link = RelayLink(
            uid,
            connection,
            tunnel_port=self._tunnel_port,
            tell=self._tell,
            on_end=partial(self._ended, uid),
        )
        try:
            await link.answered()
            self._check(uid)
        except BaseException:
            link.end("it was not needed any more")
            raise
        return link

    async def _try(self, at: Endpoint, *, uid: str, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Raises: OSError, LimpetError."""
        if not self._unproven.may_ask(uid, at[0], time.monotonic()):
            raise LimpetError("it has not answered there, and was tried often: again later")
        connection = await _shaken(at, uid=uid, context=context)
        self._unproven.answered(uid, at[0], time.monotonic())
        return connection

    def _check(self, uid: str) -> None:
        """Raises: LimpetError."""
        if self._stopped:
            raise LimpetError("the agent stops")
        if not self._membership.is_relay(uid):
            raise LimpetError(f"node {uid} is no relay of this cluster")

    # News

    def _ended(self, uid: str, why: str) -> None:
        if self._links.pop(uid, None) is not None:
            _log.info("not relayed over TLS any more", relay=self._membership.name_of(uid), why=why)

    def hear(self, news: News) -> None:
        for uid in news.uids:
            link = self._links.get(uid)
            if link is not None and not self._membership.is_relay(uid):
                link.end("it is no relay of this cluster any more")
            if not self._membership.is_member(uid):
                self.release(uid)


async def first_of(where: Sequence[Endpoint], attempt: Callable[[Endpoint], Any]) -> ssl.SSLSocket:
    """The connection that is there first; one after the other is begun, none is left.

    Raises: LimpetError: why each of them failed.
    """
    waiting = list(where)
    running: dict[asyncio.Task[ssl.SSLSocket], Endpoint] = {}
    failures: list[str] = []
    loop = asyncio.get_running_loop()
    try:
        while waiting or running:
            if waiting:
                at = waiting.pop(0)
                running[loop.create_task(attempt(at))] = at
            done, _ = await asyncio.wait(
                running,
                timeout=_NEXT_ADDRESS_S if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                at = running.pop(task)
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, OSError | LimpetError):
                    raise error
                cause = cause_of(error) if isinstance(error, OSError) else str(error)
                failures.append(f"{endpoint_text(at)}: {cause}")
    finally:
        for task in running:
            task.cancel()
        for found in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(found, ssl.SSLSocket):
                found.close()
    raise LimpetError("; ".join(failures) or "no address of it is known")


async def _shaken(at: Endpoint, *, uid: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Connected to the relay of this uid and no other. Raises: OSError, LimpetError."""
    address, port = at
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.ExitStack() as undo:
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        undo.callback(connection.close)
        tune(connection)
        await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
        tls, found = await shake_hands(connection, context, server=False)
        undo.callback(tls.close)
        if found != uid:
            raise LimpetError(f"it is node {found} that answers there")
        undo.pop_all()
    return tls
