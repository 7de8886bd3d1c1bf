"""What is there on this machine that concerns Limpet; install and doctor look alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from pathlib import Path

from limpet.agent.settings import Settings
from limpet.base.addresses import Prefix
from limpet.base.errors import LimpetError
from limpet.base.node_state import NodeState
from limpet.base.ownership import ALIAS, ROUTE_TABLE, RULE_PRIORITY
from limpet.cli.doctor.features import try_features
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.firewall.examine import InboundPort, examine_firewall, peer_ports
from limpet.cli.doctor.tunnel import examine_wireguard
from limpet.cli.install.cni_configs import CniConfig, read_cni_configs
from limpet.cli.install.overlaps import HeldAddress, HeldRoute, find_overlaps, without_own
from limpet.cli.install.runtimes import examine_runtimes, find_runtimes
from limpet.datapath.node.plan import bridge_of_segments
from limpet.ipam.ledger import read_ledger
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.sysctl import read_sysctl

_RT_TABLE_LOCAL = 255


@dataclass(frozen=True, slots=True)
class Target:
    """An installation: of what, and where."""

    settings: Settings
    state: NodeState
    """With what is granted, as far as that is known."""
    conflist: Path
    """Our own CNI configuration, written or to be written."""
    cni_bin_dir: Path
    network_name: str
    allow_forward: bool = False
    """The person has said so, or the configuration does."""
    installed: bool = False
    """Ours is there already: what is ours is no stranger's."""
    joining: bool = False
    """The node is about to get into a cluster."""
    has_tunnel: bool = False
    """The agent has one, or says why not."""
    inbound: tuple[InboundPort, ...] = ()
    """Where others send to, beside what every node of a cluster has."""

    @property
    def cni_conf_dir(self) -> Path:
        return self.conflist.parent

    @property
    def joined(self) -> bool:
        """The node is in a cluster, which grants its segments."""
        return self.joining or (self.settings.folders.cluster_dir / "cluster.json").exists()

    @property
    def ipv6(self) -> bool:
        prefixes = (*self.state.segments, *self.state.cluster_cidrs)
        return any(prefix.version == 6 for prefix in prefixes)


def examine(target: Target, *, running: bool = False) -> list[Finding]:
    """Findings in the order in which a person should read them. Changes nothing.

    `running`: the agent should have done its part already.

    Raises: LimpetError when the machine cannot be examined at all.
    """
    cni = target.settings.pods.cni
    return [
        *examine_segments(target),
        *(examine_configs(target, read_cni_configs(target.cni_conf_dir)) if cni else ()),
        *(examine_records(target) if cni else ()),
        *examine_node(target),
        *examine_features(target),
        *(examine_wireguard(target.settings) if target.joined and not target.has_tunnel else ()),
        *examine_firewall(
            target.settings,
            target.state,
            [*(peer_ports(target.settings) if target.joined else ()), *target.inbound],
            allowed=target.allow_forward,
            running=running,
        ),
        *(_runtimes(target) if cni else ()),
        *examine_network_daemons(target.settings.pods.bridge),
    ]


def _runtimes(target: Target) -> Iterator[Finding]:
    return examine_runtimes(
        find_runtimes(), conf_dir=target.cni_conf_dir, bin_dir=target.cni_bin_dir
    )


def examine_segments(target: Target) -> Iterator[Finding]:
    state = target.state
    if not state.segments and target.joined:
        return  # granted, or the agent says why not
    if not state.segments:
        yield error(
            "no address segment",
            "pods would get no addresses",
            "say --segment 10.244.7.0/24 (one for each node, and for each IP version), or "
            "--token and --controller for a node of a cluster, which grants them",
        )
        return
    yield ok(f"address segments: {_joined(state.segments)}")
    for segment in state.segments:
        cidrs = [cidr for cidr in state.cluster_cidrs if cidr.version == segment.version]
        if cidrs and not any(_within(segment, cidr) for cidr in cidrs):
            yield warn(
                f"the segment {segment} is in none of the cluster CIDRs ({_joined(cidrs)})",
                "other nodes would take its pods for strangers",
                "check --segment and --cluster-cidr",
            )


def _joined(prefixes: Iterable[Prefix]) -> str:
    return ", ".join(map(str, prefixes))


def _within(inner: Prefix, outer: Prefix) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


# Other CNI configurations.


