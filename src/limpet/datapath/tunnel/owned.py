"""What the tunnels' part has in the kernel beside its devices, and how uninstall finds it all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from limpet.base.ownership import (
    IPSEC_FOLDER,
    IPSEC_PORT_TABLE,
    IPSEC_RULE_PRIORITY,
    IPSEC_TABLE,
    TUNNEL_GROUP,
    TUNNEL_MARK,
    TUNNEL_RULE_PRIORITY,
)
from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec, route_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.owned import LinkMark, Owned

_VERSIONS = (4, 6)


def marked_rules(route: RouteSocket) -> frozenset[int]:
    """IP versions that have the rule for tunnels' own packets. Raises: KernelError."""
    ours = {_rule(version): version for version in _VERSIONS}
    return frozenset(ours[rule] for rule in route.rules() if rule in ours)


def _rule(version: int) -> route_codec.RuleInfo:
    """Marked packets are routed by the main table."""
    table = route_codec.RT_TABLE_MAIN
    return route_codec.RuleInfo(version, TUNNEL_RULE_PRIORITY, table, TUNNEL_MARK)


def needed_rules(route: RouteSocket, *, wanted: bool) -> list[wire.Request]:
    """Requests after which these rules are there, or are not. Raises: KernelError."""
    found = marked_rules(route)
    return [
        route_codec.rule(
            version,
            priority=TUNNEL_RULE_PRIORITY,
            table=route_codec.RT_TABLE_MAIN,
            mark=TUNNEL_MARK,
            delete=not wanted,
            ignore_errno=(errno.EEXIST if wanted else errno.ENOENT,),
        )
        for version in sorted(set(_VERSIONS) - found if wanted else found)
    ]


def owned_by_tunnels(run_dir: Path) -> Owned:
    """Devices, the rules for their packets, the shared port, and programs that make tunnels."""
    return Owned(
        links=(LinkMark(group=TUNNEL_GROUP),),
        nft_tables=(IPSEC_PORT_TABLE,),
        deletions=_rules,
        ends=(partial(_end_daemon, run_dir / IPSEC_FOLDER), _end_devices),
    )


def _rules(route: RouteSocket) -> Sequence[wire.Request]:
    # Most nodes have no IPsec: an agent does without its modules.
    from limpet.datapath.tunnel.ipsec.codec import delete_rule_of_daemon

    return [
        *needed_rules(route, wanted=False),
        *(
            delete_rule_of_daemon(rule.version)
            for rule in route.rules()
            if (rule.priority, rule.table) == (IPSEC_RULE_PRIORITY, IPSEC_TABLE)
        ),
    ]


def _end_daemon(folder: Path, _route: RouteSocket) -> Iterator[str]:
    """Ends strongSwan; its device and its routes go with it."""
    # As above.
    from limpet.datapath.tunnel.ipsec.esp import drop_sas
    from limpet.datapath.tunnel.ipsec.process import IpsecProcess

    process = IpsecProcess(folder)
    pid = process.pid
    if pid is not None:
        process.stop()
        yield f"strongSwan (process {pid}): ended"
    drop_sas()  # of one that was killed


def _end_devices(route: RouteSocket) -> Iterator[str]:
    for link in route.links().values():
        if link.group == TUNNEL_GROUP:
            # A userspace WireGuard ends with its device, but only when it is told does it at once.
            WireguardProcess(link.ifname, log=Path(os.devnull)).stop()
            gone = (errno.ENODEV,)
            route.apply(
                link_codec.delete_link(link.ifindex, what=f"link {link.ifname}", ignore_errno=gone)
            )
            yield f"link {link.ifname}: removed"
