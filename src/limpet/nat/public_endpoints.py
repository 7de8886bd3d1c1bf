"""Where this node's tunnel is reached from outside: as configured, forwarded, or mapped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

from limpet.base.addresses import Endpoint
from limpet.base.timer import Timer
from limpet.nat.endpoints import KnownEndpoints
from limpet.nat.port_mapping import PortMapping


class PublicEndpoints:
    """`KnownEndpoints` with a clock, a timer and the gateway; runs on the event loop's thread."""

    def __init__(
        self,
        static: tuple[Endpoint, ...],
        on_endpoints: Callable[[tuple[Endpoint, ...]], None],
    ) -> None:
        """`static`: those of the configuration. `on_endpoints` gets all there are, at most eight,
        whenever they are others than before; the static ones with `start`.
        """
        self._known = KnownEndpoints(static)
        self._on_endpoints = on_endpoints
        self._alarm = Timer("candidates", self._tick)
        self.mapping: PortMapping | None = None
        """None: the gateway is not asked for a port."""
        self._running = False

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Those that were told last."""
        return self._known.told

    def start(self) -> None:
        self._running = True
        self._tick()

    async def stop(self) -> None:
        self._running = False
        self._set_timer()
        if self.mapping is not None:
            await self.mapping.stop()

    def map_port(self, port: int, secret: bytes) -> None:
        """Asks the gateway from now on to forward this port to the tunnel's. `secret`: of this
        node's, as `PortMapping` takes it."""
        if self.mapping is None:
            self.mapping = PortMapping(port, self._set_forwarded, secret)
            self.mapping.start()

    def _set_forwarded(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._known.set_forwarded(endpoints, time.monotonic())
        self._set_timer()

    def confirm(self, mapped: tuple[Endpoint, ...], *, symmetric: Collection[int]) -> None:
        """As `KnownEndpoints.confirm`."""
        self._known.confirm(mapped, time.monotonic(), symmetric=symmetric)
        self._set_timer()

    def doubt(self) -> None:
        """The network has changed: as `KnownEndpoints.doubt`, and asks the gateway again."""
        self.ask_gateway()
        self._known.doubt(time.monotonic())
        self._set_timer()

    def ask_gateway(self) -> None:
        """Asks it again soon: it may be another one."""
        if self.mapping is not None:
            self.mapping.network_changed()

    def _set_timer(self) -> None:
        self._alarm.set(self._known.wake_at_s if self._running else math.inf)

    def _tick(self) -> None:
        news = self._known.tick(time.monotonic())
        if news is not None:
            self._on_endpoints(news)
        self._set_timer()
