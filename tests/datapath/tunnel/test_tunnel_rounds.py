"""Rounds of one encrypted tunnel, with its planner and its device as an agent has them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from limpet.cluster.kinds.network import TunnelBackend
from limpet.datapath.tunnel.diff import DropTunnel
from limpet.datapath.tunnel.planner import TunnelPlanner
from limpet.datapath.tunnel.tunnel import Tunnel
from tests.beds.tunnel_bed import (
    KernelWireguardTunnel,
    TunnelBed,
    WireguardTunnel,
    skip_without_kernel_wireguard,
)


@pytest.fixture(params=["wireguard-go", "wireguard-kernel"])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> TunnelBed:
    if request.param == "wireguard-go":
        return TunnelBed(2, tmp_path)
    skip_without_kernel_wireguard()
    return TunnelBed(2, tmp_path, kind=KernelWireguardTunnel)


class Rounds:
    """A node's tunnel, which is not made yet."""

    def __init__(self, bed: TunnelBed) -> None:
        one = bed.tunnels[0]
        assert isinstance(one, WireguardTunnel)
        one.apply(DropTunnel(one.ifname))
        self._view = one.view(bed.entries())
        self._woken = asyncio.Event()
        planner = TunnelPlanner(one.key, one.ifname, TunnelBackend.WIREGUARD)
        self.tunnel = Tunnel(one.kernel, planner, lambda _why: self._woken.set())
        self.tunnel.begin()

    async def round(self) -> list[str]:
        """One round, after its program was started if it has one; the failures."""
        while True:
            self.tunnel.replan(self._view.view, self._view.admitted)
            have = self.tunnel.look()
            if have is not None:
                return self.tunnel.apply(have, self.tunnel.changes(have))[0]
            await self._woken.wait()
            self._woken.clear()


def test_a_tunnel_whose_port_another_program_has_works_in_no_round(bed: TunnelBed) -> None:
    one = bed.tunnels[0]

    async def run() -> None:
        rounds = Rounds(bed)
        tunnel = rounds.tunnel
        with one.node.netns.open_socket(4, socket.SOCK_DGRAM) as other:
            other.bind(("0.0.0.0", one.key.port))
            for _ in range(3):
                (failure,) = await rounds.round()
                assert "another program has the tunnel's UDP port" in failure
                assert (tunnel.up, tunnel.device, tunnel.trouble) == (False, "", failure)
                tunnel.resync()
                assert tunnel.device == "", "it is told as one that works until the next round"

        assert await rounds.round() == []

        assert (tunnel.up, tunnel.device, tunnel.trouble) == (True, one.ifname, "")

    with bed.undo, one.node.netns.entered():
        asyncio.run(run())
