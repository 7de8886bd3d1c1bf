"""What the tunnels' part has in the kernel, by its marks, and the programs that make tunnels."""

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
)
from limpet.datapath.tunnel.link import needed_rules
from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.owned import LinkMark, Owned


def owned_by_tunnels(run_dir: Path) -> Owned:
    """Devices, the rules for their packets, the shared port, and what runs for them."""
    return Owned(
        links=(LinkMark(group=TUNNEL_GROUP),),
        nft_tables=(IPSEC_PORT_TABLE,),
        deletions=_rules,
        ends=(partial(_daemon, run_dir / IPSEC_FOLDER), _devices),
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


def _daemon(folder: Path, _route: RouteSocket) -> Iterator[str]:
    """Its device and its routes go with it."""
    # As above.
    from limpet.datapath.tunnel.ipsec.esp import drop_sas
    from limpet.datapath.tunnel.ipsec.process import IpsecProcess

    process = IpsecProcess(folder)
    pid = process.pid
    if pid is not None:
        process.stop()
        yield f"strongSwan (process {pid}): ended"
    drop_sas()  # of one that was killed


def _devices(route: RouteSocket) -> Iterator[str]:
    for link in route.links().values():
        if link.group == TUNNEL_GROUP:
            # A userspace WireGuard ends with its device, but only when it is told does it at once.
            WireguardProcess(link.ifname, log=Path(os.devnull)).stop()
            gone = (errno.ENODEV,)
            route.apply(
                link_codec.delete_link(link.ifindex, what=f"link {link.ifname}", ignore_errno=gone)
            )
            yield f"link {link.ifname}: removed"
