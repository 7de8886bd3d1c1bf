"""What others have left or set on this machine that pods' packets run into."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from limpet.base.addresses import Prefix
from limpet.base.ownership import DYING_GROUP, RULE_PRIORITY, TUNNEL_RULE_PRIORITY
from limpet.base.process.wall_clock import is_kept
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.owners import is_ours
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import route_codec
from limpet.linux.netlink.link_codec import LinkInfo
from limpet.linux.netlink.route_codec import RouteInfo
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.sysctl import read_sysctl

T = TypeVar("T")
_SETTLED_S = 0.5
"""The agent mends within a tenth of a second what it is told of."""
_NEARLY_FULL = 0.9
_FRA_SELECTORS = (1, 2, 3, 10, 17, 20, 22, 23, 24)
"""FRA_DST, SRC, IIFNAME, FWMARK, OIFNAME, UID_RANGE, IP_PROTO, SPORT_RANGE, DPORT_RANGE.

Source: include/uapi/linux/fib_rules.h, the next two too.
"""
_FRA_SUPPRESS_PREFIXLEN = 14
_FIB_RULE_INVERT = 2
_LEFTOVERS = {
    "flannel.": "flanneld",
    "flannel-v6.": "flanneld",
    "cni0": "flanneld",
    "cali": "calico-node",
    "vxlan.calico": "calico-node",
    "tunl0": "calico-node",
    "cilium_": "cilium-agent",
    "lxc_health": "cilium-agent",
    "weave": "weaver",
    "kube-bridge": "kube-router",
    "edgemesh0": "edgemesh-agent",
}
"""Beginnings of names of links, and the program without which they do nothing."""
_SYSCTL_FOLDERS = ("etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d")
"""Folders of settings: of files with one name the first counts. Source: sysctl.d(5)."""


def lasting(look: Callable[[], list[T]]) -> list[T]:
    """What is found now and a moment later too: the agent may be at it."""
    found = look()
    if not found:
        return found
    time.sleep(_SETTLED_S)
    later = look()
    return [each for each in found if each in later]


def examine_own_links() -> Iterator[Finding]:
    for ifname in lasting(links_down):
        yield error(
            "own-link-down",
            f"{ifname} is down",
            "it is Limpet's, and what goes through it gets nowhere",
            f"ip link set {ifname} up; if it goes down again and again, look for what does it "
            "(ip monitor link)",
        )


def links_down() -> list[str]:
    """Names of links of ours that are not up. Raises: KernelError."""
    with RouteSocket() as route:
        links = route.links().values()
    return [each.ifname for each in links if _is_wanted(each) and not each.up]


def _is_wanted(link: LinkInfo) -> bool:
    return is_ours(link) and link.group != DYING_GROUP


def examine_default_route(versions: Iterable[int]) -> Iterator[Finding]:
    """`versions`: IP versions that pods have. One default route of any version will do."""
    with RouteSocket() as route:
        # One of several next hops has no link of its own; an unreachable one of IPv6 has lo.
        found = [
            each
            for each in route.routes()
            if each.prefix_length == 0 and each.type == route_codec.RTN_UNICAST
        ]
    if not found and list(versions):
        yield warn(
            "no-default-route",
            "this node has no default route",
            "pods reach nothing beyond the cluster, and nodes of other sites cannot be reached; "
            "pods start all the same, and those of the same site are reached",
            "nothing, while the site is cut off on purpose; else see what sets the uplink up "
            "(DHCP, /etc/network/interfaces, nmcli): ip route",
        )


@dataclass(frozen=True, slots=True)
class _RuleBefore:
    version: int
    priority: int
    table: int
    suppressed: int
    """Routes of at most this prefix length do not count; -1: all do."""


def examine_rules(cidrs: Iterable[Prefix]) -> Iterator[Finding]:
    """Rules of others for every packet, before ours, with a table that takes pods' packets."""
    with RouteSocket() as route:
        rules = list(_rules_before(route))
        routes = route.routes()
    wanted = list(cidrs)
    for rule in rules:
        taken = [cidr for cidr in wanted if any(_takes(rule, each, cidr) for each in routes)]
        if taken:
            yield error(
                "rule-before-ours",
                f"the rule of priority {rule.priority} sends what is for "
                f"{', '.join(map(str, taken))} by table {rule.table}",
                f"it comes before Limpet's ({RULE_PRIORITY}), so pods of other nodes are looked "
                "for elsewhere (a VPN, or what is left of another pod network)",
                f"give it a priority above {RULE_PRIORITY} (ip -{rule.version} rule), or delete "
                "it where it is left over",
            )


def _rules_before(route: RouteSocket) -> Iterator[_RuleBefore]:
    for message in route.dump(route_codec.dump_rules()):
        attrs = wire.parse_attrs(message.body, 12)
        found = route_codec.parse_rule(message)
        flags = int.from_bytes(bytes(message.body[8:12]), "little")
        limited = flags & _FIB_RULE_INVERT or any(each in attrs for each in _FRA_SELECTORS)
        ours = found.priority in (RULE_PRIORITY, TUNNEL_RULE_PRIORITY)
        if limited or ours or not 0 < found.priority < RULE_PRIORITY or not found.table:
            continue
        least = attrs.get(_FRA_SUPPRESS_PREFIXLEN, b"\xff\xff\xff\xff")
        suppressed = int.from_bytes(least, "little", signed=True)
        yield _RuleBefore(found.version, found.priority, found.table, suppressed)


