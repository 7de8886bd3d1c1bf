"""The node in its cluster: identity, grant, controller, links, peers and tunnel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from limpet.agent.settings import Settings
from limpet.agent.status.cluster import (
    ApiServerStatus,
    ClusterStatus,
    ControllerStatus,
    TunnelStatus,
)
from limpet.agent.status.services import ServicesStatus
from limpet.base.errors import LimpetError
from limpet.cli.commands.status import MADE_BY
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.output import counted, off_by
from limpet.cli.owners import is_ours
from limpet.cluster.kinds.network import Encryption
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.netlink.vxlan import parse_vxlan

_LONG_S = 300.0
"""An uplink may be gone for a while; longer than this a person may not know of."""
_JOIN_AS_NEW = (
    "`limpet join --new-identity` with a new token (limpet token create, where the controller runs)"
)


def examine_identity(folder: Path) -> Iterator[Finding]:
    """Whether the node knows who it is, by what it keeps in `folder`; also without an agent."""
    # Only here: signatures take time to load.
    from limpet.cluster.identity import load_identity

    try:
        identity = load_identity(folder)
    except LimpetError as problem:
        yield error(
            "identity-damaged",
            str(problem),
            "the agent does not start with it",
            "put the folder back from a back-up, or give the node a new identity",
        )
        return
    if identity is not None:
        yield ok(f"the node has an identity: {identity.name}, {identity.uid}")
    elif folder.exists() and any(folder.iterdir()):
        yield warn(
            "joining-unfinished",
            f"{folder} has parts of an identity: joining was begun, not finished",
            "the node is in no cluster",
            "run the same `limpet join` again; it goes on where it ended",
        )


def cluster_findings(cluster: ClusterStatus) -> Iterator[Finding]:
    """What is wrong by the cluster part of the agent's status. Pure."""
    if cluster.removed:
        yield error(
            "node-removed",
            "this node was removed from its cluster",
            "its pods reach no other node, and new ones get no address",
            f"if it should be there: {_JOIN_AS_NEW}",
        )
        return
    if cluster.cloned:
        yield error(
            "identity-cloned",
            f"another machine has this node's identity ({cluster.uid})",
            "nobody is told of this node's address any more; packets may go to the other machine",
            f"on the copy stop the agent, then {_JOIN_AS_NEW}; then reboot the machine that keeps "
            "the identity (to restart its agent is not enough). Where there is no copy, its key "
            "was stolen: in the cloud `limpet node replace` with its name, then `limpet join "
            "--new-identity` here",
        )
    for told in cluster.by_former_keys:
        who = f"{told.by} ({told.uid})" if told.uid else "the controller or the API server"
        yield error(
            "key-revoked",
            f"{who} tells {told.what}, signed by a revoked key of the cluster or a successor of it "
            f"that is none; it was refused {counted(told.count, 'time')}",
            "somebody has a former key of the cluster: either of the two was taken in",
            f"compare: here the key {cluster.key} signs; `limpet status` there; `limpet network "
            "show` in the cloud. Whoever has another than the cloud: limpet node replace "
            "NAME there, then `limpet join --new-identity` on the node",
        )
    if not cluster.granted:
        yield error(
            "not-granted",
            f"nothing is known of what the cluster has granted to {cluster.node}",
            "pods get no addresses",
            f"let it reach a controller ({cluster.controller.address}); else {_JOIN_AS_NEW}",
        )
    yield from _controller(cluster.controller, cluster.api_server)
    if cluster.api_server is not None:
        yield from _api_server(cluster.api_server)
    if cluster.services is not None:
        yield _services(cluster.services)
        yield from _left_out(cluster.services)
    yield from _links(cluster)
    yield from _peers(cluster)
    yield from _tunnel(cluster.tunnel, "encrypted tunnel", cluster.encryption)
    if cluster.ipsec is not None:
        yield from _tunnel(cluster.ipsec, "tunnel by IPsec", cluster.encryption)
    for failure in cluster.last_round.failed:
        yield error(
            "not-as-planned",
            f"the way to other nodes is not as planned: {failure}",
            "the agent tries again by itself",
            "do what the message says; if it says nothing, read the agent's log (journalctl -u "
            "limpet-agent; of a pod, kubectl logs)",
        )
    for problem in cluster.disk:
        yield warn(
            "cluster-disk",
            problem,
            "what the node knows of the cluster may not survive its next start",
            "look at the disk; what is lost is told anew by neighbours and the cloud",
        )


