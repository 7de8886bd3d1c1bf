"""A relay's end of TLS connections: pairs of nodes whose packets get through by TCP 443 only.

Strangers get as far as a handshake, a bounded number of them at once; members have one connection
each. What a member sends goes where the relay's service brings it, and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from limpet.base.acceptor.places import Places, source_of
from limpet.base.addresses import Listen
from limpet.base.bounds.members import RELAY_TLS_NODES
from limpet.base.bounds.strangers import (
    RELAY_GREETING,
    RELAY_GREETING_OF_ONE,
    RELAY_GREETING_S,
    RELAY_HANDSHAKES,
    RELAY_HANDSHAKES_OF_ONE,
    RELAY_HANDSHAKES_OF_ONE_PER_S,
    RELAY_HANDSHAKES_PER_S,
    RELAY_SOURCES,
)
from limpet.base.ownership import TUNNEL_MARK
from limpet.base.process.connecting import cause_of
from limpet.base.process.listeners import open_listener
from limpet.base.rate_limit import SourceRates
from limpet.base.timer import Timer
from limpet.cluster.membership import Membership, News
from limpet.datapath.event import RelayTlsPortChanged, Tell
from limpet.relay.server.streams import Attach, RelayedNode
from limpet.relay.status import RelayingTls
from limpet.relay.stream.codec import Wanted
from limpet.relay.stream.tls import mutual_context, shake_hands, tune

_log = structlog.get_logger("relay-tls")

GREETING_S = float(RELAY_GREETING_S.most)
"""From the TCP connection to a member's first frame."""
_SWEEP_S = 5.0
_RETRY_S = 30.0
_BACKLOG = 256
_ACCEPTED_PER_TURN = 16
_PAUSE_S = 5.0
"""Pause of accepting after descriptors or memory ran out."""


class RelayTlsServer:
    """Runs on the event loop. Where it cannot listen it tries again; the agent goes on without."""

    def __init__(
        self,
        attach: Attach,
        membership: Membership,
        listen: Iterable[Listen],
        tell: Tell,
    ) -> None:
        """Tells RelayTlsPortChanged as soon as it listens. `listen`: addresses and TCP ports."""
        self.counters: Counter[str] = Counter()
        """Connections refused and packets dropped, by reason."""
        self.listeners = TlsListeners(listen, self._admit, tell)
        self._attach = attach
        self._membership = membership
        self._context: ssl.SSLContext | None = None
        self._nodes: dict[str, RelayedNode] = {}
        self._greeting: tuple[Places[asyncio.Task[None]], Places[asyncio.Task[None]]] = (
            _places(),
            _places(),
        )
        """Greetings from elsewhere, and from where nodes have come from lately."""
        self._rates = handshake_rates()
        self._timer = Timer("relay over TLS", self._sweep)

    async def start(self) -> None:
        """Raises: ConfigError: the node's certificates cannot be used."""
        self._context = mutual_context(self._membership.identity, server=True)
        self.listeners.start()
        self._sweep()

    async def stop(self) -> None:
        self._timer.stop()
        self.listeners.stop()
        greeting = [task for places in self._greeting for task in places]
        for task in greeting:
            task.cancel()
        await asyncio.gather(*greeting, return_exceptions=True)
        for node in list(self._nodes.values()):
            self._drop(node, "the relay stops")

    def tell_wanted(self, uid: str, peer_uid: str) -> bool:
        """Tells a node that the peer has asked for the two; False: it has no connection here."""
        node = self._nodes.get(uid)
        if node is None:
            return False
        node.session.send_control(Wanted(peer_uid))
        return True

    def report(self) -> RelayingTls:
        """For `limpet status`."""
        dropped = self.counters["dropped"] + sum(
            each.session.dropped for each in self._nodes.values()
        )
        listeners = self.listeners
        return RelayingTls(
            listen=[f"{host}:{port}" for host, port in listeners.addresses],
            troubles={f"{host}:{port}": why for (host, port), why in listeners.troubles.items()},
            nodes={uid: node.peers for uid, node in self._nodes.items()},
            greeting=sum(map(len, self._greeting)),
            refused=dict(self.counters) | {"dropped": dropped},
        )

    # Greeting

    def _admit(self, connection: socket.socket, source: bytes) -> None:
        if not self._rates.take(source, asyncio.get_running_loop().time()):
            self.counters["too_often"] += 1
            connection.close()
            return
        places = self._greeting[self._rates.knows(source)]
        task = asyncio.get_running_loop().create_task(self._greet(connection, source))
        leaves = places.put(task, source)
        if leaves is not None:
            self.counters["too_many"] += 1
            leaves.cancel()
        task.add_done_callback(places.drop)
        # Also of one that has never had its turn; TLS takes the descriptor out of it.
        task.add_done_callback(lambda _: connection.close())

    async def _greet(self, connection: socket.socket, source: bytes) -> None:
        """Serves a member from its first frame on; closes any other connection."""
        assert self._context is not None
        with contextlib.ExitStack() as undo:
            try:
                async with asyncio.timeout(GREETING_S):
                    connection.setblocking(False)
                    tune(connection)
                    tls, uid = await shake_hands(connection, self._context, server=True)
                    undo.callback(tls.close)
                    if uid is None or not self._is_served(uid):
                        self.counters["stranger"] += 1
                        return
                    node = RelayedNode(
                        *(uid, tls, self._attach, self.counters),
                        admit=self._take,
                        on_end=self._ended,
                    )
                    undo.callback(node.close)
                    await node.spoke.wait()
            except TimeoutError:
                self.counters["silent"] += 1
                return
            except OSError as error:
                self.counters["failed_handshake"] += 1
                _log.debug("a connection was not taken", error=cause_of(error), by_others=True)
                return
            if self._nodes.get(uid) is node:
                undo.pop_all()
                self._rates.know(source)

    def _is_served(self, uid: str) -> bool:
        known = self._membership
        return known.is_relay(known.uid) and known.is_member(uid)

    def _take(self, node: RelayedNode) -> bool:
        if not self._is_served(node.uid):
            return False
        before = self._nodes.get(node.uid)
        if before is not None:  # it has noticed before us that the old connection is dead
            self.counters["replaced"] += 1
            self._drop(before, "it has connected again")
        elif len(self._nodes) >= RELAY_TLS_NODES.most:
            self.counters["full"] += 1
            return False
        self._nodes[node.uid] = node
        _log.debug("a node relays over TLS", uid=node.uid)
        return True

    # Nodes

    def _ended(self, node: RelayedNode, why: str) -> None:
        if self._nodes.get(node.uid) is node:
            self._drop(node, why)

    def _drop(self, node: RelayedNode, why: str) -> None:
        del self._nodes[node.uid]
        _log.debug("a node does not relay over TLS any more", uid=node.uid, why=why)
        self.counters["dropped"] += node.session.dropped
        node.close()

    def hear(self, news: News) -> None:
        own = self._membership.uid in news.uids
        for uid in list(self._nodes) if own else news.uids & self._nodes.keys():
            if not self._is_served(uid):
                self._drop(self._nodes[uid], "it was removed, or this node is no relay any more")

    def _sweep(self) -> None:
        for node in list(self._nodes.values()):
            if node.silent:
                self.counters["gone"] += 1
                self._drop(node, "it has been silent")
        self._timer.set_in(_SWEEP_S)


