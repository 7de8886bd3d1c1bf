"""Services and who is in rotation behind them, as the API server has them. Pure.

Which of those in rotation a node sends to is that node's matter: it prefers near ones, and hears
first when a container is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from limpet.picture.workloads import Endpoint, Service
from limpet.services import values
from limpet.services.catalog import Catalog, left_out_in_short
from limpet.services.rotation import Candidate, Here, OfferedPorts, rotate

MOST_SERVICES, _MOST_ENDPOINTS = 500, 32
"""More of them say nothing to whoever looks, and a picture is sent whole."""


def services_of(
    catalog: Iterable[values.Service],
    slices: Catalog,
    uids: Mapping[str, str],
    silent: Collection[str],
) -> tuple[Service, ...]:
    """`uids`: of nodes by their names. `silent`: names of nodes that answer nobody."""
    here = Here(silent=silent)
    return tuple(_service(each, slices, uids, here) for each in catalog)


def _service(
    service: values.Service, slices: Catalog, uids: Mapping[str, str], here: Here
) -> Service:
    ends = list(_endpoints(service, slices, uids, here))
    ends.sort(key=lambda each: (each.in_rotation, each.address))
    addresses = service.cluster_ips or tuple(filter(None, [service.external_name]))
    return Service(
        name="/".join(service.key),
        type=service.type,
        addresses=tuple(addresses),
        ports=tuple(port.words for port in service.ports),
        endpoints=tuple(ends[:_MOST_ENDPOINTS]),
        endpoints_in_rotation=sum(each.in_rotation for each in ends),
        endpoints_total=len(ends),
        left_out=left_out_in_short(slices.incomplete_of(service)),
    )


def _endpoints(
    service: values.Service, slices: Catalog, uids: Mapping[str, str], here: Here
) -> Iterator[Endpoint]:
    offered = OfferedPorts(slices.slices(*service.key))
    for port in service.ports:
        for version in (4, 6):
            found = offered.candidates(port, version)
            used = {(each.address, each.port) for each in rotate(service, found, here).near}
            for candidate in found:
                endpoint, number = candidate
                is_used = (endpoint.address, number) in used
                shown = f"[{endpoint.address}]" if version == 6 else endpoint.address
                yield Endpoint(
                    address=f"{shown}:{number}",
                    port=port.words,
                    pod=f"{service.namespace}/{endpoint.pod}" if endpoint.pod else "",
                    node=uids.get(endpoint.node, endpoint.node),
                    in_rotation=is_used,
                    why="" if is_used else _why(candidate, here),
                    weight=int(is_used),
                )


def _why(candidate: Candidate, here: Here) -> str:
    """Why it is in no node's rotation."""
    endpoint, _ = candidate
    if here.doubts(endpoint):
        return f"node {endpoint.node} does not answer"
    if endpoint.is_terminating:
        return "it is ending"
    return "others are preferred" if endpoint.is_ready else "it is not ready"
