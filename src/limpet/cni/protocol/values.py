"""What a CNI request says: the network configuration and who asks for what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from limpet.base.addresses import Address, InterfaceAddress
from limpet.datapath.node.pod.attachment import (
    AllowedSources,
    Bandwidth,
    HostPortMapping,
    RouteSpec,
)
from limpet.ipam.leases import Holder, PodKey, RangeSet


class Verb(Enum):
    """CNI commands that reach the agent (VERSION is answered by the shim)."""

    ADD = "ADD"
    DEL = "DEL"
    CHECK = "CHECK"
    GC = "GC"
    STATUS = "STATUS"
    VERSION = "VERSION"


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
class MainConf:
    """What the network configuration says as one of the main plugin; nothing in IPAM mode."""

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
    port_security: bool = True
    """False: pods of this network may send from any address and MAC."""


@dataclass(frozen=True, slots=True)
class NetworkConf:
    """The network configuration of one request, defaults filled in as the reference bridge does."""

    name: str
    cni_version: str
    ipam_only: bool
    """True: another main plugin calls us as its IPAM plugin."""
    main: MainConf = MainConf()
    ipam: IpamConf = IpamConf()
    dns: Dns = Dns()
    unknown_keys: tuple[str, ...] = ()
    """Dotted names of keys that we do not know, sorted; doctor reports them."""


@dataclass(frozen=True, slots=True)
class PodWishes:
    """What is asked for one pod, beside what its network says."""

    addresses: tuple[Address, ...] = ()
    """Addresses that must be given, from runtimeConfig.ips, args.cni.ips and CNI_ARGS IP."""
    mac: str | None = None
    """Lower case, colon separated."""
    port_mappings: tuple[HostPortMapping, ...] = ()
    bandwidth: Bandwidth = Bandwidth()
    labels: tuple[tuple[str, str], ...] = ()
    """From args.cni.labels, sorted."""
    allowed: AllowedSources = AllowedSources()
    """Whether it is granted is for the node's settings to say."""


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
    wishes: PodWishes = PodWishes()
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
