"""Ways to other nodes that work badly, or will end: addresses, NATs, MACs. Judged by the status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address

from limpet.agent.settings import Settings
from limpet.agent.status.cluster import ClusterStatus
from limpet.base.addresses import Address, Prefix, is_public
from limpet.base.errors import LimpetError
from limpet.base.ownership import VXLAN_GROUPS
from limpet.base.settings import SourceSettings
from limpet.cli.doctor.findings import Finding, error, warn
from limpet.cli.output import counted
from limpet.cluster.topology.transports import VXLAN, by_preference
from limpet.datapath.overlay.vtep import VTEP_FILE, kept_vtep_macs
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket

_UNHEARD_PACKETS = 20
"""Sent by VXLAN without a single one that came: questions for names alone are as many."""


def way_findings(
    cluster: ClusterStatus, configured: Iterable[tuple[Address, int]]
) -> Iterator[Finding]:
    """`configured`: tunnel_endpoints of the settings. Pure."""
    relays = cluster.nat_traversal.relays
    kinds = {kind for kind in relays.nat.values() if kind in ("symmetric", "blocked")}
    works = cluster.tunnel.backend and not cluster.tunnel.problem
    has_relay = relays.relays or cluster.nat_traversal.relaying is not None
    if kinds and works and not has_relay:
        yield warn(
            "nat-without-relay",
            f"what is in front of this node is {' and '.join(sorted(kinds))}, and the cluster has "
            "no relay",
            "nodes behind such NATs (4G, 5G) do not reach each other directly: those pairs have "
            "no way",
            "give a node with a public address the role: limpet node set NAME --add-role relay",
        )
    by_tls = sum(cluster.peers.get(row.name, 0) for row in by_preference() if row.in_stream)
    if by_tls:
        yield warn(
            "reached-by-tls",
            f"a relay in TLS is the way to {counted(by_tls, 'node')}",
            "all that goes there passes through programs and one TCP connection: it works, and "
            "large or many packets take long",
            "let UDP out of the site to the relays (limpet status: relays)",
        )
    yield from _stale(relays.endpoints, list(configured))


def _stale(known: Iterable[str], configured: list[tuple[Address, int]]) -> Iterator[Finding]:
    """`known`: as ADDRESS:PORT or [ADDRESS]:PORT, the configured among them."""
    ours = {str(address) for address, _ in configured}
    seen = {ip_address(each.rpartition(":")[0].strip("[]")) for each in known}
    for address, port in configured:
        public = {
            str(each)
            for each in seen
            if each.version == address.version and is_public(each) and str(each) not in ours
        }
        if public:
            yield warn(
                "endpoint-stale",
                f"tunnel_endpoints has {address} port {port}, and others see this node as "
                f"{', '.join(sorted(public))}",
                "nodes that try the configured one first wait, and reach nobody there: the public "
                "address has changed",
                "correct tunnel_endpoints in the agent's configuration, or take it out: Limpet "
                "finds public addresses by itself",
            )


def examine_vxlan_packets(cluster: ClusterStatus) -> Iterator[Finding]:
    """Whether what goes into VXLAN devices may be all that there is."""
    received = sent = 0
    with RouteSocket() as route:
        for message in route.dump(link_codec.dump_links()):
            if link_codec.parse_link(message).group in VXLAN_GROUPS.values():
                its_received, its_sent = link_codec.parse_link_packets(message)
                received, sent = received + its_received, sent + its_sent
    yield from vxlan_findings(cluster, received, sent)


def vxlan_findings(cluster: ClusterStatus, received: int, sent: int) -> Iterator[Finding]:
    """`received`, `sent`: packets by VXLAN since its devices were made. Pure."""
    peers, port = cluster.peers.get(VXLAN.name, 0), cluster.vxlan_port
    if peers and not received and sent >= _UNHEARD_PACKETS:
        yield warn(
            "vxlan-unheard",
            f"{counted(sent, 'packet')} left by VXLAN, to {counted(peers, 'node')} that "
            "answer, and none has ever come in by it",
            "what goes by VXLAN is proven at the port where nodes talk to each other: who drops "
            f"UDP {port} alone (a firewall between subnets, a hypervisor with an overlay of its "
            "own, a provider) takes what pods send there, and the nodes count as reached",
            f"let UDP {port} through between these nodes, both ways: tcpdump -ni any udp port "
            f"{port} at both ends says where it stops. Where that cannot be: another vxlan_port "
            "(in the controller's configuration), or limpet network set --encryption all",
        )


def server_findings(addresses: Iterable[str], pod_cidrs: Iterable[Prefix]) -> Iterator[Finding]:
    """`addresses`: HOST:PORT or URLs of who tells this node of its cluster. Pure."""
    cidrs = list(pod_cidrs)
    for at in addresses:
        host = at.split("//")[-1].split("/")[0]
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        try:
            address = ip_address(host)
        except ValueError:
            continue
        if any(address in cidr for cidr in cidrs):
            yield error(
                "server-inside",
                f"{at}, which tells this node of its cluster, is an address of a pod",
                "the node has to reach it before it knows the way to pods: after a reboot, or on "
                "a new node, both wait for each other",
                "name an address that the node reaches without pods' network (the machine's, a "
                "load balancer's, a hostPort)",
            )


def service_road_findings(cluster: ClusterStatus, source: SourceSettings) -> Iterator[Finding]:
    """Whether the API server is asked by the address of a Service, which is what pods are told,
    where nobody but the nodes themselves serves Services. Pure."""
    services, named = cluster.services, source.server or source.kubeconfig
    if services is None or not services.on or services.kube_proxy:
        return
    if source.source == "kubernetes" and not named:
        yield warn(
            "server-by-service",
            "this node asks the API server by the address of Service kubernetes, serves Services "
            "itself, and no kube-proxy is here",
            "it knows where that leads from its own disk; a new node, or one whose disk was "
            "emptied, asks there for ever, and is never ready",
            "set kubernetes_server (of the chart: kubernetesServer) to the API server's own "
            "address, for agents and controllers",
        )


def examine_servers(settings: Settings, pod_cidrs: Iterable[Prefix]) -> Iterator[Finding]:
    # Only here: signatures take time to load.
    from limpet.cluster.identity import load_identity

    try:
        identity = load_identity(settings.folders.cluster_dir)
    except LimpetError:
        return  # a finding of the identity
    told = [settings.source.server] if settings.source.server else []
    yield from server_findings([*told, *(identity.controllers if identity else ())], pod_cidrs)


def examine_vtep_macs(settings: Settings) -> Iterator[Finding]:
    """Whether VXLAN devices have the MACs that were decided and told once."""
    for ifname, mac in changed_vtep_macs(settings):
        yield error(
            "vtep-mac-changed",
            f"{ifname} has another MAC than {mac}, which peers were told",
            "what peers send by VXLAN is dropped here (systemd-udevd and NetworkManager rewrite "
            "MACs of devices that they do not know)",
            f"ip link set {ifname} address {mac}; keep others from it: doctor says of "
            "NetworkManager how",
        )


def changed_vtep_macs(settings: Settings) -> list[tuple[str, str]]:
    """VXLAN devices that have another MAC than is kept, and that. Raises: LimpetError."""
    kept = kept_vtep_macs(settings.folders.cluster_dir / VTEP_FILE)
    with RouteSocket() as route:
        links = {link.group: link for link in route.links().values()}
    found = [(links.get(VXLAN_GROUPS[version]), mac) for version, mac in kept.items()]
    return [(link.ifname, mac) for link, mac in found if link is not None and link.mac != mac]
