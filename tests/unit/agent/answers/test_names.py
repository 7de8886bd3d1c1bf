"""What a person means by a word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

import pytest

from limpet.agent.answers.names import KnownNames, Names, kind_said, own_pods_told, pod_meant
from limpet.agent.answers.own_pods import KnownPod, called
from limpet.base.errors import LimpetError
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.datagrams.peer_socket import Received
from limpet.cluster.exchange.neighbours import Destination
from limpet.cluster.exchange.pod_lookup import PodLookup
from limpet.cluster.exchange.pod_messages import ToldPod, encode, parse_ask
from limpet.cluster.exchange.pod_messages import told as told_of
from limpet.cluster.topology.paths import OwnSide
from limpet.cluster.topology.view import view_of
from tests.beds.member import member_without_disk
from tests.unit.cluster.exchange.test_pod_lookup import WHERE, Courier
from tests.unit.cluster_values import CLUSTER_KEY, grant, network, seal_network, told


def pod(name: str, address: str, namespace: str = "default", *, attached: bool = True) -> KnownPod:
    return KnownPod(namespace, name, ip_address(address), attached)


WEB, WEB6 = pod("web-0", "10.244.1.2"), pod("web-0", "fd00::2")
OTHER_WEB = pod("web-0", "10.244.2.2", "shop")


def test_a_pod_is_known_by_namespace_and_name_with_all_its_addresses() -> None:
    for word in ("default/web-0", "web-0"):
        assert pod_meant(word, called(word, (WEB, WEB6))).addresses == (WEB.address, WEB6.address)


def test_a_name_that_several_pods_have_is_asked_back() -> None:
    with pytest.raises(LimpetError, match="default/web-0, shop/web-0"):
        pod_meant("web-0", called("web-0", (WEB, OTHER_WEB)))

    assert called("shop/web-0", (WEB, OTHER_WEB)) == [OTHER_WEB]


@pytest.mark.parametrize("word", ["nobody", "shop/web-0", "10.0.0.300", "", "/", "a/b/c"])
def test_no_other_name_fits(word: str) -> None:
    assert called(word, (WEB, WEB6)) == []


def test_an_attached_pod_goes_before_an_address_that_is_kept_for_its_name() -> None:
    kept = pod("web-0", "10.244.1.9", attached=False)

    assert pod_meant("web-0", (kept, WEB)).addresses == (WEB.address,)
    assert pod_meant("web-0", (kept,)).addresses == (kept.address,)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("node:crane-1", ("node", "crane-1")),
        ("pod:shop/web-0", ("pod", "shop/web-0")),
        ("crane-1", ("", "crane-1")),
        ("fd00::2", ("", "fd00::2")),
        ("site:crane-1", ("", "site:crane-1")),
    ],
)
def test_what_kind_of_thing_is_meant_may_be_said(said: str, kind: tuple[str, str]) -> None:
    assert kind_said(said) == kind


def test_others_are_told_of_attached_pods_only_by_their_whole_name() -> None:
    pods = (WEB, WEB6, OTHER_WEB, pod("web-0", "10.244.1.9", "old", attached=False))

    assert own_pods_told(pods, "default", "web-0") == [
        ToldPod("default", "web-0", ("10.244.1.2", "fd00::2"))
    ]
    assert [each.namespace for each in own_pods_told(pods, "", "web-0")] == ["default", "shop"]
    assert own_pods_told(pods, "", "web") == []


class Neighbour(Courier):
    """Has these pods, and answers at once."""

    def __init__(self, *pods: ToldPod) -> None:
        super().__init__()
        self.pods = pods

    def send(self, kind: BodyKind, body: bytes, *, to_uid: str, **where: Any) -> bool:
        answer = encode(told_of(parse_ask(body).nonce, self.pods))
        self.handlers[BodyKind.POD_TOLD](
            Received(WHERE, 7471, 1, 64, WHERE, kind, answer, to_uid, to_anybody=False)
        )
        return True


def found(
    word: str, own: Iterable[KnownPod], *pods: ToldPod, serving: Iterable[KnownPod] = ()
) -> list[str]:
    """Addresses of what a node means that has `own` and is told of `pods` by another one."""
    member = member_without_disk(seal_network(network(), CLUSTER_KEY), *told(1), *told(2))
    lookup = PodLookup(
        member, Neighbour(*pods), lambda _uid: [Destination(WHERE, 7471)], lambda *_: ()
    )
    known = KnownNames(
        lambda: view_of(member.snapshot, member.uid, {}, OwnSide()),
        lambda _word: serving,
        lambda _address: None,
        lambda _word: None,
    )
    names = Names(member, lookup, known)
    return [str(x) for x in asyncio.run(names.find(word, own, services=False)).addresses]


@pytest.mark.parametrize("word", ["web-0", "default/web-0", "pod:web-0"])
def test_a_pod_that_runs_elsewhere_is_meant_and_not_the_address_that_its_former_node_keeps(
    word: str,
) -> None:
    kept = pod("web-0", "10.244.1.9", attached=False)
    there = str(grant(2).segments[0][4])
    elsewhere = pod("web-0", there)

    assert found(word, [kept], ToldPod("default", "web-0", (there,))) == [there]
    assert found(word, [kept], serving=[elsewhere]) == [there]
    assert found(word, [kept]) == [str(kept.address)]
    assert found(word, [kept, WEB], serving=[elsewhere]) == [str(WEB.address)]


def test_an_address_that_is_kept_for_one_that_is_gone_hides_no_pod_of_another_namespace() -> None:
    there = str(grant(2).segments[0][4])
    old = pod("web-0", "10.244.1.9", "old", attached=False)

    assert found("web-0", [old], ToldPod("default", "web-0", (there,))) == [there]
    assert found("old/web-0", [old], ToldPod("default", "web-0", (there,))) == [str(old.address)]
