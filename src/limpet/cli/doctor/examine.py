"""What is there on this machine that concerns Limpet; install and doctor look alike."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.cli.doctor.addresses import examine_records, examine_segments
from limpet.cli.doctor.cni_configs import examine_configs
from limpet.cli.doctor.features import examine_features
from limpet.cli.doctor.findings import Finding, gather
from limpet.cli.doctor.firewall.examine import examine_firewall, peer_ports
from limpet.cli.doctor.machine import examine_network_daemons
from limpet.cli.doctor.node import examine_node
from limpet.cli.doctor.target import Target
from limpet.cli.doctor.tunnel import examine_wireguard
from limpet.cli.install.cni_configs import read_cni_configs
from limpet.cli.install.runtimes import examine_runtimes, find_runtimes


def examine(target: Target, *, running: bool = False) -> list[Finding]:
    """Findings in the order in which a person should read them. Changes nothing.

    `running`: the agent should have done its part already.
    """
    return gather(
        lambda: examine_segments(target),
        lambda: _runtime_s_configs(target),
        lambda: examine_node(target),
        lambda: examine_features(target),
        lambda: _tunnel(target),
        lambda: _firewall(target, running=running),
        lambda: _runtimes(target),
        lambda: examine_network_daemons(target.settings.pods.bridge),
    )


def _runtime_s_configs(target: Target) -> Iterator[Finding]:
    if target.settings.pods.cni:
        yield from examine_configs(target, read_cni_configs(target.cni_conf_dir))
        yield from examine_records(target)


def _tunnel(target: Target) -> Iterator[Finding]:
    if target.joined and not target.has_tunnel:
        yield from examine_wireguard(target.settings)


def _firewall(target: Target, *, running: bool) -> Iterator[Finding]:
    yield from examine_firewall(
        target.settings,
        target.state,
        [*(peer_ports(target.settings) if target.joined else ()), *target.inbound],
        allowed=target.allow_forward,
        running=running,
    )


def _runtimes(target: Target) -> Iterator[Finding]:
    if target.settings.pods.cni:
        yield from examine_runtimes(
            find_runtimes(), conf_dir=target.cni_conf_dir, bin_dir=target.cni_bin_dir
        )
