"""Everything on this machine that is ours, as its owners tell."""

from __future__ import annotations

from pathlib import Path

from limpet.cli.install.flannel import main_first
from limpet.cluster.datagrams import shared_port
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.ports.part import PortPart
from limpet.datapath.overlay.part import OverlayPart
from limpet.datapath.policy.part import PolicyPart
from limpet.datapath.services.part import ServicesPart
from limpet.datapath.tunnel.part import TunnelPart
from limpet.dns import device as dns_device
from limpet.linux.netlink.link_codec import LinkInfo
from limpet.linux.owned import Owned
from limpet.relay.server import forwarding


def owners(run_dir: Path) -> tuple[Owned, ...]:
    """From what lies above to what it needs. `run_dir`: of the agent."""
    parts = (ServicesPart, PolicyPart, OverlayPart, TunnelPart, NodePart, PortPart)
    others = (shared_port.OWNED, forwarding.OWNED, dns_device.OWNED, main_first.OWNED)
    return (*(part.owned(run_dir) for part in parts), *others)


def is_ours(link: LinkInfo) -> bool:
    """One of the owners tells it by its marks."""
    return any(owned.has(link) for owned in owners(Path()))


def our_tables() -> frozenset[tuple[str, str]]:
    """Families and names of our nftables tables."""
    return frozenset(table for owned in owners(Path()) for table in owned.tables)
