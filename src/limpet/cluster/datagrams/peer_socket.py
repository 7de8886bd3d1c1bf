"""One authenticated UDP port for everything that nodes say to each other."""

from __future__ import annotations

import errno
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address

from limpet.base import faults
from limpet.base.addresses import Address, Endpoint, UnderlayLink
from limpet.base.bounds import neighbours
from limpet.base.errors import ConfigError
from limpet.base.rate_limit import SourceRates
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec, DatagramError, DropReason
from limpet.cluster.datagrams.reflection import AddressReflector, is_question
from limpet.cluster.datagrams.shared_port import SharedPort
from limpet.cluster.datagrams.udp_sockets import Arrival, Arrive, UdpSockets
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.documents import Sealed
from limpet.cluster.exchange.messages import Push, encode
from limpet.cluster.identity import Identity

GROUP = IPv6Address("ff12::4c69:6d70")
"""Link-local, not assigned by anybody. Source: RFC 4291 section 2.7."""
_BROADCAST = IPv4Address("255.255.255.255")


@dataclass(frozen=True, slots=True)
class Received:
    """What a node said: the holder of the key has signed it. That it is a member is not implied."""

    address: Address
    port: int
    ifindex: int
    hop_limit: int
    to_address: Address
    """As `Arrival` has them."""
    kind: int
    body: bytes
    uid: str
    to_anybody: bool
    by_tunnel: bool = False
    """It came to our tunnel's port."""
    to_relay: bool = False
    """It was meant for the relay that we are, at a port that is a pair's; the body says which."""


Handler = Callable[[Received], bool | None]
"""False: there was no room for it just now; the same datagram counts when it comes again."""


class Rates:
    """How much of what comes is looked at."""

    def __init__(self) -> None:
        self.heard = SourceRates(
            each=(neighbours.SIGNATURES_PER_S.most, neighbours.SIGNATURES_AT_ONCE.most),
            strangers=(
                neighbours.STRANGERS_SIGNATURES_PER_S.most,
                neighbours.STRANGERS_SIGNATURES.most,
            ),
            members=(neighbours.MEMBERS_SIGNATURES_PER_S.most, neighbours.MEMBERS_SIGNATURES.most),
            most=neighbours.HEARD_SOURCES.most,
        )
        """Signatures that are checked, by address, and by the ports of it that members write from:
        a pod, or whoever shares a NAT with a node, uses up nothing of the node's."""
        self.refused = SourceRates(
            each=(neighbours.REFUSALS_OF_ONE_PER_MINUTE.most / 60, 1),
            strangers=(neighbours.REFUSALS_PER_S.most, neighbours.REFUSALS_AT_ONCE.most),
            members=None,
            most=neighbours.HEARD_SOURCES.most,
        )
        """Refusals, by uid."""
        self.unproven = UnprovenBudget()
        self.reflector: AddressReflector | None = None
        """Answers who has joined nothing; None: nobody does."""


