"""A member that sends a controller as much as it can of everything that a member may send."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from ipaddress import ip_address
from typing import TypeVar

import aiohttp

from limpet.base.bounds import members
from limpet.cluster import api
from limpet.cluster.api import InterfaceAddresses
from limpet.cluster.documents import Kind
from limpet.cluster.kinds import ABSENCE, PODS
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.kinds.pods import LabelledPods
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import seal
from limpet.paths.report import NodeReport, PairReport, PathReport
from limpet.picture.nodes import RelayLoad, Segment
from limpet.picture.pair import Direction, Outward, Reach, Way
from tests.controller.machines import Node, Refusal
from tests.unit.cluster_values import seal_presence

T = TypeVar("T")
_ADDRESSES = tuple(f"2001:db8:aaaa:bbbb:cccc:dddd:eeee:{end:x}" for end in range(16))


class HostileMember:
    """By connections side by side; each goes on where it was refused."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.answers: Counter[tuple[str, str]] = Counter()
        """How often it was answered, by what it asked for and the code of the refusal."""

    def _report(self, round_number: int, *, size: int) -> bytes:
        first = round_number * 1_000
        pods = [
            InterfaceAddresses("n" * 250, "s" * 250, f"{first + n:0250}", "e" * 15, _ADDRESSES)
            for n in range(size)
        ]
        return api.encode(api.PodReport(round_number, tuple(pods), None))

    def _paths(self, number: int, *, pairs: int) -> bytes:
        """All words, segments and figures at their bounds, and other ones each time."""
        words = f"{number:0{members.REPORTED_WORDS.most}}"
        figure = members.REPORTED_FIGURE.most - number
        direction = Direction(
            way=Way(reach=Reach.LOST, rung=words, relay=words, rtt_ms=float(figure)),
            outward=Outward(device=words, mtu_bytes=figure),
            why_not_direct=words,
            mend=(words,) * 4,
        )
        prefixes = (f"2001:db8:{each:x}:{number % 65_536:x}::/64" for each in range(64))
        node = NodeReport(
            version=words,
            backend=words,
            nat={f"{each}{words[2:]}": words for each in range(10, 18)},
            segments=tuple(Segment(prefix=each, size=2**64) for each in prefixes),
            near=words,
            relay=RelayLoad(pairs=figure, bytes_per_s=float(figure)),
        )
        told = [PairReport(f"{each}{words[4:]}", direction) for each in range(1_000, 1_000 + pairs)]
        return api.encode(PathReport(number, node, None, tuple(told)))

    def _presence(self, sequence: int) -> bytes:
        count = members.PRESENCE_ADDRESSES.most
        addresses = tuple(ip_address((sequence << 64 | (1 << 126)) + n) for n in range(count))
        said = Presence(self._node.uid, sequence, "b" * 64, addresses)
        return api.encode(api.PublishRequest(seal_presence(said, self._node.key)))

    def _of_nodes_only(self, kind: Kind[T], said: T) -> bytes:
        """A document of its own, of a kind that no controller keeps."""
        return api.encode(api.PublishRequest(seal(kind, said, self._node.key).sealed))

    def _asked(self, number: int) -> tuple[str, str, bytes]:
        node = self._node
        kinds = [
            ("POST", "/v1/pods", self._report(number, size=120)),
            ("POST", "/v1/pods", self._report(number, size=500)),
            ("POST", "/v1/paths", self._paths(number, pairs=members.REPORTED_PAIRS.most)),
            ("POST", "/v1/paths", self._paths(number, pairs=members.REPORTED_PAIRS.most + 1)),
            ("PUT", "/v1/documents", self._presence(number)),
            ("PUT", "/v1/documents", b"[" * (1 << 20)),
            ("PUT", "/v1/documents", self._of_nodes_only(ABSENCE, Absence(node.uid, number))),
            ("PUT", "/v1/documents", self._of_nodes_only(PODS, LabelledPods(node.uid, 0, number))),
            ("POST", "/v1/show", api.encode(api.ShowRequest((node.sealed,) * 256))),
            ("POST", "/v1/hello", api.encode(api.HelloRequest(node.revision, (node.sealed,) * 8))),
            ("POST", "/v1/segments", api.encode(api.SegmentRequest(0, (4, 6) * 500))),
            ("GET", f"/v1/pods?page={number}", b""),
            ("GET", "/v1/watch?since=" + "x" * 4_000, b""),
        ]
        return kinds[number % len(kinds)]

    async def ask(self, numbers: range, context: ssl.SSLContext) -> None:
        """One after the other, by a connection of its own."""
        connector = aiohttp.TCPConnector(ssl=context, limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            for number in numbers:
                verb, path, body = self._asked(number)
                what = path.partition("?")[0]
                try:
                    await self._node.fetch(verb, path, body, session)
                    self.answers[what, "ok"] += 1
                except Refusal as refusal:
                    self.answers[what, refusal.code.value] += 1
                except (aiohttp.ClientError, OSError) as error:
                    self.answers[what, type(error).__name__] += 1

    async def watch_and_read_nothing(self, port: int, context: ssl.SSLContext) -> None:
        """A watch from the beginning; ends with it."""
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=api.SERVER_NAME, limit=1024
            )
            writer.write(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\nLimpet-Revision: 0\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            try:
                await asyncio.Event().wait()
            finally:
                writer.transport.abort()

    def context(self) -> ssl.SSLContext:
        joined = self._node.joined
        assert joined is not None
        return self._node.context(joined.ca, joined.certificate)
