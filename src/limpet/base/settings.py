"""What a person wrote in the agent's configuration, noun by noun; nothing changes it.

Each room takes the struct of its own noun; `agent.settings` reads them all from one file.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from limpet.base.addresses import LONGEST_SEGMENT, Address, Prefix, ifname_problem, parse_listen
from limpet.base.bounds.members import RELAY_PAIRS, RELAY_PAIRS_OF_ONE
from limpet.base.configuration import (
    AGENT_SOCKET,
    AbsolutePath,
    Listens,
    Port,
    Prefixes,
    Text,
    read_listens,
    read_prefixes,
    written,
)

NAT_TIMEOUT_S, KEEPALIVE_S = 30, 25
"""Strict NATs forget UDP after that, and so often something is sent. Source: wg(8)."""
_MAC_PREFIX = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){0,5}")


def _ifname(value: str) -> str:
    if problem := ifname_problem(value):
        raise ValueError(problem)
    return value


def _segments(value: list[str]) -> tuple[Prefix, ...]:
    segments = read_prefixes(value)
    for segment in segments:
        longest = LONGEST_SEGMENT[segment.version]
        if segment.prefixlen > longest:
            raise ValueError(f"{segment} is too small: at most /{longest}")
        if segment.is_multicast or segment.is_loopback or segment.is_link_local:
            raise ValueError(f"{segment} is multicast, loopback or link-local, not for pods")
    for one, other in combinations(segments, 2):
        if one.version == other.version and one.overlaps(other):
            raise ValueError(f"{other} overlaps {one}")
    return segments


def _mac_prefixes(value: list[str]) -> tuple[str, ...]:
    for each in value:
        if not _MAC_PREFIX.fullmatch(each):
            raise ValueError(f"{each!r} is no beginning of a MAC")
    return tuple(each.lower() for each in value)


def _endpoints(value: str | list[str]) -> tuple[tuple[Address, int], ...]:
    found: list[tuple[Address, int]] = []
    for address, port in read_listens(value):
        at = ip_address(address)
        if at.is_unspecified or at.is_loopback or at.is_multicast:
            raise ValueError(f"{address} is no address that others reach")
        if (at, port) in found:
            raise ValueError(f"{address} port {port} is there twice")
        found.append((at, port))
    return tuple(found)


def _dns_addresses(value: list[str]) -> tuple[Address, ...]:
    found = tuple(dict.fromkeys(map(ip_address, value)))
    for each in found:
        if each.is_unspecified or each.is_multicast or each.is_loopback:
            raise ValueError(f"{each} is no address that pods reach")
        if each.version == 6 and each.is_link_local:
            raise ValueError(
                f"{each} is link-local: pods reach it by no gateway (take one of fd00::/8)"
            )
    if not found:
        raise ValueError('none at all (dns = "off" turns it off)')
    return found


def _dns_upstreams(value: list[str]) -> tuple[tuple[Address, int], ...]:
    found = []
    for each in value:
        try:
            found.append((ip_address(each), 53))
        except ValueError:
            address, port = parse_listen(each)
            found.append((ip_address(address), port))
    return tuple(dict.fromkeys(found))


def _domain(value: str) -> str:
    domain = value.strip(".").lower()
    labels = domain.split(".")
    if not all(0 < len(label) <= 63 and label.isascii() for label in labels) or len(domain) > 200:
        raise ValueError(f"{value!r} is no domain")
    return domain


def _port_range(value: tuple[int, int]) -> tuple[int, int]:
    if value[1] <= value[0]:
        raise ValueError(f"not {_PORT_RANGE}")
    return value


_PORT_RANGE = "a first and a last port from 1024 on, such as [21000, 22999]"
_UNPRIVILEGED = Annotated[int, Meta(ge=1024, le=65535)]
_IFNAME = written(
    Annotated[str, Meta(min_length=1)], _ifname, "an interface name of 1 to 15 characters"
)
_ENDPOINTS = written(
    str | list[str], _endpoints, 'a list of addresses with ports such as ["203.0.113.9:51820"]'
)


class Folders(Struct, frozen=True, kw_only=True):
    """Where the agent keeps what it must not forget, and where it is asked."""

    data_dir: AbsolutePath = Path("/var/lib/cni/networks")
    """Holds `<network>/`, the record of addresses, in host-local's layout."""
    state_dir: AbsolutePath = Path("/var/lib/limpet")
    run_dir: AbsolutePath = Path("/run/limpet")
    """Live attachments; on tmpfs, gone after a reboot like the pods themselves."""
    socket: AbsolutePath = AGENT_SOCKET

    @property
    def cluster_dir(self) -> Path:
        """Everything that the node keeps of its cluster; `cluster.json` is there once it joined."""
        return self.state_dir / "cluster"


