"""What the command line of `limpet install` says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpet.base.configuration import AGENT_PATH
from limpet.cli.install.joining import JoinOptions
from limpet.cli.install.kubernetes import KubernetesOptions
from limpet.cli.install.units.service import DEFAULT_UNIT_DIR


@dataclass(frozen=True, slots=True)
class AskedSettings:
    """Settings of the agent that were given; each at its default was not."""

    segments: tuple[str, ...] = ()
    cluster_cidrs: tuple[str, ...] = ()
    allow_forward: bool = False
    cni: bool = True
    """False: pods of this node are another network's."""
    bridge: str = ""
    """Bridge of pods; empty: Limpet's own."""
    kubernetes: KubernetesOptions | None = None

    def document(self) -> dict[str, Any]:
        """What was given, as it stands in the agent's configuration."""
        document: dict[str, Any] = {}
        if self.segments:
            document["segments"] = list(self.segments)
        if self.cluster_cidrs:
            document["cluster_cidrs"] = list(self.cluster_cidrs)
        if self.allow_forward:
            document["allow_forward"] = True
        if self.bridge:
            document["bridge"] = self.bridge
        if not self.cni:
            document["cni"] = False
        if self.kubernetes is not None:
            document |= self.kubernetes.document()
        if self.kubernetes is not None and self.cni:
            document["policies"] = "on"  # as the DaemonSet's agents have it
        return document

    def text(self) -> bytes:
        """A configuration of the agent that says so."""
        lines = ["# Settings of `limpet agent`, read when it starts.\n"]
        # A JSON string, list or boolean is the same in TOML.
        lines += [f"{key} = {json.dumps(value)}\n" for key, value in self.document().items()]
        return "".join(lines).encode()


@dataclass(frozen=True, slots=True)
class InstallPaths:
    """Where files go."""

    cni_bin_dir: Path | None = None
    """None: where the runtime looks."""
    cni_conf_dir: Path | None = None
    config: Path = AGENT_PATH
    """Configuration of the agent."""
    unit_dir: Path = DEFAULT_UNIT_DIR


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """All of it."""

    asked: AskedSettings = AskedSettings()
    paths: InstallPaths = InstallPaths()
    join: JoinOptions = JoinOptions()
    network_name: str | None = None
    """None: that of the configuration which is there, else `limpet`."""
    force: bool = False
    dry_run: bool = False
    start: bool = True
    cni_only: bool = False
    """The agent and its configuration are somebody else's (a DaemonSet's)."""
    take_over: str = ""
    """`flannel`: its pods go on, and what it has is put aside."""
