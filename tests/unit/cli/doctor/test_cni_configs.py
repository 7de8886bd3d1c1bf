"""What is made of CNI configurations."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from limpet.cli.doctor.findings import Finding, Level
from limpet.cli.doctor.installed.cni_configs import examine_configs
from limpet.cli.install.cni_configs import CniConfig
from tests.unit.cli.doctor.targets import target

FOLDER = Path("/etc/cni/net.d")


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


@pytest.mark.parametrize(
    ("name", "level", "said"),
    [
        ("00-a.conf", Level.ERROR, "containerd loads no configuration"),
        ("90-a.conf", Level.WARN, "runtimes"),
    ],
)
@pytest.mark.parametrize("installed", [True, False])
def test_one_that_cannot_be_used_stands_in_the_way_where_containerd_comes_to_it_first(
    name: str, level: Level, said: str, installed: bool
) -> None:
    broken = config(name, problem="is not a JSON object", plugins=())

    (found,) = examine_configs(target(installed=installed), [broken])

    assert (found.id, found.level) == ("cni-config-broken", level)
    assert said in found.why


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
