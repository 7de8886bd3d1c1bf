"""A node whose part for Services runs: pods, the node's own processes and a host outside ask.

Rounds are run by the test, one for each change.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from limpet.datapath.loop import Loop
from limpet.datapath.services.apply import ServicesKernel
from limpet.datapath.services.part import ServicesContext, ServicesPart
from limpet.datapath.services.state import Surroundings
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)
from tests.beds.namespaces import NetnsFactory
from tests.beds.node_bed import CONF, GATEWAYS, MAIN, STATE, NodeBed

ADDRESSES = ("10.96.0.7", "fd96::7")
EXTERNAL = ("198.51.100.7", "2001:db8:7::7")
HERE = Here("here")


class ServiceBed:
    """Of a node with the pods `one` and `two`, and a host outside which uses it as its router."""

    def __init__(self, make: NetnsFactory, *, bridge_filtered: bool = False) -> None:
        self.bed = NodeBed(make)
        self.node = self.bed.node
        for name in ("iptables", "ip6tables"):
            self.node.sysctl(f"net/bridge/bridge-nf-call-{name}", str(int(bridge_filtered)))
        self.outside = self.bed.outside()
        conf = replace(CONF, main=replace(MAIN, hairpin_mode=True))
        self.pods = [self.bed.pod(name, n, conf=conf) for name, n in (("one", 2), ("two", 3))]
        self.outside.ip(
            "route add 10.96.0.0/16 via 192.0.2.1",
            "route add 198.51.100.0/24 via 192.0.2.1",
            "-6 route add fd96::/16 via 2001:db8::1",
            "-6 route add 2001:db8:7::/48 via 2001:db8::1",
        )
        self.catalog = Catalog()
        self.here = HERE
        self.surroundings = Surroundings(
            pods=STATE.segments,
            cluster=STATE.cluster_cidrs,
            gateways=tuple(map(ip_address, GATEWAYS)),
            is_bridge_filtered=bridge_filtered,
        )
        with self.node.entered():
            self.loop = Loop()
        self.part = self.new_part()

    def new_part(self) -> ServicesPart:
        """As an agent has it after its start."""
        with self.node.entered():
            assert ServicesKernel.is_bridge_filtered() == self.surroundings.is_bridge_filtered
            asked = ServicesContext(lambda: self.surroundings, lambda: self.here)
            part = ServicesPart(self.loop, self.catalog, asked)
            self.loop.add(part)
        return part

    def close(self) -> None:
        self.part.close()
        self.loop.close()
        self.bed.close()

    def put(self, *items: Service | EndpointSlice) -> int:
        """How many changes the round needed; each has to work."""
        names = [name for item in items for name in self.catalog.put(item)]
        return self.round(names)

    def round(self, names: list[tuple[str, str]]) -> int:
        self.part.due(names)
        return self.run()

    def run(self) -> int:
        with self.node.entered():
            self.loop.run("test", self.part)
        account = self.loop.account(self.part)
        assert account.failures == []
        return account.last_changes

    def know(self, here: Here) -> None:
        self.here = here
        self.part.look()
        self.run()


WEB = Service(
    "shop",
    "web",
    cluster_ips=ADDRESSES,
    ports=(ServicePort("http", "TCP", 80, 30080), ServicePort("ask", "UDP", 53, 30053)),
    exposure=Exposure(external_ips=EXTERNAL),
)


def slices(*endpoints: Endpoint, service: str = "web") -> tuple[EndpointSlice, ...]:
    """Endpoints of both families, in a slice each."""
    ports = (EndpointPort("http", "TCP", 8080), EndpointPort("ask", "UDP", 5353))
    return tuple(
        EndpointSlice(
            "shop",
            f"{service}-{version}",
            service,
            version,
            ports,
            tuple(each for each in endpoints if ip_address(each.address).version == version),
        )
        for version in (4, 6)
    )


def endpoints_of(*addresses: str, node: str = "here") -> list[Endpoint]:
    return [Endpoint(address, node=node) for address in addresses]
