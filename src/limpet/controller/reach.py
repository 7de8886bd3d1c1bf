"""Addresses of the controller's machine that its own cluster would take for pods'.

Nodes send everything for a pod CIDR into the pod network: a controller whose address lies there
can be reached by none of them. When a cluster is made that is refused, since the CIDR can never
change; later it is told, since a controller that runs must go on when a link is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from limpet.base.addresses import Prefix, UnderlayLink
from limpet.cluster.segments import overlaps_with
from limpet.controller.settings import ControllerSettings
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_underlay


def read_links() -> tuple[UnderlayLink, ...]:
    """Links of this machine, without those of containers. Raises: KernelError."""
    with RouteSocket() as route:
        return read_underlay(route)


def reach_problem(settings: ControllerSettings, links: Sequence[UnderlayLink]) -> str:
    """The address that nodes could not reach it by, why, and what to do; empty: none."""
    for name, prefix in _reached_by(settings, links):
        for cidr, _ in overlaps_with(settings.network, [prefix]):
            return (
                f"{name} overlaps {cidr} of the cluster: nodes would take the controller's "
                "address for a pod's and never reach it (choose other pod_cidrs or service_cidrs, "
                "or name the address that nodes reach it by, outside of them, in `listen`)"
            )
    return ""


def _reached_by(
    settings: ControllerSettings, links: Sequence[UnderlayLink]
) -> list[tuple[str, Prefix]]:
    """What `listen` names; of a wildcard, the networks of all links."""
    found: list[tuple[str, Prefix]] = []
    for host, _ in settings.listen:
        at = ip_address(host)
        if not at.is_unspecified:
            found += [] if at.is_loopback else [(f"listen = {host}", ip_network(host))]
            continue
        found += [
            (f"{address} of {link.ifname}", address.network)
            for link in links
            for address in link.addresses
            if at.version == 6 or address.version == 4
        ]
    return found
