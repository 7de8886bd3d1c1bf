"""Whom to ask for names that are not the cluster's: configured, or what the node itself uses."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from pathlib import Path

from limpet.base.addresses import Address
from limpet.base.bounds.servers import DNS_UPSTREAMS
from limpet.base.disk import read_if_there
from limpet.dns.forward.health import Upstream


def read_upstreams(resolv_conf: Path, own: Collection[Address]) -> tuple[Upstream, ...]:
    """Name servers of a resolv.conf in their order, without our own addresses: asking ourselves
    would be a loop. Empty where there is no such file. Raises: StorageError."""
    text = (read_if_there(resolv_conf) or b"").decode("utf-8", "replace")
    found: dict[Upstream, None] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                address = ip_address(words[1])
            except ValueError:
                continue
            if address.version == 6 and address.ipv4_mapped is not None:
                address = address.ipv4_mapped
            if address not in own:
                found[Upstream(address)] = None
    return tuple(found)[: DNS_UPSTREAMS.most]
