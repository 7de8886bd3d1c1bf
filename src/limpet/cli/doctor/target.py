"""What install is about to put on this machine, or has put there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from limpet.agent.settings import Settings
from limpet.base.node_state import NodeState
from limpet.lab.world.node import LAB_MARK


@dataclass(frozen=True, slots=True)
class InboundPort:
    """A port of this node that others send to."""

    port: int
    harm: str
    """What does not work while it is closed."""
    protocol: str = "udp"
    untracked: bool = False
    """The node keeps it out of connection tracking."""
    last: int = 0
    """Last port of a range; 0: it is one port."""
    from_any: bool | None = None
    """Every node has this port, so this one sends there: from a port of its own choice, or (False)
    from the same; None: others have others."""

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last of the range."""
        return self.port, self.last or self.port


@dataclass(frozen=True, slots=True)
class Installation:
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
    replaced: tuple[Path, ...] = ()
    """Configurations of another network that ours is about to take the place of."""
    replaced_links: tuple[str, ...] = ()
    """Links of that network: they go."""
    inbound: tuple[InboundPort, ...] = ()
    """Where others send to, beside what every node of a cluster has."""

    @property
    def in_lab(self) -> bool:
        """A node of `limpet lab`: it has no runtime and no installation, and the machine around
        it, with its programs and its files, is not the node's."""
        return (self.settings.folders.state_dir / LAB_MARK).exists()

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
