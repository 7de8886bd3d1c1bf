"""What `limpet trace` looks at while others send as fast as they can."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from limpet.base.bounds.words import TRACE_STEPS
from limpet.cli.trace.tables import TracedFlow, ruleset
from limpet.cli.trace.watch import TraceWatch
from tests.beds.namespaces import Bed, connect_namespaces
from tests.waiting import PATIENCE_S

_POD, _NODE = "10.9.0.2", "10.9.0.1"


@pytest.fixture
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    bed.close()


def test_whoever_sends_on_and_on_a_trace_has_seen_enough_and_ends(bed: Bed) -> None:
    """It went on for twice its time, with 30 MB more each second."""
    node, pod = bed.namespace("n1"), bed.namespace("p1")
    connect_namespaces(node, "up0", pod, "eth0")
    node.ip(f"address add {_NODE}/24 dev up0")
    pod.ip(f"address add {_POD}/24 dev eth0")
    flow = TracedFlow(ip_address(_POD), ip_address(_NODE), "icmp", 0)
    over = threading.Event()

    def flood(sending: socket.socket) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                sending.send(b"x")

    with pod.open_socket(4, socket.SOCK_DGRAM) as sending:
        sending.connect((_NODE, 9))
        flooding = threading.Thread(target=flood, args=(sending,))
        with node.entered():
            watch = TraceWatch(ruleset(flow, port_link="", uplinks=["up0"]))
            flooding.start()
            try:
                watch.listen(flow.source.packed, lambda: False, PATIENCE_S)
            finally:
                over.set()
                flooding.join()
                watch.close()

    assert len(watch.events) == TRACE_STEPS.most
