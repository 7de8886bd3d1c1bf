"""What a person may ask of Services at a node: which there are, who serves them, who does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from limpet.agent.answers.own_pods import KnownPod
from limpet.agent.status.services import (
    EndpointStatus,
    ServedPort,
    ServiceAnswer,
    ServiceLine,
    ServicesAnswer,
    ServicesStatus,
    ServiceWay,
)
from limpet.agent.wiring import ClusterSide
from limpet.base.addresses import Address
from limpet.base.errors import KernelError, LimpetError
from limpet.base.text.nearest import hint
from limpet.kubernetes.kinds.services import HEADLESS_LABEL, PROXY_LABEL
from limpet.services.catalog import Catalog, left_out_in_short, left_out_in_words
from limpet.services.mode import ServicesDecision
from limpet.services.rotation import Here, OfferedPorts, endpoint_words, rotate
from limpet.services.values import Service

if TYPE_CHECKING:  # in memory only where Services are on
    from limpet.agent.services import ServiceSide

_VERSIONS = (4, 6)
Connections = Mapping[tuple[str, str, int], int]
"""By protocol, address and port of an endpoint."""
_NOT_COUNTED: Connections = {}


class ServiceAdmin:
    """Answers from what the last round was planned with."""

    def __init__(self, cluster: ClusterSide) -> None:
        self._cluster = cluster

    def list(self) -> ServicesAnswer:
        """Raises: LimpetError."""
        side, choice = self._side(), self._cluster.kubernetes.choice
        return ServicesAnswer(
            services=[
                _line(service, side)
                for service in sorted(_served(side.catalog), key=lambda each: each.key)
            ],
            connected=side.source.is_connected,
            error=side.source.error,
            kube_proxy="" if choice is None else choice.kube_proxy,
            backend=side.sockets.backend,
            why_not_ebpf=side.sockets.why_not,
            failed=side.failures,
            left_out=_all_left_out(side),
            left_out_objects=count_left_out(side),
        )

    def with_endpoints(
        self, most: int
    ) -> Iterator[tuple[ServiceLine, Iterable[EndpointStatus], tuple[str, ...]]]:
        """The first so many, with their endpoints and what of them is left out, in short.

        Raises: LimpetError.
        """
        side = self._side()
        for service in sorted(_served(side.catalog), key=lambda each: each.key)[:most]:
            found = _endpoints(service, side.catalog, side.part.here)
            left_out = side.catalog.incomplete_of(service), _unread(service, side)
            yield _line(service, side), list(found), left_out_in_short(*left_out)

    @property
    def count(self) -> int:
        """How many there are; 0 where nothing tells of them."""
        side = self._cluster.kubernetes.services
        return sum(1 for _ in _served(side.catalog)) if side is not None else 0

    async def show(self, name: str) -> ServiceAnswer:
        """`name`: as NAMESPACE/NAME, or a cluster address. Raises: LimpetError."""
        side = self._side()
        catalog, here = side.catalog, side.part.here
        namespace, _, plain = name.rpartition("/")
        service = catalog.service(namespace or "default", plain) or catalog.by_address(name)
        if service is None:
            names = sorted(f"{each.namespace}/{each.name}" for each in catalog)
            full = f"{namespace or 'default'}/{plain}"
            see = hint(full, names, "NAMESPACE/NAME, or a cluster address; `limpet service list` ")
            if cause := side.source.unread.cause("Service", (namespace or "default", plain)):
                raise LimpetError(
                    f"show Service {full}: what the API server has of it {cause} "
                    "(put it right there; the others go on)"
                )
            raise LimpetError(f"show Service {name}: this node knows no such one ({see}tells all)")
        if service.is_others:
            raise LimpetError(
                f"show Service {name}: its label ({PROXY_LABEL} or {HEADLESS_LABEL}) leaves it to "
                "others; this node only answers its name (`limpet dns query`)"
            )
        exposure = service.exposure
        connections = await side.connections(service)
        return ServiceAnswer(
            service=_line(service, side),
            external=[*exposure.external_ips, *exposure.load_balancer_ips],
            affinity_s=service.affinity_s,
            internal_local=service.is_internal_local,
            external_local=exposure.is_local,
            distribution=service.distribution,
            endpoints=list(_endpoints(service, catalog, here, connections)),
            failed=side.failures,
            left_out=left_out_in_words(catalog.incomplete_of(service), _unread(service, side)),
        )

    def way(self, word: str) -> ServiceWay | None:
        """The way to the Service that has this address; None: this node serves none such."""
        side = self._cluster.kubernetes.services
        address = ip_address(word)
        service = side.catalog.by_address(str(address)) if side is not None else None
        if service is None or service.is_others:
            return None
        return self._way(service, address)

    def way_called(self, word: str) -> ServiceWay | None:
        """The way to the Service `name` or `namespace/name`, by its first address; None: no such.

        Raises: LimpetError where several have the name, or it has no cluster address.
        """
        side = self._cluster.kubernetes.services
        namespace, slash, name = word.rpartition("/")
        found = [
            each
            for each in (() if side is None else _served(side.catalog))
            if each.name == name and (not slash or each.namespace == namespace)
        ]
        if len(found) > 1:
            names = ", ".join(sorted("/".join(each.key) for each in found))
            raise LimpetError(
                f"{word}: there are several Services of that name: {names} (say which)"
            )
        if not found:
            return None
        if not found[0].addresses:
            raise LimpetError(
                f"{word}: that Service has no cluster address (headless, or a name of another): "
                "name one of its pods"
            )
        return self._way(found[0], ip_address(found[0].addresses[0]))

    def _way(self, service: Service, address: Address) -> ServiceWay:
        side = self._side()
        return ServiceWay(
            name="/".join(service.key),
            address=str(address),
            ports=[port.words for port in service.ports],
            served=[ServedPort(number=each.port, protocol=each.protocol) for each in service.ports],
            endpoints=[
                each
                for each in _endpoints(service, side.catalog, side.part.here)
                if ip_address(each.address).version == address.version
            ],
        )

    def pods_called(self, word: str) -> Iterator[KnownPod]:
        """Pods of any node that serve, by `name` or `namespace/name`."""
        side = self._cluster.kubernetes.services
        name = word.rpartition("/")[2]
        for found in () if side is None else side.catalog.all_slices():
            for each in found.endpoints if found.version and name else ():
                if each.pod == name:
                    yield KnownPod(found.namespace, name, ip_address(each.address), attached=True)

    def _side(self) -> ServiceSide:
        side = self._cluster.kubernetes.services
        if side is None and self._cluster.kubernetes.choice is None:
            raise LimpetError(
                "Services: nothing tells this node of them (it takes an API server: "
                'source = "kubernetes" in the agent\'s configuration; docs/services.md)'
            )
        if side is None:
            raise LimpetError(
                "Services: they are off on this node, so something else serves them "
                '(services = "on" in the agent\'s configuration; docs/services.md)'
            )
        return side


def _endpoints(
    service: Service, catalog: Catalog, here: Here, connections: Connections = _NOT_COUNTED
) -> Iterator[EndpointStatus]:
    offered = OfferedPorts(catalog.slices(*service.key))
    for port in service.ports:
        for version in _VERSIONS:
            found = offered.candidates(port, version)
            used = rotate(service, found, here).internal(service)
            weights = {(each.address, each.port): each.weight for each in used}
            for candidate in found:
                endpoint, target_port = candidate
                yield EndpointStatus(
                    port=port.words,
                    service_port=port.port,
                    protocol=port.protocol,
                    address=endpoint.address,
                    target_port=target_port,
                    node=endpoint.node,
                    pod=f"{service.namespace}/{endpoint.pod}" if endpoint.pod else "",
                    weight=weights.get((endpoint.address, target_port), 0),
                    why=endpoint_words(candidate, service, used, here),
                    connections=connections.get((port.protocol, endpoint.address, target_port), 0),
                )


def _served(catalog: Catalog) -> Iterator[Service]:
    """Those that this node serves, or would."""
    return (each for each in catalog if not each.is_others)


def _line(service: Service, side: ServiceSide) -> ServiceLine:
    known, used = set(), set()
    for each in _endpoints(service, side.catalog, side.part.here):
        known.add(each.address)
        if each.weight:
            used.add(each.address)
    return ServiceLine(
        namespace=service.namespace,
        name=service.name,
        type=service.type,
        addresses=list(service.cluster_ips) or list(filter(None, [service.external_name])),
        ports=[port.words for port in service.ports],
        endpoints=len(known),
        used=len(used),
        trouble=side.part.troubles.get(service.key, ""),
        left_out=len(side.catalog.incomplete_of(service)) + len(_unread(service, side)),
        is_without_programs=service.key in side.part.without_programs,
    )


def _unread(service: Service, side: ServiceSide) -> list[str]:
    """In words that what the API server has of it now cannot be read, if so."""
    return side.source.unread.words_of("Service", service.key)


def _all_left_out(side: ServiceSide) -> list[str]:
    """In words, those first that cannot be read at all."""
    return left_out_in_words(side.catalog.incomplete.values(), side.source.unread.in_words())


def count_left_out(side: ServiceSide) -> int:
    """Objects of which something is left out, those among them that cannot be read at all."""
    return len(side.catalog.incomplete) + len(side.source.unread)


def services_status(
    choice: ServicesDecision | None, side: ServiceSide | None
) -> ServicesStatus | None:
    if choice is None:
        return None
    decision = choice.taken
    with suppress(KernelError):  # then it is as it was when last looked for
        choice.find()
    return ServicesStatus(
        on=decision.on,
        why=decision.why,
        backend="" if side is None else side.sockets.backend,
        kube_proxy=choice.kube_proxy,
        why_not_ebpf="" if side is None else side.sockets.why_not,
        asked_backend="nftables" if side is None else side.sockets.asked,
        left_out_objects=0 if side is None else count_left_out(side),
        left_out_first="" if side is None else next(iter(_all_left_out(side)), ""),
    )
