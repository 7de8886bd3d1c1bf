"""What a person reads of the way between two pods, and of a node's cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import convert

from limpet.agent.policies.said import FlowLine
from limpet.agent.status.cluster import ClusterStatus, LinkStatus, NatTraversalStatus
from limpet.agent.status.paths import PathStatus, ProbeStatus
from limpet.agent.status.services import (
    EndpointStatus,
    ServedPort,
    ServicesAnswer,
    ServicesStatus,
    ServiceWay,
)
from limpet.cli.commands.path import (
    PortProtocol,
    flow_lines,
    path_lines,
    refusal,
    service_lines,
    silent,
    why_relayed,
)
from limpet.cli.commands.serving.service import left_out_lines
from limpet.cli.commands.status import cluster_lines, nat_traversal_lines, services_lines

LEG: dict[str, Any] = {
    "origin": "10.244.1.2",
    "origin_pod": "default/web-0",
    "origin_node": "n1",
    "target": "10.244.2.7",
    "target_pod": "",
    "target_node": "n2",
    "known": True,
    "rung": "route",
    "device": "eth0",
    "next_hop": "192.0.2.2",
    "underlay": "",
    "mtu_bytes": 1500,
    "reason": "",
    "let_in": None,
}
ASKED = {**LEG, "known": False, "rung": "", "reason": "what n2 does is known there: ask it"}


def lines(there: dict[str, Any], back: dict[str, Any], *, reachable: bool | None = True) -> str:
    path: dict[str, Any] = {"there": there, "back": back, "reachable": reachable, "notes": []}
    told = convert({**path, "version": 4, "peer_uid": "u2"}, PathStatus)
    return "\n".join(path_lines(told))


def test_both_ends_are_named_as_far_as_they_are_known() -> None:
    assert lines(LEG, LEG).startswith("default/web-0 (10.244.1.2) on n1 -> 10.244.2.7 on n2\n")


@pytest.mark.parametrize(
    ("leg", "words"),
    [
        (LEG, "route, over eth0 by 192.0.2.2, MTU 1500"),
        (
            {**LEG, "rung": "vxlan", "device": "limvx4", "underlay": "192.0.2.2"},
            "vxlan, over limvx4 to 192.0.2.2, MTU 1500",
        ),
        ({**LEG, "rung": "local", "device": "limpet0"}, "on this node, over limpet0, MTU 1500"),
        ({**LEG, "reason": "n2: no path to it is proven"}, "no way: n2: no path to it is proven"),
        (ASKED, "not known: what n2 does is known there: ask it"),
        (
            {
                **ASKED,
                "origin_node": "n2",
                "let_in": {"sources": ["10.244.2.0/24"], "outer": ["192.0.2.2"], "tunnel": False},
            },
            "n2 chooses (ask it); from it this node lets in 10.244.2.0/24, by VXLAN from 192.0.2.2",
        ),
        (
            {
                **ASKED,
                "origin_node": "n2",
                "let_in": {"sources": ["10.244.2.0/24"], "outer": [], "tunnel": True},
            },
            "n2 chooses (ask it); from it this node lets in 10.244.2.0/24, by the tunnel",
        ),
        (
            {**LEG, "rung": "tunnel", "device": "limwg0", "endpoint": "203.0.113.7:51820"},
            "tunnel, over limwg0 to 203.0.113.7:51820, MTU 1500",
        ),
        (
            {
                **LEG,
                "rung": "relay",
                "device": "limwg0",
                "endpoint": "203.0.113.7:21000",
                "relay": "cloud-1",
            },
            "relay cloud-1, over limwg0 to 203.0.113.7:21000, MTU 1500",
        ),
        (
            {**LEG, "rung": "relay-tls", "device": "limwg0", "relay": "cloud-1"},
            "relay cloud-1 in TLS, over limwg0, MTU 1500",
        ),
    ],
)
def test_each_kind_of_way_is_said_in_one_line(leg: dict[str, Any], words: str) -> None:
    assert f"there: {words}\n" in lines(leg, ASKED)


@pytest.mark.parametrize(
    ("reachable", "words"),
    [
        (True, "reachable, as far as this node knows"),
        (False, "not reachable"),
        (None, "not known here"),
    ],
)
def test_it_ends_with_what_comes_of_it(reachable: bool | None, words: str) -> None:
    assert lines(LEG, ASKED, reachable=reachable).endswith(f"\n  {words}")


PROBE: dict[str, Any] = {
    "node": "n2",
    "uid": "u2",
    "asked": "tunnel",
    "address": "192.0.2.2",
    "endpoint": "192.0.2.2:25000",
    "relay": "",
    "device": "",
    "version": 4,
    "in_use": False,
    "sent": 4,
    "answered": 0,
    "rtts_ms": [],
}


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        ([], []),
        ([("a", 1), ("a", 0)], []),
        ([("a", 0), ("a", 0)], ["a"]),
        ([("a", 4), ("b", 0)], ["b"]),
    ],
)
def test_a_node_is_silent_if_it_answers_nothing_at_all(
    probes: list[tuple[str, int]], expected: list[str]
) -> None:
    found = [
        convert({**PROBE, "node": name, "uid": f"uid of {name}", "answered": count}, ProbeStatus)
        for name, count in probes
    ]

    assert silent(found) == expected


RELAYS: dict[str, Any] = {
    "nat": {"ipv4": "unknown", "ipv6": "unknown"},
    "endpoints": [],
    "mapped": [],
    "port_mapping": None,
    "relays": [],
    "pairs": [],
}
NAT_TRAVERSAL: dict[str, Any] = {
    "relays": RELAYS,
    "relaying": None,
    "relaying_tls": None,
    "tls": {},
}
ROUND: dict[str, Any] = {"rounds": 1, "changes": 0, "failed": [], "took_ms": 1.0}
CLUSTER: dict[str, Any] = {
    "name": "edge",
    "node": "n1",
    "uid": "abc",
    "granted": True,
    "removed": False,
    "cloned": False,
    "controller": {
        "address": "c:7470",
        "connected": True,
        "for_s": 61.2,
        "error": "",
        "refused": "",
        "segment_refused": "",
        "over": False,
    },
    "revision": 12,
    "nat_traversal": NAT_TRAVERSAL,
    "segments": [],
    "pod_cidrs": ["10.244.0.0/16"],
    "vxlan_id": 1,
    "vxlan_port": 8472,
    "encryption": "between-sites",
    "messages": {},
    "exchange": {},
    "probes": {},
    "offers": {},
    "claims": [],
    "by_former_keys": [],
    "shared_endpoints": [],
    "silent_peers": 0,
    "partly_reached_peers": 0,
    "links": [{"ifname": "eth0", "mtu_bytes": 1500, "addresses": ["192.0.2.1/24"]}],
    "peers": {"route": 2, "vxlan": 1, "unreached": 0, "apart": 0},
    "tunnel": {
        "ifname": "limwg0",
        "port": 25000,
        "problem": "",
        "needed": False,
        "backend": "",
        "version": "",
        "slow": False,
        "mtu_bytes": None,
        "rules": [],
        "peers": 0,
        "sessions": 0,
        "active": 0,
        "received_bytes": 0,
        "sent_bytes": 0,
    },
    "ipsec": None,
    "disk": [],
    "last_round": ROUND,
}
TUNNEL = {
    **CLUSTER["tunnel"],
    "needed": True,
    "backend": "userspace",
    "version": "0.0.20230223",
    "mtu_bytes": 1440,
    "rules": [4, 6],
    "peers": 3,
    "sessions": 2,
    "active": 1,
}


def status(**changes: Any) -> str:
    return "\n".join(cluster_lines(convert({**CLUSTER, **changes}, ClusterStatus)))


def test_a_sound_node_of_a_cluster_is_told_in_four_lines() -> None:
    assert status().split("\n") == [
        "cluster edge, node n1 (abc)",
        "connected to the controller at c:7470 for 1 min 1 s",
        "links to other nodes: eth0 (192.0.2.1/24)",
        "3 other nodes: 2 by route, 1 by vxlan, 0 not reached, 0 in other communities; revision 12",
    ]


def test_those_that_have_fallen_silent_are_counted() -> None:
    assert "1 by vxlan, 2 of these silent, 0 not reached" in status(silent_peers=2)


def test_those_that_are_reached_in_part_are_counted() -> None:
    assert "1 by vxlan, 2 of these in part, 0 not reached" in status(partly_reached_peers=2)


def test_a_tunnel_is_told_when_there_is_one_and_who_is_reached_by_it() -> None:
    peers = {**CLUSTER["peers"], "tunnel": 2, "relay": 1, "relay-tls": 0}
    said = status(tunnel=TUNNEL, peers=peers)

    assert (
        "encrypted tunnel limwg0: userspace WireGuard 0.0.20230223, UDP port 25000, MTU 1440; "
        "3 peers, 2 with a session, 1 with traffic\n"
    ) in said
    assert "1 by vxlan, 2 by tunnel, 1 by relay, 0 not reached" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"removed": True, "granted": False}, "THIS NODE WAS REMOVED"),
        ({"granted": False}, "no grant of this node"),
        ({"cloned": True}, "ANOTHER MACHINE HAS THIS NODE'S IDENTITY"),
        ({"links": []}, "links to other nodes: none"),
        ({"disk": ["write x: No space left on device"]}, "on disk: write x: No space left"),
        ({"last_round": {**ROUND, "failed": ["put route: EPERM"]}}, "failed: put route: EPERM"),
        (
            {"controller": {**CLUSTER["controller"], "connected": False, "error": "timed out"}},
            "not connected to the controller at c:7470 for 1 min 1 s: timed out",
        ),
        (
            {"controller": {**CLUSTER["controller"], "segment_refused": "quota of 8"}},
            "no further segment now: quota of 8",
        ),
        (
            {"controller": {**CLUSTER["controller"], "refused": "documents come too often"}},
            "the controller does not take now: documents come too often",
        ),
        (
            {"controller": {**CLUSTER["controller"], "over": True, "error": "it was removed"}},
            "this node was removed, and asks the controller only now and then",
        ),
        (
            {"tunnel": {**CLUSTER["tunnel"], "problem": "wireguard-go is not there"}},
            "NO ENCRYPTED TUNNEL: wireguard-go is not there",
        ),
        ({"tunnel": {**TUNNEL, "slow": True}}, "slow: the userspace WireGuard is an old one"),
    ],
)
def test_what_is_not_well_stands_out(changes: dict[str, Any], words: str) -> None:
    assert words in status(**changes)
    assert words not in status()


# Between sites

HUB: dict[str, Any] = {"name": "hub", "uid": "h", "answers": True, "endpoint": None, "rtt_ms": 3.34}
RELAYING: dict[str, Any] = {
    "active": True,
    "trouble": "",
    "for_s": 600.0,
    "heard_s": {"hello": 3.0, "ask": 30.0, "check": 7.0},
    "ports": [21000, 22999],
    "pairs": [{"nodes": ["a", "b"], "ways": ["-", "-"]}] * 2,
}


def nat_traversal(
    relaying: dict[str, Any] | None = None,
    *,
    tls: dict[str, Any] | None = None,
    addresses: Iterable[str] = ("192.0.2.1/24",),
    **relays: Any,
) -> str:
    told = {**NAT_TRAVERSAL, "relays": {**RELAYS, **relays}, "relaying": relaying, "tls": tls or {}}
    links = [LinkStatus(ifname="eth0", mtu_bytes=1500, addresses=list(addresses))]
    return "\n".join(nat_traversal_lines(convert(told, NatTraversalStatus), links))


def test_a_node_without_relays_and_nats_says_nothing_of_them() -> None:
    assert nat_traversal() == ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("none", "IPv4: no NAT in front"),
        ("same", "IPv4: behind a NAT that shows all others one port"),
        ("symmetric", "IPv4: behind a symmetric NAT"),
        (
            "blocked",
            "IPv4: no relay answers over UDP: it does not get out of this site, or they are off\n",
        ),
        (
            "unknown",
            "IPv4: whether a NAT is in front of this node is not known (fewer than two others have "
            "seen it)",
        ),
    ],
)
def test_what_is_in_front_of_the_node_is_said_and_where_it_is_seen(kind: str, words: str) -> None:
    nat = {"ipv4": kind, "ipv6": "unknown"}

    text = nat_traversal(relays=[HUB], nat=nat, endpoints=["198.18.1.2:25000"])

    assert words in text
    assert "others are told of it at 198.18.1.2:25000" in text
    assert "IPv6" not in text  # the node has no such address


def test_a_relay_in_tls_is_said_to_lead_to_others_only_where_there_is_one() -> None:
    nat = {"ipv4": "blocked", "ipv6": "unknown"}
    tls = {"h": {"rtt_ms": 12.0, "peers": ["c"], "lost": 0}}

    assert "TLS" not in nat_traversal(relays=[HUB], nat=nat)
    assert "or they are off; others are reached by a relay in TLS\n" in nat_traversal(
        relays=[HUB], nat=nat, tls=tls
    )


@pytest.mark.parametrize(
    ("addresses", "versions"),
    [
        (["192.0.2.1/24"], ["IPv4"]),
        (["2001:db8::1/64"], ["IPv6"]),
        (["192.0.2.1/24", "2001:db8::1/64"], ["IPv4", "IPv6"]),
        ([], []),
    ],
)
def test_nothing_is_said_of_nats_of_an_ip_version_that_the_node_has_no_address_of(
    addresses: list[str], versions: list[str]
) -> None:
    text = nat_traversal(relays=[HUB], addresses=addresses)

    assert [line[:4] for line in text.splitlines() if line.startswith("IPv")] == versions


def test_relays_are_told_with_how_far_away_they_are() -> None:
    silent = {**HUB, "name": "buoy", "uid": "b", "answers": False, "rtt_ms": None}
    told = {
        **NAT_TRAVERSAL,
        "relays": {**RELAYS, "relays": [HUB, silent]},
        "tls": {"b": {"rtt_ms": 12.0, "peers": ["c"], "lost": 0}},
    }

    text = "\n".join(nat_traversal_lines(convert(told, NatTraversalStatus), ()))

    assert text.endswith("relays: hub 3.3 ms, buoy no answer over UDP, 12.0 ms in TLS")


@pytest.mark.parametrize(
    ("relaying", "words"),
    [
        (RELAYING, "this node is a relay: 2 pairs of at most 1000, UDP ports 21000 to 22999"),
        ({**RELAYING, "trouble": "no public address"}, "OF LITTLE USE AS A RELAY: no public addr"),
        ({"active": False, "trouble": ""}, "OF LITTLE USE AS A RELAY: it has no tunnel"),
    ],
)
def test_a_relay_says_what_it_does_or_why_it_is_of_no_use(
    relaying: dict[str, Any], words: str
) -> None:
    assert words in nat_traversal(relaying)


NO_UDP = "no relay answers over UDP: it does not get out of this site, or they are off"


def probe(*, answered: int = 0, relay: str = "", asked: str = "tunnel") -> ProbeStatus:
    return convert({**PROBE, "asked": asked, "relay": relay, "answered": answered}, ProbeStatus)


@pytest.mark.parametrize(
    ("rung", "probes", "kind", "words"),
    [
        ("tunnel", [probe(answered=4)], "symmetric", []),
        (
            "relay",
            [probe(), probe(), probe(answered=4, relay="hub"), probe(asked="site")],
            "symmetric",
            ["does not answer directly (tried: 192.0.2.2:25000, 192.0.2.2:25000): this node's NAT"],
        ),
        ("relay", [probe()], "same", ["perhaps its NAT is symmetric, or a firewall"]),
        ("relay-tls", [probe(answered=1, relay="hub")], "blocked", [NO_UDP]),
        ("relay", [probe(answered=3)], "same", ["n2 answers directly too"]),
    ],
)
def test_why_a_pair_is_on_a_relay_is_said(
    rung: str, probes: list[ProbeStatus], kind: str, words: list[str]
) -> None:
    there = {**LEG, "rung": rung, "relay": "cloud-1" if "relay" in rung else ""}
    path = {"version": 4, "there": there, "back": LEG, "reachable": True, "notes": []}
    paths = [convert({**path, "peer_uid": "u2"}, PathStatus)]

    said = list(why_relayed(paths, probes, {"ipv4": kind, "ipv6": "none"}))

    assert [word in line for word, line in zip(words, said, strict=True)] == [True] * len(words)


def test_how_the_api_server_is_reached_is_told_where_it_is_heard() -> None:
    api = {
        "server": "http://127.0.0.1:10261 (address http://127.0.0.1:10261)",
        "connected": False,
        "for_s": 75.0,
        "error": "nothing listens there",
        "refused": "it may not write it",
        "unusable": ["NodeGrant a: nobody has signed it"],
        "told": ["PodAddressesUnique: two pods hold 10.0.0.9"],
    }

    told = status(api_server=api)

    assert "not connected to the API server at http://127.0.0.1:10261" in told
    assert ": nothing listens there" in told
    assert "  this node's presence is not there: it may not write it" in told
    assert "  counts for nothing: NodeGrant a: nobody has signed it" in told
    assert "  the controller says: PodAddressesUnique: two pods hold 10.0.0.9" in told
    assert "\nconnected to the API server at" in status(api_server={**api, "connected": True})
    assert "API server" not in status()


def endpoint(
    address: str, weight: int, why: str = "", pod: str = "default/web-0"
) -> EndpointStatus:
    return EndpointStatus(
        port="80/TCP",
        service_port=80,
        protocol="TCP",
        address=address,
        target_port=8080,
        node="n2",
        pod=pod,
        weight=weight,
        why=why,
    )


def the_way(*endpoints: EndpointStatus) -> ServiceWay:
    """To a Service that is asked at one port, by TCP."""
    return ServiceWay(
        name="default/web",
        address="10.96.0.7",
        ports=["80/TCP"],
        served=[ServedPort(number=80, protocol="TCP")],
        endpoints=list(endpoints),
    )


def service(*endpoints: EndpointStatus) -> str:
    way = the_way(*endpoints)
    path = {"there": LEG, "back": LEG, "reachable": True, "notes": [], "version": 4, "peer_uid": ""}
    return "\n".join(service_lines(way, [convert(path, PathStatus)]))


def test_a_services_address_is_told_as_the_endpoints_that_it_leads_to() -> None:
    assert service(endpoint("10.244.2.7", 4), endpoint("10.244.3.7", 1, pod="")) == (
        "10.96.0.7 is Service default/web (80/TCP)\n"
        "  80/TCP: 4 of 5 to default/web-0 (10.244.2.7 port 8080) on n2\n"
        "  80/TCP: 1 of 5 to 10.244.3.7 port 8080 on n2\n"
        "  ways to the first of them; 1 more are not told"
    )


@pytest.mark.parametrize(
    ("protocol", "port", "words"),
    [
        ("tcp", 80, ""),
        ("tcp", 81, "10.96.0.7 port 81/TCP: refused: Service default/web has no such port"),
        ("udp", 80, "10.96.0.7 port 80/UDP: refused: Service default/web has no such port"),
        ("tcp", 8080, "10.96.0.7 port 8080/TCP: refused: Service default/web has no such port"),
    ],
)
def test_a_port_that_a_service_does_not_have_is_refused_whatever_policies_say(
    protocol: str, port: int, words: str
) -> None:
    asked = PortProtocol(protocol), port
    assert refusal(None, *asked) == "", "an address of a pod, which answers for itself"
    found = refusal(the_way(endpoint("10.244.2.7", 1)), *asked)
    assert found == (f"{words} (it has 80/TCP)" if words else "")


def test_a_port_of_which_no_endpoint_is_in_rotation_is_refused() -> None:
    others = EndpointStatus(
        port="81/TCP",
        service_port=81,
        protocol="TCP",
        address="10.244.2.7",
        target_port=8081,
        node="n2",
        pod="",
        weight=1,
        why="",
    )
    way = the_way(endpoint("10.244.2.8", 0, "it is not ready"), others)
    words = "10.96.0.7 port 80/TCP: refused: no endpoint of that port is in rotation here"
    assert refusal(way, PortProtocol.TCP, 80) == words


def test_what_policies_say_names_the_port_that_was_judged() -> None:
    flow = FlowLine(
        source="10.244.1.2",
        target="10.244.2.7",
        protocol="tcp",
        port=8080,
        allowed=False,
        ends=[],
    )
    assert list(flow_lines(flow)) == ["tcp 8080 from 10.244.1.2 to 10.244.2.7: denied"]


def test_endpoints_that_a_service_does_not_lead_to_are_told_with_the_reason() -> None:
    told = service(endpoint("10.244.2.7", 1), endpoint("10.244.2.8", 0, "it is not ready"))

    assert "all to default/web-0 (10.244.2.7 port 8080)" in told
    assert "none to default/web-0 (10.244.2.8 port 8080) on n2: it is not ready" in told


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, []),
        (2, ["something is left out of 1 more object"]),
        (3, ["something is left out of 2 more objects"]),
    ],
)
def test_objects_of_services_that_are_left_out_are_named_or_counted(
    count: int, words: list[str]
) -> None:
    answer = ServicesAnswer(
        services=[],
        connected=True,
        error="",
        kube_proxy="",
        failed=[],
        left_out=["Service a/b: port 0"],
        left_out_objects=count,
    )

    assert list(left_out_lines(answer)) == ["Service a/b: port 0", *words]


def test_a_service_that_nobody_serves_says_so() -> None:
    assert service().endswith("no endpoint is in rotation here: whoever asks is refused")


@pytest.mark.parametrize(
    ("on", "kube_proxy", "words"),
    [
        (True, "", ["Services: served by this node, by nftables (said so)"]),
        (False, "", ["Services: not served by Limpet (said so)"]),
        (
            False,
            "iptables chain KUBE-SERVICES",
            [
                "Services: not served by Limpet (said so)",
                "  kube-proxy has rules: iptables chain KUBE-SERVICES",
            ],
        ),
        (
            True,
            "nftables table kube-proxy",
            [
                "Services: served by this node, by nftables (said so)",
                "  kube-proxy has rules too: nftables table kube-proxy",
            ],
        ),
    ],
)
def test_who_serves_services_is_said_with_the_reason(
    on: bool, kube_proxy: str, words: list[str]
) -> None:
    backend = "nftables" if on else ""
    told = ServicesStatus(on=on, why="said so", backend=backend, kube_proxy=kube_proxy)

    assert list(services_lines(told)) == words
