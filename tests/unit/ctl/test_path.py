"""What a person reads of the way between two pods, and of a node's cluster."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.ctl.path import path_lines, silent
from limpet.ctl.status import cluster_lines

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
    return "\n".join(path_lines(path))


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
    found = [{"node": name, "uid": f"uid of {name}", "answered": count} for name, count in probes]

    assert silent(found) == expected


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
        "over": False,
    },
    "revision": 12,
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
    },
    "ipsec": None,
    "disk": [],
    "last_round": {"failed": []},
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
    return "\n".join(cluster_lines({**CLUSTER, **changes}))


def test_a_sound_node_of_a_cluster_is_told_in_four_lines() -> None:
    assert status().split("\n") == [
        "cluster edge, node n1 (abc)",
        "connected to the controller at c:7470 for 1 min 1 s",
        "links to other nodes: eth0 (192.0.2.1/24)",
        "3 other nodes: 2 by route, 1 by vxlan, 0 not reached, 0 in other communities; revision 12",
    ]


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
        ({"last_round": {"failed": ["put route: EPERM"]}}, "failed: put route: EPERM"),
        (
            {"controller": {**CLUSTER["controller"], "connected": False, "error": "timed out"}},
            "not connected to the controller at c:7470 for 1 min 1 s: timed out",
        ),
        (
            {"controller": {**CLUSTER["controller"], "refused": "quota of 8"}},
            "no further segment now: quota of 8",
        ),
        (
            {"controller": {**CLUSTER["controller"], "over": True, "error": "it was removed"}},
            "no controller is asked any more: it was removed",
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
