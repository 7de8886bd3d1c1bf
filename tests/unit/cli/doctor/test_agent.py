"""What doctor makes of what the agent says."""

from __future__ import annotations

from ipaddress import ip_interface
from typing import Any

import pytest

from limpet import __version__
from limpet.agent.client import AnotherVersion, typed
from limpet.agent.settings import Settings
from limpet.agent.status.node import Status
from limpet.cli.doctor.findings import Level
from limpet.cli.doctor.pods.agent import agent_findings, host_port_findings, unheard
from limpet.datapath.node.pod.attachment import Attachment, HostPortMapping, Netns, PodName
from limpet.ipam.leases import Holder
from tests.unit.cli.commands.test_path import CLUSTER

SOUND: dict[str, Any] = {
    "version": __version__,
    "pid": 7,
    "uptime_s": 9.0,
    "ready": True,
    "cluster": None,
    "bridge": "limpet0",
    "mtu_bytes": 1450,
    "cluster_cidrs": [],
    "reasons": [],
    "attachments": 3,
    "closed": "",
    "segments": [
        {"prefix": "10.244.7.0/24", "size": 253, "live": 3, "resting": 0, "bound": 9, "free": 241}
    ],
    "room": "free",
    "why_full": "",
    "networks": [],
    "unknown_keys": [],
    "findings": [],
    "last_round": {"changes": 0, "failed": [], "took_ms": 1.0},
}


SIZE = SOUND["segments"][0]["size"]


def levels(**changes: Any) -> dict[str, str]:
    """What is not `ok`, with its level."""
    found = agent_findings(typed({**SOUND, **changes}, Status))
    return {f.what: f.level.value for f in found if f.level is not Level.OK}


def pod(name: str, *addresses: str, port: int = 8080, protocol: str = "tcp") -> Attachment:
    return Attachment(
        network="limpet",
        holder=Holder(name, "eth0"),
        netns=Netns("", 0, 0),
        pod=PodName("default", name),
        addresses=tuple(map(ip_interface, addresses)),
        gateways=(),
        port_mappings=(HostPortMapping(port, 80, protocol),),
    )


def segment(free: int, bound: int, prefix: str = "10.244.7.0/24") -> list[dict[str, Any]]:
    live = SIZE - free - bound
    return [
        {"prefix": prefix, "size": SIZE, "live": live, "resting": 0}
        | {"free": free, "bound": bound}
    ]


def test_a_sound_agent_is_all_ok() -> None:
    assert levels() == {}


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"ready": False, "reasons": ["no segments"]}, "error", "no segments"),
        ({"closed": "policies were not heard yet"}, "error", "not heard yet"),
        ({"version": "0.0.1"}, "warn", "0.0.1"),
        (
            {"last_round": {"changes": 1, "failed": ["set up bridge x: EPERM"], "took_ms": 1}},
            "error",
            "set up bridge x: EPERM",
        ),
        ({"segments": segment(free=0, bound=0)}, "error", "10.244.7.0/24"),
        ({"segments": segment(free=20, bound=0)}, "warn", "20 of 253"),
        (
            {"findings": [{"path": "/x/10.0.0.1", "problem": "is empty", "advice": "look"}]},
            "warn",
            "/x/10.0.0.1: is empty",
        ),
        ({"unknown_keys": [{"network": "edge", "key": "mut"}]}, "warn", "'mut'"),
    ],
)
def test_what_is_wrong_is_said_with_its_level(
    changes: dict[str, Any], level: str, words: str
) -> None:
    ((what, found),) = levels(**changes).items()

    assert found == level
    assert words in what


def test_addresses_of_absent_pods_count_as_free() -> None:
    assert levels(segments=segment(free=0, bound=240)) == {}


def test_addresses_that_rest_are_given_where_nothing_else_is_left() -> None:
    (full,) = segment(free=0, bound=0)

    assert levels(segments=[{**full, "live": 153, "resting": 100}]) == {}


