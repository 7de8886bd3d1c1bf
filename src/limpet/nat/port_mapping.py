"""Has the gateway forward a port of its own to the tunnel's, by PCP, NAT-PMP or UPnP."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

import structlog

from limpet.base import faults
from limpet.base.addresses import Endpoint, is_public
from limpet.base.bounds.servers import GATEWAY_LEASE_S
from limpet.base.errors import KernelError
from limpet.base.process.threads import in_thread
from limpet.linux.underlay import default_gateway
from limpet.nat.port_control_codec import (
    NONCE_BYTES,
    GatewaySilentError,
    PortControlError,
    PortLease,
)
from limpet.nat.status import PortMappingStatus

_log = structlog.get_logger("port-mapping")

LIFETIME_S = GATEWAY_LEASE_S.most
"""Asked for."""
_RENEWED_AFTER = 0.5
"""Share of what is given after which it is renewed."""
_SHORTEST_S = 60.0
_SOON_S, _AGAIN_S = 10.0, 600.0
"""Between tries with a gateway that gives nothing: the first, twice as long each time, and the
longest. After a power cut of the site it may come minutes after the node, or know its own address
outside then only."""
_RENEW_AGAIN_S = 30.0
"""Between tries with one that has not answered while it still leads a port to us."""
_SETTLE_S = 1.0
"""After the network has changed, in which more may change."""
_RELEASE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Held:
    by: str
    """`pcp`, `nat-pmp` or `upnp`."""
    gateway: IPv4Address
    lease: PortLease
    location: str = ""
    """UPnP: where the gateway describes itself."""
    ends_s: float = 0.0
    """When the lease does, by time.monotonic."""


class PortMapping:
    """Runs on the event loop; what may block does so in a thread."""

    def __init__(
        self,
        port: int,
        on_mapped: Callable[[tuple[Endpoint, ...]], None],
        secret: bytes | None = None,
    ) -> None:
        """`port`: UDP, of the tunnel. `on_mapped` gets the endpoint that is forwarded to it,
        or none, whenever that has changed. `secret`: 32 bytes of this node's; who begins with it
        again has the mapping of before, which else nobody may renew or end."""
        self._port = port
        self._on_mapped = on_mapped
        self._secret = os.urandom(32) if secret is None else secret
        self._held: _Held | None = None
        self._told: tuple[Endpoint, ...] = ()
        self._problem = "not asked yet"
        self._again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Gives the gateway its port back, if it answers within two seconds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        held = self._held
        if held is None:
            return
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._ask(held.by, held.gateway, held.lease.port, 0, held.location)
        except (PortControlError, OSError, TimeoutError) as error:
            _log.debug("the gateway's port was not given back", error=str(error))

    def network_changed(self) -> None:
        """Asks again soon: the gateway may be another, or have forgotten."""
        self._again.set()

    def report(self) -> PortMappingStatus:
        held = self._held
        return PortMappingStatus(
            by=held.by if held is not None else None,
            gateway=str(held.gateway) if held is not None else None,
            problem=self._problem,
        )

    async def _keep(self) -> None:
        moved, again_s = True, _SOON_S
        while True:
            self._again.clear()
            try:
                held = await self._obtain(moved=moved)
            except GatewaySilentError as error:
                # A busy gateway, or a lost frame or two: it goes on with what it has promised.
                self._note(self._held, str(error))
                pause_s = _RENEW_AGAIN_S
            except (PortControlError, KernelError, OSError) as error:
                self._note(None, str(error))
                pause_s = _AGAIN_S
            except Exception as error:  # noqa: BLE001 - the next time may be better
                faults.note("port mapping", error)
                self._note(None, f"internal error: {error!r} (see the agent's log)")
                pause_s = _AGAIN_S
            else:
                self._note(held, "")
                pause_s = max(held.lease.lifetime_s * _RENEWED_AFTER, _SHORTEST_S)
            if self._held is not None and self._told:
                again_s = _SOON_S
            else:
                pause_s = min(pause_s, again_s)
                again_s = min(again_s * 2, _AGAIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._again.wait()
                await asyncio.sleep(_SETTLE_S)
            if moved := self._again.is_set():
                again_s = _SOON_S

    def _note(self, held: _Held | None, problem: str) -> None:
        self._held, self._problem = held, problem
        endpoints: tuple[Endpoint, ...] = ()
        if held is not None and held.lease.address is None:
            self._problem = "the gateway has no address outside"
        elif held is not None and held.lease.address is not None:
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

    async def _obtain(self, *, moved: bool) -> _Held:
        """`moved`: the network has changed, and what is held may be another gateway's.

        Raises: GatewaySilentError: it did not answer, and what is held goes on; PortControlError,
        KernelError, OSError.
        """
        gateway, held = await in_thread(default_gateway, "gateway"), self._held
        silent = False
        if gateway is None:
            raise PortControlError("there is no default gateway")
        if held is not None and held.gateway == gateway:
            try:
                return await self._ask(held.by, gateway, held.lease.port, LIFETIME_S, held.location)
            except (GatewaySilentError, OSError):
                silent = True
            except PortControlError:
                pass  # one that was replaced at its address may know another protocol only
        problems = []
        for by in ("pcp", "nat-pmp", "upnp"):
            try:
                return await self._ask(by, gateway, self._port, LIFETIME_S)
            except PortControlError as error:
                problems.append(f"{by}: {error}")
            except OSError as error:
                problems.append(f"{by}: {error.strerror or error}")
        said = f"gateway {gateway}: {'; '.join(problems)}"
        if held is not None and silent and not moved and time.monotonic() < held.ends_s:
            raise GatewaySilentError(said)
        raise PortControlError(said)

    def _nonce_for(self, gateway: IPv4Address) -> bytes:
        """A server lets nobody change a mapping who does not know its nonce. RFC 6887, 11.2."""
        what = b"limpet pcp nonce" + gateway.packed + self._port.to_bytes(2)
        return hashlib.blake2b(what, digest_size=NONCE_BYTES, key=self._secret).digest()

    async def _ask(
        self, by: str, gateway: IPv4Address, wanted: int, lifetime_s: int, location: str = ""
    ) -> _Held:
        """Asks for the gateway's port `wanted`, or gives it back with lifetime 0.

        Raises: PortControlError, OSError.
        """
        # Most nodes never get here, and none needs it to start.
        from limpet.nat import port_control, upnp, upnp_apart

        if by == "pcp":
            nonce = self._nonce_for(gateway)
            lease = await port_control.ask_pcp(gateway, nonce, self._port, wanted, lifetime_s)
        elif by == "nat-pmp":
            lease = await port_control.ask_pmp(gateway, self._port, wanted, lifetime_s)
        else:
            location = location or await upnp.find_gateway(gateway, _own_towards(gateway))
            lease = await in_thread(
                lambda: upnp_apart.map_apart(location, self._port, wanted, lifetime_s), "gateway"
            )
        return _Held(by, gateway, lease, location, time.monotonic() + lease.lifetime_s)


def _own_towards(gateway: IPv4Address) -> IPv4Address:
    """Our address on the way to the gateway. Raises: OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((str(gateway), 9))
        return IPv4Address(probe.getsockname()[0])
