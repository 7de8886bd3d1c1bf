"""Installing where another network attaches the pods: Limpet is a way to the cluster, no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from limpet.agent.settings import Settings
from limpet.base.settings import Folders, PodSettings
from limpet.cli.install.files import Manifest
from limpet.cli.install.install import install
from limpet.cli.install.joining import folders_of
from limpet.cli.install.options import InstallOptions, InstallPaths
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import (
    BINARY,
    CONFIG,
    CONFLIST,
    assert_unchanged,
    errors,
    limpet,
    state_of,
)
from tests.cli.install.test_install_join import Cloud, cloud, cluster_of, joining

__all__ = ["cloud"]
THEIRS = "/etc/cni/net.d/05-theirs.conflist"


def test_a_gateway_is_installed_beside_another_network_and_leaves_all_of_it_alone(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    plugin = {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local"}}
    conflist = {"cniVersion": "1.0.0", "name": "theirs", "plugins": [plugin]}
    machine.write(THEIRS, json.dumps(conflist))
    before = state_of(machine)

    assert errors(machine, "install", "--no-cni", "--dry-run") != []  # of no cluster: what for?
    limpet(machine, "install", *joining(cloud), "--no-cni")

    assert "cni = false" in machine.path(CONFIG).read_text()
    assert not machine.path(BINARY).exists()
    assert not machine.path(CONFLIST).exists()
    assert not machine.path("/var/lib/cni/networks").exists()
    assert cluster_of(machine)["granted"]
    assert errors(machine, "doctor") == []
    limpet(machine, "uninstall", "--purge")
    assert_unchanged(before, machine)


@pytest.fixture
def options(tmp_path: Path) -> InstallOptions:
    config = tmp_path / "agent.toml"
    lines = [f'{key} = "{tmp_path / key}"' for key in ("state_dir", "data_dir", "run_dir")]
    config.write_text("\n".join([*lines, "cni = false", ""]))
    paths = InstallPaths(tmp_path / "bin", tmp_path / "conf", config, tmp_path / "units")
    return InstallOptions(paths=paths, dry_run=True, force=True)


def test_a_gateway_gets_an_agent_and_nothing_that_a_runtime_would_call(
    options: InstallOptions, tmp_path: Path
) -> None:
    report = install(options)

    assert report.steps == [f"would write {tmp_path / 'units/limpet-agent.service'}"]
    settings = Settings(folders=Folders(state_dir=tmp_path / "s", data_dir=tmp_path / "d"))
    assert folders_of(settings) == (tmp_path / "s", tmp_path / "d")
    assert folders_of(replace(settings, pods=PodSettings(cni=False))) == (tmp_path / "s",)


def test_a_node_that_attached_pods_is_uninstalled_before_it_attaches_none(
    options: InstallOptions, tmp_path: Path
) -> None:
    manifest = Manifest.load(tmp_path / "state_dir")
    conflist = tmp_path / "conf/10-limpet.conflist"
    conflist.parent.mkdir()
    (tmp_path / "state_dir").mkdir()
    manifest.put("conflist", conflist, b"{}", 0o644)

    found = [each.what for each in install(options).findings if "cni = false" in each.what]

    assert len(found) == 1
    assert str(conflist) in found[0]
