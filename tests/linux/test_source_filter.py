"""A socket that takes nothing from some addresses, and from all others as before."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from limpet.dns.handover.listening import adopt
from limpet.linux.source_filter import MOST_SOURCES, leave_out
from tests.beds.namespaces import Netns, NetnsFactory
from tests.waiting import wait_until

OF_IPV4 = [f"192.0.2.{number}" for number in range(1, MOST_SOURCES + 3)]
OF_IPV6 = [f"2001:db8::{number}:1" for number in range(1, MOST_SOURCES + 3)]
LAST = {OF_IPV4[0]: "198.51.100.1", OF_IPV6[0]: "2001:db8:1::1"}
BOTH = pytest.mark.parametrize("own", [OF_IPV4, OF_IPV6], ids=["ipv4", "ipv6"])


@pytest.fixture
def netns(make_netns: NetnsFactory) -> Netns:
    made = make_netns("filter")
    made.ip(*(f"address add {each}/32 dev lo" for each in (*OF_IPV4, LAST[OF_IPV4[0]])))
    made.ip(*(f"address add {each}/128 dev lo nodad" for each in (*OF_IPV6, LAST[OF_IPV6[0]])))
    return made


def opened(netns: Netns, address: str) -> socket.socket:
    made = netns.open_socket(6 if ":" in address else 4, socket.SOCK_DGRAM)
    if ":" in address:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind((address, 0))
    return made


def heard(netns: Netns, at: socket.socket, own: list[str]) -> list[str]:
    """Whom it hears when each says something, until it hears who comes last: of one processor the
    kernel delivers in order. Empty: the last was lost."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        for each in (*own, LAST[own[0]]):
            with opened(netns, each) as one:
                one.sendto(each.encode(), at.getsockname()[:2])
    finally:
        os.sched_setaffinity(0, processors)
    at.settimeout(1)
    try:
        return list(iter(lambda: at.recv(100).decode(), LAST[own[0]]))
    except TimeoutError:
        return []


def hears(netns: Netns, at: socket.socket, own: list[str], those: list[str]) -> None:
    """Returns when it has heard just those: another test's flood may fill the queue that all
    namespaces share (`net.core.netdev_max_backlog`), which loses packets on loopback, too."""
    wait_until(lambda: heard(netns, at, own) == those)


@BOTH
def test_what_comes_from_these_is_not_queued(netns: Netns, own: list[str]) -> None:
    with opened(netns, own[0]) as at:
        hears(netns, at, own, own)

        leave_out(at, own[1:3])
        hears(netns, at, own, [own[0], *own[3:]])

        leave_out(at, own[3:4])
        hears(netns, at, own, [*own[:3], *own[4:]])

        leave_out(at, ())
        leave_out(at, ())
        hears(netns, at, own, own)


@BOTH
def test_of_more_than_may_be_the_first_are_left_out(netns: Netns, own: list[str]) -> None:
    with opened(netns, own[0]) as at:
        leave_out(at, own)
        rest = set(sorted(own)[MOST_SOURCES:])
        hears(netns, at, own, [each for each in own if each in rest])


@BOTH
def test_a_socket_that_is_taken_over_hears_all(netns: Netns, own: list[str]) -> None:
    """Who had it before may have been killed in the midst of a flood."""
    kept = opened(netns, own[0])
    leave_out(kept, own[1:])
    with netns.entered():
        found = adopt([kept.detach()], [ip_address(own[0])])
    with ExitStack() as undo:
        udp, _ = (undo.enter_context(each) for each in itertools.chain(*found))
        hears(netns, udp, own, own)
