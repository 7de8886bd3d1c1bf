"""The encrypted tunnels of a node, as its identity and its configuration say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from limpet.base.errors import StorageError
from limpet.base.ownership import IPSEC_FOLDER, IPSEC_IFNAME, TUNNEL_GROUP
from limpet.base.settings import TunnelSettings
from limpet.cluster.identity import Identity
from limpet.cluster.kinds.network import TunnelBackend
from limpet.datapath.tunnel.ipsec.port import IPSEC_PORT
from limpet.datapath.tunnel.ipsec.process import IpsecProcess
from limpet.datapath.tunnel.ipsec.state import IpsecIdentity
from limpet.datapath.tunnel.key import tunnel_key_of
from limpet.datapath.tunnel.reconciler import TunnelReconciler
from limpet.datapath.tunnel.wireguard.apply import TunnelKernel
from limpet.datapath.tunnel.wireguard.process import WIREGUARD_LOG
from limpet.linux.netlink.socket import RouteSocket


@dataclass(frozen=True, slots=True)
class TunnelSetup:
    """What the tunnels of a node are made from."""

    settings: TunnelSettings
    run_dir: Path
    """Of logs, and of IPsec's daemon."""
    bridge: str
    """Of the node's pods."""


def make_wireguard_tunnel(
    route: RouteSocket, identity: Identity, setup: TunnelSetup, *, wake: Callable[[str], None]
) -> TunnelReconciler:
    """WireGuard's, of the node with that identity."""
    kernel = TunnelKernel(
        route,
        log=setup.run_dir / WIREGUARD_LOG,
        ifname=setup.settings.ifname,
        program=setup.settings.program,
    )
    key = tunnel_key_of(identity.private_key, identity.public_key, port=setup.settings.port)
    return TunnelReconciler(route, kernel, key, ifname=setup.settings.ifname, wake=wake)


def make_ipsec_tunnel(
    route: RouteSocket,
    identity: Identity,
    setup: TunnelSetup,
    *,
    wake: Callable[[str], None],
    shares_port: bool,
) -> TunnelReconciler:
    """IPsec's. `shares_port`: WireGuard has the tunnel's port. Raises: StorageError."""
    from limpet.datapath.tunnel.ipsec.apply import (
        IpsecKernel,  # most clusters name no IPsec: they do without vici
    )
    from limpet.datapath.tunnel.ipsec.esp import kernel_has_esp

    key = tunnel_key_of(identity.private_key, identity.public_key, port=setup.settings.port)
    made: list[TunnelReconciler] = []
    kernel = IpsecKernel(
        route,
        IpsecProcess(
            setup.run_dir / IPSEC_FOLDER,
            program=setup.settings.ipsec_program,
            in_kernel=kernel_has_esp(),
        ),
        identity=_ipsec_identity(identity),
        own_key=key.public_key,
        uid_of=lambda public_key: made[0].plan.holders[public_key],
        inner_port=IPSEC_PORT if shares_port else 0,
        bridge=setup.bridge,
    )
    tunnel = TunnelReconciler(
        route, kernel, key, ifname=IPSEC_IFNAME, wake=wake, backend=TunnelBackend.IPSEC
    )
    made.append(tunnel)
    return tunnel


def _ipsec_identity(identity: Identity) -> IpsecIdentity:
    paths = (identity.key_path, identity.certificate_path, identity.ca_path)
    try:
        return IpsecIdentity(identity.uid, *(path.read_bytes() for path in paths))
    except OSError as error:
        why = f"{error.strerror or error}: without it there are no IPsec tunnels"
        raise StorageError("read", error.filename, why) from error


def ipsec_is_left(route: RouteSocket, setup: TunnelSetup) -> bool:
    """Whether an earlier agent has left a daemon. Raises: KernelError."""
    link = route.link(IPSEC_IFNAME)
    ours = link is not None and link.group == TUNNEL_GROUP
    return ours or IpsecProcess(setup.run_dir / IPSEC_FOLDER).socket_path.exists()
