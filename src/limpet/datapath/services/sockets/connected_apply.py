"""What programs have noted of sockets that are connected."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from limpet.datapath.services.sockets.layout import (
    CONNECTED,
    PEER_BYTES,
    PEERS,
    PLACES,
    SETS,
    End,
    array_key,
    is_stale,
    read_peer,
    read_set,
)
from limpet.linux.bpf.library import BpfMap
from limpet.linux.socket_diag import UDP, end_sockets, sockets

CONNECTED_MAPS = (CONNECTED, PEERS)


class ConnectedSockets:
    """By the sockets' cookies: `struct peer`, of whom they asked for and whom they got.

    Programs go on meanwhile. What is read of a socket that is connected at the moment may be what
    the one before it in its place has left there: who acts on it looks at the socket's own peer.
    """

    def __init__(self, maps: Mapping[str, BpfMap]) -> None:
        self._connected, self._peers = maps[CONNECTED], maps[PEERS]

    def read(self) -> dict[int, bytes]:
        """All of them. Raises: KernelError."""
        with self._cookies() as cookies, self._peers.mapped() as peers:
            return {
                cookie: bytes(peers[place * PEER_BYTES : (place + 1) * PEER_BYTES])
                for place, cookie in enumerate(cookies)
                if cookie
            }

    def get(self, cookie: int) -> bytes | None:
        """None: nothing is noted of it. Raises: KernelError."""
        number = cookie % SETS
        held = read_set(self._connected.get(array_key(number)) or bytes(8 * PLACES))
        if cookie not in held:
            return None
        return self._peers.get(array_key(number * PLACES + held.index(cookie)))

    def stale(self, served: Mapping[End, Collection[End]]) -> dict[int, End]:
        """Whom sockets got that serves no more, by the sockets' cookies. `served`: who does, by who
        is asked. Raises: KernelError."""
        return {
            cookie: read_peer(peer)[1]
            for cookie, peer in self.read().items()
            if is_stale(peer, served)
        }

    def forget(self, closed: Collection[int]) -> None:
        """Their places are others'. Raises: KernelError."""
        with self._cookies() as cookies:
            for place, cookie in enumerate(cookies):
                if cookie in closed:
                    cookies[place] = 0  # by one instruction, and no program writes where one is

    @contextmanager
    def _cookies(self) -> Iterator[memoryview[int]]:
        with self._connected.mapped() as values, values.cast("Q") as cookies:
            yield cookies


def end_connected_udp(got: Mapping[int, End]) -> None:
    """In the calling thread's namespace. `got`: their peers, by cookie."""
    end_sockets(UDP, [each for each in sockets(UDP) if got.get(each.cookie) == each.peer])
