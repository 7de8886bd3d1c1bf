"""The page, served by its own code on loopback, with a picture that a test holds in its hand; and
that of the cloud, by its command, beside a real controller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from limpet.base.errors import LimpetError
from limpet.picture.pair import PairDetail
from limpet.picture.picture import Picture
from limpet.picture.said import Finding
from limpet.picture.timeline import Timeline
from limpet.web.access.sessions import PageToken, Sessions
from limpet.web.server import Serving, served
from tests.beds.pictured import detail, timeline
from tests.waiting import PATIENCE_S


class PictureSource:
    """Tells the picture that was put last."""

    def __init__(self, picture: Picture, *, can_act: bool = False) -> None:
        self.can_act = can_act
        self.rest_s = 0.0
        self.asked = 0
        """How often for a pair or for events."""
        self.now = picture
        self.silent = ""
        """Why it tells no picture; empty: it does."""
        self.apart = ""
        """Why the two of a pair that is asked for may not talk; empty: they may."""
        self.watched: list[tuple[frozenset[str], float]] = []
        self.acted: list[tuple[str, str, dict[str, Any]]] = []

    async def picture(self, known: str) -> Picture | None:
        if self.silent:
            raise LimpetError(self.silent)
        return None if known == self.now.version else self.now

    async def watch(self, uids: Collection[str], for_s: float) -> None:
        self.watched.append((frozenset(uids), for_s))

    async def pair(self, one: str, other: str) -> PairDetail:
        self.asked += 1
        if self.apart:
            return PairDetail(one=one, other=other, why_not_allowed=self.apart)
        return detail(self.now, one, other)

    async def events(self, *, before: int | None, node: str, limit: int) -> Timeline:
        self.asked += 1
        return timeline(self.now)

    async def findings(self) -> tuple[Finding, ...] | None:
        return None

    async def act(self, verb: str, by: str, **arguments: Any) -> None:
        self.acted.append((verb, by, arguments))


@contextlib.contextmanager
def page(
    source: PictureSource, tokens: Callable[[], Mapping[str, PageToken]] = dict
) -> Iterator[tuple[str, Sessions]]:
    """Address of the page, and who is in; a loop of its own runs it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="page", daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    serving = served(source, Serving(("127.0.0.1", 0), tokens=tokens))
    try:
        yield run(serving.__aenter__())
    finally:
        run(serving.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@contextlib.contextmanager
def page_of_the_cloud(config: Path, log: Path, *words: str) -> Iterator[None]:
    """As the systemd unit starts it, until it has said that it is ready: `config` is the
    controller's, `words` are more options."""
    command = (sys.executable, "-m", "limpet", "ui", "--controller", "--tokens-only", *words)
    address = log.with_name("page-ready")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, log.open("wb") as said:
        ready.bind(str(address))
        ready.settimeout(PATIENCE_S)
        process = subprocess.Popen(
            [*command, "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "NOTIFY_SOCKET": str(address)},
        )
        try:
            assert ready.recv(64) == b"READY=1"
            yield
        finally:
            process.terminate()
            printed = process.communicate(timeout=PATIENCE_S)[0]
            address.unlink()
    assert process.returncode == 0
    assert printed == b"", "a service prints no link into its log"