def handshake_rates() -> SourceRates:
    """How often whoever has proven nothing may begin one."""
    return SourceRates(
        each=(RELAY_HANDSHAKES_OF_ONE_PER_S.most, RELAY_HANDSHAKES_OF_ONE.most),
        strangers=(RELAY_HANDSHAKES_PER_S.most, RELAY_HANDSHAKES.most),
        members=None,
        most=RELAY_SOURCES.most,
    )


class TlsListeners:
    """Runs on the event loop."""

    def __init__(
        self, listen: Iterable[Listen], admit: Callable[[socket.socket, bytes], None], tell: Tell
    ) -> None:
        """Tells RelayTlsPortChanged. `admit` gets each connection, and what tells its source."""
        self.troubles: dict[Listen, str] = {}
        """Where listening failed, and why."""
        self.addresses: list[Listen] = []
        """Where the relay listens."""
        self._waiting = list(listen)
        self._admit = admit
        self._tell = tell
        self._sockets: list[socket.socket] = []
        self._again = Timer("relay over TLS", self.start)

    def stop(self) -> None:
        self._again.stop()
        for listener in self._sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        self._sockets.clear()

    def start(self) -> None:
        """Listens wherever nothing does yet, and accepts everywhere."""
        for at in list(self._waiting):
            try:
                listener = _listener(at)
            except OSError as error:
                why = error.strerror or str(error)
                if self.troubles.get(at) != why:
                    _log.error(
                        "nothing is relayed over TLS",
                        listen=f"{at[0]}:{at[1]}",
                        error=why,
                        what_to_do="free the port, or set another relay_tls_listen and restart",
                    )
                self.troubles[at] = why
                continue
            self._waiting.remove(at)
            self.troubles.pop(at, None)
            self._sockets.append(listener)
            self.addresses.append(listener.getsockname()[:2])
            self._tell(RelayTlsPortChanged(self.addresses[0][1]))
        for listener in self._sockets:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)
        if self._waiting:
            self._again.set_in(_RETRY_S)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                connection, source = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or no memory: it would be told for ever
                _log.warning("no connections are taken for a while", error=error.strerror)
                asyncio.get_running_loop().remove_reader(listener.fileno())
                self._again.set_in(_PAUSE_S)
                return
            self._admit(connection, source_of(source[0]))


def _places() -> Places[asyncio.Task[None]]:
    return Places(RELAY_GREETING.most, RELAY_GREETING_OF_ONE.most)


def _listener(at: Listen) -> socket.socket:
    """Raises: OSError."""
    listener = open_listener(at, may_come_later=True)
    try:
        # Of the listener, since the first answer is sent before there is a connection.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, TUNNEL_MARK)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