def examine_configs(target: Target, configs: list[CniConfig]) -> Iterator[Finding]:
    """`configs`: those of the folder, sorted."""
    own = target.conflist.name
    others = [config for config in configs if config.path.name != own]
    for config in others:
        if config.problem:
            yield warn(
                f"{config.path} {config.problem}",
                "runtimes skip it, or complain of it",
                "mend or remove it",
            )
    usable = [config for config in others if not config.problem]
    first = next((config for config in usable if config.path.name < own), None)
    if first is not None:
        yield error(
            f"{first.path} ({_described(first)}) sorts before {own}",
            "runtimes take the first configuration of the folder and would not use Limpet",
            f"move it out of {target.cni_conf_dir} when its pods may be started anew, "
            "and install again",
        )
    elif usable and not target.installed:
        yield warn(
            f"runtimes take {usable[0].path} ({_described(usable[0])}) now",
            f"they will take {own} instead, for pods that are started from then on",
            "restart the pods after the installation, so that all are on one network",
        )
    elif not usable and not target.installed:
        yield ok(f"no other CNI configuration in {target.cni_conf_dir}")
    yield from (finding for config in usable for finding in _rivals(target, config))


def _rivals(target: Target, config: CniConfig) -> Iterator[Finding]:
    shared = [
        segment
        for segment in target.state.segments
        for subnet in config.subnets
        if segment.version == subnet.version and segment.overlaps(subnet)
    ]
    if shared and config.name != target.network_name:
        yield error(
            f"{config.path} (network {config.name!r}) gives out addresses of {_joined(shared)} too",
            "the two would give one address to two pods",
            "use another segment; or, to move that network to Limpet with its addresses, "
            f"install with --network-name {config.name}",
        )
    if target.settings.pods.bridge in config.bridges and config.name != target.network_name:
        yield warn(
            f"{config.path} uses the bridge {target.settings.pods.bridge} too",
            "both would set it up",
            'set another name in the agent\'s configuration (bridge = "limpet1")',
        )


def _described(config: CniConfig) -> str:
    return f"network {config.name!r}, {' + '.join(config.plugins)}"


# Address records.


def examine_records(target: Target) -> Iterator[Finding]:
    """Records of the network's name are taken over; others of the folder are named."""
    if target.installed:
        return
    folder = target.settings.folders.data_dir / target.network_name
    if folder.is_dir():
        yield _adoption(folder)
    else:
        yield from _other_records(target)


def _adoption(folder: Path) -> Finding:
    try:
        view = read_ledger(folder)
    except LimpetError as problem:
        return error(
            f"address records in {folder} cannot be read: {problem}",
            "pods would not keep their addresses",
            "mend the disk or move the folder away",
        )
    held = sum(record.holder is not None for record in view.records)
    kept = sum(record.key is not None for record in view.records)
    damaged = f", {len(view.findings)} files with problems" if view.findings else ""
    return ok(
        f"address records in {folder} are adopted: {held} held, {kept} kept for pods{damaged}"
    )


def _other_records(target: Target) -> Iterator[Finding]:
    segments = target.state.segments
    for folder in sorted(_folders(target.settings.folders.data_dir)):
        try:
            addresses = [record.address for record in read_ledger(folder).records]
        except LimpetError:
            continue
        inside = [a for a in addresses if any(a in segment for segment in segments)]
        if inside:
            yield warn(
                f"{folder} has records of {len(inside)} addresses of our segments",
                "its pods would get new addresses, and two pods could get one address",
                f"to take them over, install with --network-name {folder.name}",
            )


def _folders(data_dir: Path) -> list[Path]:
    try:
        return [path for path in data_dir.iterdir() if path.is_dir()]
    except OSError:
        return []


# Links, addresses, routes, rules.


def examine_node(target: Target) -> Iterator[Finding]:
    bridge, state = target.settings.pods.bridge, target.state
    with RouteSocket() as route:
        links = route.links()
        names = {link.ifindex: link.ifname for link in links.values()}
        own = {link.ifname for link in links.values() if link.alias == ALIAS}
        if not target.installed:
            yield from _bridge_name(bridge, links)
        addresses = [
            HeldAddress(
                names.get(info.ifindex, "?"),
                ip_interface((info.packed, info.prefix_length)),
            )
            for info in route.addresses()
        ]
        routes = route.routes()
        yield from _own_table(target, own, routes, route.rules())
    # Another's bridge that is to be used already has the gateway address, and a route for it.
    gateways = {
        HeldAddress(bridge, gateway)
        for gateway in bridge_of_segments(bridge, state.segments).gateways
    }
    clashes = find_overlaps(
        state.segments,
        state.cluster_cidrs,
        [held for held in without_own(addresses, own) if held not in gateways],
        [_held(info, names) for info in routes if _is_another_s(info, names, {*own, bridge})],
    )
    yield from clashes
    if not clashes and state.segments:
        yield ok("no address or route of the node overlaps the pods'")


