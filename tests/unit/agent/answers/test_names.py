"""What a person means by a word."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from limpet.agent.answers.names import kind_said, own_pods_told, pod_meant
from limpet.agent.answers.own_pods import KnownPod, called
from limpet.base.errors import LimpetError
from limpet.cluster.exchange.pod_messages import ToldPod


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