def _services(services: ServicesStatus) -> Finding:
    found = services.kube_proxy
    if services.on and found:
        return warn(
            "kube-proxy-beside",
            f"this node serves Services, and kube-proxy has rules here, too: {found}",
            "Limpet's come first; those of kube-proxy cost memory, and time with each change",
            "set kubernetes_server where it is not (limpet help services says why), then end "
            "kube-proxy on this node and have it clean up (kube-proxy --cleanup)",
        )
    if services.on and services.why_not_ebpf and services.asked_backend == "ebpf":
        return warn(
            "services-not-by-ebpf",
            f"this node serves Services by nftables alone: {services.why_not_ebpf}",
            "they work; but packets are translated and tracked, which eBPF would spare",
            'mend what is missing, or set services_backend = "auto"',
        )
    if services.on:
        why_not = f"; not by eBPF: {services.why_not_ebpf}" if services.why_not_ebpf else ""
        return ok(f"this node serves Services, by {services.backend} ({services.why}){why_not}")
    if found:
        return ok(f"kube-proxy serves Services here ({found}); Limpet does not: {services.why}")
    return ok(f"Limpet serves no Services here, and no kube-proxy is found: {services.why}")


def examine_policies(settings: Settings) -> Iterator[Finding]:
    """Pure."""
    hears_kubernetes = settings.source.source == "kubernetes" and settings.pods.cni
    if hears_kubernetes and settings.policies.mode is None:
        yield warn(
            "policies-not-said",
            "this node looks at no NetworkPolicy of Kubernetes, and its configuration does not say "
            "whether it should",
            "its pods receive and send what they like, whatever NetworkPolicies select them",
            'policies = "on" in the agent\'s configuration, and restart the agent; or "off", where '
            "something else sees to them",
        )


def _left_out(services: ServicesStatus) -> Iterator[Finding]:
    count, first = services.left_out_objects, services.left_out_first
    if count:
        more = f", and so with {counted(count - 1, 'more object')}" if count > 1 else ""
        yield warn(
            "service-left-out",
            f"no node can use all that the API server has of Services: {first}{more}",
            "what is left out is not served, and what cannot be read is served as it was before",
            "`limpet service list` tells each; put them right with kubectl, or at their source",
        )


def _controller(controller: ControllerStatus, api: ApiServerStatus | None) -> Iterator[Finding]:
    at, for_s, why = controller.address, controller.for_s, controller.error
    has_news = api is not None and api.connected
    if controller.connected:
        yield ok(f"the controller at {at} is connected")
    elif for_s > _LONG_S:
        yield warn(
            "controller-away",
            f"not connected to the controller at {at} for {for_s / 60:.0f} minutes"
            + (f": {why}" if why else ""),
            "pods go on, and the API server tells what is new in the cluster; but no segment comes"
            if has_news
            else "pods go on; but news of the cluster come from neighbours only, and no segment "
            "comes",
            "look at the uplink and the controller (where the cloud is cut off: nothing)",
        )
    if controller.refused:
        yield warn(
            "controller-refuses",
            f"the controller does not take now: {controller.refused}",
            "it, and whoever hears of this node by it, goes by what it was told before",
            "do what the message says; the agent tries again by itself",
        )
    if controller.segment_refused:
        yield warn(
            "no-further-segment",
            f"the controller gives no further segment: {controller.segment_refused}",
            "when the present segments are full, no more pods can be started here",
            "limpet segment list and limpet network show, where the controller runs",
        )
    for words in controller.told:
        yield warn(
            "controller-says",
            f"the controller says of this node: {words}",
            "it knows of pods of other networks and nodes, which this node does not",
            "do what the message says",
        )


def _api_server(api: ApiServerStatus) -> Iterator[Finding]:
    at = f"the API server at {api.server}" if api.server else "the API server"
    if api.connected:
        yield ok(f"{at} is connected")
    elif api.refuses:
        yield warn(
            "api-server-refuses",
            f"{at} answers, and refuses what this node asks: {api.error}",
            "pods go on; but news of the cluster come from neighbours only",
            "apply Limpet's manifests (or its chart) again: they let the agents' account, and "
            "kubelets', read what they need; for another account (kubernetes_kubeconfig in the "
            "agent's configuration) `kubectl auth can-i --list` says what it may",
        )
    elif api.for_s > _LONG_S or (api.error and not api.server):
        yield warn(
            "api-server-away",
            f"not connected to {at} for {api.for_s / 60:.0f} minutes"
            + (f": {api.error}" if api.error else ""),
            "pods go on; but news of the cluster come from neighbours only",
            "do what the message says; the agent tries again by itself (where the cloud is cut "
            "off: nothing, or a cache on the node: kubernetes_server in its configuration)",
        )
    if api.refused:
        yield warn(
            "presence-not-told",
            f"this node's presence is not at the API server: {api.refused}",
            "other nodes learn from their neighbours alone where this one is",
            "do what the message says; the agent tries again by itself",
        )
    if api.clock_ahead_s:
        yield warn(
            "clock-wrong",
            f"the clock of this machine is {off_by(api.clock_ahead_s)} of the API server's",
            "Limpet and its pods' network go on with any clock; but its log has wrong times, and "
            "kubelets and other programs that mind certificates may not get anywhere",
            "set it: timedatectl set-time, or let systemd-timesyncd or chrony do it (if it is "
            "right, that of the API server's machine is wrong)",
        )
    for problem in api.unusable:
        yield warn(
            "object-unusable",
            f"an object at the API server counts for nothing: {problem}",
            "what is known of it already goes on; nothing new is heard by it",
            "delete it with kubectl; who has signed a good one writes it again",
        )
    for words in api.told:
        yield warn(
            "controller-says",
            f"the controller says of this node: {words}",
            "it is told at the node's objects too: kubectl describe nodepresence, nodegrant",
            "do what the message says",
        )


