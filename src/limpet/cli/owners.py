"""Everything on this machine that is ours, as its owners tell."""

from __future__ import annotations

from pathlib import Path

from limpet.cluster import shared_port
from limpet.datapath.node.part import NodePart
from limpet.datapath.overlay.part import OverlayPart
from limpet.datapath.tunnel.part import TunnelPart
from limpet.dns import device as dns_device
from limpet.linux.netlink.link_codec import LinkInfo
from limpet.linux.owned import Owned
from limpet.relay.server import forwarding


def owners(run_dir: Path) -> tuple[Owned, ...]:
    """From what lies above to what it needs. `run_dir`: of the agent."""
    parts = (OverlayPart, TunnelPart, NodePart)
    others = (shared_port.OWNED, forwarding.OWNED, dns_device.OWNED)
    return (*(part.owned(run_dir) for part in parts), *others)


def is_ours(link: LinkInfo) -> bool:
    """One of the owners tells it by its marks."""
    return any(owned.has(link) for owned in owners(Path()))


def our_tables() -> frozenset[str]:
    """Names of our nftables tables, all of family inet."""
    return frozenset(name for owned in owners(Path()) for name in owned.nft_tables)
