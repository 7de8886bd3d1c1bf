"""Limits as packets meet them, and what the kernel made of them.

A limit bounds what comes through in a time, on a busy machine too; how fast a machine is, is no
claim. What is not slowed goes past the token buckets, which count what they let through.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from limpet.datapath.node.pod.attachment import Bandwidth
from tests.beds.namespaces import Netns
from tests.beds.node_bed import NodeBed, Pod
from tests.waiting import PATIENCE_S

RATE = 20_000_000
BURST = 1_000_000
CONTAINERDS_BURST = 2**32 - 1
SIZE = BURST // 8 + RATE // 8 // 3
"""Bytes of a transfer: the burst, and a third of a second of the rate."""


def transfer(sender: Netns, receiver: Netns, address: str) -> float:
    """Seconds in which TCP brought `SIZE` bytes from one to the other. Raises: TimeoutError."""
    with receiver.listening(address, 5001) as server, sender.connected(address, 5001) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        client.settimeout(PATIENCE_S)
        there = server.accept()[0]
        there.settimeout(PATIENCE_S)
        started_s = time.monotonic()
        thread = threading.Thread(target=client.sendall, args=[bytes(SIZE)])
        thread.start()
        with there:
            left = SIZE
            while left:
                left -= len(there.recv(1 << 16))
        took_s = time.monotonic() - started_s
        thread.join()
    return took_s


def least_s(rate_bits: int, burst_bits: int) -> float:
    """Seconds that a transfer takes at least; the kernel keeps time in ticks of 64 ns."""
    return 0.95 * (SIZE * 8 - burst_bits) / rate_bits


def limited(bed: NodeBed, **limits: int) -> tuple[Pod, Pod]:
    return bed.pod("one", 2, bandwidth=Bandwidth(**limits)), bed.pod("two", 3)


def buckets(bed: NodeBed) -> list[dict[str, Any]]:
    """Token buckets of the node as tc tells them."""
    shown = json.loads(bed.node.run("tc", "-s", "-j", "qdisc", "show"))
    return [each for each in shown if each["kind"] == "tbf"]


def rates(bed: NodeBed) -> list[int]:
    """Bits per second."""
    return sorted(each["options"]["rate"] * 8 for each in buckets(bed))


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_each_direction_has_its_own_limit(bed: NodeBed, family: int) -> None:
    one, two = limited(
        bed,
        ingress_rate_bits=RATE,
        ingress_burst_bits=BURST,
        egress_rate_bits=2 * RATE,
        egress_burst_bits=BURST,
    )
    assert rates(bed) == [RATE, 2 * RATE]

    assert transfer(two.netns, one.netns, one.addresses[family]) > least_s(RATE, BURST)
    assert transfer(one.netns, two.netns, two.addresses[family]) > least_s(2 * RATE, BURST)
    for bucket in buckets(bed):
        assert bucket["bytes"] > SIZE
        assert bucket["overlimits"] > 0


@pytest.mark.parametrize("limited_way", ["ingress", "egress"])
def test_a_direction_without_limit_is_not_slowed(bed: NodeBed, limited_way: str) -> None:
    one, two = limited(
        bed, **{f"{limited_way}_rate_bits": RATE, f"{limited_way}_burst_bits": BURST}
    )
    sender, receiver = (one, two) if limited_way == "ingress" else (two, one)

    transfer(sender.netns, receiver.netns, receiver.addresses[0])

    (bucket,) = buckets(bed)
    assert 0 < bucket["bytes"] < SIZE // 2, "only acknowledgements went through it"
    assert bucket["overlimits"] == 0


def test_containerds_burst_is_half_a_gigabyte_without_delay(bed: NodeBed) -> None:
    one, two = limited(
        bed,
        ingress_rate_bits=10_000_000,
        ingress_burst_bits=CONTAINERDS_BURST,
        egress_rate_bits=10_000_000,
        egress_burst_bits=CONTAINERDS_BURST,
    )
    assert rates(bed) == [10_000_000, 10_000_000]

    transfer(two.netns, one.netns, one.addresses[0])

    assert max(bucket["bytes"] for bucket in buckets(bed)) > SIZE
    assert [bucket["overlimits"] for bucket in buckets(bed)] == [0, 0]


@pytest.mark.parametrize("rate", [8, 2**35, 10**12], ids=["a byte", "4 GB", "125 GB"])
def test_any_rate_is_taken(bed: NodeBed, rate: int) -> None:
    bed.pod("one", 2, bandwidth=Bandwidth(rate, 8, rate, 2**40))

    assert rates(bed) == [rate, rate]


def test_a_tiny_burst_does_not_cut_the_pod_off(bed: NodeBed) -> None:
    one, two = limited(
        bed,
        ingress_rate_bits=RATE,
        ingress_burst_bits=8,
        egress_rate_bits=RATE,
        egress_burst_bits=8,
    )

    for sender, receiver in ((one, two), (two, one)):
        took_s = transfer(sender.netns, receiver.netns, receiver.addresses[0])
        assert took_s > least_s(RATE, BURST)


def test_the_limits_of_two_pods_are_apart(bed: NodeBed) -> None:
    for number, name in ((2, "one"), (3, "two")):
        bed.pod(name, number, bandwidth=Bandwidth(RATE, BURST, RATE, BURST))

    assert len(buckets(bed)) == 4
    assert len([name for name in bed.links() if name.startswith("lims")]) == 2
