"""What is made of CNI configurations and segments."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from limpet.agent.settings import parse_settings
from limpet.base.node_state import NodeState
from limpet.cli.doctor.examine import Target, examine_configs, examine_segments
from limpet.cli.doctor.findings import Finding, Level
from limpet.cli.install.cni_configs import CniConfig

FOLDER = Path("/etc/cni/net.d")


def target(*, installed: bool = False, **settings: Any) -> Target:
    settings = {"segments": ["10.244.7.0/24"], **settings}
    read = parse_settings(settings, "test")
    return Target(
        read,
        NodeState(read.pods.segments, read.pods.cluster_cidrs),
        FOLDER / "10-limpet.conflist",
        Path("/opt/cni/bin"),
        "limpet",
        installed=installed,
    )


def config(filename: str, **fields: Any) -> CniConfig:
    return CniConfig(FOLDER / filename, **{"name": "other", "plugins": ("bridge",), **fields})


def levels(findings: Any) -> list[Level]:
    return [finding.level for finding in findings]


def test_an_empty_folder_is_ok() -> None:
    assert levels(examine_configs(target(), [])) == [Level.OK]


@pytest.mark.parametrize(
    ("names", "installed", "expected"),
    [
        (["00-a.conf"], False, [Level.ERROR]),
        (["00-a.conf", "87-b.conflist"], True, [Level.ERROR]),
        (["87-b.conflist", "90-c.conf"], False, [Level.WARN]),
        (["10-limpet.conflist", "87-b.conflist"], True, []),
        (["10-limpet.conf"], False, [Level.ERROR]),
    ],
)
def test_only_what_a_runtime_takes_before_ours_stands_in_the_way(
    names: list[str], installed: bool, expected: list[Level]
) -> None:
    configs = [config(name) for name in names]

    assert levels(examine_configs(target(installed=installed), configs)) == expected


def test_a_configuration_that_cannot_be_used_does_not_come_first() -> None:
    configs = [config("00-a.conf", problem="is not a JSON object", plugins=())]

    found = list(examine_configs(target(), configs))

    assert levels(found) == [Level.WARN, Level.OK]


def rivals(**fields: Any) -> list[Finding]:
    configs = [config("90-b.conf", **fields)]
    return [f for f in examine_configs(target(installed=True), configs) if f.level is not Level.OK]


def test_a_network_that_gives_out_our_addresses_is_an_error_unless_it_is_taken_over() -> None:
    same = (ip_network("10.244.0.0/16"),)

    assert levels(rivals(subnets=same)) == [Level.ERROR]
    assert rivals(subnets=same, name="limpet") == []
    assert rivals(subnets=(ip_network("10.9.0.0/16"), ip_network("fd00::/64"))) == []


def test_a_network_on_our_bridge_is_a_warning() -> None:
    assert levels(rivals(bridges=("limpet0",))) == [Level.WARN]
    assert rivals(bridges=("cni0",)) == []


def test_a_segment_outside_of_the_cluster_is_a_warning() -> None:
    inside = examine_segments(target(cluster_cidrs=["10.244.0.0/16", "fd00::/48"]))
    outside = examine_segments(target(cluster_cidrs=["10.9.0.0/16"]))

    assert levels(inside) == [Level.OK]
    assert levels(outside) == [Level.OK, Level.WARN]


def test_no_segment_is_an_error() -> None:
    assert levels(examine_segments(target(segments=[]))) == [Level.ERROR]
