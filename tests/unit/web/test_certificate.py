"""The page's own certificate, whatever the clock was when it was made."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from limpet.web.access.certificate import Renewal, context_of, fingerprint, own_certificate

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def made(folder: Path, now: datetime) -> str:
    return fingerprint(own_certificate(folder, ["page.test"], lambda: now)[0])


def test_one_that_serves_stays(tmp_path: Path) -> None:
    first = made(tmp_path, NOW)
    for later in (0, 1, 360):
        assert made(tmp_path, NOW + timedelta(days=later)) == first
    assert made(tmp_path, NOW + timedelta(days=370)) != first


@pytest.mark.parametrize("year", [1970, 2099])
def test_one_of_a_wrong_clock_is_made_anew(tmp_path: Path, year: int) -> None:
    first = made(tmp_path, datetime(year, 1, 2, tzinfo=UTC))
    assert made(tmp_path, NOW) != first


def test_a_page_that_runs_goes_on_with_the_next_one(tmp_path: Path) -> None:
    clock = [datetime(1970, 1, 2, tzinfo=UTC)]

    def renew() -> tuple[Path, Path]:
        return own_certificate(tmp_path, ["page.test"], lambda: clock[0])

    async def shown(context: ssl.SSLContext) -> bytes:
        """As a browser is shown it."""
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        host, port = server.sockets[0].getsockname()
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection(host, port, ssl=anybody)
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        server.close()
        return found

    async def body() -> None:
        context = context_of(*renew())
        renewal = Renewal(context, renew)
        renewal.look()
        first = await shown(context)
        renewal.look()
        assert await shown(context) == first
        clock[0] = NOW
        renewal.look()
        assert await shown(context) != first
        renewal.stop()

    asyncio.run(body())
