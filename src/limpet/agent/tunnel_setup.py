"""The encrypted tunnel of a node, as its identity and its configuration say."""

from __future__ import annotations

from collections.abc import Callable

from limpet.agent.identity import Identity
from limpet.agent.site_tunnel import SiteTunnel
from limpet.agent.tunnel_keys import tunnel_key_of
from limpet.kernel.netlink import RouteSocket
from limpet.kernel.wireguard import TunnelKernel
from limpet.kernel.wireguard_process import WIREGUARD_LOG
from limpet.model.settings import Settings


def make_site_tunnel(
    route: RouteSocket, identity: Identity, settings: Settings, *, wake: Callable[[str], None]
) -> SiteTunnel:
    """Of the node with that identity, as its configuration says."""
    kernel = TunnelKernel(
        route,
        log=settings.run_dir / WIREGUARD_LOG,
        ifname=settings.tunnel_ifname,
        program=settings.tunnel_program,
    )
    key = tunnel_key_of(identity.private_key, identity.public_key, port=settings.tunnel_port)
    return SiteTunnel(route, kernel, key, ifname=settings.tunnel_ifname, wake=wake)
