"""CHECK: does the pod's interface still stand as it was made?"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from limpet.base.errors import CniCode, CniError
from limpet.cni.protocol.values import CniResult
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.pod.interface import read_inside
from limpet.datapath.node.ports.part import PortPart
from limpet.linux.namespaces import Namespace
from limpet.linux.netlink import link_codec


def check_attachment(
    kernel: NodeKernel,
    ports: PortPart,
    attachment: Attachment,
    netns: str,
    prev_result: CniResult | None,
) -> None:
    """Raises: CniError (105) with everything that is not as it should be."""
    problems = [*_differs(attachment, prev_result), *_inside(attachment, netns)]
    if attachment.bridge is not None:
        problems += [*_outside(kernel, attachment), *ports.problems(attachment)]
    if problems:
        raise CniError(
            CniCode.CHECK_FAILED,
            f"container {attachment.holder.container_id}, interface {attachment.holder.ifname}: "
            + "; ".join(problems),
            "the agent repairs what is the node's; delete and start the pod for the rest",
        )


def _differs(attachment: Attachment, prev_result: CniResult | None) -> Iterator[str]:
    if prev_result is None:
        return
    for address in attachment.addresses:
        if all(found.address != address for found in prev_result.addresses):
            yield f"prevResult lacks address {address}"


def _inside(attachment: Attachment, netns: str) -> Iterator[str]:
    ifname = attachment.holder.ifname
    with Namespace(netns) as pod:
        links, addresses, routes = read_inside(pod)
    link = links.get(ifname)
    if link is None:
        yield "the interface is gone"
        return
    if not link.up:
        yield "the interface is down"
    if attachment.bridge is not None and link.mac != attachment.link.mac:
        yield f"MAC is {link.mac}, not {attachment.link.mac}"
    held = {(info.packed, info.prefix_length) for info in addresses if info.ifindex == link.ifindex}
    for address in attachment.addresses:
        if (address.packed, address.network.prefixlen) not in held:
            yield f"address {address} is missing"
    if attachment.bridge is None:
        return
    for route in attachment.routes:
        prefix = route.destination
        destination = prefix.network_address.packed if prefix.prefixlen else b""
        gateway = route.gateway.packed if route.gateway is not None else b""
        family = socket.AF_INET if prefix.version == 4 else socket.AF_INET6
        # On another interface: ADD leaves the route of the pod's first network as it is.
        if not any(
            (info.family, info.destination, info.prefix_length)
            == (family, destination, prefix.prefixlen)
            and (info.ifindex != link.ifindex or info.gateway == gateway)
            for info in routes
        ):
            yield f"route {prefix} via {route.gateway} is missing"


def _outside(kernel: NodeKernel, attachment: Attachment) -> Iterator[str]:
    assert attachment.bridge is not None
    host: link_codec.LinkInfo | None = kernel.route.link(attachment.link.host_ifname)
    bridge = kernel.route.link(attachment.bridge.ifname)
    if bridge is None:
        yield f"bridge {attachment.bridge.ifname} is gone"
    if host is None:
        yield f"host end {attachment.link.host_ifname} is gone"
    elif not host.up:
        yield f"host end {attachment.link.host_ifname} is down"
    elif bridge is not None and host.master_ifindex != bridge.ifindex:
        yield f"host end {attachment.link.host_ifname} is not on bridge {bridge.ifname}"
