"""One pod interface: what was asked for, and what the node keeps for it."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.base.addresses import Address, InterfaceAddress, Prefix
from limpet.ipam.leases import Holder


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """A route for the pod. `gateway` None means the gateway of the address's own subnet."""

    destination: Prefix
    gateway: Address | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


@dataclass(frozen=True, slots=True)
class HostPortMapping:
    """A hostPort. `host_address` None means every address of the node, both families; 0.0.0.0 or
    :: means every address of that family."""

    host_port: int
    container_port: int
    protocol: str
    """tcp, udp or sctp."""
    host_address: Address | None = None


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Limits of one pod, bits per second and bits of burst; 0: no limit. Ingress is to the pod."""

    ingress_rate_bits: int = 0
    ingress_burst_bits: int = 0
    egress_rate_bits: int = 0
    egress_burst_bits: int = 0


@dataclass(frozen=True, slots=True)
class BridgeSpec:
    """What a network needs of its bridge, with or without pods."""

    ifname: str
    gateways: tuple[InterfaceAddress, ...] = ()
    """Gateway addresses that the bridge holds, first segment first."""
    masquerade: tuple[Prefix, ...] = ()
    """Prefixes whose traffic out of the cluster takes the node's address."""
    promisc: bool = False


@dataclass(frozen=True, slots=True)
class Netns:
    """A pod's network namespace."""

    path: str
    """As the runtime named it."""
    device: int
    inode: int
    """What identifies the namespace: a path may be used again for another one."""

    @property
    def id(self) -> tuple[int, int]:
        """As `linux.namespaces` tells it."""
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class PodName:
    """Both empty where the runtime names none."""

    namespace: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that the runtime has told, sorted."""


@dataclass(frozen=True, slots=True)
class AllowedSources:
    """What a pod may send from beside its own addresses and MAC."""

    unchecked: bool = False
    """The pod may send from whatever it likes."""
    macs: tuple[str, ...] = ()
    prefixes: tuple[Prefix, ...] = ()
    """Addresses are prefixes of full length."""


@dataclass(frozen=True, slots=True)
class PodLink:
    """A veth pair, one end in the pod."""

    host_ifname: str = ""
    host_mac: str = ""
    mac: str = ""
    """MAC of the pod's end."""
    mtu_bytes: int = 0
    hairpin: bool = False
    isolated: bool = False
    allowed: AllowedSources = AllowedSources()


@dataclass(frozen=True, slots=True)
class Attachment:
    """A pod interface as it should be.

    In IPAM mode (`bridge` None) another plugin owns the interface, and only the addresses are ours.
    """

    network: str
    holder: Holder
    netns: Netns
    pod: PodName
    addresses: tuple[InterfaceAddress, ...]
    gateways: tuple[Address, ...]
    """Gateways of the addresses, in the same order."""
    data_dir: str | None = None
    """Where the record of its addresses is, where that is not the agent's own folder."""
    bridge: BridgeSpec | None = None
    link: PodLink = PodLink()
    routes: tuple[RouteSpec, ...] = ()
    """Routes of the pod with their gateways filled in (None: on link), default routes included."""
    port_mappings: tuple[HostPortMapping, ...] = ()
    bandwidth: Bandwidth = Bandwidth()
