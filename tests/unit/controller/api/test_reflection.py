"""Who has not joined is told where its UDP comes from, also by a kernel that lacks something."""

from __future__ import annotations

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from limpet.cluster.datagrams.reflection import encode_question, parse_answer
from limpet.controller.api.reflection import Reflection
from tests.unit.base.process.test_listeners import WithoutIPv6
from tests.unit.cluster.test_membership import on_a_loop
from tests.waiting import PATIENCE_S


@on_a_loop
async def test_a_kernel_without_ipv6_answers_over_ipv4_and_nothing_is_said_to_be_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was said not to be answered, which sent a person to look for another process."""
    monkeypatch.setattr(socket, "socket", WithoutIPv6)
    reflection, nonce = Reflection(), bytes(range(16))
    with capture_logs() as logs:
        await reflection.listen([("::", 0)])
    (ports,) = (each.ports for each in reflection._sockets)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", ports[4]))
        client.send(encode_question(nonce))
        found = parse_answer(await asyncio.to_thread(client.recv, 200))
        asked_from = client.getsockname()
    reflection.close()

    assert found.nonce == nonce
    assert (str(found.seen_as[0]), found.seen_as[1]) == asked_from
    assert logs == []
