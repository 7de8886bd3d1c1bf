"""Clients that stay with an endpoint, and how long, where Services share their endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import product

import pytest
from msgspec.structs import replace

from limpet.base.ownership import NFT_SERVICES_TABLE
from limpet.datapath.services.ruleset import affinity_names
from limpet.datapath.services.state import VERSIONS
from limpet.linux.set_elements import SetElements
from limpet.services.values import (
    SERVING,
    TERMINATING,
    Endpoint,
    Exposure,
    Service,
    ServicePort,
)
from tests.beds.namespaces import NetnsFactory
from tests.beds.node_bed import NODE
from tests.beds.services.service_bed import (
    ADDRESSES,
    EXTERNAL,
    WEB,
    ServiceBed,
    endpoints_of,
    slices,
)
from tests.datapath.services.test_services_part import accept, family, listening

STICKY = replace(WEB, affinity_s=600, distribution="Even")
BESIDE = Service(
    "shop",
    "beside",
    cluster_ips=("10.96.0.8", "fd96::8"),
    ports=(ServicePort("http", "TCP", 80, 30081), ServicePort("more", "TCP", 30080)),
    affinity_s=600,
    distribution="Even",
)


@pytest.fixture
def bed(make_netns: NetnsFactory) -> Iterator[ServiceBed]:
    bed = ServiceBed(make_netns)
    yield bed
    bed.close()


def noted(bed: ServiceBed) -> set[tuple[str, bytes]]:
    """Clients that are remembered, by the map."""
    with bed.node.entered(), closing(SetElements(NFT_SERVICES_TABLE)) as sets:
        names = [name for each in VERSIONS for name in affinity_names(each, "TCP")]
        return {(name, key) for name in names for key in sets.read(name)}


class Asker:
    """The host outside, which asks Services, and all endpoints that may answer."""

    def __init__(self, bed: ServiceBed, stack: ExitStack) -> None:
        self._bed = bed
        self._stack = stack
        self._servers = {
            version: [listening(stack, each.netns, version) for each in bed.pods]
            for version in VERSIONS
        }

    def ask(self, targets: list[tuple[str, int]], times: int = 1) -> list[int]:
        """How many of the connections each pod got."""
        counts = [0, 0]
        for (address, port), _ in product(targets, range(times)):
            self._stack.enter_context(self._bed.outside.connected(address, port))
            found = accept(self._stack, self._servers[family(address)], 1)
            counts = [count + len(each) for count, each in zip(counts, found, strict=True)]
        return counts


OF_WEB = [(each, 80) for each in (*ADDRESSES, *EXTERNAL)] + [(each, 30080) for each in NODE]
OF_BESIDE = [(each, port) for each in BESIDE.cluster_ips for port in (80, 30080)]
OF_BESIDE += [(each, 30081) for each in NODE]


def test_clients_of_one_service_stay_when_another_with_its_endpoints_is_others(
    bed: ServiceBed,
) -> None:
    everybody = endpoints_of(*bed.pods[0].addresses, *bed.pods[1].addresses)
    beside = [
        replace(each, ports=(each.ports[0], replace(each.ports[0], name="more")))
        for each in slices(*everybody, service="beside")
    ]
    with ExitStack() as stack:
        asker = Asker(bed, stack)
        bed.put(STICKY, *slices(*everybody))
        asker.ask(OF_WEB)
        of_web = noted(bed)
        assert len(of_web) == 9  # of IPv6 in two maps
        bed.put(BESIDE, *beside)
        asker.ask(OF_BESIDE)
        of_beside = noted(bed) - of_web
        assert len(of_beside) == 9

        bed.round([*bed.catalog.remove_service("shop", "web")])
        assert noted(bed) == of_beside
        bed.put(STICKY)
        asker.ask(OF_WEB)
        assert noted(bed) == of_web | of_beside
        bed.put(replace(BESIDE, ports=(BESIDE.ports[0], replace(BESIDE.ports[1], port=81))))
        assert len(noted(bed)) == 9 + 6
        bed.round([*bed.catalog.remove_service("shop", "beside")])
        assert noted(bed) == of_web
        # An address that it gives up, and one of its two ports.
        bed.put(replace(STICKY, exposure=Exposure(external_ips=EXTERNAL[:1])))
        assert len(of_web - noted(bed)) == 2
        bed.put(replace(STICKY, ports=(replace(WEB.ports[0], node_port=0),), exposure=Exposure()))
        assert len(noted(bed)) == 3, "those of its cluster addresses"


def test_an_agent_that_starts_anew_leaves_no_client_with_another_services_endpoint(
    bed: ServiceBed,
) -> None:
    """It went over from one to the other while no agent ran, as in a blue and green rollout."""
    one, two = bed.pods
    beside = replace(BESIDE, ports=BESIDE.ports[:1])
    with ExitStack() as stack:
        asker = Asker(bed, stack)
        bed.put(STICKY, *slices(*endpoints_of(*one.addresses)))
        bed.put(beside, *slices(*endpoints_of(*two.addresses), service="beside"))
        assert asker.ask(OF_WEB) == [len(OF_WEB), 0]
        for each in slices(*endpoints_of(*two.addresses)):
            bed.catalog.put(each)
        for each in slices(*endpoints_of(*one.addresses), service="beside"):
            bed.catalog.put(each)
        bed.part.close()
        bed.part = bed.new_part()
        bed.run()
        assert asker.ask(OF_WEB) == [0, len(OF_WEB)]


def test_a_client_of_an_endpoint_that_ends_comes_to_one_that_is_ready(bed: ServiceBed) -> None:
    """It may have closed its port."""
    one, two = bed.pods
    ending = [Endpoint(each, SERVING | TERMINATING, "here") for each in one.addresses]
    with ExitStack() as stack:
        asker = Asker(bed, stack)
        bed.put(STICKY, *slices(*endpoints_of(*one.addresses)))
        assert asker.ask(OF_WEB) == [len(OF_WEB), 0]
        bed.put(*slices(*endpoints_of(*two.addresses), *ending))
        assert asker.ask(OF_WEB) == [0, len(OF_WEB)]
