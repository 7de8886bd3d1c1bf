"""What a CNI request says: the network configuration and who asks for what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_network,
)

Address = IPv4Address | IPv6Address
Prefix = IPv4Network | IPv6Network
InterfaceAddress = IPv4Interface | IPv6Interface


def bounds_of(prefix: Prefix) -> tuple[int, int]:
    """First and last address.

    `prefix.broadcast_address` would be kept in every prefix: 300 bytes of each, of thousands.
    """
    first = int(prefix.network_address)
    return first, first | (1 << (prefix.max_prefixlen - prefix.prefixlen)) - 1


_LOCAL = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),  # RFC 1918
            "100.64.0.0/10",  # RFC 6598: of a carrier
            *("127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "224.0.0.0/3"),
            "fc00::/7",  # RFC 4193
            *("::/8", "fe80::/10", "ff00::/8"),
        ),
    )
)


def is_public(address: Address) -> bool:
    """Whether the whole Internet may know a way to it: no RFC 1918, 4193 or 6598, nor of a link."""
    return not any(address.version == prefix.version and address in prefix for prefix in _LOCAL)


class Verb(Enum):
    """CNI commands that reach the agent (VERSION is answered by the shim)."""

    ADD = "ADD"
    DEL = "DEL"
    CHECK = "CHECK"
    GC = "GC"
    STATUS = "STATUS"
    VERSION = "VERSION"


@dataclass(frozen=True, slots=True)
class Range:
    """One entry of host-local's `ranges`: bounds inclusive, the gateway never given."""

    subnet: Prefix
    range_start: Address
    range_end: Address
    gateway: Address


RangeSet = tuple[Range, ...]
"""Ranges of one family; one address is given out of each set."""


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
class Dns:
    """The `dns` object of a CNI result."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IpamConf:
    """The `ipam` object. Empty `range_sets`: the addresses come from the agent's segments."""

    range_sets: tuple[RangeSet, ...] = ()
    routes: tuple[RouteSpec, ...] = ()
    resolv_conf: str | None = None
    """Path of a resolv.conf whose content becomes `dns` of the result."""
    data_dir: str | None = None
    """Folder that holds `<network>/`; None: the agent's own."""


@dataclass(frozen=True, slots=True)
class PortMapping:
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
class NetworkConf:
    """The network configuration of one request, defaults filled in as the reference bridge does."""

    name: str
    cni_version: str
    ipam_only: bool
    """True: another main plugin calls us as its IPAM plugin."""
    bridge: str | None = None
    """None: the agent's bridge."""
    mtu_bytes: int | None = None
    """None: the agent's pod MTU."""
    hairpin_mode: bool = False
    ip_masq: bool = False
    is_gateway: bool = False
    is_default_gateway: bool = False
    promisc_mode: bool = False
    port_isolation: bool = False
    ipam: IpamConf = IpamConf()
    dns: Dns = Dns()
    unknown_keys: tuple[str, ...] = ()
    """Dotted names of keys that we do not know, sorted; doctor reports them."""


@dataclass(frozen=True, slots=True)
class PodKey:
    """Who an address is kept for, within one network. Empty namespace and pod: nobody."""

    namespace: str
    pod: str
    ifname: str


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds an address now. Source: host-local's reservations: container id, CR LF, ifname."""

    container_id: str
    ifname: str


@dataclass(frozen=True, slots=True)
class CniRequest:
    """One CNI request, parsed and valid for its verb."""

    verb: Verb
    conf: NetworkConf
    container_id: str = ""
    ifname: str = ""
    netns: str = ""
    """Path of the pod's network namespace; may be empty on DEL."""
    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    requested_addresses: tuple[Address, ...] = ()
    """Addresses that must be given, from runtimeConfig.ips, args.cni.ips or CNI_ARGS IP."""
    requested_mac: str | None = None
    """Lower case, colon separated."""
    port_mappings: tuple[PortMapping, ...] = ()
    bandwidth: Bandwidth = Bandwidth()
    prev_result: CniResult | None = None
    valid_attachments: frozenset[Holder] | None = None
    """GC only. None: the key was absent, which is not the same as an empty list."""

    @property
    def holder(self) -> Holder:
        return Holder(self.container_id, self.ifname)

    @property
    def pod_key(self) -> PodKey:
        return PodKey(self.pod_namespace, self.pod_name, self.ifname)


@dataclass(frozen=True, slots=True)
class ResultInterface:
    """`sandbox` is empty for interfaces of the host."""

    name: str
    mac: str = ""
    mtu_bytes: int | None = None
    sandbox: str = ""
    socket_path: str = ""
    pci_id: str = ""


@dataclass(frozen=True, slots=True)
class ResultAddress:
    """`interface` indexes CniResult.interfaces; None in an IPAM result."""

    address: InterfaceAddress
    gateway: Address | None = None
    interface: int | None = None


@dataclass(frozen=True, slots=True)
class CniResult:
    """A result, independent of the CNI version it is written in."""

    interfaces: tuple[ResultInterface, ...] = ()
    addresses: tuple[ResultAddress, ...] = ()
    routes: tuple[RouteSpec, ...] = ()
    dns: Dns = Dns()
