"""Installations to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limpet.agent.settings import parse_settings
from limpet.base.node_state import NodeState
from limpet.cli.doctor.target import Installation


def target(*, installed: bool = False, **settings: Any) -> Installation:
    settings = {"segments": ["10.244.7.0/24"], **settings}
    read = parse_settings(settings, "test")
    return Installation(
        read,
        NodeState(read.pods.segments, read.pods.cluster_cidrs),
        Path("/etc/cni/net.d/10-limpet.conflist"),
        Path("/opt/cni/bin"),
        "limpet",
        installed=installed,
    )
