"""Asks all at once, and puts together what they say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from limpet.base.addresses import Endpoint, endpoint_text
from limpet.base.errors import LimpetError
from limpet.base.process.connecting import cause_of
from limpet.cli.netcheck.report import NO_IPV6, findings_of
from limpet.cli.netcheck.targets import NetcheckTarget, Observer, ObserverKind, resolve
from limpet.cli.netcheck.tcp import Connected, connect
from limpet.cli.netcheck.told import Netcheck, ObserverSaid, PortMappingSaid
from limpet.cli.netcheck.udp import (
    MappingSeen,
    MappingSocket,
    comes_back,
    largest_packet,
    source_towards,
)
from limpet.datapath.together.kernel_trial import Lack, try_features
from limpet.nat.mapping import NatKind, NatView
from limpet.nat.port_mapping import PortMapping

_MAPPED_S = 8.0
"""All three protocols are given up after six."""
_LOOK_S = 0.1
_IPV6 = "/proc/net/if_inet6"
"""There where the kernel has IPv6."""
_ANYWHERE_6 = ip_address("2000::1")


@dataclass(frozen=True, slots=True)
class Udp:
    """What came of asking over UDP."""

    seen: Mapping[Observer, MappingSeen]
    nat: Mapping[str, str]
    hairpin: bool | None = None
    sizes: Mapping[Observer, int | None] = field(default_factory=dict)


async def check(targets: Sequence[NetcheckTarget], *, ask_gateway: bool) -> Netcheck:
    """`ask_gateway`: for a port, which it gets back at once."""
    observers, unresolved = await _resolve(targets)
    udp, connected, mapping, lacks = await asyncio.gather(
        _ask_udp(observers),
        asyncio.gather(*(asyncio.to_thread(_connect, each) for each in observers)),
        _map_port() if ask_gateway else _nothing(),
        asyncio.to_thread(_features),
    )
    by_tcp = dict(zip(observers, connected, strict=True))
    clocks = [each.ahead_s for each in connected if each.ahead_s is not None]
    ipv6 = source_towards((_ANYWHERE_6, 9))
    told = Netcheck(
        observers=[_said(each, udp, by_tcp[each]) for each in observers],
        unresolved=unresolved,
        nat=dict(udp.nat),
        public=list(dict.fromkeys(endpoint_text(each.seen_as) for each in udp.seen.values())),
        hairpin=udp.hairpin,
        ipv6=str(ipv6 or ""),
        clock_ahead_s=round(sorted(clocks, key=abs)[0], 1) if clocks else None,
        port_mapping=mapping,
        lacks=lacks,
    )
    return findings_of(told)


def _connect(observer: Observer) -> Connected:
    """In a thread of its own: OpenSSL keeps errors by thread, and a relay's refusal of strangers
    was read as the controller's."""
    return asyncio.run(connect(observer))


async def _nothing() -> None:
    return None


async def _resolve(targets: Iterable[NetcheckTarget]) -> tuple[list[Observer], dict[str, str]]:
    found: list[Observer] = []
    failed: dict[str, str] = {}
    for target in targets:
        try:
            found += await resolve(target)
        except OSError as error:
            failed[str(target)] = cause_of(error)
    return found, failed


def _said(observer: Observer, udp: Udp, tcp: Connected) -> ObserverSaid:
    target, seen = observer.target, udp.seen.get(observer)
    return ObserverSaid(
        kind=target.kind.value,
        host=target.host,
        address=str(observer.address),
        version=observer.address.version,
        udp_port=target.udp_port,
        udp_ms=round(1e3 * seen.rtt_s, 2) if seen is not None else None,
        seen_as=endpoint_text(seen.seen_as) if seen is not None else "",
        tcp_port=target.tcp_port,
        tcp_ms=round(1e3 * tcp.rtt_s, 2) if tcp.rtt_s is not None else None,
        tcp_problem=tcp.problem,
        packet_bytes=udp.sizes.get(observer),
    )


# UDP


async def _ask_udp(observers: Sequence[Observer]) -> Udp:
    seen: dict[Observer, MappingSeen] = {}
    sizes: dict[Observer, int | None] = {}
    nat: dict[str, str] = {}
    hairpin = None
    for version in (4, 6):
        asked = [each for each in observers if each.address.version == version]
        try:
            asker = MappingSocket(version)
        except OSError:  # a machine without IPv6
            continue
        with contextlib.closing(asker):
            found = await asyncio.gather(*(asker.ask(_udp_at(each)) for each in asked))
            answered = {each: one for each, one in zip(asked, found, strict=True) if one}
            seen |= answered
            if asked:
                kind, mapped = _nat_kind(answered, version)
                nat[f"ipv{version}"] = kind.name.lower()
                if version == 4 and mapped is not None:
                    hairpin = await comes_back(asker, mapped)
            for observer in _one_of_each(answered):
                at, rtt_s = _udp_at(observer), answered[observer].rtt_s
                sizes[observer] = await largest_packet(asker, at, rtt_s)
    return Udp(seen, nat, hairpin, sizes)


def _udp_at(observer: Observer) -> Endpoint:
    return observer.address, observer.target.udp_port


def _nat_kind(
    answered: Mapping[Observer, MappingSeen], version: int
) -> tuple[NatKind, Endpoint | None]:
    """And the endpoint that all see, where a NAT shows one."""
    if not answered:
        return NatKind.BLOCKED, None
    own = {source_towards(_udp_at(each)) for each in answered}
    view, now_s = NatView(), time.monotonic()
    view.network_changed([each for each in own if each is not None])
    for observer, seen in answered.items():
        view.see(_udp_at(observer), seen.seen_as, now_s)
    return view.kind(version, now_s), next(iter(view.mapped(now_s)), None)


def _one_of_each(answered: Iterable[Observer]) -> list[Observer]:
    """A relay if there is one, since tunnels' packets go there, else a controller."""
    found = {each.target.kind: each for each in answered}
    return [found[kind] for kind in (ObserverKind.RELAY, ObserverKind.CONTROLLER) if kind in found][
        :1
    ]


# This machine


async def _map_port() -> PortMappingSaid:
    """Asks the gateway for a port, and gives it back."""
    told: list[tuple[Endpoint, ...]] = []
    mapping = PortMapping(_a_port(), told.append)
    mapping.start()
    end_s = time.monotonic() + _MAPPED_S
    begun = mapping.report()
    try:
        while mapping.report() == begun and time.monotonic() < end_s:
            await asyncio.sleep(_LOOK_S)
        report = mapping.report()
    finally:
        await mapping.stop()
    return PortMappingSaid(
        by=report.by or "",
        gateway=report.gateway or "",
        endpoint=endpoint_text(told[-1][0]) if told and told[-1] else "",
        problem=report.problem if report != begun else "no answer",
    )


def _a_port() -> int:
    """A port that nobody here uses now."""
    with contextlib.closing(MappingSocket(4)) as asker:
        return asker.port


def _features() -> list[Lack] | None:
    if os.geteuid() != 0:
        return None
    ipv6 = os.path.exists(_IPV6)
    try:
        return [*try_features(ipv6=ipv6, cluster=True), *(() if ipv6 else (NO_IPV6,))]
    except LimpetError as error:
        return [Lack("network namespaces", str(error), "pods", "CONFIG_NET_NS")]
