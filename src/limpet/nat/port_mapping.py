"""The gateway is asked to lead a port of its own to the tunnel's: PCP, NAT-PMP or UPnP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, TypeVar, cast

import structlog

from limpet.base import faults
from limpet.base.addresses import Endpoint, is_public
from limpet.base.errors import KernelError
from limpet.linux.underlay import default_gateway
from limpet.nat.port_control_codec import NONCE_BYTES, Lease, PortControlError

_log = structlog.get_logger("port-mapping")

T = TypeVar("T")

LIFETIME_S = 3600
"""Asked for; renewed at half of what is given."""
_SHORTEST_S = 60.0
_AGAIN_S = 600.0
"""Between tries with a gateway that gives nothing."""
_SETTLE_S = 1.0
"""After the network has changed, in which more may change."""
_RELEASE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Held:
    by: str
    """`pcp`, `nat-pmp` or `upnp`."""
    gateway: IPv4Address
    lease: Lease
    location: str = ""
    """UPnP: where the gateway describes itself."""


class PortMapping:
    """Runs on the event loop; what may block does so in a thread."""

    def __init__(self, port: int, on_mapped: Callable[[tuple[Endpoint, ...]], None]) -> None:
        """`port`: UDP, of the tunnel. `on_mapped`: outside, it is this endpoint now, or none."""
        self._port = port
        self._on_mapped = on_mapped
        self._nonce = os.urandom(NONCE_BYTES)
        self._held: _Held | None = None
        self._told: tuple[Endpoint, ...] = ()
        self._problem = "not asked yet"
        self._again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """What the gateway has given is given back, if it answers soon."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._held is not None:
            await self._give_back(self._held)

    def network_changed(self) -> None:
        """Another gateway perhaps, or one that has forgotten."""
        self._again.set()

    def report(self) -> dict[str, Any]:
        held = self._held
        return {
            "by": held.by if held is not None else None,
            "gateway": str(held.gateway) if held is not None else None,
            "problem": self._problem,
        }

    async def _keep(self) -> None:
        while True:
            self._again.clear()
            try:
                held = await self._obtain()
            except (PortControlError, KernelError, OSError) as error:
                self._note(None, str(error))
                pause_s = _AGAIN_S
            except Exception as error:  # noqa: BLE001 - the next time may be better
                faults.note("port mapping", error)
                self._note(None, f"internal error: {error!r} (see the agent's log)")
                pause_s = _AGAIN_S
            else:
                self._note(held, "")
                pause_s = max(held.lease.lifetime_s / 2, _SHORTEST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._again.wait()
                await asyncio.sleep(_SETTLE_S)

    def _note(self, held: _Held | None, problem: str) -> None:
        self._held, self._problem = held, problem
        endpoints: tuple[Endpoint, ...] = ()
        if held is not None and held.lease.address is not None:
            if is_public(held.lease.address):
                endpoints = ((held.lease.address, held.lease.port),)
            else:
                self._problem = f"the gateway has {held.lease.address} outside: behind another NAT"
        if endpoints != self._told:
            self._told = endpoints
            where = f"{endpoints[0][0]} port {endpoints[0][1]}" if endpoints else "none"
            by = held.by if held is not None else ""
            _log.info("port that the gateway leads to us", endpoint=where, by=by)
            self._on_mapped(endpoints)

    # Asking

    async def _obtain(self) -> _Held:
        """Raises: PortControlError, KernelError, OSError."""
        gateway, held = await _in_thread(default_gateway), self._held
        if gateway is None:
            raise PortControlError("there is no default gateway")
        if held is not None and held.gateway == gateway:
            # As before; a gateway that was replaced at its address may know another way only.
            with contextlib.suppress(PortControlError, OSError):
                return await self._ask(held.by, gateway, held.lease.port, LIFETIME_S, held.location)
        problems = []
        for by in ("pcp", "nat-pmp", "upnp"):
            try:
                return await self._ask(by, gateway, self._port, LIFETIME_S)
            except (PortControlError, OSError) as error:
                problems.append(f"{by}: {error}")
        raise PortControlError(f"gateway {gateway}: {'; '.join(problems)}")

    async def _ask(
        self, by: str, gateway: IPv4Address, wanted: int, lifetime_s: int, location: str = ""
    ) -> _Held:
        """Raises: PortControlError, OSError."""
        # Most nodes never get here, and none needs it to start.
        from limpet.nat import port_control, upnp

        if by == "pcp":
            lease = await port_control.ask_pcp(gateway, self._nonce, self._port, wanted, lifetime_s)
        elif by == "nat-pmp":
            lease = await port_control.ask_pmp(gateway, self._port, wanted, lifetime_s)
        else:
            location = location or await upnp.find_gateway(gateway, _own_towards(gateway))
            lease = await _in_thread(
                lambda: upnp.UpnpGateway(location).add(self._port, wanted, lifetime_s)
            )
        return _Held(by, gateway, lease, location)

    async def _give_back(self, held: _Held) -> None:
        from limpet.nat import port_control, upnp

        port = held.lease.port
        try:
            async with asyncio.timeout(_RELEASE_S):
                if held.by == "pcp":
                    await port_control.ask_pcp(held.gateway, self._nonce, self._port, 0, 0)
                elif held.by == "nat-pmp":
                    await port_control.ask_pmp(held.gateway, self._port, 0, 0)
                else:
                    await _in_thread(lambda: upnp.UpnpGateway(held.location).remove(port))
        except (PortControlError, OSError, TimeoutError) as error:
            _log.debug("the gateway's port was not given back", error=str(error))


async def _in_thread(call: Callable[[], T]) -> T:
    """What `call` returns, from a thread that nobody waits for at the end: gateways may hang."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast(T, result))

    def work() -> None:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - whoever awaits gets it
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="gateway", daemon=True).start()
    return await outcome


def _own_towards(gateway: IPv4Address) -> IPv4Address:
    """Our address on the way to the gateway. Raises: OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((str(gateway), 9))
        return IPv4Address(probe.getsockname()[0])