def _takes(rule: _RuleBefore, route: RouteInfo, cidr: Prefix) -> bool:
    prefix = route.prefix
    return (
        route.table == rule.table
        and prefix.version == cidr.version
        and route.prefix_length > rule.suppressed
        and prefix.overlaps(cidr)
    )


def examine_leftovers(used: Collection[str], processes: Path = Path("/proc")) -> Iterator[Finding]:
    """Links of another pod network whose program does not run.

    `used`: bridges of this node's networks, which Limpet may have found there: they have no mark of
    ours. A bridge with ports is somebody's, and pods may hang on it.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return  # a pod has the node's links before it, and not the node's processes
    with RouteSocket() as route:
        links = route.links().values()
    with_ports = {link.master_ifindex for link in links}
    others = [
        link
        for link in links
        if not is_ours(link) and link.ifname not in used and link.ifindex not in with_ports
    ]
    found: dict[str, list[str]] = {}
    for link in others:
        for begin, program in _LEFTOVERS.items():
            idle = link.ifname == "tunl0" and not link.up  # the module makes it
            if link.ifname.startswith(begin) and not idle:
                found.setdefault(program, []).append(link.ifname)
    running = _running(processes) if found else set()
    for program, names in found.items():
        if program not in running:
            yield warn(
                "leftover-links",
                f"{', '.join(names[:5])}: of another pod network, whose {program} does not run",
                "its routes, rules and addresses may take pods' packets; pods that still hang on "
                "it are reached by nobody",
                "when its pods are gone: "
                + "; ".join(f"ip link delete {name}" for name in names[:5]),
            )


def _running(processes: Path) -> set[str]:
    names = set()
    for path in processes.glob("[0-9]*/comm"):
        try:
            names.add(path.read_text(encoding="utf-8", errors="replace").strip())
        except OSError:
            continue  # it has ended
    return names


def examine_connection_tracking(nearly_full: float = _NEARLY_FULL) -> Iterator[Finding]:
    count, most = (
        int(read_sysctl(f"net/netfilter/nf_conntrack_{name}") or 0) for name in ("count", "max")
    )
    if most and count >= most * nearly_full:
        yield error(
            "conntrack-full",
            f"connection tracking holds {count} of at most {most} flows",
            "new flows get lost, those of pods too: what goes on works, what begins does not "
            "(much UDP from many ports does that, or a scan)",
            f"sysctl -w net.netfilter.nf_conntrack_max={most * 4} (and for good in /etc/sysctl.d); "
            "conntrack -L shows whose they are",
        )


def examine_sysctl_files(planned: dict[str, str], root: Path = Path("/")) -> Iterator[Finding]:
    """Files that set a kernel setting otherwise than Limpet needs. `planned`: path and value."""
    for path, (value, file) in _settings_of_files(root).items():
        if path in planned and planned[path] != value:
            yield warn(
                "sysctl-file",
                f"{file} sets {path.replace('/', '.')} to {value}, not {planned[path]}",
                "at each boot, and when `sysctl --system` runs (packages do that), pods' packets "
                "are not forwarded until the agent has set it back, up to a minute later",
                f"set it to {planned[path]} there",
            )


def _settings_of_files(root: Path) -> dict[str, tuple[str, Path]]:
    """Value and file by path below /proc/sys, as `sysctl --system` ends with them."""
    files: dict[str, Path] = {}
    for folder in _SYSCTL_FOLDERS:
        for file in (root / folder).glob("*.conf"):
            files.setdefault(file.name, file)
    ordered = [files[name] for name in sorted(files)]
    if (root / "etc/sysctl.conf").is_file() and "99-sysctl.conf" not in files:
        ordered.append(root / "etc/sysctl.conf")
    found: dict[str, tuple[str, Path]] = {}
    for file in ordered:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, equals, value = line.strip().removeprefix("-").partition("=")
            if equals and not name.startswith(("#", ";")):
                found[name.strip().replace(".", "/")] = value.strip(), file
    return found


def examine_clock(
    folders: Iterable[Path], *, kept: Callable[[], bool] = is_kept
) -> Iterator[Finding]:
    """Whether the clock is behind files that were written here. Works without a network. `kept`: a
    time server keeps it, and what looks later was written when it was ahead."""
    newest, at = 0.0, Path()
    for folder in folders:
        for path in folder.glob("*"):
            try:
                written_s = path.stat().st_mtime
            except OSError:
                continue
            if written_s > newest:
                newest, at = written_s, path
    behind_s = newest - time.time()
    if behind_s > _CLOCK_S and kept():
        yield ok(f"a time server keeps the clock; {at} was written when it was ahead")
    elif behind_s > _CLOCK_S:
        yield warn(
            "clock-wrong",
            f"the clock of this machine is at least {behind_s / 3600:.0f} hours behind: {at} was "
            "written later than now",
            "Limpet goes on with any clock; certificates of kubelets and others do not, and logs "
            "have wrong times",
            "set it: timedatectl set-time, or let systemd-timesyncd or chrony do it; a machine "
            "without a battery starts at some old time until then",
        )
    elif newest:
        yield ok("the clock is not behind what was written here")


_CLOCK_S = 3600.0
