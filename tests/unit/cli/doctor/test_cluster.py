"""What doctor makes of a node's words of its cluster, and of its identity on the disk."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from limpet.agent.settings import Settings, parse_settings
from limpet.agent.status.cluster import ClusterStatus
from limpet.agent.status.services import ServicesStatus
from limpet.base.settings import Folders
from limpet.cli.commands.status import services_lines
from limpet.cli.doctor.cluster.membership import (
    cluster_findings,
    examine_identity,
    examine_policies,
)
from limpet.cli.doctor.cluster.tunnel import no_wireguard
from limpet.cli.doctor.findings import Finding, Level
from limpet.cluster.kinds.network import Encryption
from tests.unit.cli.commands.test_path import CLUSTER, TUNNEL
from tests.unit.cluster_values import PINNED, network, node_key

SOUND: dict[str, Any] = {**CLUSTER, "claims": [], "pod_cidrs": ["10.244.0.0/16"], "segments": []}
API_SERVER = {
    "server": "https://192.0.2.1:6443 (kubeconfig /k, context c)",
    "connected": True,
    "for_s": 600.0,
    "error": "",
    "refused": "",
    "unusable": [],
    "told": [],
}
NO_API_SERVER = {**API_SERVER, "connected": False, "error": "nothing listens there"}
CONTROLLER = CLUSTER["controller"]
CUT_OFF = {**CONTROLLER, "connected": False, "error": "no route to host"}


def findings(**changes: Any) -> list[Finding]:
    return [
        f
        for f in cluster_findings(convert({**SOUND, **changes}, ClusterStatus))
        if f.level is not Level.OK
    ]


def peers(**changes: int) -> dict[str, int]:
    return {"route": 0, "vxlan": 0, "unreached": 0, "apart": 0, **changes}


def test_a_sound_node_is_all_ok() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"source": "kubernetes"}, True),
        ({"source": "kubernetes", "policies": "off"}, False),
        ({"source": "kubernetes", "policies": "on"}, False),
        ({"source": "kubernetes", "cni": False}, False),
        ({}, False),
    ],
)
def test_where_nobody_has_said_whether_policies_hold_that_is_named(
    written: dict[str, object], told: bool
) -> None:
    found = [each.id for each in examine_policies(parse_settings(written, "test"))]

    assert found == (["policies-not-said"] if told else [])


@pytest.mark.parametrize(
    ("asked", "backend", "why_not", "level", "words"),
    [
        ("ebpf", "ebpf", "", "ok", "serves Services, by ebpf (said so)"),
        ("auto", "nftables", "no bpffs", "ok", "by nftables (said so); not by eBPF: no bpffs"),
        ("ebpf", "nftables", "no bpffs", "warn", "serves Services by nftables alone: no bpffs"),
    ],
)
def test_who_serves_services_at_the_socket_or_why_nobody_does_is_told(
    asked: str, backend: str, why_not: str, level: str, words: str
) -> None:
    told = {
        "on": True,
        "why": "said so",
        "backend": backend,
        "why_not_ebpf": why_not,
        "asked_backend": asked,
        "kube_proxy": "",
    }
    cluster = convert({**SOUND, "services": told}, ClusterStatus)
    (found,) = [each for each in cluster_findings(cluster) if "serves Services" in each.what]
    assert found.level.value == level
    assert words in found.what
    lines = list(services_lines(convert(told, ServicesStatus)))
    assert lines[0] == f"Services: served by this node, by {backend} (said so)"
    assert lines[1:] == ([f"  not by eBPF: {why_not}"] if why_not else [])


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"removed": True, "granted": False}, "error", "was removed"),
        ({"cloned": True}, "error", "another machine has this node's identity (abc)"),
        ({"granted": False}, "error", "nothing is known of what the cluster has granted"),
        ({"controller": {**CUT_OFF, "for_s": 600.0}}, "warn", "10 minutes: no route to host"),
        ({"controller": {**CONTROLLER, "segment_refused": "quota"}}, "warn", "segment: quota"),
        ({"controller": {**CONTROLLER, "refused": "too often"}}, "warn", "not take now: too often"),
        ({"controller": {**CONTROLLER, "told": ["two pods"]}}, "warn", "node: two pods"),
        ({"api_server": NO_API_SERVER}, "warn", "10 minutes: nothing listens there"),
        (
            {"api_server": {**NO_API_SERVER, "server": "", "for_s": 1.0, "error": "no such file"}},
            "warn",
            "no such file",
        ),
        ({"api_server": {**API_SERVER, "refused": "403"}}, "warn", "presence is not at the API"),
        ({"api_server": {**API_SERVER, "unusable": ["NodeGrant a: x"]}}, "warn", "NodeGrant a: x"),
        ({"api_server": {**API_SERVER, "told": ["Signed: it is old"]}}, "warn", "it is old"),
        ({"api_server": {**API_SERVER, "clock_ahead_s": -9e8}}, "warn", "10416 d 16 h behind"),
        ({"links": []}, "error", "no link leads to other nodes"),
        ({"peers": peers(unreached=2, vxlan=3, apart=4)}, "warn", "2 of 5 other nodes are not"),
        ({"peers": peers(unreached=1)}, "warn", "1 of 1 other node is not reached"),
        ({"peers": peers(vxlan=3), "partly_reached_peers": 2}, "warn", "2 of 3 other nodes are re"),
        ({"peers": peers(vxlan=1), "partly_reached_peers": 1}, "warn", "1 of 1 other node is reac"),
        (
            {
                "by_former_keys": [
                    {"by": "node-7", "uid": "abc", "what": "network x", "count": 2, "last_s": 3.0}
                ]
            },
            "error",
            "node-7 (abc) tells network x, signed by a revoked key",
        ),
        (
            {"claims": [{"node": "node-7", "uid": "abc", "what": "it announces a MAC"}]},
            "error",
            "node node-7 (uid abc) claims what is not its own: it announces a MAC",
        ),
        (
            {"last_round": {**CLUSTER["last_round"], "failed": ["make limvx4: EEXIST"]}},
            "error",
            "make limvx4: EEXIST",
        ),
        ({"disk": ["write x: full"]}, "warn", "write x: full"),
        ({"tunnel": {**TUNNEL, "problem": "no program"}}, "error", "no encrypted tunnel: no prog"),
        (
            {"tunnel": {**TUNNEL, "problem": "no program", "needed": False}},
            "warn",
            "no encrypted tunnel: no program",
        ),
        ({"tunnel": {**TUNNEL, "slow": True, "version": "0.0.20220316"}}, "warn", "0.0.20220316"),
        ({"tunnel": {**TUNNEL, "rules": [4]}}, "error", "the rule that keeps the tunnel's"),
    ],
)
def test_what_is_wrong_is_said_with_its_level_and_what_to_do(
    changes: dict[str, Any], level: str, words: str
) -> None:
    (found,) = findings(**changes)

    assert found.level.value == level
    assert words in found.what
    assert found.why
    assert found.advice


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (peers(vxlan=1, apart=1), ["the one other node is reached"]),
        (peers(vxlan=1, route=1), ["all 2 other nodes are reached"]),
        (peers(apart=1), []),
    ],
)
def test_nodes_that_are_reached_are_counted(counts: dict[str, int], words: list[str]) -> None:
    cluster = convert({**SOUND, "peers": counts}, ClusterStatus)

    found = [each for each in cluster_findings(cluster) if "other node" in each.what]

    assert [each.what for each in found if "links" not in each.what] == words


@pytest.mark.parametrize(
    ("api_server", "why"),
    [
        (None, "news of the cluster come from neighbours only"),
        ({**NO_API_SERVER, "for_s": 1.0}, "news of the cluster come from neighbours only"),
        (API_SERVER, "the API server tells what is new in the cluster"),
    ],
)
def test_who_tells_of_the_cluster_while_the_controller_is_away(
    api_server: dict[str, Any] | None, why: str
) -> None:
    (found,) = findings(controller={**CUT_OFF, "for_s": 600.0}, api_server=api_server)

    assert (found.id, why in found.why) == ("controller-away", True)
    assert "no segment comes" in found.why


def test_nodes_that_are_reached_in_part_are_told_beside_those_that_are_not() -> None:
    both = findings(peers=peers(vxlan=3, unreached=1), partly_reached_peers=2)

    assert [(each.id, each.what[:6]) for each in both] == [
        ("peers-unreached", "1 of 4"),
        ("peers-unreached", "2 of 4"),
    ]
    assert all("limpet peer list" in each.advice for each in both)


@pytest.mark.parametrize(
    ("encryption", "why"),
    [
        ("between-sites", "those of this site are, in clear"),
        ("all", "no node is reached by it, those of this site neither: the cluster encrypts all"),
    ],
)
def test_who_is_reached_without_a_tunnel_is_said_by_what_the_cluster_encrypts(
    encryption: str, why: str
) -> None:
    tunnel = {**TUNNEL, "problem": "no program"}
    (found,) = findings(tunnel=tunnel, encryption=encryption)

    assert found.id == "tunnel-missing"
    assert why in found.why


@pytest.mark.parametrize(
    ("encryption", "why"),
    [
        (None, "those of this site are, in clear"),
        (Encryption.BETWEEN_SITES, "those of this site are, in clear"),
        (Encryption.ALL, "those of this site neither: the cluster encrypts all"),
    ],
)
def test_what_a_machine_without_wireguard_means_is_said_by_what_the_cluster_encrypts(
    encryption: Encryption | None, why: str
) -> None:
    known = network(encryption=encryption) if encryption is not None else None
    found = no_wireguard("wireguard-go is not there", known)

    assert (found.id, why in found.why) == ("wireguard-missing", True)


@pytest.mark.parametrize(("count", "words"), [(1, " 1 time"), (2, " 2 times")])
def test_what_was_refused_of_a_revoked_key_is_counted(count: int, words: str) -> None:
    told = {"by": "", "uid": "", "what": "network x", "count": count, "last_s": 3.0}

    (found,) = findings(by_former_keys=[told])

    assert found.what.endswith(words)


@pytest.mark.parametrize(
    ("count", "words"), [(1, "Service a/b"), (2, "1 more object"), (3, "2 more objects")]
)
def test_objects_that_are_left_out_are_counted(count: int, words: str) -> None:
    told = {
        "on": True,
        "why": "said so",
        "backend": "nftables",
        "kube_proxy": "",
        "left_out_objects": count,
        "left_out_first": "Service a/b",
    }

    (found,) = findings(services=told)

    assert found.what.endswith(words)


def test_whoever_keeps_a_cloned_identity_is_told_to_reboot() -> None:
    """The controller refuses a boot id that came back, and an agent that is restarted keeps its."""
    (found,) = findings(cloned=True)

    assert "restart both agents" not in found.advice
    assert "then reboot the machine that keeps the identity" in found.advice


@pytest.mark.parametrize(
    "changes",
    [
        {"controller": {**CUT_OFF, "for_s": 20.0}},
        {"api_server": API_SERVER},
        {"api_server": {**NO_API_SERVER, "for_s": 20.0}},
        {"peers": peers()},
        {"peers": peers(apart=3)},
        {"tunnel": TUNNEL},
    ],
)
def test_what_may_well_be_so_is_no_problem(changes: dict[str, Any]) -> None:
    assert findings(**changes) == []


# The identity


@pytest.fixture
def joined(tmp_path: Path) -> Settings:
    settings = Settings(folders=Folders(state_dir=tmp_path))
    settings.folders.cluster_dir.mkdir()
    (settings.folders.cluster_dir / "node.key").write_bytes(node_key(1))
    document = {
        "name": "n1",
        "pinned_key": b64encode(PINNED).decode(),
        "controllers": ["c:7470"],
    }
    (settings.folders.cluster_dir / "cluster.json").write_text(json.dumps(document))
    return settings


def levels(settings: Settings) -> list[str]:
    return [finding.level.value for finding in examine_identity(settings.folders.cluster_dir)]


def test_a_whole_identity_is_ok_and_a_node_without_a_cluster_has_none(
    joined: Settings, tmp_path: Path
) -> None:
    assert levels(joined) == ["ok"]
    assert levels(Settings(folders=Folders(state_dir=tmp_path / "other"))) == []


@pytest.mark.parametrize("file", ["node.key", "cluster.json"])
def test_a_damaged_identity_is_an_error(joined: Settings, file: str) -> None:
    (joined.folders.cluster_dir / file).write_bytes(b"x")

    (found,) = examine_identity(joined.folders.cluster_dir)

    assert found.level is Level.ERROR
    assert file in found.what


def test_joining_that_was_not_finished_is_told(joined: Settings) -> None:
    (joined.folders.cluster_dir / "cluster.json").unlink()

    assert levels(joined) == ["warn"]
