"""What a person reads of a Service's endpoints where its way is asked for."""

from __future__ import annotations

from limpet.agent.status.services import EndpointStatus, ServedPort, ServiceWay
from limpet.cli.commands.path import service_lines


def test_an_endpoint_that_is_tried_although_it_is_in_doubt_is_told_with_the_doubt() -> None:
    doubt = "node n2 does not answer (tried, since all are in doubt)"
    endpoint = EndpointStatus(
        port="80/TCP",
        service_port=80,
        protocol="TCP",
        address="10.244.2.7",
        target_port=8080,
        node="n2",
        pod="default/web-0",
        weight=1,
        why=doubt,
    )
    way = ServiceWay(
        name="default/web",
        address="10.96.0.7",
        ports=["80/TCP"],
        served=[ServedPort(number=80, protocol="TCP")],
        endpoints=[endpoint],
    )

    told = list(service_lines(way, []))

    assert f"  80/TCP: all to default/web-0 (10.244.2.7 port 8080) on n2: {doubt}" in told