class PodSettings(Struct, frozen=True, kw_only=True):
    """Pods of this node and their bridge."""

    cni: bool = True
    """False: pods of this node are another network's; it is a way for them to the cluster's."""
    segments: Annotated[
        tuple[Prefix, ...],
        written(list[str], _segments, 'a list of prefixes such as ["10.244.7.0/24"]'),
    ] = ()
    """Pod prefixes of a node on its own; the gateway of each is its first usable address."""
    cluster_cidrs: Prefixes = ()
    """Prefixes of all pods everywhere, beside those that a cluster tells."""
    bridge: Annotated[str, _IFNAME] = "limpet0"
    mtu_bytes: Annotated[int, Meta(ge=576, le=65535)] | None = None
    """None: the uplink's minus what an overlay of `overlay_bytes` takes."""
    overlay_bytes: Annotated[int, Meta(ge=0, le=200)] = 50
    """Room that VXLAN over IPv4 needs; 70 over IPv6."""
    rest_s: Annotated[float, Meta(ge=0, lt=1e9)] = 30.0
    """Seconds that an address rests after its release while others are free."""
    allow_forward: bool = False
    """Keep an accept rule for our bridge where another's FORWARD chain drops."""
    port_security: Literal["off", "auto", "on"] = "auto"
    """"on": pods send from their own addresses only, or do not start; "auto": pods start too where
    the kernel can not hold them to that."""
    pod_extra_addresses: Prefixes = ()
    """Out of these a pod may ask for more to send from."""
    pod_extra_macs: Annotated[
        tuple[str, ...],
        written(
            list[str], _mac_prefixes, 'a list of beginnings of MACs such as ["00:00:5e:00:01"]'
        ),
    ] = ()
    """With these a MAC begins that a pod may ask for."""


class PeerSettings(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"port": "peer_port", "links": "underlay_links", "endpoints": "tunnel_endpoints"},
):
    """How other nodes and this one find each other."""

    port: Port = 7471
    """UDP port of probes and of the exchange with other nodes."""
    links: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...], Meta(description="a list of texts")
    ] = ()
    """Patterns of names of the links that lead to other nodes; empty: found by themselves."""
    endpoints: Annotated[tuple[tuple[Address, int], ...], _ENDPOINTS] = ()
    """Where the tunnel is reached from outside: port-forwards and public addresses."""
    nat_timeout_s: Annotated[int, Meta(ge=4, le=NAT_TIMEOUT_S)] = NAT_TIMEOUT_S
    """Seconds of silence after which NATs on this node's way forget UDP."""
    port_mapping: bool = True
    """Ask the gateway for a port (UPnP, NAT-PMP, PCP)."""


class SourceSettings(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "kubeconfig": "kubernetes_kubeconfig",
        "context": "kubernetes_context",
        "server": "kubernetes_server",
        "token_file": "kubernetes_token_file",
        "ca_file": "kubernetes_ca_file",
        "join_token_file": "kubernetes_join_token_file",
    },
):
    """By which road the node hears what the cluster knows."""

    source: Literal["controller", "kubernetes"] = "controller"
    kubeconfig: AbsolutePath | None = None
    """A file that says where the API server is; None, and no `server`: the pod's own account."""
    context: Text | None = None
    """Context of the kubeconfig; None: its current one."""
    server: Text | None = None
    """URL of an API server, or of a cache on this machine, in place of the kubeconfig's."""
    token_file: AbsolutePath | None = None
    """Token to show, in place of the kubeconfig's or the account's."""
    ca_file: AbsolutePath | None = None
    """Certificates that the server is known by, in place of the kubeconfig's or the account's."""
    join_token_file: AbsolutePath | None = None
    """Token of the agent's pod for the controller: a node that has not joined does so with it."""

    def __post_init__(self) -> None:
        if self.join_token_file is not None and self.source != "kubernetes":
            raise ValueError(
                f"kubernetes_join_token_file = {str(self.join_token_file)!r}: with source = "
                f'"{self.source}" nothing says where the controllers are (source = "kubernetes")'
            )
        if self.context is not None and self.kubeconfig is None:
            raise ValueError(
                f"kubernetes_context = {self.context!r}: there is no kubernetes_kubeconfig that it "
                "could be of"
            )


