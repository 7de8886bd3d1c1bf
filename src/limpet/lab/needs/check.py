"""Whether this machine has what a topology needs, and which package brings what it lacks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from limpet.base.process.programs import find_program
from limpet.datapath.together.kernel_trial import BRIDGE_TABLES, VXLAN_DEVICES, Lack, try_features
from limpet.datapath.tunnel.ipsec import process as ipsec
from limpet.datapath.tunnel.ipsec.esp import esp_lack
from limpet.datapath.tunnel.wireguard import process as wireguard
from limpet.datapath.tunnel.wireguard.device import kernel_has_wireguard
from limpet.lab.command import LabError
from limpet.lab.kube.programs import missing_programs
from limpet.lab.needs.plan import Need, NeedKind, Pair, needs_ipv6, needs_of
from limpet.lab.netns import delete_namespace, make_namespace
from limpet.lab.topology import Topology, load_topology, topology_names
from limpet.lab.world.uplink import has_netem

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "mount": "mount",
    "ethtool": "ethtool",
}
"""Packages of Debian, by program."""
_KUBERNETES_PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "busybox": "busybox-static",
}
_NOWHERE = Path("/nonexistent")
"""Programs are looked for only: nothing is written there."""
_PAIRS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Lacking:
    """Something that a topology needs and this machine does not have."""

    what: str
    cause: str
    used_for: str
    advice: str
    packages: tuple[str, ...] = ()
    """Packages of Debian that bring it; empty: none does."""
    pairs: tuple[Pair, ...] = ()
    """Nodes that have no other way to each other."""

    def __str__(self) -> str:
        used_for = self.used_for
        if self.pairs:
            shown = ", ".join("-".join(pair) for pair in self.pairs[:_PAIRS_SHOWN])
            more = len(self.pairs) - _PAIRS_SHOWN
            used_for += f" ({shown}{f' and {more} more pairs' if more > 0 else ''})"
        return f"{self.what}, for {used_for}: {self.cause} ({self.advice})"


class MissingError(LabError):
    """This machine lacks something that a topology needs; nothing was built."""

    def __init__(
        self, topology: str, lacking: tuple[Lacking, ...], without: tuple[str, ...]
    ) -> None:
        """`without`: topologies that come with Limpet and can be built here as it is."""
        self.topology = topology
        self.lacking = lacking
        self.without = without
        words = "; ".join(map(str, lacking))
        super().__init__(f"build topology {topology}: this machine lacks {words}")


def check(topology: Topology, programs: Mapping[str, Any]) -> None:
    """`programs`: settings of the nodes, `tunnel_program` and `ipsec_program` among them.

    Raises: MissingError.
    """
    lacking = _lacking(topology, programs)
    if lacking:
        names = [name for name in topology_names() if name != topology.name]
        without = [name for name in names if not _lacking(load_topology(name), programs)]
        raise MissingError(topology.name, lacking, tuple(without))


def _lacking(topology: Topology, programs: Mapping[str, Any]) -> tuple[Lacking, ...]:
    ipv6 = needs_ipv6(topology)
    return tuple(found for need in needs_of(topology) for found in _look(need, programs, ipv6=ipv6))


def _look(need: Need, programs: Mapping[str, Any], *, ipv6: bool) -> list[Lacking]:
    match need.kind:
        case NeedKind.PROGRAM:
            return _program(need, need.program)
        case NeedKind.LATE_LINK:
            return _late_link(need)
        case NeedKind.KERNEL:
            return [_of_kernel(need, each) for each in _kernel_lacks(ipv6) if each.essential]
        case NeedKind.VXLAN | NeedKind.BRIDGE_FILTER:
            feature = VXLAN_DEVICES if need.kind is NeedKind.VXLAN else BRIDGE_TABLES
            return [_of_kernel(need, e) for e in _kernel_lacks(ipv6) if e.feature == feature]
        case NeedKind.WIREGUARD:
            return _wireguard(need, str(programs.get("tunnel_program", wireguard.PROGRAM)))
        case NeedKind.IPSEC:
            return _ipsec(need, str(programs.get("ipsec_program", ipsec.PROGRAM)))
        case NeedKind.KUBERNETES:
            return _kubernetes(need)


def _program(need: Need, program: str) -> list[Lacking]:
    if find_program(program) is not None:
        return []
    package = PACKAGES[program]
    return [
        Lacking(
            f"the program {program}",
            "it is not in PATH",
            need.used_for,
            f"install the package {package}",
            (package,),
        )
    ]


@cache
def _kernel_lacks(ipv6: bool) -> list[Lack]:
    return try_features(ipv6=ipv6, cluster=True)


def _of_kernel(need: Need, lack: Lack) -> Lacking:
    return Lacking(
        f"{lack.feature} of the kernel",
        lack.cause,
        need.used_for,
        f"a kernel or package with {lack.module}",
        pairs=need.pairs,
    )


def _late_link(need: Need) -> list[Lacking]:
    """The kernel's netem, or ethtool for the process that takes its place."""
    lacking = _program(need, "ethtool")
    return [] if not lacking or _kernel_has_netem() else lacking


def _kernel_has_netem() -> bool:
    trial = f"limpet-lab-trial-{os.getpid()}"
    make_namespace(trial)
    try:
        return has_netem(trial)
    finally:
        delete_namespace(trial)


def _wireguard(need: Need, program: str) -> list[Lacking]:
    if kernel_has_wireguard():
        return []
    missing = wireguard.WireguardProcess("", log=_NOWHERE, program=program).missing
    return _tunnels(need, "WireGuard", missing, ("wireguard-go",))


def _ipsec(need: Need, program: str) -> list[Lacking]:
    process = ipsec.IpsecProcess(_NOWHERE, program=program, in_kernel=not esp_lack())
    packages = ("charon-systemd", "libcharon-extra-plugins")
    return _tunnels(need, "strongSwan", process.missing, packages)


def _tunnels(need: Need, what: str, missing: str, packages: tuple[str, ...]) -> list[Lacking]:
    """`missing`: `CAUSE: ADVICE`; empty: nothing is."""
    if not missing:
        return []
    cause, _, advice = missing.rpartition(": ")
    is_module = advice.startswith("modprobe")
    return [Lacking(what, cause, need.used_for, advice, () if is_module else packages, need.pairs)]


def _kubernetes(need: Need) -> list[Lacking]:
    missing = missing_programs()
    if not missing:
        return []
    found = {_KUBERNETES_PACKAGES[each] for each in missing if each in _KUBERNETES_PACKAGES}
    return [
        Lacking(
            f"the programs {', '.join(missing)}",
            "they are not in PATH",
            need.used_for,
            "put Kubernetes' programs into one folder of PATH, or run the lab in a checkout of "
            "Limpet, which builds and fetches all of them",
            tuple(sorted(found)),
        )
    ]
