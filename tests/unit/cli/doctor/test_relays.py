"""What doctor makes of NATs, of relays that a node uses, and of the relay that it is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from limpet.agent.settings import Settings
from limpet.agent.status.cluster import ClusterStatus, SharedEndpoint
from limpet.cli.doctor.cluster.relays import (
    inbound_ports,
    own_relay_findings,
    shared_endpoint_findings,
    used_relay_findings,
)
from limpet.cli.doctor.findings import Finding, Level
from limpet.relay.status import Relaying, RelaysStatus
from tests.unit.cli.commands.test_path import CLUSTER, HUB, NAT_TRAVERSAL, RELAYING, RELAYS, TUNNEL

BUOY = {**HUB, "name": "buoy", "uid": "b"}
SILENT = {**BUOY, "answers": False, "rtt_ms": None}
PAIR = {"peer": "n2", "relay": "hub", "over": "udp", "endpoint": "1.2.3.4:21000", "problem": ""}
FAILED = {**PAIR, "endpoint": None, "problem": "all ports are given away"}


def used(unreached: int = 0, **relays: Any) -> list[Finding]:
    found = list(
        used_relay_findings(convert({**RELAYS, **relays}, RelaysStatus), {"unreached": unreached})
    )
    assert all(each.level is Level.OK or (each.why and each.advice) for each in found)
    return found


@pytest.mark.parametrize(
    ("unreached", "relays", "level", "words"),
    [
        (0, {"relays": [HUB, BUOY]}, "ok", "relays that answer: hub, buoy"),
        (0, {"relays": [HUB, SILENT]}, "warn", "1 of 2 relays do not answer over UDP: buoy"),
        (0, {"relays": [SILENT]}, "warn", "no relay answers over UDP (buoy)"),
        (1, {}, "warn", "the cluster has no relay"),
        (0, {"pairs": [FAILED]}, "warn", "no relay leads to n2 (hub over udp: all ports are given"),
    ],
)
def test_what_is_wrong_on_the_way_through_nats_is_said(
    unreached: int, relays: dict[str, Any], level: str, words: str
) -> None:
    (found,) = used(unreached, **relays)

    assert (found.level.value, words in found.what) == (level, True)


@pytest.mark.parametrize("known", [{}, {"relays": [SILENT]}, {"pairs": [FAILED]}])
def test_where_the_tunnels_are_the_cause_nothing_is_said_of_relays(known: dict[str, Any]) -> None:
    relays = convert({**RELAYS, **known}, RelaysStatus)
    assert list(used_relay_findings(relays, {"unreached": 28}, tunnels=False)) == []


def test_the_cluster_s_only_relay_does_not_say_that_there_is_none() -> None:
    relays = convert(RELAYS, RelaysStatus)

    assert list(used_relay_findings(relays, {"unreached": 2}, is_relay=True)) == []


def test_a_site_without_relays_and_a_pair_with_one_good_end_are_no_problem() -> None:
    assert used() == []
    assert used(pairs=[PAIR, {**FAILED, "relay": "buoy"}]) == []


@pytest.mark.parametrize(
    ("changes", "far", "level", "words"),
    [
        ({}, True, "ok", "a relay on UDP ports 25000 and 21000 to 22999: 2 pairs"),
        ({"trouble": "no public address"}, True, "error", "of little use: no public address"),
        ({"active": False}, True, "error", "has the role relay, and relays nothing"),
        ({"heard_s": {"hello": 700.0, "ask": None, "check": None}}, True, "warn", "for 12 minutes"),
        ({"heard_s": {"hello": None, "ask": None, "check": None}}, True, "warn", "for 10 minutes"),
        ({"heard_s": {"hello": None, "ask": None, "check": None}}, False, "ok", "a relay on"),
        ({"heard_s": {"hello": 3.0, "ask": 9.0, "check": None}}, True, "warn", "nothing comes to"),
        ({"heard_s": {"hello": 3.0, "ask": 9.0, "check": 60.0}}, True, "warn", "nothing comes to"),
        ({"heard_s": {"hello": 3.0, "ask": 1.0, "check": 60.0}}, True, "ok", "a relay on"),
        ({"heard_s": {"hello": 3.0, "ask": 9.0, "check": 9.0}}, True, "ok", "a relay on"),
    ],
)
def test_a_relay_that_is_of_no_use_is_told_from_one_that_nobody_needs(
    changes: dict[str, Any], far: bool, level: str, words: str
) -> None:
    (found,) = own_relay_findings(convert({**RELAYING, **changes}, Relaying), 25000, far=far)

    assert (found.level.value, words in found.what) == (level, True)
    assert found.level is Level.OK or (found.why and found.advice)


def test_who_names_the_same_endpoint_is_named() -> None:
    (found,) = shared_endpoint_findings(
        [SharedEndpoint(endpoint="203.0.113.7:51820", nodes=["n2", "n3"])]
    )

    assert (found.level, "203.0.113.7:51820 of this node is also that of n2, n3" in found.what) == (
        Level.WARN,
        True,
    )


def test_only_a_relay_needs_its_ports_open_and_only_a_tunnel_that_is_needed() -> None:
    def ports(**changes: Any) -> list[tuple[str, tuple[int, int]]]:
        cluster = convert({**CLUSTER, "ipsec": None, **changes}, ClusterStatus)
        return [(port.protocol, port.ends) for port in inbound_ports(cluster, Settings())]

    own = CLUSTER["tunnel"]["port"]
    assert ports() == []
    assert ports(tunnel={**TUNNEL, "needed": True, "port": 25000}) == [("udp", (25000, 25000))]
    assert ports(nat_traversal={**NAT_TRAVERSAL, "relaying": RELAYING}) == [
        ("udp", (own, own)),
        ("udp", (21000, 22999)),
        ("tcp", (443, 443)),
    ]