class ServiceSettings(
    Struct,
    frozen=True,
    kw_only=True,
    rename=lambda name: "services" if name == "mode" else f"services_{name}",
):
    """Services of Kubernetes on this node."""

    mode: Literal["off", "on"] | None = None
    """"on": this node serves them itself, in place of kube-proxy; None: as the cluster says."""
    backend: Literal["nftables", "ebpf", "auto"] = "nftables"
    """"ebpf": at the socket, by programs beside the rules of nftables; "auto": where that works."""
    near_first: bool = True
    """Where neither the Service nor its hints say who is preferred; false: all endpoints alike, as
    kube-proxy draws them."""
    cgroup: AbsolutePath | None = None
    """Control group whose processes programs serve; None: the machine's root, found by itself."""
    node_port_addresses: Prefixes = ()
    """Prefixes of the node's addresses at which ports of Services are served; of an IP version of
    which there is none, at all but loopback's."""


class PolicySettings(Struct, frozen=True, kw_only=True, rename={"mode": "policies"}):
    """Network policies of Kubernetes on this node."""

    mode: Literal["off", "on"] | None = None
    """"on": this node holds its pods to them; None: it does not, and nobody has said so."""


class TunnelSettings(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"ifname": "tunnel_ifname", "port": "tunnel_port", "program": "tunnel_program"},
):
    """The encrypted tunnels of this node."""

    ifname: Annotated[str, _IFNAME] = "limwg0"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """UDP; 0: one made of the node's key, kept for life."""
    program: Text = "wireguard-go"
    """Userspace WireGuard, where the kernel has none."""
    ipsec_program: Text = "charon-systemd"
    """strongSwan, where the cluster's tunnels are made by IPsec."""


class DnsSettings(
    Struct,
    frozen=True,
    kw_only=True,
    rename=lambda name: name if name == "dns" else f"dns_{name}",
):
    """Names for the pods of this node, answered by a process of its own (`limpet dns serve`)."""

    dns: Literal["off", "on"] = "off"
    listen: Annotated[
        tuple[Address, ...],
        written(list[str], _dns_addresses, 'a list of addresses such as ["169.254.20.10"]'),
    ] = (ip_address("169.254.20.10"), ip_address("fd5b:9ad1:7e3c::53"))
    """Where pods ask; held by a link of our own."""
    domain: Annotated[str, written(Text, _domain, 'a domain such as "cluster.local"')] = (
        "cluster.local"
    )
    upstreams: Annotated[
        tuple[tuple[Address, int], ...],
        written(list[str], _dns_upstreams, 'a list of addresses such as ["192.0.2.53"]'),
    ] = ()
    """Who knows further names; empty: the name servers of `resolv_conf`."""
    resolv_conf: AbsolutePath = Path("/etc/resolv.conf")
    stale_s: Annotated[float, Meta(ge=0, le=7 * 86400)] = 86400.0
    """An answer that has ended is told for so long while no upstream can be asked."""
    in_results: bool = False
    """Runtimes are told of it with each pod's addresses; a kubelet's say of itself goes first."""
    metrics_listen: Listens = ()
    """Addresses and ports where `/metrics` and `/healthz` of names are served in clear."""


class RelaySettings(Struct, frozen=True, kw_only=True, rename=lambda name: f"relay_{name}"):
    """What this node gives to others, if it is a relay."""

    ports: Annotated[
        tuple[int, int],
        written(tuple[_UNPRIVILEGED, _UNPRIVILEGED], _port_range, _PORT_RANGE),
    ] = (21000, 20999 + 2 * RELAY_PAIRS.most)
    """First and last UDP port that pairs get."""
    tls_listen: Listens = (("::", 443),)
    """Addresses and TCP ports for relaying in TLS connections; empty: none."""
    pairs_per_node: Annotated[int, Meta(ge=1, le=10_000)] = RELAY_PAIRS_OF_ONE.most
    bytes_per_s: Annotated[int, Meta(ge=0, le=10**12)] = 0
    """Bytes of one node's packets that are forwarded in a second; 0: no limit."""