def _bridge_name(bridge: str, links: dict[str, wire.LinkInfo]) -> Iterator[Finding]:
    link = links.get(bridge)
    if link is None or link.alias == ALIAS:
        return
    if link.kind == "bridge":
        yield warn(
            f"bridge {bridge} is there and was not made by Limpet",
            "it is used as it is, and stays when Limpet is uninstalled",
            "if that is not meant, set another name in the agent's configuration",
        )
    else:
        yield error(
            f"{bridge} is there and is a {link.kind or 'physical'} link",
            "the pods' bridge needs that name",
            'set another name in the agent\'s configuration (bridge = "limpet1")',
        )


def _own_table(
    target: Target, own: set[str], routes: list[wire.RouteInfo], rules: list[wire.RuleInfo]
) -> Iterator[Finding]:
    """Our table and priority have to be nobody else's."""
    if target.installed or own:
        return
    if any(info.table == ROUTE_TABLE for info in routes):
        yield error(
            f"routing table {ROUTE_TABLE} is not empty",
            "Limpet owns that table and would remove what is in it",
            f"see ip route show table {ROUTE_TABLE}; move those routes to another table",
        )
    if any(rule.priority == RULE_PRIORITY for rule in rules):
        yield error(
            f"there is a rule of priority {RULE_PRIORITY}",
            "Limpet puts its own rule there",
            f"see ip rule show; give it another priority than {RULE_PRIORITY}",
        )


def _is_another_s(info: wire.RouteInfo, names: dict[int, str], own: set[str]) -> bool:
    prefix = _prefix(info)
    of_every_link = prefix.is_link_local or prefix.is_multicast or prefix.is_loopback
    return (
        info.table not in (ROUTE_TABLE, _RT_TABLE_LOCAL)
        and info.prefix_length > 0
        and names.get(info.ifindex) not in own
        and not of_every_link
    )


def _held(info: wire.RouteInfo, names: dict[int, str]) -> HeldRoute:
    return HeldRoute(_prefix(info), names.get(info.ifindex, ""))


def _prefix(info: wire.RouteInfo) -> Prefix:
    destination = info.destination or bytes(4 if info.family == wire.AF_INET else 16)
    return ip_network((destination, info.prefix_length))


# The kernel.


def examine_features(target: Target) -> Iterator[Finding]:
    lacks = try_features(ipv6=target.ipv6, cluster=target.joined)
    for lack in lacks:
        said = error if lack.essential else warn
        yield said(
            f"{lack.feature} does not work: {lack.cause}",
            f"{lack.used_for} need it",
            f"a kernel or package with {lack.module}",
        )
    if not lacks:
        yield ok("the kernel has all that pods need (tried in a namespace of its own)")
    if target.ipv6:
        yield from _ipv6()


def _ipv6() -> Iterator[Finding]:
    value = read_sysctl("net/ipv6/conf/all/disable_ipv6")
    if value is None:
        yield error(
            "the kernel has no IPv6 (ipv6.disable=1, or built without)",
            "there is an IPv6 segment",
            "start the kernel with IPv6, or leave the IPv6 segment out",
        )
    elif value != "0":
        yield warn(
            "IPv6 is switched off on all interfaces (net.ipv6.conf.all.disable_ipv6 = 1)",
            "pods get IPv6 addresses and reach each other on this node, but nothing beyond it",
            "sysctl -w net.ipv6.conf.all.disable_ipv6=0, if pods should reach further",
        )


# Programs that set networks up.


def examine_network_daemons(bridge: str, root: Path = Path("/")) -> Iterator[Finding]:
    if (root / "run/NetworkManager").is_dir() and not _mentions(
        root / "etc/NetworkManager/conf.d", "interface-name:lim"
    ):
        yield warn(
            "NetworkManager runs",
            "it may take over pods' interfaces and their addresses",
            "put into /etc/NetworkManager/conf.d/limpet.conf: "
            f"[keyfile] unmanaged-devices=interface-name:lim*;interface-name:{bridge}",
        )
    if (root / "run/systemd/netif").is_dir() and not _mentions(
        root / "etc/systemd", "ManageForeignRoutes=no"
    ):
        yield warn(
            "systemd-networkd runs",
            "it removes routes and rules of others when it starts; the agent puts them back",
            "put into /etc/systemd/networkd.conf.d/limpet.conf: "
            "[Network] ManageForeignRoutes=no ManageForeignRoutingPolicyRules=no",
        )


def _mentions(folder: Path, words: str) -> bool:
    return any(
        words in path.read_text(errors="replace")
        for path in folder.glob("**/*.conf")
        if path.is_file()
    )
