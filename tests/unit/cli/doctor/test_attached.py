"""Pods whose MTU is larger than what their packets go out by."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest

from limpet.cli.doctor.pods.attached import mtu_findings
from limpet.datapath.node.pod.attachment import (
    Attachment,
    BridgeSpec,
    Netns,
    PodLink,
    PodName,
)
from limpet.ipam.leases import Holder

POD = Attachment(
    network="limpet",
    holder=Holder("c1", "eth0"),
    netns=Netns("", 0, 0),
    pod=PodName("default", "web-0"),
    addresses=(ip_interface("10.244.7.2/24"),),
    gateways=(),
    bridge=BridgeSpec("limpet0"),
    link=PodLink(mtu_bytes=1500),
)


@pytest.mark.parametrize(
    ("mtu_bytes", "links", "is_set", "words"),
    [
        (1500, [], False, ""),
        (1400, [], False, "the uplink has 1400 now: web-0"),
        (1400, [1500], True, "mtu_bytes of the configuration says 1400 now: web-0"),
        (1500, [1500], True, ""),
        (1500, [1450, 1400], True, "the uplink has 1450 now: web-0"),
        (9000, [1400], True, "the uplink has 1400 now: web-0"),
        (1400, [], True, "mtu_bytes of the configuration says 1400 now: web-0"),
    ],
)
def test_what_a_pod_is_too_large_for_is_named_as_what_it_is(
    mtu_bytes: int, links: list[int], is_set: bool, words: str
) -> None:
    found = [*mtu_findings([POD], mtu_bytes, links, is_set=is_set)]

    assert [each.what.partition(", where ")[2] for each in found] == ([words] if words else [])
    if is_set and links and mtu_bytes > max(links):
        assert found[0].advice.startswith("set a smaller mtu_bytes")
