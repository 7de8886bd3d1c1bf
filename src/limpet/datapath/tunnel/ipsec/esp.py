"""The kernel's ESP: whether it can be used, its device, and what a killed IKE daemon leaves of it.

One xfrm interface is the device of all peers; it is removed when the daemon has ended.
"""

from __future__ import annotations

import errno
import socket
from functools import cache
from pathlib import Path

from limpet.base.errors import KernelError
from limpet.base.ownership import IPSEC_IFNAME
from limpet.datapath.tunnel.ipsec.state import IPSEC_IF_ID
from limpet.linux.namespaces import in_new_namespace
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import NetlinkSocket, RouteSocket
from limpet.linux.netlink.xfrm import (
    NETLINK_XFRM,
    delete_policy,
    delete_sa,
    dump_policies,
    dump_sas,
    new_trial_sa,
    new_xfrm_device,
    parse_if_id,
)

_UDP_ENCAP, _UDP_ENCAP_ESPINUDP = 100, 2
"""Source: include/uapi/linux/udp.h."""
_NO_XFRM = (errno.EPROTONOSUPPORT, errno.ECONNREFUSED)
_IPV6 = Path("/proc/sys/net/ipv6")


@cache
def esp_lack() -> str:
    """Why the kernel's ESP cannot be used; empty: it can. Tried once, in a new namespace."""
    try:
        in_new_namespace(_try)
    except KernelError as error:
        return str(error)
    except OSError as error:
        return f"UDP sockets take no ESP: {error.strerror}"
    return ""


def _try() -> None:
    versions = (4, 6) if _IPV6.exists() else (4,)
    with RouteSocket() as route, NetlinkSocket(NETLINK_XFRM) as xfrm:
        put_device(route)
        for version in versions:
            xfrm.apply(new_trial_sa(version, IPSEC_IF_ID))
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            with socket.socket(family, socket.SOCK_DGRAM) as port:
                port.setsockopt(socket.IPPROTO_UDP, _UDP_ENCAP, _UDP_ENCAP_ESPINUDP)
        drop_sas()


def put_device(route: RouteSocket) -> None:
    """Makes the device, down, if there is none. Raises: KernelError."""
    if device_ifindex(route) is None:
        route.apply(new_xfrm_device(IPSEC_IFNAME, IPSEC_IF_ID))


def device_ifindex(route: RouteSocket) -> int | None:
    """Index of our xfrm interface; None: there is none, or another link has its name.

    Raises: KernelError.
    """
    try:
        message = route.query(link_codec.get_link(IPSEC_IFNAME))
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    is_ours = parse_if_id(message) == IPSEC_IF_ID
    return link_codec.parse_link(message).ifindex if is_ours else None


def drop_device(route: RouteSocket, ifindex: int | None) -> None:
    """Deletes the device that `device_ifindex` named before. Raises: KernelError."""
    if ifindex is not None:
        gone = (errno.ENODEV,)
        route.apply(link_codec.delete_link(ifindex, what=f"link {IPSEC_IFNAME}", ignore_errno=gone))


def drop_sas() -> None:
    """Deletes the SAs and policies of our xfrm interface. Raises: KernelError."""
    try:
        xfrm = NetlinkSocket(NETLINK_XFRM)
    except KernelError as error:
        if error.errno in _NO_XFRM:
            return
        raise
    with xfrm:
        policies = [delete_policy(each, IPSEC_IF_ID) for each in xfrm.dump(dump_policies())]
        sas = [delete_sa(each, IPSEC_IF_ID) for each in xfrm.dump(dump_sas())]
        xfrm.apply(*(each for each in (*policies, *sas) if each is not None))
