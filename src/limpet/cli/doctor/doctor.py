"""`limpet doctor`: everything that can be wrong with Limpet on this machine, looked at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from limpet import __version__
from limpet.agent.client import AnotherVersion, ask
from limpet.agent.settings import Settings
from limpet.agent.status import LastRound, SegmentUse, Status
from limpet.base.disk import read_if_there
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.base.node_state import NodeState
from limpet.base.ownership import ALIAS
from limpet.cli.doctor.cluster import cluster_findings, examine_identity, examine_vxlan
from limpet.cli.doctor.examine import Target, examine
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.firewall.examine import InboundPort
from limpet.cli.doctor.sites import across_findings, inbound_ports
from limpet.cli.install.cni_configs import CniConfig, read_cni_configs
from limpet.cli.install.conflist import CONFLIST
from limpet.cli.install.files import Manifest
from limpet.cli.install.joining import granted_state
from limpet.cli.install.runtimes import find_runtimes, folders_in_use
from limpet.cli.install.service import UNIT, systemd_runs
from limpet.cli.install.shim_probe import status_through
from limpet.cli.output import count
from limpet.cni.shim_binary import shim_path
from limpet.datapath.node.plan import NodeFacts, plan_node
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.sysctl import read_sysctl

_FEW_ADDRESSES = 0.1
_LITTLE_SPACE_BYTES = 16 << 20


def diagnose(
    settings: Settings, cni_conf_dir: Path | None, cni_bin_dir: Path | None
) -> list[Finding]:
    """Findings about the installation, the agent and the machine. Changes nothing.

    The folders are by default those that install has used, else those of the runtime.

    Raises: LimpetError.
    """
    place = _Place.of(settings, cni_conf_dir, cni_bin_dir)
    said = _listen(settings)
    target = Target(
        settings,
        said.state,
        place.conflist,
        place.cni_bin_dir,
        place.network_name,
        allow_forward=settings.pods.allow_forward,
        installed=True,
        has_tunnel=said.has_tunnel,
        inbound=said.inbound,
    )
    return [
        *(_binary(place) if settings.pods.cni else ()),
        *(_conflist(place, target) if settings.pods.cni else ()),
        *examine_identity(settings.folders.cluster_dir),
        *said.findings,
        *_sysctls(settings.pods.bridge, said.state),
        *_folders(settings),
        *examine(target, running=True),
    ]


@dataclass(frozen=True, slots=True)
class Said:
    """What comes of the agent's own words."""

    findings: list[Finding]
    state: NodeState
    """As it is now, as far as that is known."""
    has_tunnel: bool = False
    """Of WireGuard; or why there is none is among the findings."""
    inbound: tuple[InboundPort, ...] = ()


def _listen(settings: Settings) -> Said:
    try:
        status = ask(settings.folders.socket, "status", Status)
    except LimpetError as problem:
        return Said([unheard(settings, problem)], granted_state(settings))
    findings = list(agent_findings(status))
    cluster = status.cluster
    state = NodeState(
        tuple(ip_network(each.prefix) for each in status.segments),
        tuple(ip_network(each) for each in status.cluster_cidrs),
        in_cluster=bool(cluster),
    )
    if not cluster:
        return Said(findings, state)
    findings += cluster_findings(cluster)
    findings += examine_vxlan(cluster.vxlan_id, cluster.vxlan_port)
    findings += across_findings(cluster, settings, agent_pid=status.pid)
    tunnel = cluster.tunnel
    has_tunnel = bool(tunnel.backend or tunnel.problem)
    return Said(findings, state, has_tunnel, inbound_ports(cluster, settings))


def unheard(settings: Settings, problem: LimpetError) -> Finding:
    """What it means that the agent said nothing that is understood."""
    if isinstance(problem, AgentUnavailable):
        return error(
            f"the agent does not answer at {settings.folders.socket}",
            f"pods can neither be started nor removed ({problem.__cause__})",
            f"systemctl start {UNIT}; journalctl -u {UNIT} says why it ended"
            if systemd_runs()
            else "start it: limpet agent",
        )
    if isinstance(problem, AnotherVersion):
        return error(
            str(problem),
            "it was not restarted after an upgrade, and its state is not known here",
            f"systemctl restart {UNIT} (pods do not notice)",
        )
    return error(str(problem), "the state of this node is not known", "limpet status")


