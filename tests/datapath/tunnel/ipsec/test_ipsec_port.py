"""The IKE daemon's port behind the tunnel's, where WireGuard has that one."""

from __future__ import annotations

import socket

import pytest

from limpet.datapath.tunnel.ipsec.port import IPSEC_PORT, IpsecPort
from tests.beds.namespaces import NetnsFactory, connect_namespaces
from tests.waiting import PATIENCE_S

TUNNEL_PORT = 25531
_SO_NO_CHECK = 11
"""Source: include/uapi/asm-generic/socket.h."""


@pytest.mark.parametrize("without_checksum", [False, True])
def test_what_is_ipsecs_comes_and_goes_by_the_tunnels_port_with_a_checksum_or_without(
    make_netns: NetnsFactory, without_checksum: bool
) -> None:
    node, peer = make_netns(), make_netns()
    connect_namespaces(node, "eth0", peer, "eth0")
    node.ip("addr add 192.0.2.1/24 dev eth0")
    peer.ip("addr add 192.0.2.2/24 dev eth0")
    with node.entered():
        shared = IpsecPort(IPSEC_PORT)
        shared.put(TUNNEL_PORT)
        assert shared.is_put(TUNNEL_PORT)
        shared.close()
    with (
        node.open_socket(4, socket.SOCK_DGRAM) as here,
        peer.open_socket(4, socket.SOCK_DGRAM) as there,
    ):
        here.bind(("", IPSEC_PORT))
        there.bind(("", TUNNEL_PORT))
        for each in (here, there):
            each.settimeout(PATIENCE_S)
            each.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, without_checksum)

        here.sendto(b"\xc1\0\0\0 a packet", ("192.0.2.2", TUNNEL_PORT))
        assert there.recvfrom(100) == (b"\xc1\0\0\0 a packet", ("192.0.2.1", TUNNEL_PORT))
        there.sendto(b"\xc2\0\0\0 another", ("192.0.2.1", TUNNEL_PORT))
        assert here.recvfrom(100) == (b"\xc2\0\0\0 another", ("192.0.2.2", TUNNEL_PORT))
