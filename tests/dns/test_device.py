"""The link that holds the addresses where a node answers names."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from limpet.base.errors import KernelError
from limpet.dns.device import keep_device
from tests.beds.namespaces import NetnsFactory

V4, V6 = ip_address("169.254.20.10"), ip_address("fd5b:9ad1:7e3c::53")


def test_where_ipv6_is_turned_off_the_other_address_is_kept_and_that_is_no_failure(
    make_netns: NetnsFactory,
) -> None:
    node = make_netns("node")
    with node.entered():
        node.sysctl("net/ipv6/conf/all/disable_ipv6", "1")
        node.sysctl("net/ipv6/conf/default/disable_ipv6", "1")
        done = keep_device([V4, V6])
        assert [line for line in done if line.startswith("refused")]
        assert keep_device([V4, V6]) == []

        with pytest.raises(KernelError):
            keep_device([V6])
