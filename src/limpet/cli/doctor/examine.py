"""What is there on this machine that concerns Limpet; install and doctor look alike."""

from __future__ import annotations

import os
from collections.abc import Iterator

from limpet.cli.doctor.cluster.tunnel import examine_wireguard
from limpet.cli.doctor.findings import Finding, gather
from limpet.cli.doctor.firewall.examine import examine_firewall
from limpet.cli.doctor.installed.cni_configs import examine_configs
from limpet.cli.doctor.installed.records import examine_records, examine_segments
from limpet.cli.doctor.machine.features import examine_features
from limpet.cli.doctor.machine.links import examine_node
from limpet.cli.doctor.machine.network_daemons import examine_network_daemons
from limpet.cli.doctor.target import InboundPort, Installation
from limpet.cli.install.cni_configs import read_cni_configs
from limpet.cli.install.joining import own_snapshot
from limpet.cli.install.runtimes import examine_runtimes, find_runtimes


def examine(target: Installation, *, running: bool = False) -> list[Finding]:
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
        lambda: () if target.in_lab else examine_network_daemons(target.settings.pods.bridge),
    )


def _runtime_s_configs(target: Installation) -> Iterator[Finding]:
    if target.settings.pods.cni and not target.in_lab:
        yield from examine_configs(target, read_cni_configs(target.cni_conf_dir))
        yield from examine_records(target)


def _tunnel(target: Installation) -> Iterator[Finding]:
    if target.joined and not target.has_tunnel:
        yield from examine_wireguard(target.settings)


def _firewall(target: Installation, *, running: bool) -> Iterator[Finding]:
    settings, ports = target.settings, list(target.inbound)
    if target.joined:
        harm = "other nodes may not reach this one, nor its pods"
        network = own_snapshot(settings).network
        vxlan = [] if network is None else [InboundPort(network.vxlan_port, harm, from_any=True)]
        ports[:0] = [InboundPort(settings.peers.port, harm, from_any=False), *vxlan]
    yield from examine_firewall(
        settings, target.state, ports, allowed=target.allow_forward, running=running
    )


def _runtimes(target: Installation) -> Iterator[Finding]:
    # A pod does not see the runtime that made it, which is the one that calls Limpet.
    if (
        target.settings.pods.cni
        and not target.in_lab
        and "KUBERNETES_SERVICE_HOST" not in os.environ
    ):
        yield from examine_runtimes(
            find_runtimes(), conf_dir=target.cni_conf_dir, bin_dir=target.cni_bin_dir
        )
