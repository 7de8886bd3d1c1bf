"""Values that several property tests draw. Worlds are small, so that draws meet each other."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_interface,
    ip_network,
)

from hypothesis import strategies as st

from limpet.base.addresses import Address, InterfaceAddress, Prefix
from limpet.base.node_state import NodeState
from limpet.datapath.node.plan import derived_mac, host_ifname, host_mac
from limpet.datapath.node.pod.attachment import (
    Attachment,
    Bandwidth,
    BridgeSpec,
    HostPortMapping,
    Netns,
    PodLink,
    PodName,
    RouteSpec,
)
from limpet.datapath.node.state import Bridge, NodePlan, Port, Route, Rule
from limpet.ipam.leases import Holder

u32 = st.integers(0, 2**32 - 1)
texts = st.text(max_size=12)
macs = st.binary(min_size=6, max_size=6).map(lambda octets: octets.hex(":"))

v4_addresses = st.integers(0, 2**32 - 1).map(IPv4Address)
v6_addresses = st.integers(0, 2**128 - 1).map(IPv6Address)
addresses: st.SearchStrategy[Address] = v4_addresses | v6_addresses

v4_interfaces = st.builds(
    lambda address, length: IPv4Interface((address, length)), v4_addresses, st.integers(0, 32)
)
v6_interfaces = st.builds(
    lambda address, length: IPv6Interface((address, length)), v6_addresses, st.integers(0, 128)
)
interfaces: st.SearchStrategy[InterfaceAddress] = v4_interfaces | v6_interfaces

prefixes: st.SearchStrategy[Prefix] = interfaces.map(lambda interface: interface.network)
"""Of any length."""

# One node: two bridges, and segments that are told apart by one number.

BRIDGES = ("limpet0", "net1")
small_v4: st.SearchStrategy[IPv4Network] = st.integers(0, 5).map(
    lambda n: IPv4Network(f"10.244.{n}.0/24")
)
small_v6: st.SearchStrategy[IPv6Network] = st.integers(0, 5).map(
    lambda n: IPv6Network(f"fd00:{n}::/64")
)
small_prefixes: st.SearchStrategy[Prefix] = small_v4 | small_v6
gateways: st.SearchStrategy[InterfaceAddress] = small_prefixes.map(
    lambda prefix: ip_interface((prefix[1], prefix.prefixlen))
)

states = st.builds(
    NodeState,
    segments=st.lists(small_prefixes, max_size=3, unique=True).map(tuple),
    cluster_cidrs=st.lists(
        st.sampled_from([ip_network("10.244.0.0/16"), ip_network("fd00::/16")]), unique=True
    ).map(tuple),
)

bridge_specs = st.builds(
    BridgeSpec,
    st.sampled_from(BRIDGES),
    gateways=st.lists(gateways, max_size=2, unique=True).map(tuple),
    masquerade=st.lists(small_prefixes, max_size=2, unique=True).map(tuple),
    promisc=st.booleans(),
)

port_mappings = st.builds(
    HostPortMapping,
    host_port=st.integers(1, 65535),
    container_port=st.integers(1, 65535),
    protocol=st.sampled_from(["tcp", "udp", "sctp"]),
    host_address=st.none() | addresses,
)

route_specs = st.builds(
    RouteSpec,
    prefixes,
    gateway=st.none() | addresses,
    mtu=st.none() | u32,
    advmss=st.none() | u32,
    priority=st.none() | u32,
    table=st.none() | u32,
    scope=st.none() | st.integers(0, 255),
)

attachments_of_any_kind = st.builds(
    Attachment,
    network=texts,
    holder=st.builds(Holder, texts, texts),
    netns=st.builds(Netns, texts, st.integers(0, 2**63), st.integers(0, 2**63)),
    pod=st.builds(PodName, texts, texts),
    addresses=st.lists(interfaces, max_size=3).map(tuple),
    gateways=st.lists(addresses, max_size=3).map(tuple),
    data_dir=st.none() | texts,
    bridge=st.none()
    | st.builds(
        BridgeSpec,
        texts,
        gateways=st.lists(interfaces, max_size=2).map(tuple),
        masquerade=st.lists(prefixes, max_size=2).map(tuple),
        promisc=st.booleans(),
    ),
    link=st.builds(PodLink, texts, macs, macs, st.integers(0, 65535), st.booleans(), st.booleans()),
    routes=st.lists(route_specs, max_size=2).map(tuple),
    port_mappings=st.lists(port_mappings, max_size=2).map(tuple),
    bandwidth=st.builds(Bandwidth, u32, u32, u32, u32),
)
"""Values of every field, without regard to what fits together."""


def attachment(
    name: str,
    *given: str,
    bridge: BridgeSpec | None = None,
    ports: tuple[HostPortMapping, ...] = (),
    hairpin: bool = False,
    isolated: bool = False,
) -> Attachment:
    """The interface of pod `name` with the addresses `given`, each with its length."""
    held = tuple(ip_interface(address) for address in given)
    host = host_ifname("net", Holder(name, "eth0"))
    return Attachment(
        network="net",
        holder=Holder(name, "eth0"),
        netns=Netns(f"/run/netns/{name}", 4, 1),
        pod=PodName("default", name),
        addresses=held,
        gateways=tuple(address.network[1] for address in held),
        bridge=bridge or BridgeSpec("limpet0"),
        link=PodLink(
            host,
            host_mac(host),
            derived_mac(held[0].ip) if held else host_mac(name),
            1450,
            hairpin=hairpin,
            isolated=isolated,
        ),
        port_mappings=ports,
    )


@st.composite
def pods(draw: st.DrawFn, *, max_size: int = 4) -> list[Attachment]:
    """Pods of one node with different names, each on one of its bridges, without hostPorts."""
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=max_size))
    return [
        attachment(
            name,
            *(f"{gw.ip + 1}/{gw.network.prefixlen}" for gw in draw(st.lists(gateways, max_size=2))),
            bridge=draw(bridge_specs),
            hairpin=draw(st.booleans()),
            isolated=draw(st.booleans()),
        )
        for name in names
    ]


# What a kernel may hold: keys are unique as the kernel takes them.

_rules = st.frozensets(st.sampled_from([Rule(4), Rule(6)]))
_sysctls = st.dictionaries(
    st.sampled_from(["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"]),
    st.sampled_from(["0", "1"]),
)
_routes = st.dictionaries(
    st.tuples(small_prefixes, st.sampled_from([100, 65000])),
    st.sampled_from([None, *BRIDGES]),
    max_size=4,
).map(
    lambda found: frozenset(
        Route(prefix, device, metric) for (prefix, metric), device in found.items()
    )
)


def node_plans(*, wanted: bool) -> st.SearchStrategy[NodePlan]:
    """What a node could hold; `wanted`: what a plan could ask for, so nothing that is down."""
    up = st.just(value=True) if wanted else st.booleans()
    bridges = st.dictionaries(
        st.sampled_from(BRIDGES),
        st.builds(
            Bridge,
            st.just(""),
            mac=st.sampled_from(["0a:58:0a:f4:07:01", "0a:58:0a:f4:08:01"]),
            addresses=st.frozensets(gateways, max_size=3),
            promisc=st.booleans(),
            up=up,
            ours=st.booleans(),
        ),
    ).map(lambda found: {name: replace(bridge, ifname=name) for name, bridge in found.items()})
    ports = st.dictionaries(
        st.sampled_from(["lim1", "lim2", "lim3"]),
        st.builds(Port, st.just(""), st.sampled_from(BRIDGES), st.booleans(), st.booleans(), up),
    ).map(lambda found: {name: replace(port, ifname=name) for name, port in found.items()})
    return st.builds(
        NodePlan,
        bridges=bridges,
        ports=ports,
        routes=_routes,
        rules=_rules,
        sysctls=_sysctls,
        ruleset=st.sampled_from(["", "table inet limpet {}\n", "table inet limpet { chain x }\n"]),
    )
