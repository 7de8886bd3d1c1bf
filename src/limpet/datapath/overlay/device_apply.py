"""The VXLAN devices, and links on which packets may come in by another way than answers leave."""

from __future__ import annotations

import errno
from collections.abc import Callable

from limpet.base.addresses import InterfaceAddress
from limpet.base.errors import KernelError
from limpet.base.ownership import ALIAS, VXLAN_GROUPS
from limpet.cluster.topology.view import VxlanDevice
from limpet.datapath.overlay.state import OverlayState
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec, vxlan
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.sysctl import read_sysctl, write_sysctl

_STRICT = "1"
LOOSE = "2"
"""Value of `rp_filter`."""


def parse_device(
    message: wire.Message,
    link: link_codec.LinkInfo,
    want: OverlayState,
    addresses: frozenset[InterfaceAddress],
) -> VxlanDevice | None:
    """None: neither ours nor one that has the name of one of ours."""
    options = vxlan.parse_vxlan(message)
    versions = [version for version, group in VXLAN_GROUPS.items() if group == link.group]
    ours = options is not None and bool(versions)
    if not ours and link.ifname not in want.devices:
        return None
    return VxlanDevice(
        link.ifname,
        versions[0] if versions else 0,
        options.vni if options else 0,
        options.port if options else 0,
        link.mac,
        link.mtu_bytes,
        addresses,
        up=link.up,
        plain=options is not None and options.plain,
        ours=ours,
    )


def put_device(route: RouteSocket, device: VxlanDevice, *, replaces: bool) -> link_codec.LinkInfo:
    """The device is there as it should be, but for its addresses. Raises: KernelError.

    `replaces`: what is there under its name goes first.
    """
    link = route.link(device.ifname)
    if link is not None and (link.kind, link.group) != (
        "vxlan",
        VXLAN_GROUPS[device.underlay_version],
    ):
        hint = "somebody else made it; remove or rename it"
        raise KernelError("use", f"link {device.ifname}", errno.EEXIST, hint)
    if link is not None and replaces:
        route.apply(
            link_codec.delete_link(link.ifindex, what=device.ifname, ignore_errno=(errno.ENODEV,))
        )
        link = None
    if link is None:
        _make_device(route, device)
    else:
        _set_device(route, device, link)
    link = route.link(device.ifname)
    if link is None:
        raise KernelError("find", f"link {device.ifname}", errno.ENODEV)
    if link.mac != device.mac:
        # Others give new devices a MAC of their own, just when those come up (udev).
        _set_device(route, device, link)
    return link


def _make_device(route: RouteSocket, device: VxlanDevice) -> None:
    made = vxlan.new_vxlan(
        ifname=device.ifname,
        underlay_version=device.underlay_version,
        vni=device.vni,
        port=device.port,
        mac=device.mac,
        mtu_bytes=device.mtu_bytes,
        group=VXLAN_GROUPS[device.underlay_version],
    )
    try:
        route.apply(made)
    except KernelError as error:
        if error.errno != errno.EEXIST:
            raise
        hint = (
            "another VXLAN device has this VNI and port, flannel's perhaps: "
            "remove it, or give the network another VNI"
        )
        raise KernelError("make", made.what, errno.EEXIST, hint) from error
    route.apply(
        link_codec.no_made_up_addresses(device.ifname),
        link_codec.set_link(0, what=device.ifname, ifname=device.ifname, alias=ALIAS, up=True),
    )


def _set_device(route: RouteSocket, device: VxlanDevice, link: link_codec.LinkInfo) -> None:
    route.apply(
        link_codec.set_link(
            link.ifindex,
            what=device.ifname,
            up=True,
            mac=device.mac if link.mac != device.mac else None,
            mtu_bytes=device.mtu_bytes if link.mtu_bytes != device.mtu_bytes else None,
        )
    )


def loosen(ifname: str, before_sysctl: Callable[[str], None]) -> None:
    """`before_sysctl`: the setting at that path is about to change. Raises: KernelError."""
    if is_strict(ifname):
        path = rp_filter(ifname)
        before_sysctl(path)
        write_sysctl(path, LOOSE)


def is_loose(ifname: str, want: OverlayState) -> bool:
    """A link that is not there filters nothing; a device of ours will, once it is made."""
    if read_sysctl(rp_filter(ifname)) is None:
        return ifname not in want.devices
    return not is_strict(ifname)


def is_strict(ifname: str) -> bool:
    """Whether the kernel drops what comes in by a link that an answer would not leave by.

    The larger of the link's and the node's setting counts. Source: IN_DEV_RPFILTER in
    include/linux/inetdevice.h.
    """
    return max(read_sysctl(rp_filter(each)) or "0" for each in (ifname, "all")) == _STRICT


def rp_filter(ifname: str) -> str:
    """Path of the setting below /proc/sys."""
    return f"net/ipv4/conf/{ifname}/rp_filter"
