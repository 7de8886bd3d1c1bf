"""What Services and EndpointSlices say, without what no node looks at.

There may be 10,000 Services with 50,000 endpoints in an agent's memory: structs that the garbage
collector need not look at, addresses as they are written, and one text for words that come again.
Source: k8s.io/api/core/v1/types.go, discovery/v1/types.go.
"""

from __future__ import annotations

from msgspec import Struct

NONE = "None"
"""In place of a cluster address: the Service has none, its name leads to its endpoints."""
READY, SERVING, TERMINATING, DOUBTED = 1, 2, 4, 8

ServiceName = tuple[str, str]
"""Namespace and name."""


class ServicePort(Struct, frozen=True, gc=False, array_like=True):
    """A port of a Service; endpoints are found for it by its name."""

    name: str = ""
    """Empty: the only one."""
    protocol: str = "TCP"
    port: int = 0
    node_port: int = 0
    """At each node's own addresses; 0: none."""

    @property
    def words(self) -> str:
        """`http 80:30080/TCP`, as kubectl has it."""
        number = f"{self.port}:{self.node_port}" if self.node_port else str(self.port)
        return f"{self.name + ' ' if self.name else ''}{number}/{self.protocol}"


class Exposure(Struct, frozen=True, gc=False, array_like=True):
    """How a Service is reached from outside of the cluster, and whether this node does it."""

    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    """Where something in front sends packets on unchanged."""
    source_ranges: tuple[str, ...] = ()
    """Who may come by a load balancer's address; empty: everybody."""
    is_local: bool = False
    """externalTrafficPolicy Local: endpoints of this node only, who keep the source's address."""
    health_check_node_port: int = 0
    """Where a load balancer asks whether this node has an endpoint; 0: nowhere."""
    is_others: bool = False
    """Another proxy serves it, or nobody, as its label says: here it has a name, and nothing
    more."""
    since: str = ""
    """When the Service was made, in words that sort, of one that has external or load balancers'
    addresses; empty: not known. Of several that ask for one address the oldest has it."""


NOT_EXPOSED = Exposure()


class Service(Struct, frozen=True, gc=False, array_like=True):
    """A Service; of type ExternalName exactly if `external_name` is not empty."""

    namespace: str
    name: str
    type: str = "ClusterIP"
    cluster_ips: tuple[str, ...] = ()
    """Addresses of one or both families; `("None",)` of a headless one."""
    ports: tuple[ServicePort, ...] = ()
    exposure: Exposure = NOT_EXPOSED
    external_name: str = ""
    """Another name in its place, for DNS only."""
    affinity_s: int = 0
    """A client stays with its endpoint for so long (sessionAffinity ClientIP); 0: it need not."""
    is_internal_local: bool = False
    """internalTrafficPolicy Local: within the cluster, endpoints of the client's node only."""
    distribution: str = ""
    """trafficDistribution (PreferSameZone, PreferSameNode …), or what an annotation says."""
    publish_not_ready: bool = False
    left_out: tuple[str, ...] = ()
    """What of the object no node can use, in words."""

    @property
    def key(self) -> ServiceName:
        return self.namespace, self.name

    @property
    def is_others(self) -> bool:
        return self.exposure.is_others

    @property
    def is_headless(self) -> bool:
        return self.cluster_ips == (NONE,)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Cluster addresses; none of a headless one."""
        return () if self.is_headless else self.cluster_ips


class Endpoint(Struct, frozen=True, gc=False, array_like=True):
    """One of those that serve: a pod, or what a person wrote."""

    address: str
    conditions: int = READY | SERVING
    node: str = ""
    zone: str = ""
    hostname: str = ""
    """Its own name below a headless Service's; empty: it has none."""
    pod: str = ""
    """Name of the pod that it is, in the slice's namespace; empty: it is none."""
    for_zones: tuple[str, ...] = ()
    """Hints: zones that should use it; empty: no hint."""
    for_nodes: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        return bool(self.conditions & READY)

    @property
    def is_serving(self) -> bool:
        return bool(self.conditions & SERVING)

    @property
    def is_terminating(self) -> bool:
        return bool(self.conditions & TERMINATING)

    @property
    def is_doubted(self) -> bool:
        """Not ready, as is said by a server that could not hear its node; it was ready before."""
        return bool(self.conditions & DOUBTED)


class EndpointPort(Struct, frozen=True, gc=False, array_like=True):
    """Where the endpoints of a slice serve the Service's port of that name."""

    name: str = ""
    protocol: str = "TCP"
    port: int = 0


class EndpointSlice(Struct, frozen=True, gc=False, array_like=True):
    """Some of the endpoints of a Service, all of one family and with the same ports."""

    namespace: str
    name: str
    service: str
    """In the same namespace; empty: of none."""
    version: int
    """IP version: 4 or 6; 0: names, which no packet is sent to."""
    ports: tuple[EndpointPort, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    left_out: tuple[str, ...] = ()
    """As a Service's."""

    @property
    def key(self) -> ServiceName:
        return self.namespace, self.name

    @property
    def service_key(self) -> ServiceName:
        return self.namespace, self.service
