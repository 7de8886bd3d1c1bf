"""Who may administer by the API server's road, while strangers show tokens of nobody's."""

from __future__ import annotations

import asyncio
import re

from limpet.base.bounds.strangers import REVIEWS, REVIEWS_OF_ONE
from limpet.cluster.api import ADMIN_AUDIENCE, Code
from limpet.controller.admin.rights import Rights
from limpet.controller.registry.refusal import RefusedError
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from tests.beds.rogue import serving, take_request
from tests.kubernetes.test_client import said

_NOBODY = said({"status": {"authenticated": False}}, "201 Created")
_ANN = said(
    {
        "status": {
            "authenticated": True,
            "audiences": [ADMIN_AUDIENCE],
            "user": {"username": "ann"},
        }
    },
    "201 Created",
)
_MAY = said({"status": {"allowed": True}}, "201 Created")


async def by_their_tokens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Who shows `ann.….token` is Ann, and may."""
    while True:
        asked = await take_request(reader)
        whose = _ANN if re.search(rb"ann\.\w+\.token", asked) else _NOBODY
        writer.write(_MAY if b"subjectaccessreviews" in asked else whose)
        await writer.drain()


def test_who_asks_on_and_on_with_a_good_token_keeps_no_other_administrator_out() -> None:
    """All come from the API server; a page asks four times a second, and for all who look at it."""

    async def scenario() -> None:
        async with serving(by_their_tokens, None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            rights = Rights(client)

            async def refusal() -> Code | None:
                try:
                    await rights.check("ann.page.token", b"api server")
                except RefusedError as error:
                    return error.refused.code
                return None

            told = [await refusal() for _ in range(2 * REVIEWS.most)]
            assert told[0] is None
            assert told[-1] == Code.TRY_AGAIN
            assert await rights.check("ann.command.token", b"api server") == "ann"
            client.close()

    asyncio.run(scenario())


def test_tokens_of_strangers_keep_no_administrator_out_wherever_these_come_from() -> None:
    """20 a second from one address, which may begin as many connections, used up all that the API
    server is asked about."""

    async def scenario() -> None:
        async with serving(by_their_tokens, None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            rights = Rights(client)

            async def refusal(source: bytes) -> Code:
                try:
                    await rights.check("a.b.c", source)
                except RefusedError as error:
                    return error.refused.code
                raise AssertionError("somebody was let in")

            one = [await refusal(b"stranger") for _ in range(2 * REVIEWS.most)]
            assert one[: REVIEWS_OF_ONE.most] == [Code.BAD_TOKEN] * REVIEWS_OF_ONE.most
            assert one[-1] == Code.TRY_AGAIN
            assert await rights.check("ann.s.token", b"api server") == "ann"

            many = [await refusal(b"%d" % source) for source in range(2 * REVIEWS.most)]
            assert many[-1] == Code.TRY_AGAIN, "all of them together have a bound"
            assert await rights.check("ann.s.token", b"api server") == "ann"
            client.close()

    asyncio.run(scenario())
