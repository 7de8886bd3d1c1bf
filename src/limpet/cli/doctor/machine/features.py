"""What the kernel lacks for pods, and whether it has IPv6 at all."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.target import Installation
from limpet.datapath.together.kernel_trial import try_features
from limpet.linux.sysctl import read_sysctl


def examine_features(target: Installation) -> Iterator[Finding]:
    lacks = try_features(ipv6=target.ipv6, cluster=target.joined)
    for lack in lacks:
        said = error if lack.essential else warn
        yield said(
            "kernel-lacks",
            f"this machine lacks {lack.feature}: {lack.cause}",
            f"it is for {lack.used_for}",
            f"a kernel or package with {lack.module}",
        )
    if not lacks:
        yield ok("the kernel has all that pods need (tried in a namespace of its own)")
    if target.ipv6:
        yield from _ipv6()


def _ipv6() -> Iterator[Finding]:
    value = read_sysctl("net/ipv6/conf/all/disable_ipv6")
    if value is None:
        yield error(
            "ipv6-missing",
            "the kernel has no IPv6 (ipv6.disable=1, or built without)",
            "there is an IPv6 segment",
            "start the kernel with IPv6; or, for a node on its own, leave the IPv6 segment out. A "
            "cluster grants both unless it was made with an IPv4 pod CIDR alone",
        )
    elif value != "0":
        yield warn(
            "ipv6-off",
            "IPv6 is switched off on all interfaces (net.ipv6.conf.all.disable_ipv6 = 1)",
            "pods get IPv6 addresses and reach each other on this node, but nothing beyond it",
            "sysctl -w net.ipv6.conf.all.disable_ipv6=0, if pods should reach further",
        )
