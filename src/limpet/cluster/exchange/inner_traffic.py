"""What agents say to each other through their tunnels, which is no traffic of pods. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from limpet.base.addresses import Address
from limpet.cluster.datagrams.peer_datagram import OVERHEAD_BYTES

_HEADERS_BYTES = {4: 28, 6: 48}
"""IP and UDP."""


@dataclass(slots=True)
class InnerPackets:
    """Sizes of whole packets, in bytes."""

    received: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


class InnerTraffic:
    """Counted here since it was taken last; by the peer's uid."""

    def __init__(self) -> None:
        self._packets: dict[str, InnerPackets] = {}

    def sent(self, uid: str, address: Address, body: bytes) -> None:
        self._of(uid).sent.append(_packet_bytes(address, body))

    def received(self, uid: str, address: Address, body: bytes) -> None:
        self._of(uid).received.append(_packet_bytes(address, body))

    def take(self) -> dict[str, InnerPackets]:
        taken, self._packets = self._packets, {}
        return taken

    def _of(self, uid: str) -> InnerPackets:
        return self._packets.setdefault(uid, InnerPackets())


def _packet_bytes(address: Address, body: bytes) -> int:
    return _HEADERS_BYTES[address.version] + OVERHEAD_BYTES + len(body)
