"""WireGuard devices, told and read: the kernel's by netlink, a userspace one at its socket."""

from __future__ import annotations

import errno
import time

from limpet.base.errors import KernelError
from limpet.base.ownership import TUNNEL_GROUP
from limpet.datapath.tunnel import process
from limpet.datapath.tunnel.state import DeviceReading, DeviceSetting, PeerReading
from limpet.datapath.tunnel.wireguard import netlink_codec as kernel_wire
from limpet.datapath.tunnel.wireguard import uapi_codec as uapi
from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import NetlinkSocket, RouteSocket

_UP_S = 1.0
_LOOK_AGAIN_S = 0.001
GONE = (*process.GONE, errno.ENODEV)
"""What a device that is not there any more answers."""


class KernelWireguard:
    """By generic netlink, in the network namespace of the calling thread.

    As with `UserspaceWireguard`, the device's link is set up by `TunnelKernel`.
    """

    kind = "wireguard"
    """Kind of the device's link."""

    def __init__(self, route: RouteSocket, ifname: str) -> None:
        """Raises: KernelError (ENOENT: this kernel has no WireGuard)."""
        self._route = route
        self._ifname = ifname
        self._known: dict[bytes, PeerReading] = {}
        self._socket = NetlinkSocket(kernel_wire.NETLINK_GENERIC)
        try:
            answer = self._socket.query(kernel_wire.get_family())
            self._family = kernel_wire.parse_family(answer)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def make(self) -> None:
        """Makes the device, down. Raises: KernelError."""
        self._route.apply(
            link_codec.new_link(ifname=self._ifname, kind=self.kind, group=TUNNEL_GROUP)
        )

    def read(self) -> DeviceReading | None:
        """None: there is no device. Raises: KernelError."""
        try:
            answers = self._socket.dump(kernel_wire.dump_device(self._family, self._ifname))
        except KernelError as error:
            if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
                return None
            raise
        return kernel_wire.parse_device(answers, self._known)

    def write(self, setting: DeviceSetting) -> None:
        """Raises: KernelError: the first failure; what was not tried is open."""
        try:
            self._socket.apply(*kernel_wire.set_device(self._family, self._ifname, setting))
        except KernelError as error:
            raise refused(self._ifname, error.errno) from error

    def remove(self) -> None:
        """Removes the device. Raises: KernelError."""
        link = self._route.link(self._ifname)
        if link is not None:
            gone = (errno.ENODEV,)
            self._route.apply(
                link_codec.delete_link(link.ifindex, what=self._ifname, ignore_errno=gone)
            )


def kernel_has_wireguard() -> bool:
    """Whether devices are the kernel's, and no program is needed."""
    with RouteSocket() as route:
        try:
            KernelWireguard(route, "").close()
        except KernelError:
            return False
    return True


class UserspaceWireguard:
    """By the socket of a process of its own."""

    kind = "tun"

    def __init__(self, process: WireguardProcess) -> None:
        self.process = process
        self._known: dict[str, PeerReading] = {}

    def make(self) -> None:
        self.process.start()

    def read(self) -> DeviceReading | None:
        try:
            # Also: it is no process of another namespace.
            answer = None if self.process.pid is None else self.process.ask(uapi.GET)
        except KernelError as error:
            if error.errno in GONE:
                return None
            raise
        if answer is None:
            return None
        try:
            return uapi.parse_get(answer, self._known)
        except ValueError as error:
            what = f"the answer of the userspace WireGuard of {self.process.ifname}"
            raise KernelError("read", what, errno.EBADMSG, str(error)) from error

    def await_up(self) -> None:
        """Returns when it has begun to listen, at a port of its own choosing: it does so by itself,
        when it has heard that its link is up, and says only from then on that a port is taken.
        Whoever has not by then gets on without. Raises: KernelError."""
        end_s = time.monotonic() + _UP_S
        while time.monotonic() < end_s:
            reading = self.read()
            if reading is None or reading.port:
                return
            time.sleep(_LOOK_AGAIN_S)

    def write(self, setting: DeviceSetting) -> None:
        answer = self.process.ask(uapi.encode_set(setting))
        try:
            number = uapi.parse_errno(answer)
        except ValueError as error:
            what = f"the answer of the userspace WireGuard of {self.process.ifname}"
            raise KernelError("read", what, errno.EBADMSG, str(error)) from error
        if number:
            raise refused(self.process.ifname, number)

    def remove(self) -> None:
        self.process.stop()


def refused(ifname: str, number: int) -> KernelError:
    """A device that did not take a setting, with what to do."""
    hints = {
        errno.EADDRINUSE: "another program has the tunnel's UDP port: end it, or choose another",
        errno.EPERM: "it needs CAP_NET_ADMIN",
    }
    return KernelError("set up", f"tunnel {ifname}", number, hints.get(number, ""))