def test_one_full_segment_is_an_error_only_where_no_other_has_room() -> None:
    full, other = segment(0, 0), "10.244.9.0/24"

    ((what, level),) = levels(segments=full + segment(200, 0, other)).items()
    assert (level, "10.244.7.0/24" in what) == ("warn", True)
    assert list(levels(segments=full + segment(5, 0, other)).values()) == ["warn", "warn"]
    assert list(levels(segments=full + segment(0, 0, other)).values()) == ["error", "error"]
    assert list(levels(segments=full + segment(200, 0, "fd00:7::/120")).values()) == ["error"]


@pytest.mark.parametrize("free", [0, 5])
@pytest.mark.parametrize("cluster", [None, CLUSTER])
def test_where_a_segment_comes_from_is_said_as_it_is_for_this_node(
    free: int, cluster: dict[str, Any] | None
) -> None:
    changes = {"segments": segment(free, 0), "cluster": cluster}
    found = agent_findings(typed({**SOUND, **changes}, Status))

    (advice,) = (each.advice for each in found if each.id.startswith("segment-"))

    assert ("segments in the agent's configuration" in advice) == (cluster is None)
    assert ("the controller grants it" in advice) == (cluster is not None)


@pytest.mark.parametrize("lacking", [{"ready"}, {"segments", "findings"}])
def test_an_agent_that_speaks_as_another_version_does_is_to_be_restarted(lacking: set[str]) -> None:
    status = {key: value for key, value in SOUND.items() if key not in lacking}

    with pytest.raises(AnotherVersion) as failure:
        typed(status, Status)
    found = unheard(Settings(), failure.value)

    assert found.level is Level.ERROR
    assert "the agent that runs is older or newer than this command" in found.what
    assert "systemctl restart limpet-agent" in found.advice


def test_of_who_can_tell_policies_only_those_are_named_whose_word_opens_the_pods() -> None:
    found = agent_findings(typed({**SOUND, "closed": "policies were not heard yet"}, Status))
    (advice,) = [each.advice for each in found if each.id == "policies-unheard"]
    assert "only the cluster's controller" in advice
    assert "no neighbour" in advice


def test_every_finding_that_is_not_ok_says_why_and_what_to_do() -> None:
    changes = {
        "ready": False,
        "reasons": ["x"],
        "version": "0",
        "segments": segment(0, 0) + segment(5, 0),
        "findings": [{"path": "/x", "problem": "y", "advice": "z"}],
        "unknown_keys": [{"network": "n", "key": "k"}],
        "last_round": {"changes": 0, "failed": ["x"], "took_ms": 0},
    }

    for finding in agent_findings(typed({**SOUND, **changes}, Status)):
        assert finding.level is Level.OK or (finding.why and finding.advice)


def test_pods_that_ask_for_one_port_of_the_node_are_named_with_the_one_that_has_it() -> None:
    pods = [
        pod("first", "10.244.7.2/24", "fd00:7::2/64"),
        pod("other-port", "10.244.7.3/24", port=8081),
        pod("other-protocol", "10.244.7.4/24", protocol="udp"),
        pod("second", "10.244.7.5/24", "fd00:7::5/64"),
    ]

    (found,) = host_port_findings(pods)

    assert found.level is Level.WARN
    assert found.what == (
        "TCP port 8080 of this node is asked for by 2 pods (default/first, default/second): "
        "default/second, which was started last, has it"
    )
    assert list(host_port_findings(pods[:3])) == []


def test_a_pod_that_asks_for_a_port_which_the_node_needs_itself_is_named() -> None:
    pods = [
        pod("ingress", "10.244.7.2/24", "fd00:7::2/64", port=443),
        pod("traefik", "10.244.7.3/24", port=443),
        pod("kubelet", "10.244.7.4/24", port=10250),
        pod("datagrams", "10.244.7.5/24", port=443, protocol="udp"),
    ]

    found = list(host_port_findings(pods, {("TCP", 443, 443)}))

    assert {each.id for each in found} == {"host-port-of-node"}
    assert [each.what for each in found] == [
        "TCP port 443 of this node is the node's own, and the hostPort of default/ingress, "
        "default/traefik",
        "TCP port 10250 of this node is the node's own, and the hostPort of default/kubelet",
    ]
