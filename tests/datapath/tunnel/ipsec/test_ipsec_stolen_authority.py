"""Who has the CA's key alone is no peer of a tunnel: each peer is told by the key of its grant."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from limpet.base.ownership import IPSEC_IFNAME
from limpet.controller.state.authority import _certificate
from limpet.datapath.tunnel.ipsec.state import IpsecIdentity
from tests.beds.overlay_bed import ping
from tests.beds.traffic.tunnel_traffic import is_silent
from tests.beds.tunnel_bed import Tunnel, TunnelBed
from tests.datapath.tunnel.ipsec.ipsec_bed import IpsecTunnel, authority
from tests.waiting import wait_until

THIEF = Ed25519PrivateKey.from_private_bytes(b"thief" + bytes(27))


class StolenTunnel(IpsecTunnel):
    """The second node's place is taken by a machine that has the CA's key, and so a certificate
    with that node's uid, but a key of its own."""

    is_thief = True

    @property
    def identity(self) -> IpsecIdentity:
        right = super().identity
        if self.node.number == 1 or not self.is_thief:
            return right
        private_key = THIEF.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        ca = authority()
        stolen = _certificate(right.uid, THIEF.public_key(), ca.ca_key, ca.ca_certificate)
        return replace(right, private_key=private_key, certificate=stolen.encode())

    def connect(self, peers: Iterable[Tunnel]) -> None:
        """Not before it is the node itself."""
        if not self.is_thief:
            super().connect(peers)

    def start_anew(self) -> None:
        """Its strongSwan has ended; the next round starts another."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: self.node.route.link(IPSEC_IFNAME) is None)


def test_a_certificate_that_a_thief_of_the_cas_key_made_opens_nothing_and_the_node_itself_comes_in(
    tmp_path: Path,
) -> None:
    bed = TunnelBed(2, tmp_path, kind=StolenTunnel)
    with bed.undo:
        one, other = bed.tunnels
        assert isinstance(one, StolenTunnel)
        assert isinstance(other, StolenTunnel)

        def is_shut_out() -> bool:
            assert not other.begins(one)
            assert not one.begins(other)
            assert is_silent(other.node.pod, one.node.address(4))
            return not any(sa.established for sa in (*one.sas(), *other.sas()))

        assert is_shut_out()
        for tunnel in (one, other):
            tunnel.start_anew()
            bed.settle_tunnels()
            assert is_shut_out()

        other.is_thief = False
        other.start_anew()
        other.restart()
        bed.settle_tunnels()
        other.connect([one])
        wait_until(lambda: not is_silent(one.node.pod, other.node.address(4)))
        for tunnel in (one, other):
            tunnel.start_anew()
            bed.settle_tunnels()
            wait_until(lambda: not is_silent(one.node.pod, other.node.address(4)))
        ping(other.node.pod, one.node.address(6))
