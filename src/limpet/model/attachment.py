"""One pod interface: what was asked for, and what the node keeps for it."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.model.network import (
    Address,
    Bandwidth,
    Holder,
    InterfaceAddress,
    PortMapping,
    Prefix,
    RouteSpec,
)


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
class Attachment:
    """A pod interface as it should be.

    In IPAM mode (`bridge` None) another plugin owns the interface, and only the addresses are ours.
    """

    network: str
    holder: Holder
    netns: str
    """Path of the pod's network namespace as the runtime named it."""
    netns_device: int
    netns_inode: int
    """What identifies the namespace: a path may be used again for another one."""
    pod_namespace: str
    pod_name: str
    addresses: tuple[InterfaceAddress, ...]
    gateways: tuple[Address, ...]
    """Of the addresses, in the same order."""
    data_dir: str | None = None
    """Where the record of its addresses is, where that is not the agent's own folder."""
    bridge: BridgeSpec | None = None
    host_ifname: str = ""
    host_mac: str = ""
    mac: str = ""
    mtu_bytes: int = 0
    routes: tuple[RouteSpec, ...] = ()
    """Routes of the pod with their gateways filled in (None: on link), default routes included."""
    hairpin: bool = False
    isolated: bool = False
    port_mappings: tuple[PortMapping, ...] = ()
    bandwidth: Bandwidth = Bandwidth()
