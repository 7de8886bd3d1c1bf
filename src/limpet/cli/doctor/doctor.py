"""`limpet doctor`: everything that can be wrong with Limpet on this machine, looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

from limpet.agent.client import agent_pid, ask
from limpet.agent.settings import Settings
from limpet.agent.status.node import Status
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.base.node_state import NodeState
from limpet.cli.doctor.cluster.membership import (
    cluster_findings,
    examine_identity,
    examine_policies,
    examine_vxlan,
)
from limpet.cli.doctor.cluster.relays import examine_relays, inbound_ports
from limpet.cli.doctor.cluster.ways import (
    examine_servers,
    examine_vtep_macs,
    examine_vxlan_packets,
    service_road_findings,
    way_findings,
)
from limpet.cli.doctor.examine import examine
from limpet.cli.doctor.findings import Finding, gather
from limpet.cli.doctor.installed.cni_configs import bridges_in_use
from limpet.cli.doctor.installed.installation import (
    examine_binary,
    examine_conflist,
    examine_record,
    find_installed,
)
from limpet.cli.doctor.installed.leftovers import examine_own_leftovers
from limpet.cli.doctor.machine.links import examine_bridges
from limpet.cli.doctor.machine.planned import examine_planned, own_ports
from limpet.cli.doctor.machine.settings import examine_folders, examine_sysctls, planned_sysctls
from limpet.cli.doctor.machine.storage import examine_storage
from limpet.cli.doctor.machine.traps import (
    examine_clock,
    examine_connection_tracking,
    examine_default_route,
    examine_leftovers,
    examine_own_links,
    examine_rules,
    examine_sysctl_files,
    lasting,
)
from limpet.cli.doctor.names.examine import examine_names
from limpet.cli.doctor.pods.agent import agent_findings, host_port_findings, unheard
from limpet.cli.doctor.pods.attached import (
    examine_docker,
    examine_leaks,
    examine_neighbours,
    mtu_findings,
    read_pods,
)
from limpet.cli.doctor.target import Installation
from limpet.cli.install.units.agent_pod import BY_UNIT, AgentCare, find_care
from limpet.datapath.node.pod.attachment import Attachment

Piece = Callable[[], Iterable[Finding]]


def diagnose(
    settings: Settings, cni_conf_dir: Path | None, cni_bin_dir: Path | None
) -> list[Finding]:
    """Findings about the installation, the agent and the machine. Changes nothing.

    The folders are by default those that install has used, else those of the runtime.

    Raises: LimpetError where it is not known what is installed.
    """
    target = find_installed(settings, cni_conf_dir, cni_bin_dir)
    care = BY_UNIT if target.in_lab else find_care(settings)
    findings, target, status, silent = _listen(target, care)
    if silent and not target.in_lab and not target.conflist.exists() and not target.joined:
        findings += gather(examine_own_leftovers)
    cni = settings.pods.cni and not target.in_lab
    pods = read_pods(settings)
    return gather(
        lambda: examine_record(settings.folders.state_dir),
        lambda: examine_binary(target, care) if cni else (),
        lambda: examine_conflist(target, care) if cni else (),
        lambda: examine_identity(settings.folders.cluster_dir),
        lambda: findings,
        lambda: examine_policies(settings),
        lambda: examine_folders(settings),
        *_pods(target, status, pods, silent=silent),
        *_machine(target, pods),
        lambda: examine_names(settings.dns, settings.folders.run_dir),
        lambda: examine(target, running=True),
    )


def _pods(
    target: Installation, status: Status | None, pods: list[Attachment], *, silent: bool
) -> Iterator[Piece]:
    settings = target.settings
    yield lambda: host_port_findings(pods, own_ports(settings))
    yield lambda: examine_leaks(settings)
    yield lambda: lasting(lambda: list(examine_neighbours(pods)))
    if status is not None:
        mtu_bytes, is_set = status.mtu_bytes, settings.pods.mtu_bytes is not None
        links = [] if status.cluster is None else [each.mtu_bytes for each in status.cluster.links]
        yield lambda: mtu_findings(pods, mtu_bytes, links, is_set=is_set)
    if silent:
        yield lambda: examine_planned(settings, target.state, pods)
    if not target.in_lab:
        yield examine_docker


def _machine(target: Installation, pods: list[Attachment]) -> Iterator[Piece]:
    settings, state = target.settings, target.state
    versions = {each.version for each in state.segments}
    yield lambda: examine_sysctls(settings.pods.bridge, state)
    yield examine_own_links
    yield lambda: examine_vtep_macs(settings)
    yield lambda: examine_servers(settings, state.cluster_cidrs)
    yield lambda: examine_rules((*state.segments, *state.cluster_cidrs))
    yield lambda: examine_leftovers(bridges_in_use(target, pods))
    ours = {each.bridge.ifname for each in pods if each.bridge is not None}
    yield lambda: examine_bridges({settings.pods.bridge, *ours}, state)
    yield examine_connection_tracking
    yield lambda: examine_clock((settings.folders.cluster_dir, settings.folders.state_dir))
    if state.in_cluster:
        yield lambda: examine_default_route(versions)
    if not target.in_lab:
        yield lambda: examine_storage(settings)
        bridge = settings.pods.bridge
        yield lambda: examine_sysctl_files(planned_sysctls(bridge, state, with_pods=True))


def _listen(
    target: Installation, care: AgentCare
) -> tuple[list[Finding], Installation, Status | None, bool]:
    """What comes of the agent's own words, what is installed as it is by them, its words, and
    whether nobody is there to say any."""
    settings = target.settings
    try:
        status = ask(settings.folders.socket, "status", Status)
        pid = agent_pid(settings.folders.socket)
    except LimpetError as problem:
        silent = isinstance(problem, AgentUnavailable)
        return [unheard(settings, problem, care)], target, None, silent
    findings = list(agent_findings(status, care))
    cluster = status.cluster
    state = NodeState(
        tuple(ip_network(each.prefix) for each in status.segments),
        tuple(ip_network(each) for each in status.cluster_cidrs),
        in_cluster=bool(cluster),
    )
    target = replace(target, state=state)
    if not cluster:
        return findings, target, status, False
    findings += cluster_findings(cluster)
    findings += examine_vxlan(cluster.vxlan_id, cluster.vxlan_port)
    findings += examine_vxlan_packets(cluster)
    findings += way_findings(cluster, settings.peers.endpoints)
    findings += service_road_findings(cluster, settings.source)
    findings += examine_relays(cluster, settings, agent_pid=pid)
    has_tunnel = bool(cluster.tunnel.backend or cluster.tunnel.problem)
    inbound = inbound_ports(cluster, settings)
    return findings, replace(target, has_tunnel=has_tunnel, inbound=inbound), status, False
