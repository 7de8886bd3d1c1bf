"""What a node's picture says of the Services and policies that its pods are served with."""

from __future__ import annotations

from limpet.agent.answers.picture.workloads import service_of
from limpet.agent.status.services import EndpointStatus, ServiceLine

LINE = ServiceLine(
    namespace="shop",
    name="web",
    type="ClusterIP",
    addresses=["10.96.0.7"],
    ports=["http 80/TCP"],
    endpoints=40,
    used=25,
)


def endpoint(number: int, *, weight: int) -> EndpointStatus:
    return EndpointStatus(
        port="http 80/TCP",
        service_port=80,
        protocol="TCP",
        address=f"10.8.0.{number + 1}",
        target_port=8080,
        node="crane-1",
        pod=f"shop/web-{number}",
        weight=weight,
        why="" if weight else "it is not ready",
    )


def test_endpoints_that_are_not_listed_are_counted_all_the_same() -> None:
    found = service_of(LINE, [endpoint(each, weight=int(each < 25)) for each in range(40)], ())

    assert (found.endpoints_in_rotation, found.endpoints_total) == (25, 40)
    assert len(found.endpoints) == 32
    assert [each.in_rotation for each in found.endpoints] == [False] * 15 + [True] * 17
