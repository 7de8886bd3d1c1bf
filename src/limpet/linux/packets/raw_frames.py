"""IP packets over a link to a neighbour on it, whatever the node's routes and filters say."""

from __future__ import annotations

import errno
import socket

from limpet.base.addresses import Address, UnderlayLink
from limpet.base.errors import KernelError
from limpet.linux.netlink.address_codec import get_neighbour, parse_neighbour
from limpet.linux.netlink.codec import parse_mac
from limpet.linux.netlink.socket import RouteSocket

_ETHERTYPES = {4: 0x0800, 6: 0x86DD}
_UNKNOWN = (errno.ENOENT, errno.ENODEV)


def open_packet_socket(kind: int) -> socket.socket:
    """One that sends, and receives nothing. Raises: KernelError; nobody may without CAP_NET_RAW."""
    kind |= socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    try:
        return socket.socket(socket.AF_PACKET, kind, 0)  # protocol 0: of no packets
    except OSError as error:
        raise KernelError("open", "a packet socket", error.errno or 0) from error


class RawFrames:
    """Sends in the network namespace that the calling thread is in when it is made."""

    def __init__(self) -> None:
        """Raises: KernelError."""
        self._route = RouteSocket()
        try:
            self._socket = open_packet_socket(socket.SOCK_DGRAM)
        except KernelError:
            self._route.close()
            raise

    def close(self) -> None:
        self._socket.close()
        self._route.close()

    def send(self, link: UnderlayLink, next_hop: Address, packet: bytes) -> bool:
        """Hands the IP packet to the neighbour; False: its link-layer address is not known.

        Raises: KernelError.
        """
        mac = self._mac(link, next_hop)
        if mac is None:
            return False
        kind = _ETHERTYPES[packet[0] >> 4]
        try:
            self._socket.sendto(packet, (link.ifname, kind, 0, 0, mac))
        except OSError as error:
            what = f"a packet for {next_hop} on {link.ifname}"
            raise KernelError("send", what, error.errno or 0) from error
        return True

    def _mac(self, link: UnderlayLink, address: Address) -> bytes | None:
        """Raises: KernelError."""
        request = get_neighbour(link.ifindex, address, on=link.ifname)
        try:
            found = parse_neighbour(self._route.query(request))
        except KernelError as error:
            if error.errno in _UNKNOWN:
                return None
            raise
        return parse_mac(found.mac) if found.usable else None
