"""`limpet doctor`: everything that can be wrong with Limpet on this machine, looked at."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

from limpet.agent.client import ask
from limpet.agent.settings import Settings
from limpet.agent.status.node import Status
from limpet.base.errors import LimpetError
from limpet.base.node_state import NodeState
from limpet.cli.doctor.agent import agent_findings, examine_host_ports, unheard
from limpet.cli.doctor.cluster.membership import cluster_findings, examine_identity, examine_vxlan
from limpet.cli.doctor.cluster.relays import examine_relays, inbound_ports
from limpet.cli.doctor.examine import examine
from limpet.cli.doctor.findings import Finding, gather
from limpet.cli.doctor.installed.installation import (
    examine_binary,
    examine_conflist,
    find_installed,
)
from limpet.cli.doctor.machine.settings import examine_folders, examine_sysctls
from limpet.cli.doctor.names.examine import examine_names
from limpet.cli.doctor.target import Target


def diagnose(
    settings: Settings, cni_conf_dir: Path | None, cni_bin_dir: Path | None
) -> list[Finding]:
    """Findings about the installation, the agent and the machine. Changes nothing.

    The folders are by default those that install has used, else those of the runtime.

    Raises: LimpetError where it is not known what is installed.
    """
    findings, target = _listen(find_installed(settings, cni_conf_dir, cni_bin_dir))
    return gather(
        lambda: examine_binary(target) if settings.pods.cni else (),
        lambda: examine_conflist(target) if settings.pods.cni else (),
        lambda: examine_identity(settings.folders.cluster_dir),
        lambda: findings,
        lambda: examine_host_ports(settings),
        lambda: examine_sysctls(settings.pods.bridge, target.state),
        lambda: examine_folders(settings),
        lambda: examine_names(settings.dns, settings.folders.run_dir),
        lambda: examine(target, running=True),
    )


def _listen(target: Target) -> tuple[list[Finding], Target]:
    """What comes of the agent's own words, and what is installed as it is by them."""
    settings = target.settings
    try:
        status = ask(settings.folders.socket, "status", Status)
    except LimpetError as problem:
        return [unheard(settings, problem)], target
    findings = list(agent_findings(status))
    cluster = status.cluster
    state = NodeState(
        tuple(ip_network(each.prefix) for each in status.segments),
        tuple(ip_network(each) for each in status.cluster_cidrs),
        in_cluster=bool(cluster),
    )
    target = replace(target, state=state)
    if not cluster:
        return findings, target
    findings += cluster_findings(cluster)
    findings += examine_vxlan(cluster.vxlan_id, cluster.vxlan_port)
    findings += examine_relays(cluster, settings, agent_pid=status.pid)
    has_tunnel = bool(cluster.tunnel.backend or cluster.tunnel.problem)
    inbound = inbound_ports(cluster, settings)
    return findings, replace(target, has_tunnel=has_tunnel, inbound=inbound)
