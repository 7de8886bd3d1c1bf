"""What the agent's configuration says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from limpet.model.network import Address, Prefix, Range, RangeSet
from limpet.model.tunnel import NAT_TIMEOUT_S


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


def segment_range(segment: Prefix) -> Range:
    """A whole segment: first usable address is the gateway's, network and broadcast left out.

    A segment has at least four addresses.
    """
    last = segment[-2] if segment.version == 4 else segment[-1]
    return Range(subnet=segment, range_start=segment[1], range_end=last, gateway=segment[1])


def segment_range_sets(segments: Iterable[Prefix]) -> tuple[RangeSet, ...]:
    """The segments as one range set for each family that they have."""
    held = tuple(segments)
    return tuple(
        tuple(segment_range(segment) for segment in held if segment.version == version)
        for version in (4, 6)
        if any(segment.version == version for segment in held)
    )
