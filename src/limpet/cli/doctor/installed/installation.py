"""Where Limpet is installed on this machine, and whether it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from limpet import __version__
from limpet.agent.settings import Settings
from limpet.base.disk import read_if_there
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.target import Installation
from limpet.cli.install.cni_configs import CniConfig, read_cni_configs
from limpet.cli.install.files import DamagedRecordError, Manifest
from limpet.cli.install.joining import granted_state
from limpet.cli.install.runtimes import find_runtimes, folders_in_use
from limpet.cli.install.shim_probe import status_through
from limpet.cli.install.units.agent_pod import BY_UNIT, AgentCare
from limpet.cni.conflist import CONFLIST
from limpet.cni.shim_binary import shim_path


def find_installed(settings: Settings, conf_dir: Path | None, bin_dir: Path | None) -> Installation:
    """What is installed, as far as it is, with what its cluster granted.

    The folders are by default those that install has used, else those of the runtime.

    Raises: LimpetError where it is not known what is installed.
    """
    try:
        manifest = Manifest.load(settings.folders.state_dir)
    except DamagedRecordError:  # examine_record tells it
        manifest = Manifest(settings.folders.state_dir)
    for file in manifest.of_role("conflist"):
        conf_dir = conf_dir or Path(file.path).parent
    for file in manifest.of_role("binary"):
        bin_dir = bin_dir or Path(file.path).parent
    used_conf_dir, used_bin_dir = folders_in_use(find_runtimes())
    conf_dir = conf_dir or used_conf_dir
    config = _own_config(conf_dir)
    return Installation(
        settings,
        granted_state(settings),
        conf_dir / CONFLIST if config is None else config.path,
        bin_dir or used_bin_dir,
        "limpet" if config is None else config.name,
        allow_forward=settings.pods.allow_forward,
        installed=True,
    )


def _own_config(conf_dir: Path) -> CniConfig | None:
    configs = read_cni_configs(conf_dir)
    return next((config for config in configs if "limpet" in config.plugins), None)


def examine_record(state_dir: Path) -> Iterator[Finding]:
    try:
        Manifest.load(state_dir)
    except DamagedRecordError as problem:
        yield warn(
            "installation-damaged",
            str(problem),
            "upgrades and uninstall do not know which files are Limpet's, and end",
            "move it away, then limpet install; uninstall then leaves files of before to you",
        )


def examine_binary(target: Installation, care: AgentCare = BY_UNIT) -> Iterator[Finding]:
    path = target.cni_bin_dir / "limpet"
    content = read_if_there(path)
    if content is None:
        yield error(
            "cni-binary-missing",
            f"the CNI binary {path} is not there",
            "runtimes can neither start nor remove a pod",
            care.put_back,
        )
    elif not os.access(path, os.X_OK):
        yield error(
            "cni-binary-not-executable",
            f"the CNI binary {path} is not executable",
            "runtimes can neither start nor remove a pod",
            f"chmod 755 {path}",
        )
    elif content != shim_path().read_bytes() and not care.image_brings_binary:
        yield warn(
            "cni-binary-version",
            f"the CNI binary {path} is not the one of this version ({__version__})",
            "it may not understand the agent",
            care.put_back,
        )
    elif problem := status_through(path, target.network_name):
        yield error(
            "cni-binary-no-answer",
            f"the CNI binary {path} says that network {target.network_name!r} is not available: "
            f"{problem}",
            "runtimes hear the same, and start no pods",
            "if the agent is ready all the same (below), the binary looks for another socket: "
            "see /etc/limpet/shim.conf",
        )
    else:
        yield ok(f"the CNI binary {path} reaches the agent")


def examine_conflist(target: Installation, care: AgentCare = BY_UNIT) -> Iterator[Finding]:
    config = _own_config(target.cni_conf_dir)
    if config is None:
        yield error(
            "cni-config-missing",
            f"no CNI configuration in {target.cni_conf_dir} names Limpet",
            "runtimes do not call it",
            care.put_back,
        )
    else:
        yield ok(f"CNI configuration {config.path}, network {config.name!r}")
