"""Kernel settings and folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from limpet.agent.settings import Settings
from limpet.base.node_state import NodeState
from limpet.base.ownership import TUNNEL_GROUP, VXLAN_GROUPS
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.owners import is_ours
from limpet.datapath.node.plan import NodeFacts, plan_node
from limpet.datapath.overlay.device_apply import LOOSE, is_strict, rp_filter
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.sysctl import read_sysctl

_LITTLE_SPACE_BYTES = 16 << 20
_WAYS = {*VXLAN_GROUPS.values(), TUNNEL_GROUP}
"""Groups of the links that packets of other nodes' pods come in by."""


def examine_sysctls(bridge: str, state: NodeState) -> Iterator[Finding]:
    """The node's own settings, and those of links to other nodes. Those of the bridge are the
    round's business."""
    planned, wrong = planned_sysctls(bridge, state), wrong_sysctls(bridge, state)
    for path, value in wrong.items():
        yield error(
            "sysctl-wrong",
            f"sysctl {path.replace('/', '.')} is {read_sysctl(path)}, not {value}",
            "pods' packets are not forwarded as they should be",
            "the agent sets it; if it changes again and again, look for another program in "
            "/etc/sysctl.d",
        )
    if planned and not wrong:
        yield ok("kernel settings (sysctl) are as planned")


def wrong_sysctls(bridge: str, state: NodeState) -> dict[str, str]:
    """What should be, by path, where something else is. Raises: KernelError."""
    planned = planned_sysctls(bridge, state)
    wrong = {
        path: value
        for path, value in planned.items()
        if f"/{bridge}/" not in path and read_sysctl(path) != value
    }
    with RouteSocket() as route:
        links = route.links().values()
    carries = [each.ifname for each in links if each.group in _WAYS and is_ours(each)]
    return wrong | {rp_filter(each): LOOSE for each in carries if is_strict(each)}


def planned_sysctls(bridge: str, state: NodeState, *, with_pods: bool = False) -> dict[str, str]:
    """Values by path below /proc/sys. `with_pods`: as soon as there is one. Raises: KernelError."""
    with RouteSocket() as route:
        link = route.link(bridge)
    facts = NodeFacts(own_bridge_exists=with_pods or (link is not None and is_ours(link)))
    return dict(plan_node(bridge, state, (), facts=facts).sysctls)


def examine_folders(settings: Settings) -> Iterator[Finding]:
    for folder, what in (
        (settings.folders.run_dir, "the agent keeps what is attached there"),
        (settings.folders.data_dir, "the record of addresses is there"),
        (settings.folders.state_dir, "what uninstall has to put back is there"),
    ):
        yield from _folder(folder, what)


def _folder(folder: Path, why: str) -> Iterator[Finding]:
    there = folder
    while not there.exists():
        there = there.parent
    if os.statvfs(there).f_flag & os.ST_RDONLY or not os.access(there, os.W_OK):
        yield error(
            "folder-read-only",
            f"{folder} cannot be written",
            why,
            "see `dmesg`: a disk that fails is remounted",
        )
        return
    usage = shutil.disk_usage(there)
    inodes = os.statvfs(there)
    if usage.free < min(_LITTLE_SPACE_BYTES, usage.total // 10) or (
        inodes.f_files and not inodes.f_favail
    ):
        yield warn(
            "disk-full",
            f"the disk of {folder} is nearly full: {usage.free >> 20} MiB, "
            f"{inodes.f_favail} files left",
            why,
            "make room",
        )
    else:
        yield ok(f"{folder} can be written, {usage.free >> 20} MiB free")
