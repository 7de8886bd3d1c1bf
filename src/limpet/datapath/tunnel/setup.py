"""The encrypted tunnels of a node, as its identity and its configuration say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from limpet.base.ownership import IPSEC_FOLDER, IPSEC_IFNAME, IPSEC_SOCKET, TUNNEL_GROUP
from limpet.base.settings import TunnelSettings
from limpet.cluster.identity import Identity
from limpet.cluster.kinds.network import TunnelBackend
from limpet.datapath.tunnel.key import tunnel_key_of
from limpet.datapath.tunnel.planner import TunnelPlanner
from limpet.datapath.tunnel.tunnel import Tunnel
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


class TunnelMaker:
    """Makes the tunnels of the node with that identity."""

    def __init__(
        self,
        route: RouteSocket,
        identity: Identity,
        setup: TunnelSetup,
        wake: Callable[[str], None],
    ) -> None:
        """`wake`: a round is needed soon."""
        self._route = route
        self._identity = identity
        self._setup = setup
        self._wake = wake
        port = setup.settings.port
        self._key = tunnel_key_of(identity.private_key, identity.public_key, port=port)

    def wireguard(self) -> Tunnel:
        setup = self._setup
        kernel = TunnelKernel(
            self._route,
            log=setup.run_dir / WIREGUARD_LOG,
            ifname=setup.settings.ifname,
            program=setup.settings.program,
        )
        planner = TunnelPlanner(self._key, setup.settings.ifname, TunnelBackend.WIREGUARD)
        return Tunnel(self._route, kernel, planner, self._wake)

    def ipsec(self, *, shares_port: bool) -> Tunnel:
        """`shares_port`: WireGuard has the tunnel's port. Raises: StorageError."""
        # Most clusters name no IPsec: their agents do without its modules, vici among them.
        from limpet.datapath.tunnel.ipsec.apply import IpsecKernel
        from limpet.datapath.tunnel.ipsec.esp import kernel_has_esp
        from limpet.datapath.tunnel.ipsec.identity import ipsec_identity
        from limpet.datapath.tunnel.ipsec.port import IPSEC_PORT
        from limpet.datapath.tunnel.ipsec.process import IpsecProcess

        setup = self._setup
        planner = TunnelPlanner(self._key, IPSEC_IFNAME, TunnelBackend.IPSEC)
        kernel = IpsecKernel(
            self._route,
            IpsecProcess(
                setup.run_dir / IPSEC_FOLDER,
                program=setup.settings.ipsec_program,
                in_kernel=kernel_has_esp(),
            ),
            identity=ipsec_identity(self._identity),
            own_key=self._key.public_key,
            uid_of=planner.uid_of,
            inner_port=IPSEC_PORT if shares_port else 0,
            bridge=setup.bridge,
        )
        return Tunnel(self._route, kernel, planner, self._wake)

    def ipsec_is_left(self) -> bool:
        """Whether an earlier agent has left a daemon. Raises: KernelError."""
        link = self._route.link(IPSEC_IFNAME)
        ours = link is not None and link.group == TUNNEL_GROUP
        return ours or (self._setup.run_dir / IPSEC_FOLDER / IPSEC_SOCKET).exists()
