"""`limpet doctor`: everything that can be wrong with Limpet on this machine, looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from limpet.agent.client import ask
from limpet.agent.settings import Settings
from limpet.agent.status import Status
from limpet.base.errors import LimpetError
from limpet.base.node_state import NodeState
from limpet.cli.doctor.agent import agent_findings, examine_host_ports, unheard
from limpet.cli.doctor.cluster import cluster_findings, examine_identity, examine_vxlan
from limpet.cli.doctor.examine import examine
from limpet.cli.doctor.findings import Finding, gather
from limpet.cli.doctor.installation import Place, examine_binary, examine_conflist
from limpet.cli.doctor.machine import examine_folders, examine_sysctls
from limpet.cli.doctor.relays import examine_relays, inbound_ports
from limpet.cli.doctor.target import InboundPort, Target
from limpet.cli.install.joining import granted_state


def diagnose(
    settings: Settings, cni_conf_dir: Path | None, cni_bin_dir: Path | None
) -> list[Finding]:
    """Findings about the installation, the agent and the machine. Changes nothing.

    The folders are by default those that install has used, else those of the runtime.

    Raises: LimpetError where it is not known what is installed.
    """
    place = Place.of(settings, cni_conf_dir, cni_bin_dir)
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
    return gather(
        lambda: _installation(place) if settings.pods.cni else (),
        lambda: examine_identity(settings.folders.cluster_dir),
        lambda: said.findings,
        lambda: examine_host_ports(settings),
        lambda: examine_sysctls(settings.pods.bridge, said.state),
        lambda: examine_folders(settings),
        lambda: examine(target, running=True),
    )


def _installation(place: Place) -> Iterator[Finding]:
    yield from examine_binary(place)
    yield from examine_conflist(place)


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
    findings += examine_relays(cluster, settings, agent_pid=status.pid)
    tunnel = cluster.tunnel
    has_tunnel = bool(tunnel.backend or tunnel.problem)
    return Said(findings, state, has_tunnel, inbound_ports(cluster, settings))
