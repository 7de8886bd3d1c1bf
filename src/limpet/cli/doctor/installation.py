"""Where Limpet is installed on this machine, and whether it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from limpet import __version__
from limpet.agent.settings import Settings
from limpet.base.disk import read_if_there
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.install.cni_configs import CniConfig, read_cni_configs
from limpet.cli.install.conflist import CONFLIST
from limpet.cli.install.files import Manifest
from limpet.cli.install.runtimes import find_runtimes, folders_in_use
from limpet.cli.install.shim_probe import status_through
from limpet.cni.shim_binary import shim_path


@dataclass(frozen=True, slots=True)
class Place:
    """Where Limpet is installed, as far as it is."""

    cni_conf_dir: Path
    cni_bin_dir: Path
    config: CniConfig | None

    @property
    def conflist(self) -> Path:
        return self.config.path if self.config is not None else self.cni_conf_dir / CONFLIST

    @property
    def network_name(self) -> str:
        return self.config.name if self.config is not None else "limpet"

    @classmethod
    def of(cls, settings: Settings, conf_dir: Path | None, bin_dir: Path | None) -> Place:
        manifest = Manifest.load(settings.folders.state_dir)
        for file in manifest.of_role("conflist"):
            conf_dir = conf_dir or Path(file.path).parent
        for file in manifest.of_role("binary"):
            bin_dir = bin_dir or Path(file.path).parent
        used_conf_dir, used_bin_dir = folders_in_use(find_runtimes())
        conf_dir = conf_dir or used_conf_dir
        configs = read_cni_configs(conf_dir)
        ours = next((config for config in configs if "limpet" in config.plugins), None)
        return cls(conf_dir, bin_dir or used_bin_dir, ours)


def examine_binary(place: Place) -> Iterator[Finding]:
    path = place.cni_bin_dir / "limpet"
    content = read_if_there(path)
    if content is None:
        yield error(
            f"the CNI binary {path} is not there",
            "runtimes can neither start nor remove a pod",
            "limpet install",
        )
    elif not os.access(path, os.X_OK):
        yield error(
            f"the CNI binary {path} is not executable",
            "runtimes can neither start nor remove a pod",
            f"chmod 755 {path}",
        )
    elif content != shim_path().read_bytes():
        yield warn(
            f"the CNI binary {path} is not the one of this version ({__version__})",
            "it may not understand the agent",
            "limpet install",
        )
    elif problem := status_through(path, place.network_name):
        yield error(
            f"the CNI binary {path} says that network {place.network_name!r} is not available: "
            f"{problem}",
            "runtimes hear the same, and start no pods",
            "if the agent is ready all the same (below), the binary looks for another socket: "
            "see /etc/limpet/shim.conf",
        )
    else:
        yield ok(f"the CNI binary {path} reaches the agent")


def examine_conflist(place: Place) -> Iterator[Finding]:
    if place.config is None:
        yield error(
            f"no CNI configuration in {place.cni_conf_dir} names Limpet",
            "runtimes do not call it",
            "limpet install",
        )
    else:
        yield ok(f"CNI configuration {place.config.path}, network {place.network_name!r}")