class PeerSocket:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        identity: Identity,
        *,
        port: int,
        is_member: Callable[[str], bool],
        is_removed: Callable[[str], tuple[Sealed, ...]],
    ) -> None:
        """`is_member`: the cluster has granted the uid something, and has not removed it.

        `is_removed`: what tells a uid that it was removed, in their order; empty: it was not.
        """
        self.port = port
        self.counters: Counter[str] = Counter()
        """`sent`, `received`, `unsendable`, `handler_failed`, and a `DropReason` for each drop."""
        self._codec = Codec(identity.private_key, identity.pinned_key)
        self._is_member = is_member
        self._is_removed = is_removed
        self._handlers: dict[int, Handler] = {}
        self._sockets = UdpSockets(partial(self._hear, by_tunnel=False))
        self._tunnel_sockets = UdpSockets(partial(self._hear, by_tunnel=True), apart=True)
        """Sockets that share the tunnel's port."""
        self._shared = SharedPort()
        self._links: dict[int, UnderlayLink] = {}
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._rates = Rates()

    @property
    def unproven(self) -> UnprovenBudget:
        """Budget of probes and of hellos to relays together: it is asked before one is sent."""
        return self._rates.unproven

    def start(self) -> None:
        """Listens, in the network namespace of the calling thread; within a running loop.

        A family that the machine does not have is left out. Raises: ConfigError.
        """
        refused: list[OSError] = []
        for version in (4, 6):
            try:
                self._sockets.open(version, self.port)
            except OSError as error:
                refused.append(error)
        in_use = [error for error in refused if error.errno == errno.EADDRINUSE]
        if in_use or len(refused) == 2:
            self.stop()
            cause = (in_use or refused)[0]
            hint = f"`ss -ulnp 'sport = :{self.port}'` tells who; stop it, or set another peer_port"
            raise ConfigError(
                f"listen on UDP port {self.port}: {cause.strerror}"
                + (f" ({hint})" if in_use else "")
            ) from cause
        self._sockets.join(GROUP, self._links)

    @property
    def listens(self) -> bool:
        """It was started."""
        return bool(self._sockets.ports)

    def stop(self) -> None:
        """The rules of the shared port stay: of what nobody listens for nothing is lost."""
        self._sockets.close()
        self._tunnel_sockets.close()
        self._shared.close()

    def share_tunnel_port(self, port: int) -> None:
        """From now on `by_tunnel` sends and hears by the port that the node's tunnel has.

        Safe to call again, also after the rules for it were lost. Raises: KernelError, LimpetError.
        """
        for version in self._sockets.ports.keys() - self._tunnel_sockets.ports.keys():
            self._tunnel_sockets.open(version, 0)
        self._shared.put(port, self._tunnel_sockets.ports)

    def on(self, kind: BodyKind, handler: Handler) -> None:
        """`handler` gets all that is said of the kind."""
        self._handlers[kind] = handler

    def reflect(self, *, on: bool) -> None:
        """Whether strangers are told where their questions come from."""
        self._rates.reflector = AddressReflector() if on else None

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        """The links on which what is for anybody is heard."""
        found = {link.ifindex: link for link in links}
        self._sockets.leave(GROUP, self._links.keys() - found.keys())
        self._links = found
        # All of them, each time: a link that has lost IPv6 meanwhile has lost the group too.
        self._sockets.join(GROUP, found)

    def send(
        self,
        kind: BodyKind,
        body: bytes,
        *,
        to_uid: str,
        address: Address,
        port: int,
        hop_limit: int | None = None,
        ifindex: int | None = None,
        by_tunnel: bool = False,
        to_relay: bool = False,
        source: Address | None = None,
    ) -> bool:
        """Whether the kernel has taken it. An empty `to_uid`: whoever is there may read it.

        `ifindex`: over that link, whatever the routes say; a link-local address needs it.
        `by_tunnel`: from our tunnel's port, and never fragmented. `to_relay`: for the relay itself,
        at a port where it forwards everything else. `source`: one of our addresses.
        Raises: DatagramError when the body is too big.
        """
        data = self._codec.encode(kind, body, to_uid=to_uid, to_relay=to_relay)
        # A member may name an address that stands for all on a link as its own.
        if address.version == 4 and any(address in each.everybody for each in self._links.values()):
            self.counters["unsendable"] += 1
            return False
        sockets = self._tunnel_sockets if by_tunnel else self._sockets
        sent = sockets.send(
            data, address, port, hop_limit=hop_limit, ifindex=ifindex, source=source
        )
        self.counters["sent" if sent else "unsendable"] += 1
        return sent

    def answer(self, received: Received, kind: BodyKind, body: bytes) -> bool:
        """Sends to where `received` came from, from where it was sent to; as `send`."""
        link_local = received.address.is_link_local
        to = received.to_address
        return self.send(
            kind,
            body,
            to_uid=received.uid,
            address=received.address,
            port=received.port,
            ifindex=received.ifindex if link_local else None,
            by_tunnel=received.by_tunnel,
            source=to if received.by_tunnel and not to.is_unspecified else None,
        )

    def broadcast(self, kind: BodyKind, body: bytes, ifindexes: Iterable[int]) -> None:
        """To everybody on the links, by multicast and broadcast. Raises: DatagramError."""
        data = self._codec.encode(kind, body)
        for ifindex in ifindexes:
            link = self._links.get(ifindex)
            has_ipv4 = link is None or any(address.version == 4 for address in link.addresses)
            for everybody in (GROUP, _BROADCAST) if has_ipv4 else (GROUP,):
                sent = self._sockets.send(data, everybody, self.port, hop_limit=1, ifindex=ifindex)
                self.counters["sent" if sent else "unsendable"] += 1

    def _hear(self, data: bytes, arrive: Arrive, *, by_tunnel: bool) -> bool:
        """False: it is one of those that floods are made of."""
        try:
            self._take(data, arrive, by_tunnel=by_tunnel)
        except DatagramError as error:
            self.counters[error.drop] += 1
            return False  # whatever it lacks: it can be sent as fast as the link is
        except Exception as error:  # noqa: BLE001 - whatever one says, the others are heard
            self.counters["handler_failed"] += 1
            faults.note("datagrams", error)
        return True

    def _take(self, data: bytes, arrive: Arrive, *, by_tunnel: bool) -> None:
        """Raises: DatagramError for what does not count."""
        if is_question(data):
            self._reflect(data, arrive, by_tunnel=by_tunnel)
            return
        datagram = self._codec.parse(data)
        if datagram.signature in self._seen:
            raise DatagramError(DropReason.REPLAYED, "it has come before")
        arrival = arrive()
        source, part = _source_of(arrival)
        if not self._rates.heard.take(source, time.monotonic(), part=part):
            raise DatagramError(DropReason.OVER_RATE, "too many come")
        datagram.check()
        self._seen[datagram.signature] = None
        if len(self._seen) > neighbours.REPLAYED.most:
            self._seen.popitem(last=False)
        received = Received(
            *arrival,
            datagram.kind,
            datagram.body,
            datagram.uid,
            datagram.to_anybody,
            by_tunnel,
            datagram.to_relay,
        )
        told = self._is_removed(received.uid)
        if told:
            self._refuse(received, told)
            raise DatagramError(DropReason.REMOVED, "its sender was removed from the cluster")
        if self._is_member(received.uid):
            self._rates.heard.know(source, part=part)
        handler = self._handlers.get(datagram.kind)
        if handler is None:
            raise DatagramError(DropReason.UNHANDLED, f"kind {datagram.kind} is unknown")
        self.counters["received"] += 1
        if handler(received) is False:
            self._seen.pop(datagram.signature, None)

    def _reflect(self, question: bytes, arrive: Arrive, *, by_tunnel: bool) -> None:
        """Raises: DatagramError."""
        reflector = self._rates.reflector
        if reflector is None:
            raise DatagramError(DropReason.FOREIGN, "this node tells strangers nothing")
        arrival = arrive()
        source = (arrival.address, arrival.port)
        answer = reflector.answer(question, source, time.monotonic())
        if answer is None:
            raise DatagramError(DropReason.OVER_RATE, "too many strangers ask")
        sockets = self._tunnel_sockets if by_tunnel else self._sockets
        sockets.send(answer, *source, source=arrival.to_address)

    def _refuse(self, received: Received, told: tuple[Sealed, ...]) -> None:
        """Tells a removed node so, now and then: it may not have heard. Each goes by itself: two
        may be more than a datagram has."""
        if self._rates.refused.take(received.uid, time.monotonic()):
            for document in told:
                self.answer(received, BodyKind.EXCHANGE, encode(Push((document,))))


def _source_of(arrival: Arrival) -> tuple[Address | Endpoint, int | None]:
    """Source whose budget a datagram takes of, and the part of it: on loopback each port is a
    source, a node that comes in a stream."""
    address, port = arrival.address, arrival.port
    return ((address, port), None) if address.is_loopback else (address, port)
