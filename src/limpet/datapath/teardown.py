"""Taking everything of ours out of the kernel, and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path

from limpet.base.addresses import InterfaceAddress, Prefix
from limpet.base.errors import LimpetError
from limpet.base.ownership import (
    ALIAS,
    DYING_GROUP,
    DYING_IFNAME_PREFIX,
    IPSEC_PORT_TABLE,
    IPSEC_RULE_PRIORITY,
    IPSEC_TABLE,
    NFT_OVERLAY_TABLE,
    NFT_RELAY_TABLE,
    NFT_SHARED_PORT_TABLE,
    NFT_TABLE,
    POD_GROUP,
    POD_IFNAME_PREFIX,
    ROUTE_TABLE,
    RULE_PRIORITY,
    TUNNEL_GROUP,
    VXLAN_GROUPS,
)
from limpet.datapath.node.forward import HandleNftables, remove_forward_accept
from limpet.datapath.tunnel.ipsec.codec import delete_rule_of_daemon
from limpet.datapath.tunnel.ipsec.esp import drop_sas
from limpet.datapath.tunnel.ipsec.process import IpsecProcess
from limpet.datapath.tunnel.link import needed_rules
from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables
from limpet.linux.sysctl import read_sysctl, write_sysctl

_SET_BY_US = {
    "ip_forward": ("1",),
    "forwarding": ("1",),
    "send_redirects": ("0",),
    "promote_secondaries": ("1",),
    "route_localnet": ("1",),
    "disable_ipv6": ("0",),
    "accept_ra": ("0", "2"),
    "accept_redirects": ("0", "1"),
    "rp_filter": ("2",),
}
"""Last part of a sysctl's path, and what it may be after the plan: see plan.node, kernel.overlay.

accept_redirects is no part of it, but changes with ip_forward, both ways.
"""


_NFT_TABLES = (
    *(NFT_TABLE, NFT_OVERLAY_TABLE, NFT_SHARED_PORT_TABLE, NFT_RELAY_TABLE),
    IPSEC_PORT_TABLE,
)


@dataclass(slots=True)
class Teardown:
    """What was done, as lines for a person."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """What was left alone, with the reason."""
    failed: list[str] = field(default_factory=list)


def remove_kernel_state(
    original_sysctls: Mapping[str, str],
    gateways: Collection[InterfaceAddress] = (),
    *,
    ipsec_folder: Path | None = None,
) -> Teardown:
    """Removes our links, rules, routes, nftables table and accept rules; puts sysctls back.

    `original_sysctls`: values by path below /proc/sys, as they were before us. `gateways`: what a
    bridge of somebody else may hold of ours; it is named, not removed. `ipsec_folder`: of the IKE
    daemon, if there is one. Each part is tried, whatever became of the others.
    """
    report = Teardown()
    if ipsec_folder is not None:
        _try(report, partial(_end_ipsec, ipsec_folder, report))
    with RouteSocket() as route:
        for part in (
            _remove_rules,
            _remove_routes,
            _remove_pods,
            _remove_bridges,
            _remove_vxlan,
            _remove_tunnels,
        ):
            _try(report, partial(part, route, report))
        _try(report, partial(_name_gateways, route, report, gateways))
    _try(report, partial(_remove_nftables, report))
    for path in sorted(original_sysctls, key=_forwarding_first):
        _try(report, partial(_restore_sysctl, path, original_sysctls[path], report))
    return report


def _try(report: Teardown, step: Callable[[], None]) -> None:
    try:
        step()
    except LimpetError as error:
        report.failed.append(str(error))


def _end_ipsec(folder: Path, report: Teardown) -> None:
    """Its device and its routes go with it."""
    process = IpsecProcess(folder)
    pid = process.pid
    if pid is not None:
        process.stop()
        report.done.append(f"strongSwan (process {pid}): ended")
    drop_sas()  # of one that was killed


def _remove_rules(route: RouteSocket, report: Teardown) -> None:
    for rule in route.rules():
        at = (rule.priority, rule.table)
        if at == (RULE_PRIORITY, ROUTE_TABLE):
            request = wire.rule(rule.version, priority=at[0], table=at[1], delete=True)
        elif at == (IPSEC_RULE_PRIORITY, IPSEC_TABLE):
            request = delete_rule_of_daemon(rule.version)
        else:
            continue
        route.apply(request)
        report.done.append(f"rule {rule.priority} (IPv{rule.version}): removed")


def _remove_routes(route: RouteSocket, report: Teardown) -> None:
    requests = [_route_deletion(info) for info in route.routes() if info.table == ROUTE_TABLE]
    route.apply(*requests)
    report.done += [f"{request.what}: removed" for request in requests]


def _route_deletion(info: wire.RouteInfo) -> wire.Request:
    prefix: Prefix = (
        IPv4Network((info.destination or bytes(4), info.prefix_length))
        if info.family == wire.AF_INET
        else IPv6Network((info.destination or bytes(16), info.prefix_length))
    )
    return wire.route(
        prefix,
        ifindex=info.ifindex if info.type == wire.RTN_UNICAST else None,
        gateway=ip_address(info.gateway) if info.gateway else None,
        table=info.table,
        metric=info.metric,
        unreachable=info.type == wire.RTN_UNREACHABLE,
        delete=True,
    )


def _remove_pods(route: RouteSocket, report: Teardown) -> None:
    ours = [link for link in route.links().values() if _is_pod_s(link)]
    route.apply(
        *(
            wire.delete_link(link.ifindex, what=f"link {link.ifname}", ignore_errno=(errno.ENODEV,))
            for link in ours
        )
    )
    report.done += [f"link {link.ifname}: removed" for link in ours]


def _is_pod_s(link: wire.LinkInfo) -> bool:
    """A pod's host end or ifb, living or dying: our name and our group."""
    prefix = {POD_GROUP: POD_IFNAME_PREFIX, DYING_GROUP: DYING_IFNAME_PREFIX}.get(link.group)
    return prefix is not None and link.ifname.startswith(prefix)