@dataclass(frozen=True, slots=True)
class _Place:
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
    def of(cls, settings: Settings, conf_dir: Path | None, bin_dir: Path | None) -> _Place:
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


# What is installed.


def _binary(place: _Place) -> Iterator[Finding]:
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


def _conflist(place: _Place, target: Target) -> Iterator[Finding]:
    if place.config is None:
        yield error(
            f"no CNI configuration in {place.cni_conf_dir} names Limpet",
            "runtimes do not call it",
            "limpet install",
        )
    else:
        yield ok(f"CNI configuration {place.config.path}, network {target.network_name!r}")


# The agent.


def agent_findings(status: Status) -> Iterator[Finding]:
    """What the agent's own words amount to. Pure."""
    if status.ready:
        yield ok(f"the agent answers and is ready ({status.attachments} pods attached)")
    else:
        yield error(
            f"the agent is not ready: {'; '.join(status.reasons)}",
            "pods cannot be started",
            "do what it says; `limpet status` shows whether that was it",
        )
    if status.version != __version__:
        yield warn(
            f"the agent that runs is version {status.version}, this is {__version__}",
            "it was not restarted after an upgrade",
            f"systemctl restart {UNIT} (pods do not notice)",
        )
    yield from _round(status.last_round)
    for segment in status.segments:
        yield from _segment(segment)
    for found in status.findings:
        yield warn(
            f"{found.path}: {found.problem}",
            "it is part of the record of addresses",
            found.advice,
        )
    for unknown in status.unknown_keys:
        yield warn(
            f"network {unknown.network!r} has the key {unknown.key!r} in its configuration",
            "Limpet does not know it and leaves it out of account",
            "correct or remove it",
        )


def _round(last: LastRound) -> Iterator[Finding]:
    for failure in last.failed:
        yield error(
            f"the node is not as planned: {failure}",
            "the agent tries again in every round",
            "do what the message says; if it says nothing, journalctl -u limpet-agent has more",
        )
    if not last.failed:
        yield ok("links, routes, rules and nftables table are as planned")


def _segment(segment: SegmentUse) -> Iterator[Finding]:
    prefix, free, size = segment.prefix, segment.free, segment.size
    absent = segment.bound
    words = (
        f"segment {prefix}: {count(free)} of {count(size)} addresses free, "
        f"{count(absent)} kept for absent pods"
    )
    if free + absent <= 0:
        yield error(
            words,
            "no more pods can be started on this node",
            "give the node another segment (segments in the agent's configuration; in a cluster "
            "the controller grants it: limpet status says why it does not), or remove pods",
        )
    elif free + absent < size * _FEW_ADDRESSES:
        yield warn(
            words,
            "soon no more pods can be started on this node",
            "give the node another segment (segments in the agent's configuration)",
        )
    else:
        yield ok(words)


# The machine.


def _sysctls(bridge: str, state: NodeState) -> Iterator[Finding]:
    """The node's own settings. Those of the bridge are the round's business."""
    with RouteSocket() as route:
        link = route.link(bridge)
    facts = NodeFacts(own_bridge_exists=link is not None and link.alias == ALIAS)
    planned = plan_node(bridge, state, (), facts=facts).sysctls
    wrong = False
    for path, value in planned.items():
        now = read_sysctl(path)
        if f"/{bridge}/" not in path and now != value:
            wrong = True
            yield error(
                f"sysctl {path.replace('/', '.')} is {now}, not {value}",
                "pods' packets are not forwarded as they should be",
                "the agent sets it; if it changes again and again, look for another program in "
                "/etc/sysctl.d",
            )
    if planned and not wrong:
        yield ok("kernel settings (sysctl) are as planned")


def _folders(settings: Settings) -> Iterator[Finding]:
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
            f"{folder} cannot be written", why, "see `dmesg`: a disk that fails is remounted"
        )
        return
    usage = shutil.disk_usage(there)
    inodes = os.statvfs(there)
    if usage.free < _LITTLE_SPACE_BYTES or (inodes.f_files and not inodes.f_favail):
        yield warn(
            f"the disk of {folder} is nearly full: {usage.free >> 20} MiB, "
            f"{inodes.f_favail} files left",
            why,
            "make room",
        )
    else:
        yield ok(f"{folder} can be written, {usage.free >> 20} MiB free")
