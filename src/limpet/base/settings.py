"""What the agent's configuration says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from limpet.base.addresses import Address, Prefix

NAT_TIMEOUT_S, KEEPALIVE_S = 30, 25
"""Strict NATs forget UDP after that, and so often something is sent. Source: wg(8)."""


@dataclass(frozen=True, slots=True)
class NetworksBehind:
    """Other networks that pods reach with their own addresses; each prefix once, in order."""

    peers: tuple[Prefix, ...] = ()
    """Behind other nodes."""
    here: tuple[Prefix, ...] = ()
    """Behind this node."""
    barriers: tuple[Prefix, ...] = ()
    """Of those behind other nodes: unreachable without a path."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The agent's settings, checked, defaults filled in."""

    segments: tuple[Prefix, ...] = ()
    """Pod address segments of this node; the gateway of each is its first usable address."""
    cluster_cidrs: tuple[Prefix, ...] = ()
    """Prefixes of all pods of the cluster: never masqueraded, unreachable without a path."""
    behind: NetworksBehind = NetworksBehind()
    """Granted, not configured."""
    cni: bool = True
    """False: pods of this node are another network's; it is a way for them to the cluster's."""
    bridge: str = "limpet0"
    mtu_bytes: int | None = None
    """None: the uplink's minus what an overlay of `overlay_bytes` takes."""
    overlay_bytes: int = 50
    """Room that VXLAN over IPv4 needs; 70 over IPv6."""
    data_dir: Path = Path("/var/lib/cni/networks")
    """Holds `<network>/`, the record of addresses, in host-local's layout."""
    state_dir: Path = Path("/var/lib/limpet")
    run_dir: Path = Path("/run/limpet")
    """Live attachments; on tmpfs, gone after a reboot like the pods themselves."""
    socket: Path = Path("/run/limpet/agent.sock")
    rest_s: float = 30.0
    """Seconds that an address rests after its release while others are free."""
    resync_s: float = 60.0
    """Seconds between rounds that read everything anew, whatever the kernel notified."""
    allow_forward: bool = False
    """Keep an accept rule for our bridge where another's FORWARD chain drops."""
    peer_port: int = 7471
    """UDP port of probes and of the exchange with other nodes."""
    tunnel_ifname: str = "limwg0"
    tunnel_port: int = 0
    """UDP port of the node's tunnel; 0: one made of its key, kept for life."""
    tunnel_endpoints: tuple[tuple[Address, int], ...] = ()
    """Where the tunnel is reached from outside: port-forwards and public addresses."""
    tunnel_program: str = "wireguard-go"
    """Userspace WireGuard, where the kernel has none."""
    ipsec_program: str = "charon-systemd"
    """strongSwan, where the cluster's tunnels are made by IPsec."""
    nat_timeout_s: int = NAT_TIMEOUT_S
    """Seconds of silence after which NATs on this node's way forget UDP."""
    port_mapping: bool = True
    """Ask the gateway for a port (UPnP, NAT-PMP, PCP)."""
    relay_ports: tuple[int, int] = (21000, 22999)
    """First and last UDP port that this node gives to pairs, if it is a relay."""
    relay_tls_listen: tuple[tuple[str, int], ...] = (("::", 443),)
    """Addresses and TCP ports for relaying in TLS connections; empty: none."""
    relay_pairs_per_node: int = 64
    relay_bytes_per_s: int = 0
    """Of one node's packets that this relay forwards; 0: no limit."""
    underlay_links: tuple[str, ...] = ()
    """Patterns of names of the links that lead to other nodes; empty: found by themselves."""
    metrics_listen: tuple[tuple[str, int], ...] = ()
    """Addresses and ports where `/metrics` and `/healthz` are served in clear."""
    log_level: str = "info"

    @property
    def cluster_dir(self) -> Path:
        """Everything that the node keeps of its cluster; `cluster.json` is there once it joined."""
        return self.state_dir / "cluster"
