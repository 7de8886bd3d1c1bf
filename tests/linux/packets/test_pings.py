"""Pings of many addresses at once, each asked until it answers."""

from __future__ import annotations

import re
import threading

from limpet.lab.netns import answered_pings
from tests.beds.namespaces import NetnsFactory
from tests.waiting import PATIENCE_S, wait_until

_HERE = ("10.9.9.1", "fd99::1", "127.0.0.1", "::1")
_NOWHERE = ("192.0.2.1", "2001:db8::1")


def test_all_that_answer_are_told_and_what_nobody_has_is_not(make_netns: NetnsFactory) -> None:
    netns = make_netns("a")
    netns.ip("address add 10.9.9.1/32 dev lo", "address add fd99::1/128 dev lo nodad")

    assert answered_pings(netns.name, _HERE, PATIENCE_S) == {*_HERE}
    assert answered_pings(netns.name, [*_HERE, *_NOWHERE], 0.5) == {*_HERE}
    assert answered_pings(netns.name, (), PATIENCE_S) == set()


def test_a_question_that_is_lost_is_asked_again(make_netns: NetnsFactory) -> None:
    netns = make_netns("a")
    rule = "icmp type echo-request counter drop"
    hook = "type filter hook input priority 0;"
    netns.run("nft", f"add table ip lost {{ chain in {{ {hook} {rule}; }}; }}")

    def let_through() -> None:
        lost = ("table", "ip", "lost")
        wait_until(lambda: re.search(r"packets [1-9]", netns.run("nft", "list", *lost)))
        netns.run("nft", "delete", *lost)

    beside = threading.Thread(target=let_through)
    beside.start()
    try:
        assert answered_pings(netns.name, ["127.0.0.1"], PATIENCE_S) == {"127.0.0.1"}
    finally:
        beside.join()


def test_who_pings_at_the_same_time_takes_no_others_answers(make_netns: NetnsFactory) -> None:
    netns = make_netns("a")
    found: list[set[str]] = []

    def ask(*addresses: str) -> None:
        found.append(answered_pings(netns.name, addresses, PATIENCE_S))

    asking = [threading.Thread(target=ask, args=("::1", f"127.0.0.{n}")) for n in range(1, 9)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()

    assert sorted(map(len, found)) == [2] * 8
