"""Limits measured with packets, and what the kernel made of them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from limpet.datapath.node.attachment import Bandwidth
from tests.kernel.namespaces import Netns
from tests.kernel.node_bed import NodeBed, Pod

RATE = 20_000_000
BURST = 1_000_000
CONTAINERDS_BURST = 2**32 - 1
MEASURE_S = 0.4


def bits_per_second(sender: Netns, receiver: Netns, address: str) -> float:
    """What TCP brings from one to the other in a second, after the burst is used up."""
    with receiver.listening(address, 5001) as server, sender.connected(address, 5001) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        there = server.accept()[0]
        thread = threading.Thread(target=_send_all_the_time, args=[client])
        thread.start()
        try:
            with there:
                there.settimeout(5)
                _receive_until(there, some=BURST // 8 + 200_000)
                started_s = time.monotonic()
                received = 0
                while time.monotonic() - started_s < MEASURE_S:
                    received += len(there.recv(1 << 16))
                took_s = time.monotonic() - started_s
        finally:
            with contextlib.suppress(OSError):  # the other end has closed it
                client.shutdown(socket.SHUT_RDWR)
            thread.join()
    return received * 8 / took_s


def _send_all_the_time(client: socket.socket) -> None:
    try:
        while True:
            client.send(bytes(1 << 16))
    except OSError:
        return


def _receive_until(there: socket.socket, *, some: int) -> None:
    while some > 0:
        some -= len(there.recv(1 << 16))


def limited(bed: NodeBed, **limits: int) -> tuple[Pod, Pod]:
    return bed.pod("one", 2, bandwidth=Bandwidth(**limits)), bed.pod("two", 3)


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_each_direction_has_its_own_limit(bed: NodeBed, family: int) -> None:
    one, two = limited(
        bed,
        ingress_rate_bits=RATE,
        ingress_burst_bits=BURST,
        egress_rate_bits=2 * RATE,
        egress_burst_bits=BURST,
    )

    into = bits_per_second(two.netns, one.netns, one.addresses[family])
    out_of = bits_per_second(one.netns, two.netns, two.addresses[family])

    assert 0.5 * RATE < into < 1.5 * RATE
    assert 0.5 * 2 * RATE < out_of < 1.5 * 2 * RATE


@pytest.mark.parametrize("limited_way", ["ingress", "egress"])
def test_a_direction_without_limit_is_not_slowed(bed: NodeBed, limited_way: str) -> None:
    one, two = limited(
        bed, **{f"{limited_way}_rate_bits": RATE, f"{limited_way}_burst_bits": BURST}
    )
    sender, receiver = (one, two) if limited_way == "ingress" else (two, one)

    free = bits_per_second(sender.netns, receiver.netns, receiver.addresses[0])

    assert free > 5 * RATE


def buckets(bed: NodeBed) -> list[str]:
    """Token buckets of the node as tc tells them."""
    lines = bed.node.run("tc", "qdisc", "show").splitlines()
    return [line for line in lines if line.startswith("qdisc tbf")]


def test_containerds_burst_is_half_a_gigabyte_without_delay(bed: NodeBed) -> None:
    one, two = limited(
        bed,
        ingress_rate_bits=10_000_000,
        ingress_burst_bits=CONTAINERDS_BURST,
        egress_rate_bits=10_000_000,
        egress_burst_bits=CONTAINERDS_BURST,
    )

    assert len(buckets(bed)) == 2
    assert all("rate 10Mbit" in line for line in buckets(bed))
    assert bits_per_second(two.netns, one.netns, one.addresses[0]) > 100_000_000


@pytest.mark.parametrize("rate", [8, 2**35, 10**12], ids=["a byte", "4 GB", "125 GB"])
def test_any_rate_is_taken(bed: NodeBed, rate: int) -> None:
    bed.pod("one", 2, bandwidth=Bandwidth(rate, 8, rate, 2**40))

    shown = bed.node.run("tc", "-j", "qdisc", "show")
    rates = [each["options"]["rate"] for each in json.loads(shown) if each["kind"] == "tbf"]

    assert rates == [rate // 8, rate // 8]


def test_a_tiny_burst_does_not_cut_the_pod_off(bed: NodeBed) -> None:
    one, two = limited(
        bed,
        ingress_rate_bits=RATE,
        ingress_burst_bits=8,
        egress_rate_bits=RATE,
        egress_burst_bits=8,
    )

    for sender, receiver in ((one, two), (two, one)):
        rate = bits_per_second(sender.netns, receiver.netns, receiver.addresses[0])
        assert 0.3 * RATE < rate < 1.5 * RATE


def test_the_limits_of_two_pods_are_apart(bed: NodeBed) -> None:
    for number, name in ((2, "one"), (3, "two")):
        bed.pod(name, number, bandwidth=Bandwidth(RATE, BURST, RATE, BURST))

    assert len(buckets(bed)) == 4
    assert len([name for name in bed.links() if name.startswith("lims")]) == 2
