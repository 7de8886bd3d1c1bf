"""A pod's interface: made directly in the pod's namespace, taken away in two steps.

Making: one datagram in the node's namespace (veth pair, host end up and on the bridge), one in the
pod's (addresses, up, routes). Taking away: both ends down and renamed at once, so that the same
name can be used again; the kernel's slow removal is done later for a whole group (`Reaper`).
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import time

from limpet.base.bounds.tenants import POD_LISTED
from limpet.base.errors import KernelError
from limpet.base.ownership import DYING_GROUP, DYING_IFNAME_PREFIX, POD_GROUP, SHAPER_IFNAME_PREFIX
from limpet.datapath.node.pod.attachment import Attachment
from limpet.linux.namespaces import Namespace
from limpet.linux.netlink import address_codec, link_codec, route_codec
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.netlink.traffic_control import ingress_hook, redirect_ingress, token_bucket
from limpet.linux.sysctl import write_sysctl

_OPERATIONAL_TRIES, _OPERATIONAL_PAUSE_S = 50, 0.001


class InterfaceExists(KernelError):
    """The pod already has an interface of that name."""


def create_pod_interface(
    host: RouteSocket, pod: Attachment, *, bridge_ifindex: int, netns: Namespace
) -> None:
    """Makes both ends with all that the attachment says; on failure nothing is left.

    Raises: InterfaceExists; KernelError (ENODEV: the bridge is gone).
    """
    try:
        host.apply(
            link_codec.new_veth(
                ifname=pod.link.host_ifname,
                mac=pod.link.host_mac,
                mtu_bytes=pod.link.mtu_bytes,
                group=POD_GROUP,
                master_ifindex=bridge_ifindex,
                peer_ifname=pod.holder.ifname,
                peer_mac=pod.link.mac,
                peer_netns_fd=netns.fd,
            )
        )
    except KernelError as error:
        if error.errno == errno.EEXIST:
            raise InterfaceExists(
                "set up", f"interface {pod.holder.ifname} in {pod.netns.path}", errno.EEXIST
            ) from error
        raise
    try:
        _set_up_inside(pod, netns)
        _set_up_outside(host, pod, bridge_ifindex)
    except BaseException:
        with contextlib.suppress(KernelError):
            retire_host_end(host, pod.link.host_ifname)
            retire_inside(netns, pod.holder.ifname)
        raise


def _set_up_inside(pod: Attachment, netns: Namespace) -> None:
    ifname = pod.holder.ifname
    with netns.entered():
        if any(address.version == 6 for address in pod.addresses):
            # No router speaks on a pod link, and no second gateway may be learnt from another pod.
            write_sysctl(f"net/ipv6/conf/{ifname}/accept_ra", "0")
        with RouteSocket() as inside:
            requests = _inside(pod, inside.ifindex(ifname))
            try:
                inside.apply(*requests)
            except KernelError as error:
                # How the kernel says that IPv6 is off on the interface, as some runtimes leave it.
                if error.errno != errno.EACCES:
                    raise
                write_sysctl(f"net/ipv6/conf/{ifname}/disable_ipv6", "0")
                inside.apply(*requests)


def _inside(pod: Attachment, ifindex: int) -> list[wire.Request]:
    """Addresses, up, routes; once more does no harm."""
    on = f"{pod.holder.ifname} in {pod.netns.path}"
    return [
        *(address_codec.new_address(ifindex, address, on=on) for address in pod.addresses),
        link_codec.set_link(ifindex, what=on, up=True),
        *(
            route_codec.route(
                route.destination,
                ifindex=ifindex,
                gateway=route.gateway,
                mtu_bytes=route.mtu,
                advmss=route.advmss,
                metric=route.priority,
                table=route.table or route_codec.RT_TABLE_MAIN,
                scope=route.scope,
                # A pod's second network leaves the default route of its first.
                keep=True,
            )
            for route in pod.routes
        ),
    ]


def _set_up_outside(host: RouteSocket, pod: Attachment, bridge_ifindex: int) -> None:
    requests: list[wire.Request] = []
    if pod.bridge is not None and pod.bridge.gateways:  # else the node resolves none of them
        requests += [
            address_codec.put_neighbour(
                bridge_ifindex, address.ip, pod.link.mac, on=pod.bridge.ifname, permanent=False
            )
            for address in pod.addresses
        ]
    ifindex = _await_operational(host, pod.link.host_ifname)
    # The bridge gets its carrier from its first port.
    if pod.bridge is not None and not host.flags(pod.bridge.ifname) & link_codec.IFF_RUNNING:
        _await_operational(host, pod.bridge.ifname)
    if pod.link.hairpin or pod.link.isolated:
        requests.append(
            link_codec.set_bridge_port(
                ifindex,
                what=pod.link.host_ifname,
                hairpin=pod.link.hairpin,
                isolated=pod.link.isolated,
            )
        )
    _limit(host, pod, ifindex)
    if requests:
        host.apply(*requests)


def _await_operational(route: RouteSocket, ifname: str) -> int:
    """The link's ifindex, once it passes packets.

    After a link has got its carrier its queue and its bridge port drop what they get until the
    kernel's link watch has run: a pod's first packet would be answered a second later.
    Since Linux 6.8 the question itself makes the link watch run (rtnl_getlink in
    net/core/rtnetlink.c); before, it runs some time soon.
    """
    for _ in range(_OPERATIONAL_TRIES):
        link = route.query(link_codec.get_link(ifname))
        if link_codec.link_is_operational(link):
            break
        time.sleep(_OPERATIONAL_PAUSE_S)
    return link_codec.link_ifindex(link)


def _limit(host: RouteSocket, pod: Attachment, ifindex: int) -> None:
    """Ingress by a token bucket on the host end; egress by one on an ifb that it is sent through.

    The reference bandwidth plugin's way: out of reach of a pod that may change its own interface.
    """
    limits = pod.bandwidth
    if limits.ingress_rate_bits:
        host.apply(
            token_bucket(
                ifindex,
                rate_bits=limits.ingress_rate_bits,
                burst_bits=limits.ingress_burst_bits,
                what=pod.link.host_ifname,
            )
        )
    if limits.egress_rate_bits:
        name = shaper_ifname(pod.link.host_ifname)
        host.apply(link_codec.new_link(ifname=name, kind="ifb", group=POD_GROUP, up=True))
        shaper_ifindex = host.ifindex(name)
        host.apply(
            token_bucket(
                shaper_ifindex,
                rate_bits=limits.egress_rate_bits,
                burst_bits=limits.egress_burst_bits,
                what=name,
            ),
            ingress_hook(ifindex, what=pod.link.host_ifname),
            redirect_ingress(ifindex, to_ifindex=shaper_ifindex, what=pod.link.host_ifname),
        )


def shaper_ifname(host_ifname: str) -> str:
    return SHAPER_IFNAME_PREFIX + host_ifname[-11:]


def retire_host_end(host: RouteSocket, ifname: str, *, shaped: bool = True) -> bool:
    """Down, renamed, in the group that the reaper deletes. False when there is no such link.

    `shaped`: look for the ifb of its egress limit too, which outlives a pod's namespace.
    """
    found = _find(host, ifname)
    requests = () if found is None else _retire(found, ifname)
    shaper = _find(host, shaper_ifname(ifname)) if shaped else None
    if shaper is not None:
        requests += _retire(shaper, shaper_ifname(ifname))
    if requests:
        host.apply(*requests)
    return found is not None


def retire_inside(netns: Namespace, ifname: str) -> bool:
    """The same for the pod's end, found by its name. False when there is no such link."""
    with netns.entered(), RouteSocket() as inside:
        ifindex = _find(inside, ifname)
        if ifindex is not None:
            inside.apply(*_retire(ifindex, f"{ifname} in {netns.path}"))
        return ifindex is not None


