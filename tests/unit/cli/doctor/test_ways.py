"""Ways to other nodes that work badly, by the agent's own words."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from limpet.agent.status.cluster import ClusterStatus
from limpet.base.settings import SourceSettings
from limpet.cli.doctor.cluster.ways import (
    service_road_findings,
    vxlan_findings,
    way_findings,
)
from tests.unit.cli.commands.test_path import (
    CLUSTER,
    HUB,
    NAT_TRAVERSAL,
    RELAYING,
    RELAYS,
    TUNNEL,
)

WORKS = {**TUNNEL, "backend": "kernel", "problem": ""}
SYMMETRIC = {"ipv4": "symmetric", "ipv6": "none"}


def found(*configured: str, relays: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    document = {
        **CLUSTER,
        "claims": [],
        "pod_cidrs": [],
        "segments": [],
        "tunnel": WORKS,
        "nat_traversal": {**NAT_TRAVERSAL, "relays": {**RELAYS, **(relays or {})}},
        **changes,
    }
    endpoints = [(ip_address(each), 51820) for each in configured]
    return [each.id for each in way_findings(convert(document, ClusterStatus), endpoints)]


@pytest.mark.parametrize(
    ("relays", "tunnel", "told"),
    [
        ({"nat": SYMMETRIC}, WORKS, ["nat-without-relay"]),
        ({"nat": SYMMETRIC, "relays": [HUB]}, WORKS, []),
        ({"nat": {"ipv4": "cone", "ipv6": "none"}}, WORKS, []),
        ({"nat": SYMMETRIC}, {**WORKS, "backend": "", "problem": "no WireGuard"}, []),
    ],
)
def test_a_nat_that_lets_nobody_in_needs_a_relay(
    relays: dict[str, Any], tunnel: dict[str, Any], told: list[str]
) -> None:
    assert found(relays=relays, tunnel=tunnel) == told


def test_the_cluster_s_only_relay_does_not_say_that_there_is_none() -> None:
    traversal = {**NAT_TRAVERSAL, "relays": {**RELAYS, "nat": SYMMETRIC}, "relaying": RELAYING}

    assert found(nat_traversal=traversal) == []
    assert found(nat_traversal={**traversal, "relaying": None}) == ["nat-without-relay"]


def test_peers_behind_a_relay_in_tls_are_told() -> None:
    peers = {"route": 0, "unreached": 0, "apart": 0}
    assert found(peers={**peers, "relay-tls": 2}) == ["reached-by-tls"]
    assert found(peers=peers) == []


@pytest.mark.parametrize(
    ("known", "stale"),
    [
        (["8.8.4.4:51820"], False),
        (["8.8.4.4:51820", "9.9.9.9:51820"], True),
        (["8.8.4.4:51820", "192.168.1.7:51820"], False),
        (["8.8.4.4:51820", "[2a00::1]:51820"], False),
    ],
)
def test_an_endpoint_that_is_not_ours_any_more_is_named(known: list[str], stale: bool) -> None:
    told = found("8.8.4.4", relays={"endpoints": known})
    assert told == (["endpoint-stale"] if stale else [])
    assert found(relays={"endpoints": known}) == []


@pytest.mark.parametrize(
    ("peers", "received", "sent", "told"),
    [(1, 0, 500, True), (1, 0, 3, False), (1, 1, 500, False), (0, 0, 500, False)],
    ids=["dropped on the way", "hardly used", "heard", "of a former network"],
)
def test_vxlan_by_which_nothing_ever_comes_is_named(
    peers: int, received: int, sent: int, told: bool
) -> None:
    counts = {"route": 1, "vxlan": peers, "unreached": 0, "apart": 0}
    document = {**CLUSTER, "claims": [], "pod_cidrs": [], "segments": [], "peers": counts}

    found = [*vxlan_findings(convert(document, ClusterStatus), received, sent)]

    assert [each.id for each in found] == (["vxlan-unheard"] if told else [])


POD = SourceSettings(source="kubernetes")


@pytest.mark.parametrize(
    ("source", "on", "kube_proxy", "told"),
    [
        (POD, True, "", True),
        (POD, True, "table ip kube-proxy", False),
        (POD, False, "", False),
        (SourceSettings(source="kubernetes", server="https://192.0.2.1:6443"), True, "", False),
        (SourceSettings(source="kubernetes", kubeconfig=Path("/kubelet.conf")), True, "", False),
        (SourceSettings(), True, "", False),
    ],
    ids=["as pods are told", "kube-proxy", "off", "its own address", "kubeconfig", "no Kubernetes"],
)
def test_an_api_server_that_no_new_node_gets_to_without_kube_proxy_is_named(
    source: SourceSettings, on: bool, kube_proxy: str, told: bool
) -> None:
    services = {
        "on": on,
        "why": "the cluster says so",
        "backend": "nftables",
        "why_not_ebpf": "",
        "asked_backend": "nftables",
        "kube_proxy": kube_proxy,
    }
    document = {**CLUSTER, "claims": [], "pod_cidrs": [], "segments": [], "services": services}

    found = [*service_road_findings(convert(document, ClusterStatus), source)]

    assert [each.id for each in found] == (["server-by-service"] if told else [])