def _links(cluster: ClusterStatus) -> Iterator[Finding]:
    if cluster.links:
        names = ", ".join(link.ifname for link in cluster.links)
        yield ok(f"links to other nodes: {names}")
    else:
        yield error(
            "no-underlay-link",
            "no link leads to other nodes",
            "pods reach those of this node only",
            "see `ip address`: a link that is up with an address; where it is not found by "
            "itself, name it in the agent's configuration (underlay_links)",
        )


def _peers(cluster: ClusterStatus) -> Iterator[Finding]:
    peers = cluster.peers
    wanted = sum(peers.values()) - peers["apart"]
    lost, partly = peers["unreached"], cluster.partly_reached_peers
    silent = cluster.silent_peers
    if silent:
        yield warn(
            "peers-unreached",
            f"{_of(silent, wanted)} silent",
            "its agent answers by no way: Services do without its endpoints, and its pods are "
            "perhaps not reached",
            "limpet peer list names it; a node that is off is no problem",
        )
    if lost:
        yield warn(
            "peers-unreached",
            f"{_of(lost, wanted)} not reached",
            "their pods and ours cannot talk",
            "limpet peer list says why; a node that is off is no problem",
        )
    if partly:
        yield warn(
            "peers-unreached",
            f"{_of(partly, wanted)} reached in part: not by each IP version, or not each segment",
            "pods that have only addresses of the other part, and ours, cannot talk",
            "limpet peer list says which part, and why",
        )
    if wanted and not (lost or silent or partly):
        all_of_them = "the one other node is" if wanted == 1 else f"all {wanted} other nodes are"
        yield ok(f"{all_of_them} reached")
    for each in cluster.claims:
        yield error(
            "peer-claims",
            f"node {each.node} (uid {each.uid}) claims what is not its own: {each.what}",
            "it gets nothing of the other node's, and is not reached by VXLAN itself",
            "look at that machine: somebody else may be in it (then, in the cloud: limpet node "
            f"remove {each.uid}), or its disk is a copy of another's (then, on the copy, "
            f"{_JOIN_AS_NEW}), or both were set up with one MAC of flannel's",
        )


def _of(some: int, all_of_them: int) -> str:
    verb = "is" if some == 1 else "are"
    return f"{some} of {counted(all_of_them, 'other node')} {verb}"


def _tunnel(tunnel: TunnelStatus, what: str, encryption: str) -> Iterator[Finding]:
    """`encryption`: what the cluster encrypts."""
    if tunnel.problem:
        yield (error if tunnel.needed else warn)(
            "tunnel-missing",
            f"there is no {what}: {tunnel.problem}",
            "no node is reached by it, those of this site neither: the cluster encrypts all"
            if encryption == Encryption.ALL.value
            else "nodes of other sites are not reached by it; those of this site are, in clear",
            "do what the message says; the agent looks again by itself",
        )
        return
    if not tunnel.backend:
        return
    if tunnel.slow:
        yield warn(
            "wireguard-slow",
            f"the userspace WireGuard is of version {tunnel.version}",
            "it passes a sixth of what those from 0.0.20230223 on do",
            "install a newer wireguard-go (on Debian 12 that of its backports), end the one that "
            "runs (pods of other sites are not reached for a moment); the agent starts the new one",
        )
    if tunnel.rules != [4, 6]:
        yield error(
            "tunnel-rule-missing",
            "the rule that keeps the tunnel's own packets out of the tunnel is not there",
            "where another site's pods have an address of this site's, the tunnel ends in itself",
            "the agent puts it; if it goes again and again, look for another program that sets "
            "rules (ip rule show)",
        )
    else:
        yield ok(
            f"{what} {tunnel.ifname} ({MADE_BY[tunnel.backend]}) on UDP port "
            f"{tunnel.port}, "
            f"{tunnel.sessions} of {tunnel.peers} peers with a session"
        )


def examine_vxlan(vni: int, port: int) -> Iterator[Finding]:
    """An error for a VXLAN device of others with our id and port: ours cannot be made beside it."""
    with RouteSocket() as route:
        for message in route.dump(link_codec.dump_links()):
            options, link = parse_vxlan(message), link_codec.parse_link(message)
            if options is None or is_ours(link):
                continue
            if (options.vni, options.port) == (vni, port):
                yield error(
                    "vxlan-id-taken",
                    f"{link.ifname} is a VXLAN device with the cluster's id {vni} and port {port}",
                    "the kernel allows no second one, so nodes beyond the LAN are not reached",
                    f"if it is left over from another pod network, delete it when its pods are "
                    f"gone (ip link delete {link.ifname}); else give the cluster another "
                    "vxlan_id (in the controller's configuration)",
                )
