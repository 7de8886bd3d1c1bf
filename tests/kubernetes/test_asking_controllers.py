"""Asking the controller that leads, while nobody does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from limpet.base.errors import ControllerUnavailable
from limpet.cluster.api import Code
from limpet.controller.admin.api_server import ClusterAccess, call_cluster
from limpet.kubernetes.access.access import Access, parse_server
from tests.beds.rogue import serving
from tests.kubernetes.test_client import answering, refused, said

_POD = {
    "metadata": {"name": "controller-a", "namespace": "limpet-system"},
    "spec": {"containers": []},
    "status": {"phase": "Running", "podIPs": [{"ip": "192.0.2.1"}]},
}
FOLLOWS = said(
    {"code": Code.NOT_LEADER.value, "error": "this controller does not lead"}, "503 Unavailable"
)
SHUT = refused(503, "ServiceUnavailable", "dial tcp 192.0.2.1:7470: connection refused")
LEADS = said({"cluster": "limpet"})


def asked(*answers: bytes) -> tuple[dict[str, Any] | str, int]:
    """What comes of it, or why nothing does, when the only pod answers so, one after the other; and
    how often it was asked."""
    requests: list[bytes] = []
    pods = said({"metadata": {"resourceVersion": "1"}, "items": [_POD]})
    token = said({"status": {"token": "a.b.c"}})

    async def run() -> dict[str, Any] | str:
        async with serving(answering(requests, pods, token, *answers), None) as at:
            cluster = ClusterAccess(Access(parse_server(f"http://{at}"), "test"), "limpet-system")
            try:
                return await asyncio.to_thread(call_cluster, cluster, "network.show")
            except ControllerUnavailable as error:
                return str(error)

    found = asyncio.run(run())
    return found, sum(b"/v1/admin/network.show" in each for each in requests)


def test_who_is_about_to_lead_and_does_not_listen_for_a_moment_is_asked_again() -> None:
    assert asked(FOLLOWS, SHUT, LEADS) == ({"cluster": "limpet"}, 3)


@pytest.mark.parametrize("before", [(), (FOLLOWS,)], ids=["at first", "after it has followed"])
def test_a_pod_where_nothing_listens_any_more_is_not_waited_for(before: tuple[bytes, ...]) -> None:
    found, times = asked(*before, SHUT, SHUT, LEADS)
    assert "connection refused" in found
    assert times == len(before) + 2
