"""What `limpet netcheck` found, in words, and what of it stands in the way. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from limpet.cli.netcheck.targets import ObserverKind
from limpet.cli.netcheck.told import Netcheck, ObserverSaid, Remark, error, ok, warn
from limpet.cli.output import off_by
from limpet.cluster.topology.transports import TUNNEL_OVERHEAD_BYTES
from limpet.datapath.together.kernel_trial import Lack
from limpet.kubernetes.access.server_clock import WRONG_S

_NATS = {
    "none": "no NAT: others see this machine's own address",
    "same": "a NAT that shows all others one port (endpoint-independent mapping): most nodes will "
    "be reached directly",
    "symmetric": "a symmetric NAT, which shows each other another port (endpoint-dependent "
    "mapping): nodes that let only known ports in will be reached by a relay",
    "unknown": "whether the NAT shows all others one port takes two that answer over UDP, at "
    "different addresses",
}
NO_IPV6 = Lack(
    "IPv6",
    "ipv6.disable=1, or a kernel that was built without",
    "pods of a cluster that gives IPv6 addresses, as one does by default: none would start here, "
    "and the machine is not let join",
    "CONFIG_IPV6, started without ipv6.disable=1; or make the cluster with an IPv4 pod CIDR alone",
    essential=False,
)
_LEAST_INNER = 1280
"""Bytes that IPv6 needs in a tunnel. Source: RFC 8200."""


def findings_of(told: Netcheck) -> Netcheck:
    """The same with its findings."""
    found = [
        *_named(told),
        *_tcp(told),
        *_udp(told),
        *_nat(told),
        *_sizes(told),
        *_ipv6(told),
        *_gateway(told),
        *_clock(told),
        *_kernel(told),
    ]
    return replace(told, findings=found)


def _named(told: Netcheck) -> Iterator[Remark]:
    for who, why in told.unresolved.items():
        yield error(
            f"{who} has no address: {why}",
            "this node would not find it either",
            "name its address, or mend this machine's DNS",
        )
    if not told.observers and not told.unresolved:
        yield warn(
            "no controller and no relay was named, and none is known here",
            "only this machine was looked at",
            "limpet netcheck --controller HOST:PORT --relay HOST",
        )


def _of(told: Netcheck, kind: ObserverKind) -> list[ObserverSaid]:
    return [each for each in told.observers if each.kind == kind.value]


def _usable(each: ObserverSaid) -> bool:
    return each.tcp_ms is not None and not each.tcp_problem


def _hosts(observers: list[ObserverSaid]) -> dict[str, list[ObserverSaid]]:
    found: dict[str, list[ObserverSaid]] = {}
    for each in observers:
        found.setdefault(each.host, []).append(each)
    return found


def _tcp(told: Netcheck) -> Iterator[Remark]:
    for host, ways in _hosts(_of(told, ObserverKind.CONTROLLER)).items():
        good = [each for each in ways if _usable(each)]
        if good:
            trips = ", ".join(f"{each.tcp_ms:.1f} ms over IPv{each.version}" for each in good)
            yield ok(f"the controller {host} answers on TCP port {good[0].tcp_port}: {trips}")
        else:
            why = "; ".join(f"{each.address}: {each.tcp_problem}" for each in ways)
            yield error(
                f"the controller {host} is not reached on TCP port {ways[0].tcp_port} ({why})",
                "a node can't join without it",
                f"let TCP to port {ways[0].tcp_port} out of this site and in there, or mend what "
                "is said; does limpet-controller run there?",
            )


def _udp(told: Netcheck) -> Iterator[Remark]:
    if not told.observers:
        return
    answered = [each for each in told.observers if each.udp_ms is not None]
    relays = _of(told, ObserverKind.RELAY)
    by_tls = [each for each in relays if _usable(each)]
    silent = [each for each in told.observers if each.udp_ms is None]
    for each in answered:
        yield ok(
            f"UDP gets to the {each.kind} {each.host} (port {each.udp_port}, "
            f"{each.udp_ms:.1f} ms), which sees {each.seen_as}"
        )
    for each in silent if answered else ():
        if any(one.host == each.host for one in answered):
            continue  # by the other IP version
        yield warn(
            f"the {each.kind} {each.host} does not answer over UDP (port {each.udp_port})",
            "UDP to others gets out, so it is that port, or what is there: only controllers and "
            "relays of this version answer",
            "let UDP to that port in there; a relay's tunnel port is in `limpet peer list`",
        )
    if answered:
        pass
    elif by_tls:
        names = ", ".join(dict.fromkeys(each.host for each in by_tls))
        yield warn(
            "UDP is answered by nobody: it is not let out of this site, or not in there",
            f"other sites are reached by a relay in TLS only ({names} takes it), which is slower",
            "let UDP out",
        )
    elif relays:
        yield error(
            "UDP is answered by nobody, and no relay is reached in TLS",
            "other sites are not reached at all",
            "let UDP out, or TCP to a relay's port " + str(relays[0].tcp_port),
        )
    else:
        yield warn(
            "UDP is answered by nobody: it is not let out of this site, or nothing is there",
            "then other sites are reached by a relay in TLS only, and none was named",
            "let UDP out; name a relay to try (--relay HOST)",
        )
    for each in relays:
        if answered and _usable(each):
            yield ok(f"the relay {each.host} answers in TLS on TCP port {each.tcp_port}")
        elif answered:
            yield warn(
                f"the relay {each.host} is not reached in TLS on TCP port {each.tcp_port}: "
                f"{each.tcp_problem}",
                "should UDP be blocked one day, it is of no use",
                f"let TCP to port {each.tcp_port} out of this site and in there",
            )


def _nat(told: Netcheck) -> Iterator[Remark]:
    for version, kind in told.nat.items():
        if kind == "blocked":
            continue
        words = f"{version.replace('ipv', 'IPv')}: {_NATS[kind]}"
        if kind in ("none", "same"):
            yield ok(words)
        elif kind == "unknown":
            yield warn(words, "it decides who is reached directly", "name a second one (--relay)")
        else:
            yield warn(
                words,
                "traffic by a relay is slower, and costs the relay's line",
                "nothing has to be done; a port-forward, or a gateway that gives ports, makes this "
                "site reachable directly",
            )
    if told.hairpin is not None:
        comes = "come back" if told.hairpin else "do not come back"
        yield ok(
            f"packets to the own public endpoint {comes} (hairpin); nodes of one site use its LAN"
        )


def _sizes(told: Netcheck) -> Iterator[Remark]:
    for each in told.observers:
        if each.packet_bytes is None:
            continue
        inner = each.packet_bytes - TUNNEL_OVERHEAD_BYTES[each.version]
        words = (
            f"packets of {each.packet_bytes} bytes get to the {each.kind} {each.host} whole over "
            f"IPv{each.version}, so {inner} in a tunnel"
        )
        if inner >= _LEAST_INNER:
            yield ok(words)
        else:
            yield warn(
                words,
                f"IPv6 needs {_LEAST_INNER}: pods there reach each other over IPv4 only",
                "raise the MTU of this site's uplink",
            )


def _ipv6(told: Netcheck) -> Iterator[Remark]:
    if told.lacks is not None and NO_IPV6 in told.lacks:
        return
    answered = any(each.version == 6 and each.udp_ms is not None for each in told.observers)
    if answered:
        yield ok(f"IPv6 works, from {told.ipv6}")
    elif told.ipv6:
        tried = any(each.version == 6 for each in told.observers)
        yield ok(
            f"IPv6 has a way out, from {told.ipv6}; "
            + ("nobody answered over it" if tried else "none that was asked has an IPv6 address")
        )
    else:
        yield ok("no IPv6 gets out of this machine; tunnels carry pods' IPv6 over IPv4")


def _gateway(told: Netcheck) -> Iterator[Remark]:
    mapping = told.port_mapping
    if mapping is None:
        return
    if mapping.endpoint:
        yield ok(
            f"the gateway {mapping.gateway} gives a port of its own, by {mapping.by} "
            f"({mapping.endpoint}, given back): this site can be reached directly"
        )
    elif mapping.by:
        yield ok(f"the gateway gives a port that is of no use: {mapping.problem}")
    else:
        yield ok(f"the gateway gives no port of its own (PCP, NAT-PMP, UPnP): {mapping.problem}")


def _clock(told: Netcheck) -> Iterator[Remark]:
    ahead_s = told.clock_ahead_s
    if ahead_s is None:
        return
    if abs(ahead_s) <= WRONG_S:
        yield ok("the clock is that of the controller")
    else:
        yield warn(
            f"the clock of this machine is {off_by(ahead_s)} of the controller's",
            "Limpet needs none; kubelets, image pulls and logs do",
            "set it (timedatectl set-ntp true)",
        )


def _kernel(told: Netcheck) -> Iterator[Remark]:
    if told.lacks is None:
        yield warn(
            "what the kernel can do was not tried", "it takes root", "sudo limpet netcheck ..."
        )
        return
    for lack in told.lacks:
        said = error if lack.essential else warn
        yield said(
            f"this machine lacks {lack.feature}: {lack.cause}",
            f"it is for {lack.used_for}",
            f"a kernel or package with {lack.module}",
        )
    if not told.lacks:
        yield ok("the kernel has all that pods need (tried in a namespace of its own)")


def observer_row(each: ObserverSaid) -> dict[str, Any]:
    """One observer, for a person."""
    udp = f"{each.udp_ms:.1f} ms" if each.udp_ms is not None else "no answer"
    tcp = f"{each.tcp_ms:.1f} ms" if each.tcp_ms is not None else "no"
    return {
        "who": f"{each.kind} {each.host}",
        "address": each.address,
        "udp": f"port {each.udp_port}: {udp}",
        "seen_as": each.seen_as,
        "tcp": f"port {each.tcp_port}: {each.tcp_problem or tcp}",
        "packet": each.packet_bytes or "",
    }
