"""Encrypted tunnels between sites, with the real userspace WireGuard."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.namespaces import Netns
from tests.kernel.overlay_bed import is_lost, ping
from tests.kernel.tunnel_bed import TunnelBed

BULK_BYTES = 4 << 20


def counters(netns: Netns, name: str) -> dict[str, int]:
    """Of /proc/net/snmp: counters of one protocol."""
    lines = [line.split() for line in netns.run("cat", "/proc/net/snmp").splitlines()]
    names, values = [line[1:] for line in lines if line[0] == f"{name}:"]
    return dict(zip(names, map(int, values), strict=True))


def fragments(netns: Netns) -> int:
    """Packets that the node has cut, of both versions."""
    v6 = dict(line.split() for line in netns.run("cat", "/proc/net/snmp6").splitlines())
    return counters(netns, "Ip")["FragCreates"] + int(v6["Ip6FragCreates"])


def send_bulk(client: Netns, server: Netns, address: str) -> None:
    """All of it arrives. Raises: AssertionError, OSError."""
    with server.listening(address, 5001) as listening:
        with client.connected(address, 5001) as here:
            there, _ = listening.accept()
            with there:
                there.settimeout(20)
                sender = threading.Thread(target=here.sendall, args=(bytes(BULK_BYTES),))
                sender.start()
                left = BULK_BYTES
                while left:
                    part = len(there.recv(1 << 18))
                    assert part
                    left -= part
                sender.join()


@pytest.mark.parametrize("version", [4, 6])
def test_pods_of_two_sites_reach_each_other_over_either_underlay(
    tmp_path: Path, version: int
) -> None:
    bed = TunnelBed(2, tmp_path, version=version)
    with bed.undo:
        for one, other in bed.pairs():
            for inner in (4, 6):
                ping(one.node.pod, other.node.address(inner))
                ping(one.node.pod, other.node.overlay(inner))
                ping(one.node.netns, other.node.address(inner), "-I", one.node.overlay(inner))
                send_bulk(one.node.pod, other.node.pod, other.node.address(inner))
        assert [fragments(tunnel.node.netns) for tunnel in bed.tunnels] == [0, 0]
