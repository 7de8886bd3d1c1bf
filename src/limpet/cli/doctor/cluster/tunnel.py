"""Whether WireGuard can be had on this machine, asked before a tunnel is needed."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.agent.settings import Settings
from limpet.cli.doctor.findings import Finding, ok, warn
from limpet.cli.install.joining import own_snapshot
from limpet.cluster.kinds.network import Network, TunnelBackend
from limpet.cluster.topology.reach import backends_of, in_clear_refused
from limpet.datapath.tunnel.wireguard.device import kernel_has_wireguard
from limpet.datapath.tunnel.wireguard.process import WIREGUARD_LOG, WireguardProcess


def examine_wireguard(settings: Settings) -> Iterator[Finding]:
    """Whether the kernel has WireGuard, or a program can take its place.

    Nothing where the cluster names IPsec for all.
    """
    network = own_snapshot(settings).network
    if TunnelBackend.WIREGUARD not in backends_of(network):
        return
    if kernel_has_wireguard():
        yield ok("the kernel has WireGuard")
        return
    # Only where the kernel lacks WireGuard.
    from limpet.datapath.tunnel.traffic.report import is_slow

    program = settings.tunnel.program
    process = WireguardProcess(
        settings.tunnel.ifname, log=settings.folders.run_dir / WIREGUARD_LOG, program=program
    )
    if process.missing:
        yield no_wireguard(process.missing, network)
        return
    version = process.read_version()
    if not version:
        yield warn(
            "wireguard-version",
            f"{program} does not say its version",
            "it may not work: this kernel has no WireGuard of its own",
            f"see what `{program} --version` says; the package wireguard-go brings another one",
        )
    elif is_slow(version):
        yield warn(
            "wireguard-slow",
            f"this kernel has no WireGuard, and {program} is of version {version}",
            "it passes a sixth of what those from 0.0.20230223 on do",
            "install a newer wireguard-go (on Debian 12 that of its backports)",
        )
    else:
        yield ok(f"this kernel has no WireGuard; {program} {version} takes its place")


def no_wireguard(why: str, network: Network | None) -> Finding:
    """`network`: as far as it is known. Pure."""
    in_clear = network is None or not in_clear_refused(network)
    return warn(
        "wireguard-missing",
        f"there can be no encrypted tunnel: {why}",
        "pods of other sites are not reached; those of this site are, in clear"
        if in_clear
        else "pods of other nodes are not reached, those of this site neither: the cluster "
        "encrypts all",
        "do what the message says; Limpet finds it by itself then",
    )
