"""An agent of a node that nftables serves alone, where an earlier one has served at the socket."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from limpet.agent.serving.sockets import AtSocket
from limpet.base.settings import ServiceSettings
from limpet.datapath.services.part import ServicesContext, ServicesPart
from limpet.datapath.services.sockets.connected_apply import CONNECTED_MAPS
from limpet.datapath.services.sockets.pins_apply import AttachPoint, pins_of
from tests.beds.services.service_bed import ADDRESSES, WEB, endpoints_of, slices
from tests.beds.services.socket_bed import SocketBed, mounted
from tests.datapath.services.test_sockets import bed, datagrams

__all__ = ["bed"]


def begin(bed: SocketBed, run_dir: Path) -> None:
    """As an agent does."""
    bed.part.close()
    with bed.node.entered():
        pods = [each.netns.path for each in bed.pods]
        sockets = AtSocket(ServiceSettings(), run_dir, lambda: pods)
        asked = ServicesContext(lambda: bed.surroundings, lambda: bed.here, sockets.forgotten)
        bed.part = ServicesPart(bed.loop, bed.catalog, asked, sockets.side)
        bed.loop.add(bed.part)
        bed.run()
        sockets.begin()


def test_connected_datagram_sockets_go_on_and_are_ended_when_their_endpoint_leaves(
    bed: SocketBed, tmp_path: Path
) -> None:
    """No rule turns them: what programs have noted of them stays as long as it is needed."""
    one, two = bed.pods
    with mounted("bpf", tmp_path / "bpf"), ExitStack() as stack:
        pins = pins_of(tmp_path)
        bed.end_agent(AttachPoint(pins, bed.cgroup.path))
        bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
        connected = []
        for client in (one.netns, bed.node):
            for address in ADDRESSES:
                connected.append(datagrams(stack, client, address))
                connected[-1].connect((address, 53))
        for _ in range(2):
            begin(bed, tmp_path)
            assert {path.name for path in pins.glob("*/*")} == set(CONNECTED_MAPS)
        for asks in connected:
            asks.send(b"goes on")
        bed.put(*slices(*endpoints_of(*one.addresses)))
        for asks in connected:
            with pytest.raises(ConnectionAbortedError):
                asks.recv(64)
            asks.close()
        begin(bed, tmp_path)
        assert not pins.exists()