def delete_inside(netns: Namespace, ifname: str) -> bool:
    """Deletes a pod's interface that another plugin made. False when there is no such link."""
    with netns.entered(), RouteSocket() as inside:
        ifindex = _find(inside, ifname)
        if ifindex is not None:
            what = f"{ifname} in {netns.path}"
            inside.apply(link_codec.delete_link(ifindex, what=what, ignore_errno=(errno.ENODEV,)))
        return ifindex is not None


def _find(route: RouteSocket, ifname: str) -> int | None:
    """The link's ifindex; None when there is no such link, or it is the loopback."""
    try:
        return None if route.flags(ifname) & link_codec.IFF_LOOPBACK else route.ifindex(ifname)
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def _retire(ifindex: int, what: str) -> tuple[wire.Request, ...]:
    gone = (errno.ENODEV,)
    name = DYING_IFNAME_PREFIX + secrets.token_hex(6)[:11]
    return (
        link_codec.set_link(ifindex, what=what, up=False, ignore_errno=gone),
        link_codec.set_link(ifindex, what=what, ifname=name, group=DYING_GROUP, ignore_errno=gone),
    )


def read_inside(
    netns: Namespace,
) -> tuple[
    dict[str, link_codec.LinkInfo], list[address_codec.AddressInfo], list[route_codec.RouteInfo]
]:
    """Links by name, addresses and routes of a namespace. Raises: KernelError (E2BIG)."""
    with netns.entered(), RouteSocket(most=POD_LISTED.most) as inside:
        return inside.links(), inside.addresses(), inside.routes()
