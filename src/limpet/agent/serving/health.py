"""healthCheckNodePort: a load balancer asks each node whether it has an endpoint of a Service.

Source: pkg/proxy/healthcheck of Kubernetes, for what is said.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus

import msgspec
import structlog

from limpet.base.bounds.strangers import (
    HEALTH_CONNECTIONS,
    HEALTH_CONNECTIONS_OF_ONE,
    HEALTH_PORTS,
    HEALTH_REQUEST,
    HEALTH_S,
)
from limpet.base.http.one_request import RequestServers
from limpet.base.process.listeners import close_server, open_listener
from limpet.base.timer import Timer
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import Service, ServiceName

_log = structlog.get_logger("services")

_RETRY_S = 10.0
_EVERYWHERE = ("::", "0.0.0.0")
"""The second where a machine has no IPv6."""


class ServiceHealth:
    """For one event loop. A port that is taken is told, and tried again."""

    def __init__(self, catalog: Catalog, here: Callable[[], Here]) -> None:
        self._catalog = catalog
        self._here = here
        self._servers: dict[int, asyncio.Server] = {}
        self._whose: dict[int, ServiceName] = {}
        self.troubles: dict[int, str] = {}
        """Ports where nobody can ask, and why."""
        self._requests = RequestServers(
            HEALTH_CONNECTIONS.most,
            HEALTH_CONNECTIONS_OF_ONE.most,
            request_bytes=HEALTH_REQUEST.most,
            patience_s=HEALTH_S.most,
        )
        self._opening = asyncio.Lock()
        self._timer = Timer("health of Services", lambda: self._requests.run(self._follow()))

    def changed(self, names: Iterable[ServiceName]) -> None:
        """These Services may ask for other ports than before."""
        wanted = dict(self._whose)
        for name in names:
            for port in [port for port, whose in wanted.items() if whose == name]:
                del wanted[port]
            service = self._catalog.service(*name)
            port = health_port(service) if service is not None else 0
            if port:
                wanted.setdefault(port, name)
        if lost := self._whose.keys() - wanted.keys():
            # Another one may have wanted it before this one was heard to be gone.
            for service in self._catalog:
                if (port := health_port(service)) in lost:
                    wanted.setdefault(port, service.key)
        if wanted != self._whose:
            self._whose = wanted
            self._timer.set_in(0)

    @property
    def ports(self) -> frozenset[int]:
        """Where it answers."""
        return frozenset(self._servers)

    async def stop(self) -> None:
        self._timer.stop()
        await self._requests.stop(self._servers.values())

    # Ports

    async def _follow(self) -> None:
        async with self._opening:
            for port in self._servers.keys() - self._whose.keys():
                await close_server(self._servers.pop(port))
            self.troubles = {p: why for p, why in self.troubles.items() if p in self._whose}
            for port in sorted(self._whose.keys() - self._servers.keys()):
                if len(self._servers) < HEALTH_PORTS.most:
                    await self._open(port)
                else:
                    self._note(port, f"this node answers at {HEALTH_PORTS.most:,} such ports")
        if self.troubles:
            self._timer.set_in(_RETRY_S)

    async def _open(self, port: int) -> None:
        why = ""
        for address in _EVERYWHERE:
            try:
                self._servers[port] = await self._requests.start(
                    open_listener((address, port)), partial(self._answer, port)
                )
            except OSError as error:
                why = error.strerror or str(error)
                continue
            self.troubles.pop(port, None)
            return
        self._note(port, why)

    def _note(self, port: int, why: str) -> None:
        if self.troubles.get(port) != why:
            namespace, name = self._whose[port]
            _log.warning(
                "nobody can ask whether this node serves a Service",
                by_others=True,
                service=f"{namespace}/{name}",
                port=port,
                error=why,
                what_to_do="free the port: the load balancer takes this node for one that does not",
            )
        self.troubles[port] = why

    # Answers

    def _answer(self, port: int, request: bytes | None) -> bytes:
        """Whatever it asks for, as long as it asks."""
        asked = (request or b"").partition(b"\r\n")[0]
        if not asked.endswith((b" HTTP/1.1", b" HTTP/1.0")):
            return b""
        namespace, name = self._whose.get(port, ("", ""))
        count = local_endpoints(self._catalog, (namespace, name), self._here())
        status = HTTPStatus.OK if count else HTTPStatus.SERVICE_UNAVAILABLE
        said = {
            "service": {"namespace": namespace, "name": name},
            "localEndpoints": count,
            "serviceProxyHealthy": True,
        }
        body = msgspec.json.encode(said)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"X-Content-Type-Options: nosniff\r\nX-Load-Balancing-Endpoint-Weight: {count}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


def health_port(service: Service) -> int:
    """0: nobody may ask."""
    is_asked = service.exposure.is_local and not service.is_others
    return service.exposure.health_check_node_port if is_asked else 0


def local_endpoints(catalog: Catalog, name: ServiceName, here: Here) -> int:
    """Number of this node's endpoints that are ready, or in doubt, and whose containers are there,
    in the family that has more: a pod with an address of each is one."""
    found: dict[int, set[str]] = defaultdict(set)
    for piece in catalog.slices(*name):
        found[piece.version] |= {
            endpoint.address
            for endpoint in piece.endpoints
            if (endpoint.is_ready or endpoint.is_doubted)
            and endpoint.node == here.node
            and endpoint.address not in here.gone
        }
    return max(map(len, found.values()), default=0)
