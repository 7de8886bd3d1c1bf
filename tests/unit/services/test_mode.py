"""Whether a node serves Services: its own word, the cluster's, and whether kube-proxy is there."""

from __future__ import annotations

import pytest

from limpet.services.mode import ServicesDecision, decide

FOUND = "nftables table kube-proxy"


@pytest.mark.parametrize("of_cluster", ["off", "auto", "on"])
@pytest.mark.parametrize("kube_proxy", ["", FOUND])
def test_the_nodes_own_word_goes_first(of_cluster: str, kube_proxy: str) -> None:
    assert decide("on", of_cluster, kube_proxy).on
    assert not decide("off", of_cluster, kube_proxy).on


@pytest.mark.parametrize("kube_proxy", ["", FOUND])
def test_what_the_cluster_says_holds_beside_kube_proxy_too(kube_proxy: str) -> None:
    assert decide(None, "on", kube_proxy).on
    assert not decide(None, "off", kube_proxy).on


def test_who_finds_kube_proxy_leaves_services_to_it_until_somebody_says_otherwise() -> None:
    found = decide(None, "auto", FOUND)

    assert not found.on
    assert "kube-proxy serves them" in found.why
    assert decide(None, "auto", "").on


def test_a_node_notices_that_kube_proxy_comes_and_goes_and_what_the_cluster_says() -> None:
    there = [""]
    cluster = ["auto"]
    choice = ServicesDecision(None, lambda: cluster[0], lambda: there[0])
    assert choice.taken.on
    assert not choice.look()

    there[0] = FOUND
    assert choice.look()
    assert choice.kube_proxy == FOUND
    cluster[0] = "on"
    assert not choice.look()
    cluster[0] = "off"
    assert choice.look()
