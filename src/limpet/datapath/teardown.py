"""Taking everything of ours out of the kernel, and nothing else."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from limpet.base.addresses import InterfaceAddress
from limpet.base.errors import LimpetError
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables
from limpet.linux.owned import Owned
from limpet.linux.sysctl import read_sysctl, write_sysctl


@dataclass(slots=True)
class Teardown:
    """What was done, as lines for a person."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """What was left alone, with the reason."""
    failed: list[str] = field(default_factory=list)

    def attempt(self, step: Callable[[], None]) -> None:
        """Whatever becomes of it the others are tried."""
        try:
            step()
        except LimpetError as error:
            self.failed.append(str(error))


def remove_kernel_state(
    owners: Collection[Owned],
    original_sysctls: Mapping[str, str],
    gateways: Collection[InterfaceAddress] = (),
    needed_sysctls: Mapping[str, str] | None = None,
) -> Teardown:
    """Removes what the owners have, and puts sysctls back.

    `original_sysctls`: values by path below /proc/sys, as they were before us. `gateways`: what a
    bridge of somebody else may hold of ours; it is named, not removed. `needed_sysctls`: settings
    that stay, by path, and who goes on with them.
    """
    report = Teardown()
    with RouteSocket() as route:
        for owned in owners:
            for end in owned.ends:
                report.attempt(partial(_end, route, end, report))
        for owned in owners:
            report.attempt(partial(_delete, route, owned, report))
        for owned in owners:
            report.attempt(partial(_remove_links, route, owned, report))
        report.attempt(partial(_name_gateways, route, report, gateways))
    for owned in owners:
        for family, table in owned.tables:
            report.attempt(partial(_remove_table, family, table, report))
    allowed = {name: values for owned in owners for name, values in owned.sysctls.items()}
    for path in sorted(original_sysctls, key=_forwarding_first):
        original = original_sysctls[path]
        who = (needed_sysctls or {}).get(path, "")
        report.attempt(partial(_restore_sysctl, path, original, allowed, report, needed_by=who))
    return report


def _end(route: RouteSocket, end: Callable[[RouteSocket], Iterable[str]], report: Teardown) -> None:
    report.done += end(route)


def _delete(route: RouteSocket, owned: Owned, report: Teardown) -> None:
    requests = owned.deletions(route)
    route.apply(*requests)
    report.done += [f"{request.what}: removed" for request in requests]


def _remove_links(route: RouteSocket, owned: Owned, report: Teardown) -> None:
    links = route.links().values()
    for link in links:
        if not owned.has(link):
            continue
        what = f"{'bridge' if link.kind == 'bridge' else 'link'} {link.ifname}"
        ports = [
            each.ifname
            for each in links
            if each.master_ifindex == link.ifindex and not owned.has(each)
        ]
        if ports:
            report.kept.append(
                f"{what}: {', '.join(ports)} on it is not ours "
                f"(ip link delete {link.ifname}, when it is not needed)"
            )
            continue
        gone = (errno.ENODEV,)  # with its other end, or what it was on
        route.apply(link_codec.delete_link(link.ifindex, what=what, ignore_errno=gone))
        report.done.append(f"{what}: removed")


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


def _remove_table(family: str, table: str, report: Teardown) -> None:
    ours = Nftables(table, family=family)
    try:
        if ours.list_table() is not None:
            # Not added before, as `keep` does it: one that has belonged to a socket refuses that.
            ours.run(f"delete table {family} {table}", what=f"table {table}")
            report.done.append(f"nftables table {family} {table}: removed")
    finally:
        ours.close()


def _forwarding_first(path: str) -> tuple[bool, str]:
    """ip_forward sets others as it changes. Source: inet_forward_change in net/ipv4/devinet.c."""
    return path != "net/ipv4/ip_forward", path


def _restore_sysctl(
    path: str,
    original: str,
    allowed: Mapping[str, tuple[str, ...]],
    report: Teardown,
    *,
    needed_by: str,
) -> None:
    now = read_sysctl(path)
    leaf = path.rsplit("/", 1)[-1]
    if now is None or now == original:
        return  # its interface is gone, or there is nothing to do
    if now not in allowed.get(leaf, ()):
        report.kept.append(f"sysctl {path} = {now}: not what Limpet had set")
        return
    if needed_by:
        report.kept.append(
            f"sysctl {path} = {now}: {needed_by} may go on with it "
            f"(sysctl -w {path}={original}, when nobody does)"
        )
        return
    write_sysctl(path, original)
    report.done.append(f"sysctl {path}: {original} again")
