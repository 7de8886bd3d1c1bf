"""Addresses that two live pods hold: found, told by name, over when it is over."""

from __future__ import annotations

import random
import tracemalloc

from limpet.controller.orchestrator.held_twice import SETTLE_S, AddressBook, Key, LivePod, by_node
from limpet.controller.orchestrator.pods import read_pod
from limpet.kubernetes.kinds.objects import Metadata
from limpet.kubernetes.pods import PLACED_PODS, PlacedPod
from limpet.kubernetes.watch_event import ObjectPut, read_event

LATER_S = SETTLE_S + 1


def pod(name: str, *addresses: str, node: str = "n1") -> LivePod:
    return LivePod(("a", name), f"uid-{name}", node, addresses)


def twice(book: AddressBook, now_s: float = LATER_S) -> dict[str, list[str]]:
    return {each.address: [pod.key[1] for pod in each.pods] for each in book.held_twice(now_s)}


def test_two_pods_with_one_address_are_found_after_a_while_and_named_on_their_nodes() -> None:
    book = AddressBook()
    book.put(pod("x", "10.0.0.9", "fd00::9"), 0.0)
    book.put(pod("y", "10.0.0.9", node="n2"), 0.0)
    book.put(pod("z", "10.0.0.8", node="n2"), 0.0)

    assert twice(book, SETTLE_S - 1) == {}
    assert twice(book) == {"10.0.0.9": ["x", "y"]}
    words = by_node(book.held_twice(LATER_S))
    assert words == {name: ["10.0.0.9 by a/x on n1 and a/y on n2"] for name in ("n1", "n2")}


def test_it_is_over_when_one_of_them_is_gone_or_has_another_address() -> None:
    for is_gone in (True, False):
        book = AddressBook()
        book.put(pod("x", "10.0.0.9"), 0.0)
        book.put(pod("y", "10.0.0.9"), 0.0)
        if is_gone:
            book.drop(("a", "y"), 1.0)
        else:
            book.put(pod("y", "10.0.0.7"), 1.0)
        assert twice(book) == {}
        book.put(pod("y", "10.0.0.9"), 100.0)
        assert twice(book, 101.0) == {}
        assert twice(book, 100.0 + LATER_S) != {}


def test_what_a_node_says_that_it_gave_to_a_live_pod_of_its_own_counts_too() -> None:
    book = AddressBook()
    book.report("n1", [(("a", "x"), "10.0.0.9"), (("a", "gone"), "10.0.0.8")], 0.0)
    book.put(pod("x"), 0.0)  # its kubelet has not told its address yet
    book.put(pod("foreign", "10.0.0.9", node="n2"), 0.0)
    book.put(pod("other", "10.0.0.8", node="n2"), 0.0)  # kept for who is not there

    assert twice(book) == {"10.0.0.9": ["foreign", "x"]}
    book.put(pod("x", node="n3"), 1.0)  # another machine has it now: what n1 keeps is not in use
    assert twice(book) == {}
    book.put(pod("x"), 2.0)
    book.report("n1", [], 3.0)
    assert twice(book, 100.0) == {}


def test_it_depends_on_what_is_so_and_not_on_the_way_there() -> None:
    chance = random.Random(7)
    for _ in range(200):
        book = AddressBook()
        pods: dict[Key, LivePod] = {}
        reports: dict[str, list[tuple[Key, str]]] = {}
        for _ in range(40):
            name, node = chance.choice("xyz"), chance.choice(("n1", "n2"))
            match chance.randrange(3):
                case 0:
                    addresses = chance.sample(("1", "2", "3"), chance.randrange(3))
                    pods["a", name] = pod(name, *addresses, node=node)
                    book.put(pods["a", name], 0.0)
                case 1:
                    pods.pop(("a", name), None)
                    book.drop(("a", name), 0.0)
                case 2:
                    reports[node] = [
                        (("a", chance.choice("xyz")), chance.choice("123")) for _ in range(2)
                    ]
                    book.report(node, reports[node], 0.0)
        held: dict[str, set[str]] = {}
        for each in pods.values():
            own = [at for key, at in reports.get(each.node, ()) if key == each.key]
            for address in {*each.addresses, *own}:
                held.setdefault(address, set()).add(each.key[1])
        wanted = {address: sorted(names) for address, names in held.items() if len(names) > 1}
        assert twice(book) == wanted


def test_pods_in_their_nodes_network_or_about_to_go_are_left_out() -> None:
    line = (
        b'{"type":"ADDED","object":{"metadata":{"namespace":"a","name":"x","uid":"u"%s},"spec":'
        b'{"nodeName":"n1","hostNetwork":%s},"status":{"podIP":"10.0.0.9","podIPs":[{"ip":'
        b'"10.0.0.9"},{"ip":"FD00:0::9"},{"ip":"no address"}]}}}'
    )

    def read(more: bytes, host: bytes) -> LivePod | None:
        event = read_event(line % (more, host), PLACED_PODS)
        assert isinstance(event, ObjectPut)
        return read_pod(event.item)

    assert read(b"", b"false") == LivePod(("a", "x"), "u", "n1", ("10.0.0.9", "fd00::9"))
    assert read(b"", b"true") is None
    assert read(b',"deletionTimestamp":"2026-01-01T00:00:00Z"', b"false") is None
    assert read_pod(PlacedPod(metadata=Metadata(name="new", namespace="a"))) is not None


def test_five_thousand_pods_are_few_megabytes() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        book = AddressBook()
        for number in range(5_000):
            name, node = f"deployment-5b7c9d{number:04}", f"edge-node-{number // 20:04}"
            at = (
                f"10.244.{number // 250}.{number % 250}",
                f"fd00:244:0:{number // 250:x}::{number:x}",
            )
            book.put(LivePod(("production", name), f"{number:036}", node, at), 0.0)
        for number in range(250):
            pods = [
                (("production", f"deployment-5b7c9d{number * 20 + each:04}"), "10.244.0.1")
                for each in range(20)
            ]
            book.report(f"edge-node-{number:04}", pods, 0.0)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(book) == 5_000
    assert used < 8_000_000, used
