"""What of flannel is on this node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from limpet.base.addresses import Prefix
from limpet.base.disk import read_regular
from limpet.cli.doctor.findings import Finding, error
from limpet.cli.install.cni_configs import parse_cni_config, read_cni_configs
from limpet.cli.install.flannel.aside import load_aside
from limpet.cli.install.flannel.devices import Device, read_devices
from limpet.linux.namespaces import processes_here
from limpet.linux.netlink.socket import RouteSocket

SUBNET_FILE = Path("/run/flannel/subnet.env")
_SEGMENTS = ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
DEFAULT_NETWORK, DEFAULT_BRIDGE = "cbr0", "cni0"
"""Names in kube-flannel's manifest."""
_K3S_FOLDER = "agent/etc/cni/net.d"
"""Below the folder of its data. Source: k3s, pkg/agent/config/config.go and flannel/setup.go."""


@dataclass(frozen=True, slots=True)
class Flannel:
    """What it has, and where."""

    conflists: tuple[Path, ...] = ()
    network: str = DEFAULT_NETWORK
    bridge: str = DEFAULT_BRIDGE
    segments: tuple[Prefix, ...] = ()
    """Segments of this node, as its subnet file says; empty after a reboot."""
    devices: tuple[Device, ...] = ()
    processes: tuple[int, ...] = ()

    @property
    def is_there(self) -> bool:
        return bool(self.conflists or self.devices or self.segments)


def find_flannel(conf_dir: Path, state_dir: Path) -> Flannel:
    """`conf_dir`: of the runtime's configurations. `state_dir`: an earlier attempt may have put
    flannel's aside, and its network is that of before. Raises: StorageError, KernelError."""
    configs = [each for each in read_cni_configs(conf_dir) if "flannel" in each.plugins]
    noted = load_aside(state_dir)
    before = noted.files if noted is not None else ()
    known = [*configs, *(parse_cni_config(Path(each.path), each.content) for each in before)]
    known = [each for each in known if "flannel" in each.plugins]
    with RouteSocket() as route:
        devices = tuple(read_devices(route))
    return Flannel(
        tuple(each.path for each in configs),
        next((each.name for each in known if each.name), DEFAULT_NETWORK),
        next((bridge for each in known for bridge in each.bridges), DEFAULT_BRIDGE),
        tuple(read_segments(SUBNET_FILE)),
        devices,
        tuple(processes_here("flanneld")),
    )


def read_segments(path: Path) -> Iterator[Prefix]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in read_regular(path).decode().splitlines():
            key, _, value = line.partition("=")
            if key in _SEGMENTS:
                with contextlib.suppress(ValueError):
                    yield ip_network(value.strip(), strict=False)


def examine_flannel(found: Flannel, *, noted: bool) -> Iterator[Finding]:
    """Why it cannot be taken over. `noted`: it was begun before."""
    if not found.is_there and not noted:
        yield error(
            "flannel-absent",
            "there is no flannel here: no CNI configuration with its plugin, no VXLAN device of it",
            "nothing can be taken over",
            "leave --take-over out",
        )
    for process in found.processes:
        yield error(
            "flannel-runs",
            f"flanneld runs here (process {process})",
            "it would set its routes and rules up again",
            "keep it off this node (`systemctl disable --now flanneld`, or a node affinity of its "
            "DaemonSet), then give the same command again: its devices stay, and pods go on",
        )
    # It has no process of its own there, and is back with the next start.
    for path in found.conflists:
        if path.parent.match(_K3S_FOLDER):
            yield error(
                "flannel-runs",
                f"flannel is a part of k3s here ({path})",
                "k3s writes that file anew whenever it starts, and new pods would not start",
                "set flannel-backend: none and disable-network-policy: true in config.yaml of the "
                "k3s servers and restart those, then k3s on this node (each node has flannel until "
                "then), and give the same command again: flannel's devices stay, and pods go on",
            )


def examine_segments(found: Flannel, granted: tuple[Prefix, ...]) -> Iterator[Finding]:
    """Pods that run keep their addresses only if those are this node's."""
    for segment in found.segments:
        if granted and segment not in granted:
            yield error(
                "flannel-segment",
                f"flannel's pods of this node have {segment}, and the cluster has granted it "
                f"{', '.join(map(str, granted))}",
                "packets for pods that run would go elsewhere",
                "set flannel = true in the controller's configuration, so that a node that joins "
                "takes its Node's podCIDRs over; `limpet node remove` this one, and join anew",
            )
