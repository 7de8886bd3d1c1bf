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
from limpet.datapath.tunnel.state import TunnelKey
from limpet.datapath.tunnel.tunnel import Tunnel
from limpet.datapath.tunnel.wireguard.apply import TunnelKernel
from limpet.datapath.tunnel.wireguard.process import WIREGUARD_LOG
from limpet.linux.netlink.socket import RouteSocket


@dataclass(frozen=True, slots=True)
class TunnelSetup:
    """What the tunnels of a node are made from."""

    settings: TunnelSettings
    run_dir: Path
    """Folder of logs, and of IPsec's daemon."""
    bridge: str
    """Name of the bridge of the node's pods."""


@dataclass(frozen=True, slots=True)
class TunnelMaker:
    """Makes the tunnels of the node with that identity."""

    route: RouteSocket
    identity: Identity
    setup: TunnelSetup
    wake: Callable[[str], None]
    """A round is needed soon."""

    @property
    def _key(self) -> TunnelKey:
        port = self.setup.settings.port
        return tunnel_key_of(self.identity.private_key, self.identity.public_key, port=port)

    def wireguard(self) -> Tunnel:
        setup = self.setup
        kernel = TunnelKernel(
            self.route,
            log=setup.run_dir / WIREGUARD_LOG,
            ifname=setup.settings.ifname,
            program=setup.settings.program,
        )
        planner = TunnelPlanner(self._key, setup.settings.ifname, TunnelBackend.WIREGUARD)
        return Tunnel(kernel, planner, self.wake)

    def ipsec(self, *, shares_port: bool) -> Tunnel:
        """`shares_port`: WireGuard has the tunnel's port. Raises: StorageError."""
        # Most clusters name no IPsec: their agents do without its modules, vici among them.
        from limpet.datapath.tunnel.ipsec.apply import IpsecKernel
        from limpet.datapath.tunnel.ipsec.daemon import read_identity
        from limpet.datapath.tunnel.ipsec.esp import esp_lack
        from limpet.datapath.tunnel.ipsec.port import IPSEC_PORT
        from limpet.datapath.tunnel.ipsec.process import IpsecProcess

        setup = self.setup
        planner = TunnelPlanner(self._key, IPSEC_IFNAME, TunnelBackend.IPSEC)
        kernel = IpsecKernel(
            self.route,
            IpsecProcess(
                setup.run_dir / IPSEC_FOLDER,
                program=setup.settings.ipsec_program,
                in_kernel=not esp_lack(),
            ),
            identity=read_identity(self.identity),
            own_key=planner.key.public_key,
            identity_key_of=planner.identity_key_of,
            inner_port=IPSEC_PORT if shares_port else 0,
            bridge=setup.bridge,
        )
        return Tunnel(kernel, planner, self.wake)

    def ipsec_is_left(self) -> bool:
        """Whether an earlier agent has left a daemon. Raises: KernelError."""
        link = self.route.link(IPSEC_IFNAME)
        ours = link is not None and link.group == TUNNEL_GROUP
        return ours or (self.setup.run_dir / IPSEC_FOLDER / IPSEC_SOCKET).exists()
