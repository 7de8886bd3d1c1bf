"""The `dns` of a result where the network configuration leaves it to a resolv.conf, or to us."""

from __future__ import annotations

import os
from collections.abc import Iterable

from limpet.base.bounds.tenants import RESOLV_CONF
from limpet.base.errors import CniCode, CniError
from limpet.base.settings import DnsSettings
from limpet.cni.protocol.values import CniRequest, Dns, NetworkConf, ResultAddress


def read_dns(conf: NetworkConf) -> Dns:
    """What the configuration says, else what the file `ipam.resolvConf` says. Raises: CniError (7).

    Source: cmdAdd of the reference bridge plugin, and of host-local.
    """
    if conf.ipam.resolv_conf is None or conf.dns != Dns():
        return conf.dns
    try:
        # Non-blocking: a FIFO must not hold us up.
        fd = os.open(conf.ipam.resolv_conf, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            text = os.read(fd, RESOLV_CONF.most).decode(errors="replace")
        finally:
            os.close(fd)
    except OSError as error:
        raise CniError(
            CniCode.INVALID_NETWORK_CONFIG,
            f"network {conf.name}: read ipam.resolvConf {conf.ipam.resolv_conf}: {error.strerror}",
        ) from error
    return parse_resolv_conf(text)


def own_dns(settings: DnsSettings, request: CniRequest, addresses: Iterable[ResultAddress]) -> Dns:
    """What this node answers itself, for a pod with these addresses: as a kubelet would say it to a
    pod of that namespace. Nothing, unless the settings say so.

    Source: formDNSSearchFitsLimits and getPodDNS of k8s.io/kubernetes/pkg/kubelet/network/dns.
    """
    if settings.dns != "on" or not settings.in_results:
        return Dns()
    domain, namespace = settings.domain, request.pod_namespace
    versions = {each.address.version for each in addresses}
    return Dns(
        nameservers=tuple(str(each) for each in settings.listen if each.version in versions),
        search=(*((f"{namespace}.svc.{domain}",) if namespace else ()), f"svc.{domain}", domain),
        options=("ndots:5",),
    )


def parse_resolv_conf(text: str) -> Dns:
    """Source: man 5 resolv.conf; of `domain` and `search` lines the last one counts."""
    found: dict[str, list[str]] = {"nameserver": [], "domain": [], "search": [], "options": []}
    for line in text.splitlines():
        keyword, *values = line.split("#")[0].split(";")[0].split() or [""]
        if keyword in ("nameserver", "options"):
            found[keyword] += values
        elif keyword in ("domain", "search"):
            found[keyword] = values
    return Dns(
        tuple(found["nameserver"]),
        (found["domain"] or [""])[0],
        tuple(found["search"]),
        tuple(found["options"]),
    )
