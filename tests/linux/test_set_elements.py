"""Elements of maps in a real kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from limpet.base.errors import KernelError
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from limpet.linux.set_elements import SetElements
from tests.beds.namespaces import Netns, NetnsFactory

TABLE = "limpet_test"
GET_GENERATION = 10 << 8 | 16
GENERATION_ID = 1


@pytest.fixture
def netns(make_netns: NetnsFactory) -> Netns:
    netns = make_netns("sets")
    netns.run("nft", f"add table inet {TABLE}")
    for name in ("one", "two"):
        netns.run("nft", f"add map inet {TABLE} {name} {{ type ipv4_addr : mark; }}")
    return netns


@contextmanager
def elements_in(netns: Netns) -> Iterator[SetElements]:
    with netns.entered(), closing(SetElements(TABLE)) as elements:
        yield elements


def generation() -> int:
    """How many transactions there were in the namespace."""
    request = wire.Request(GET_GENERATION, 0, bytes(4), ("the generation",))
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        answer = netlink.query(request)
    return int.from_bytes(wire.parse_attrs(answer.body, 4)[GENERATION_ID], "big")


def test_many_keys_go_in_few_transactions_though_some_have_ended_meanwhile(netns: Netns) -> None:
    keys = [number.to_bytes(4, "big") for number in range(1, 5001)]
    gone, stays = keys[:4000], keys[4000:]
    with elements_in(netns) as elements:
        there = [(key, bytes(4)) for key in keys if key not in gone[:4000:1500]]
        elements.change({}, {"one": there, "two": there})
        before = generation()
        elements.delete_there(("one", "two"), gone)
        assert generation() - before < 64
        for name in ("one", "two"):
            assert sorted(elements.read(name)) == stays


def test_what_the_kernel_refuses_for_another_reason_is_told(netns: Netns) -> None:
    netns.run("nft", f"add set inet {TABLE} named {{ type ipv6_addr; }}")
    with elements_in(netns) as elements, pytest.raises(KernelError):
        elements.delete_there(("named",), [bytes(4)])
