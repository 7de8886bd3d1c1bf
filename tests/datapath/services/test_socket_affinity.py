"""Services at the socket whose clients stay with an endpoint for a while."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack, closing

import pytest

from limpet.services.values import SERVING, TERMINATING, Endpoint, Service
from tests.beds.services.service_bed import ADDRESSES, WEB, endpoints_of, slices
from tests.beds.services.socket_bed import SocketBed
from tests.datapath.services.test_sockets import ANY, bed, family, who_gets
from tests.waiting import wait_until

__all__ = ["bed"]

AFFINITY_S = 1


def sticky(affinity_s: int) -> Service:
    return Service("shop", "web", cluster_ips=ADDRESSES, ports=WEB.ports, affinity_s=affinity_s)


def test_a_pod_stays_with_its_endpoint_until_that_is_gone(bed: SocketBed) -> None:
    one, two = bed.pods
    everybody = endpoints_of(*one.addresses, *two.addresses)
    bed.put(sticky(600), *slices(*everybody))
    for address in ADDRESSES:
        with ExitStack() as stack:
            servers = [
                stack.enter_context(pod.netns.listening(ANY[family(address)], 8080))
                for pod in bed.pods
            ]
            for client in (one.netns, bed.node):
                kept = {who_gets(stack, client, address, servers) for _ in range(12)}
                assert len(kept) == 1
                other = 1 - kept.pop()
                bed.put(*slices(*endpoints_of(*bed.pods[other].addresses)))
                assert who_gets(stack, client, address, servers) == other
                bed.put(*slices(*everybody))
                assert {who_gets(stack, client, address, servers) for _ in range(12)} == {other}


def test_a_pod_leaves_an_endpoint_that_ends_while_another_is_ready(bed: SocketBed) -> None:
    """It may have closed its port."""
    one, two = bed.pods
    for address in ADDRESSES:
        with ExitStack() as stack:
            server = stack.enter_context(two.netns.listening(ANY[family(address)], 8080))
            bed.put(sticky(600), *slices(*endpoints_of(*one.addresses)))
            with one.netns.listening(ANY[family(address)], 8080) as ends:
                assert who_gets(stack, one.netns, address, [ends]) == 0
            ending = [Endpoint(each, SERVING | TERMINATING, "here") for each in one.addresses]
            bed.put(*slices(*endpoints_of(*two.addresses), *ending))
            assert who_gets(stack, one.netns, address, [server]) == 0


@pytest.mark.parametrize("address", ADDRESSES, ids=["ipv4", "ipv6"])
def test_a_pod_that_asked_for_nothing_during_the_timeout_is_free_to_go_elsewhere(
    bed: SocketBed, address: str
) -> None:
    """After each timeout an endpoint is drawn again, with even chances, until it is the other."""
    one, two = bed.pods
    bed.put(sticky(AFFINITY_S), *slices(*endpoints_of(*two.addresses)))

    def ends_s() -> float:
        """When the only client that is remembered is free, by the clock of its program."""
        assert bed.part.sockets is not None
        with closing(bed.part.sockets.kernel.maps(["clients"])["clients"]) as clients:
            (kept,) = clients.read().values()
        return float(struct.unpack_from("=Q", kept, 24)[0]) / 1e9

    def now_s() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    with ExitStack() as stack:
        servers = [
            stack.enter_context(pod.netns.listening(ANY[family(address)], 8080)) for pod in bed.pods
        ]
        assert who_gets(stack, one.netns, address, servers) == 1
        bed.put(*slices(*endpoints_of(*one.addresses, *two.addresses)))
        for _ in range(12):
            until_s = ends_s()
            got = who_gets(stack, one.netns, address, servers)
            assert got == 1 or now_s() > until_s, "it stays as long as it asks"

        def has_moved() -> bool:
            wait_until(lambda: now_s() > ends_s(), "it is forgotten")
            return who_gets(stack, one.netns, address, servers) == 0

        wait_until(has_moved, "it goes elsewhere")
        until_s = ends_s()
        assert who_gets(stack, one.netns, address, servers) == 0 or now_s() > until_s
