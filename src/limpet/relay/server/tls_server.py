"""A relay's end of TLS connections: pairs of nodes whose packets get through by TCP 443 only.

Strangers get as far as a handshake, a bounded number of them at once; members have one connection
each. What a member sends goes where the relay's service brings it, and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any

import structlog

from limpet.base.addresses import Listen
from limpet.base.ownership import TUNNEL_MARK
from limpet.base.rate_limit import TokenBucket, TokenBuckets
from limpet.base.timer import Timer
from limpet.cluster.kinds.grant import Role
from limpet.cluster.membership import Membership, News
from limpet.datapath.event import RelayTlsPortChanged, Tell
from limpet.relay.server.tls_node import RelayedNode, StreamService
from limpet.relay.stream.codec import Wanted
from limpet.relay.stream.tls_stream import cause_of, relay_context, shake_hands, tune, uid_of_peer

_log = structlog.get_logger("relay-tls")

GREETING_S = 5.0
"""From the connection to the first frame of a member."""
MOST_GREETING = 128
"""Connections that have not got so far; of more, the oldest one ends."""
MOST_NODES = 1024
_SWEEP_S = 5.0
_RETRY_S = 30.0
_BACKLOG = 256
_ACCEPTED_PER_TURN = 16
_RATE_PER_S, _BURST = 200.0, 400.0
"""Handshakes with strangers; one takes a millisecond."""
_SOURCE_RATE_PER_S, _SOURCE_BURST, _SOURCES = 20.0, 100.0, 4096
"""Those from one address, which may be that of a whole site."""
_MOST_KNOWN = 4096
_IP_FREEBIND = 15
"""The address may come later than we do. Source: ip(7), include/uapi/linux/in.h."""


class RelayTlsServer:
    """Runs on the event loop. Where it cannot listen it tries again; the agent goes on without."""

    def __init__(
        self,
        service: StreamService,
        membership: Membership,
        listen: Iterable[Listen],
        tell: Tell,
    ) -> None:
        """Tells RelayTlsPortChanged as soon as it listens. `listen`: addresses and TCP ports."""
        self.counters: Counter[str] = Counter()
        """What was refused or dropped, by why."""
        self.troubles: dict[Listen, str] = {}
        """Where it does not listen, and why."""
        self.addresses: list[Listen] = []
        """Where it does."""
        self._tell = tell
        self._service = service
        self._membership = membership
        self._waiting = list(listen)
        self._context: ssl.SSLContext | None = None
        self._listeners: list[socket.socket] = []
        self._nodes: dict[str, RelayedNode] = {}
        self._greeting: dict[asyncio.Task[None], None] = {}
        """Oldest first."""
        self._rate = TokenBucket(_RATE_PER_S, _BURST)
        self._source_rate = TokenBuckets(_SOURCE_RATE_PER_S, _SOURCE_BURST, most=_SOURCES)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """Where members have come from lately: strangers cannot use up what those may do."""
        self._alarms: dict[str, Timer] = {}

    async def start(self) -> None:
        """Raises: ConfigError: the node's certificates cannot be used."""
        self._context = relay_context(self._membership.identity)
        self._membership.subscribe(self._heard)
        self._listen()
        self._sweep()

    async def stop(self) -> None:
        self._membership.unsubscribe(self._heard)
        for alarm in self._alarms.values():
            alarm.stop()
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        greeting = list(self._greeting)
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

    def report(self) -> dict[str, Any]:
        """For a person."""
        dropped = self.counters["dropped"] + sum(
            each.session.dropped for each in self._nodes.values()
        )
        return {
            "listen": [f"{host}:{port}" for host, port in self.addresses],
            "troubles": {f"{host}:{port}": why for (host, port), why in self.troubles.items()},
            "nodes": {uid: node.peers for uid, node in self._nodes.items()},
            "greeting": len(self._greeting),
            "refused": dict(self.counters) | {"dropped": dropped},
        }

    # Listening

    def _listen(self) -> None:
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
            self._listeners.append(listener)
            self.addresses.append(listener.getsockname()[:2])
            self._accept_from(listener)
            self._tell(RelayTlsPortChanged(self.addresses[0][1]))
        if self._waiting:
            self._later("listen", _RETRY_S, self._listen)

    def _accept_from(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                connection, source = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or no memory: it would be told for ever
                _log.warning("no connections are taken for a while", error=error.strerror)
                asyncio.get_running_loop().remove_reader(listener.fileno())
                again = f"accept {listener.fileno()}"
                self._later(again, _SWEEP_S, lambda: self._accept_from(listener))
                return
            self._admit(connection, _source(source[0]))

    def _admit(self, connection: socket.socket, source: bytes) -> None:
        now_s = asyncio.get_running_loop().time()
        known = source in self._known
        if not (self._source_rate.take(source, now_s) and (known or self._rate.take(now_s))):
            self.counters["too_often"] += 1
            connection.close()
            return
        if len(self._greeting) >= MOST_GREETING:
            self.counters["too_many"] += 1
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._greet(connection, source))
        self._greeting[task] = None
        task.add_done_callback(lambda done: self._greeting.pop(done, None))
        # Also of one that has never had its turn; TLS takes the descriptor out of it.
        task.add_done_callback(lambda _: connection.close())

    # Greeting

    async def _greet(self, connection: socket.socket, source: bytes) -> None:
        """A member that has spoken is among the nodes; nothing is left of any other connection."""
        assert self._context is not None
        with contextlib.ExitStack() as undo:
            try:
                async with asyncio.timeout(GREETING_S):
                    connection.setblocking(False)
                    tune(connection)
                    tls = self._context.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
                    undo.callback(tls.close)
                    await shake_hands(tls)
                    uid = uid_of_peer(tls)
                    if uid is None or not self._is_served(uid):
                        self.counters["stranger"] += 1
                        return
                    node = RelayedNode(uid, tls, self._service, self.counters, on_end=self._ended)
                    undo.callback(node.close)
                    await node.spoke.wait()
            except TimeoutError:
                self.counters["silent"] += 1
                return
            except OSError as error:
                self.counters["failed_handshake"] += 1
                _log.debug("a connection was not taken", error=cause_of(error))
                return
            if self._take(node):
                undo.pop_all()
                self._known[source] = None
                self._known.move_to_end(source)
                if len(self._known) > _MOST_KNOWN:
                    self._known.popitem(last=False)

    def _is_served(self, uid: str) -> bool:
        own = self._membership.grant
        return own is not None and Role.RELAY in own.roles and self._membership.is_member(uid)

    def _take(self, node: RelayedNode) -> bool:
        if node.session.why_ended or not self._is_served(node.uid):
            return False
        before = self._nodes.get(node.uid)
        if before is not None:  # it has noticed before us that the old connection is dead
            self.counters["replaced"] += 1
            self._drop(before, "it has connected again")
        elif len(self._nodes) >= MOST_NODES:
            self.counters["full"] += 1
            return False
        self._nodes[node.uid] = node
        _log.debug("a node relays over TLS", uid=node.uid)
        node.begin()
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

    def _heard(self, news: News) -> None:
        own = self._membership.uid in news.uids
        for uid in list(self._nodes) if own else news.uids & self._nodes.keys():
            if not self._is_served(uid):
                self._drop(self._nodes[uid], "it was removed, or this node is no relay any more")

    def _sweep(self) -> None:
        for node in list(self._nodes.values()):
            if node.silent:
                self.counters["gone"] += 1
                self._drop(node, "it has been silent")
        self._later("sweep", _SWEEP_S, self._sweep)

    def _later(self, what: str, after_s: float, do: Callable[[], None]) -> None:
        alarm = self._alarms.get(what)
        if alarm is None:
            alarm = self._alarms[what] = Timer("relay over TLS", do)
        alarm.set_in(after_s)


def _source(text: str) -> bytes:
    """What one attacker has one of: an address of IPv4, a network of IPv6."""
    address = ip_address(text.partition("%")[0])
    if address.version == 6 and address.ipv4_mapped is None:
        return address.packed[:8]
    return address.packed[-4:]


def _listener(at: Listen) -> socket.socket:
    """Raises: OSError."""
    family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        # Of the listener, since the first answer is sent before there is a connection.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, TUNNEL_MARK)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(at)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