def _remove_bridges(route: RouteSocket, report: Teardown) -> None:
    links = route.links().values()
    for bridge in links:
        if bridge.kind != "bridge" or bridge.alias != ALIAS:
            continue
        ports = [link.ifname for link in links if link.master_ifindex == bridge.ifindex]
        if ports:
            report.kept.append(
                f"bridge {bridge.ifname}: {', '.join(ports)} on it is not ours "
                f"(ip link delete {bridge.ifname}, when it is not needed)"
            )
            continue
        route.apply(wire.delete_link(bridge.ifindex, what=f"bridge {bridge.ifname}"))
        report.done.append(f"bridge {bridge.ifname}: removed")


def _remove_vxlan(route: RouteSocket, report: Teardown) -> None:
    for link in route.links().values():
        if link.kind == "vxlan" and link.group in VXLAN_GROUPS.values():
            route.apply(wire.delete_link(link.ifindex, what=f"link {link.ifname}"))
            report.done.append(f"link {link.ifname}: removed")


def _remove_tunnels(route: RouteSocket, report: Teardown) -> None:
    rules = needed_rules(route, wanted=False)
    route.apply(*rules)
    report.done += [f"{rule.what}: removed" for rule in rules]
    for link in route.links().values():
        if link.group != TUNNEL_GROUP:
            continue
        # A userspace WireGuard ends with its device, but only when it is told does it at once.
        WireguardProcess(link.ifname, log=Path(os.devnull)).stop()
        gone = (errno.ENODEV,)
        route.apply(wire.delete_link(link.ifindex, what=f"link {link.ifname}", ignore_errno=gone))
        report.done.append(f"link {link.ifname}: removed")


def _name_gateways(
    route: RouteSocket, report: Teardown, gateways: Collection[InterfaceAddress]
) -> None:
    wanted = {(gateway.packed, gateway.network.prefixlen): gateway for gateway in gateways}
    names = {link.ifindex: link.ifname for link in route.links().values()}
    for info in route.addresses():
        gateway = wanted.get((info.packed, info.prefix_length))
        if gateway is not None:
            ifname = names.get(info.ifindex, "?")
            report.kept.append(
                f"address {gateway} on {ifname}, which Limpet did not make "
                f"(ip address delete {gateway} dev {ifname}, when it is not needed)"
            )


def _remove_nftables(report: Teardown) -> None:
    nft = HandleNftables()
    try:
        report.done += [f"{chain}: accept rules removed" for chain in remove_forward_accept(nft)]
    finally:
        nft.close()
    for table in _NFT_TABLES:
        ours = Nftables(table)
        try:
            if ours.list_table() is not None:
                ours.delete_table()
                report.done.append(f"nftables table inet {table}: removed")
        finally:
            ours.close()


def _forwarding_first(path: str) -> tuple[bool, str]:
    """ip_forward sets others as it changes. Source: inet_forward_change in net/ipv4/devinet.c."""
    return path != "net/ipv4/ip_forward", path


def _restore_sysctl(path: str, original: str, report: Teardown) -> None:
    now = read_sysctl(path)
    leaf = path.rsplit("/", 1)[-1]
    if now is None or now == original:
        return  # its interface is gone, or there is nothing to do
    if now not in _SET_BY_US.get(leaf, ()):
        report.kept.append(f"sysctl {path} = {now}: not what Limpet had set")
        return
    write_sysctl(path, original)
    report.done.append(f"sysctl {path}: {original} again")
