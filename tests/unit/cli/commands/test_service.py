"""What a person reads of Services, and of one's endpoints where its way is asked for."""

from __future__ import annotations

import pytest

from limpet.agent.status.services import EndpointStatus, ServedPort, ServiceLine, ServiceWay
from limpet.cli.commands.path import service_lines
from limpet.cli.commands.serving.service import no_endpoint_words, without_programs_lines


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


def _line(
    number: int,
    *,
    type: str = "ClusterIP",
    address: str = "10.96.0.7",
    is_without_programs: bool = False,
) -> ServiceLine:
    return ServiceLine(
        namespace="shop",
        name=f"web-{number}",
        type=type,
        addresses=[address],
        ports=["80/TCP"],
        endpoints=1,
        used=1,
        is_without_programs=is_without_programs,
    )


def test_services_for_which_programs_have_no_room_are_named_and_many_are_counted() -> None:
    served = _line(0)
    left = [_line(number, is_without_programs=True) for number in range(1, 8)]
    words = "served by nftables alone, since the eBPF programs' maps have no room: "

    assert list(without_programs_lines([served])) == []
    assert list(without_programs_lines([served, *left[:2]])) == [f"{words}shop/web-1, shop/web-2"]
    named = ", ".join(f"shop/web-{number}" for number in range(1, 6))
    assert list(without_programs_lines([served, *left])) == [f"{words}{named}, and 2 more Services"]


@pytest.mark.parametrize(
    ("type", "address", "words"),
    [
        ("ClusterIP", "10.96.0.7", "no endpoint: whoever asks is refused"),
        (
            "ExternalName",
            "db.factory.lan",
            "none by its nature: its name leads to db.factory.lan (`limpet dns query`)",
        ),
        (
            "ClusterIP",
            "None",
            "none to choose from: its name leads to all pods that it has (`limpet dns query`)",
        ),
    ],
)
def test_a_service_without_endpoints_refuses_only_where_it_has_an_address(
    type: str, address: str, words: str
) -> None:
    assert no_endpoint_words(_line(0, type=type, address=address)) == words
