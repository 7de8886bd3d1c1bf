"""MACs of VXLAN devices: whose pods' packets go where."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.beds.overlay_bed import is_lost, ping
from tests.claims.claims_bed import ClaimsBed, counting

VXLAN = "udp dport 8472"


@pytest.fixture(scope="module")
def bed() -> Iterator[ClaimsBed]:
    with contextlib.closing(ClaimsBed()) as made:
        yield made


def test_a_node_that_announces_anothers_mac_gets_none_of_its_packets(bed: ClaimsBed) -> None:
    with (
        bed.claiming(vtep_macs=bed.victim.presence.vtep_macs),
        counting(bed.claimant.netns, VXLAN) as drawn,
    ):
        for version in (4, 6):
            ping(bed.watcher.pod, bed.victim.address(version))
            assert is_lost(bed.watcher.pod, bed.claimant.address(version))
        assert drawn() == 0
    ping(bed.watcher.pod, bed.claimant.address(4))
