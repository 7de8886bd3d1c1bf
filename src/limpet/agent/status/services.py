"""Answers about Services, as a node serves them."""

from __future__ import annotations

from limpet.agent.status.said import Said


class ServicesStatus(Said, frozen=True, kw_only=True):
    """Who serves Kubernetes' Services on this node."""

    on: bool
    """This node does, by itself."""
    why: str
    backend: str
    """What it does it by; empty: it does not."""
    why_not_ebpf: str = ""
    """Why it is not eBPF although that is asked for; empty: it is, or nobody asks."""
    asked_backend: str = "nftables"
    """As configured: nftables, ebpf or auto."""
    kube_proxy: str
    """Where rules of kube-proxy are now; empty: nowhere."""
    left_out_objects: int = 0
    """Services and EndpointSlices of which something is left out, since no node can use it, or that
    cannot be read at all."""
    left_out_first: str = ""
    """What of the first of them, in words."""


class EndpointStatus(Said, frozen=True, kw_only=True):
    """An endpoint of a Service's port, as this node sees it."""

    port: str
    """Name, number and protocol of the Service's port."""
    service_port: int
    protocol: str
    address: str
    target_port: int
    node: str
    pod: str
    weight: int
    """How often it is drawn, beside others of the port; 0: it is not in rotation here."""
    why: str
    """Why it is not, or is although it is in doubt; empty: it is, and is not in doubt."""
    connections: int = 0
    """From and through this node, by the Service's addresses: those that the kernel tracks, and
    those of sockets that were connected to the endpoint at once."""


class ServedPort(Said, frozen=True, kw_only=True):
    """At which port a Service is asked."""

    number: int
    protocol: str


class ServiceWay(Said, frozen=True, kw_only=True):
    """A Service that a way leads to: its endpoints, of which this node chooses one."""

    name: str
    """NAMESPACE/NAME."""
    address: str
    ports: list[str]
    """In words, as `served` has them."""
    served: list[ServedPort]
    """At any other port its address refuses."""
    endpoints: list[EndpointStatus]


class ServiceLine(Said, frozen=True, kw_only=True):
    """A Service in `limpet service list`."""

    namespace: str
    name: str
    type: str
    addresses: list[str]
    ports: list[str]
    endpoints: int
    used: int
    """How many of them are in rotation on this node."""
    trouble: str = ""
    """Why it is not served as it asks; empty: it is."""
    left_out: int = 0
    """Objects, the Service and its EndpointSlices, of which something is left out here, since
    no node can use it; the Service also where it cannot be read at all."""
    is_without_programs: bool = False
    """The maps of eBPF programs have no room for it, so nftables serves it."""


class ServicesAnswer(Said, frozen=True, kw_only=True):
    """`limpet service list`."""

    services: list[ServiceLine]
    connected: bool
    """The API server tells what changes; else what is known is from the disk, or from before."""
    error: str
    kube_proxy: str
    """Where rules of kube-proxy were when last looked for; empty: nowhere."""
    failed: list[str]
    """What of the last round could not be done."""
    backend: str = "nftables"
    """By what pods and processes of this node are served: ebpf or nftables."""
    why_not_ebpf: str = ""
    """Although it is asked for; empty: it is used, or nobody asks."""
    left_out: list[str]
    """What of which object no node can use, in words; of the first so many."""
    left_out_objects: int = 0
    """Objects of which something is left out, those that cannot be read at all among them."""


class ServiceAnswer(Said, frozen=True, kw_only=True):
    """`limpet service show`."""

    service: ServiceLine
    external: list[str]
    affinity_s: int
    internal_local: bool
    external_local: bool
    distribution: str
    endpoints: list[EndpointStatus]
    failed: list[str]
    left_out: list[str]
    """As of all Services."""
