"""What a pod that is gone leaves behind, in the kernel."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from limpet.datapath.node.pod.reaper import Reaper
from limpet.linux.conntrack import forget_flows
from tests.beds.node_bed import OUTSIDE, NodeBed

_LIBC = ctypes.CDLL(None, use_errno=True)
_SETS = struct.Struct("=6I")
_VERSION_3 = struct.pack("=II", 0x20080522, 0)  # of the calling thread
_NET_ADMIN = 1 << 12


@contextmanager
def powerless() -> Iterator[None]:
    """The calling thread may change nothing of networks, and those that it makes never may."""
    before = ctypes.create_string_buffer(_SETS.size)
    assert _LIBC.capget(_VERSION_3, before) == 0
    effective, *others = _SETS.unpack(before.raw)
    assert effective & _NET_ADMIN
    assert _LIBC.capset(_VERSION_3, _SETS.pack(effective & ~_NET_ADMIN, *others)) == 0
    try:
        yield
    finally:
        assert _LIBC.capset(_VERSION_3, before) == 0


def test_flows_that_could_not_be_forgotten_are_before_their_address_is_another_pods(
    bed: NodeBed,
) -> None:
    outside, pod = bed.outside(), bed.pod("one", 2)
    address = ip_address(pod.addresses[0])
    with (
        outside.listening("0.0.0.0", 99) as server,
        pod.netns.connected(OUTSIDE[0], 99),
        server.accept()[0],
        bed.node.entered(),
    ):
        with powerless():
            reaper = Reaper()
        reaper.put([address])
        reaper.close()
        assert f"src={address} " in bed.node.run("conntrack", "-L"), "it was not able to"

        reaper.take_back([address], by_same_pod=False)

        assert forget_flows([address]) == 0, "it has done so"
