"""A real packet, sent from a pod's namespace by the pod's own IP stack."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from contextlib import suppress

from limpet.base.addresses import Address
from limpet.base.bounds.servers import ECHOES
from limpet.base.errors import KernelError
from limpet.cli.trace.tables import TracedFlow
from limpet.linux.namespaces import Namespace
from limpet.linux.packets.frames import checksum

_ECHO = {4: (8, 0), 6: (128, 129)}
"""Types of an echo and of its answer. Source: RFC 792, RFC 4443."""
_REFUSED = (errno.ECONNREFUSED,)


class Sender:
    """One flow out of a pod; the socket stays in its namespace."""

    def __init__(
        self, netns: str, source: Address, target: Address, protocol: str, port: int
    ) -> None:
        """Nothing is sent yet. Raises: KernelError."""
        family = socket.AF_INET if source.version == 4 else socket.AF_INET6
        kind, what = (
            socket.SOCK_RAW,
            socket.IPPROTO_ICMP if source.version == 4 else socket.IPPROTO_ICMPV6,
        )
        if port:
            kind, what = (socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM), 0
        try:
            with Namespace(netns) as pod, pod.entered():
                self._socket = socket.socket(family, kind, what)
                self._socket.setblocking(False)
                self._socket.bind((str(source), 0))
        except OSError as error:
            raise KernelError("send", f"from {source} in {netns}", error.errno or 0) from error
        number = self._socket.getsockname()[1] if port else os.getpid() & 0xFFFF
        self.flow = TracedFlow(source, target, protocol if port else "icmp", number, port)
        self.problem = ""
        """Why the pod's own IP stack sent nothing."""

    def close(self) -> None:
        self._socket.close()

    def send(self) -> None:
        flow = self.flow
        try:
            if flow.protocol == "tcp":
                self._socket.connect((str(flow.target), flow.port))
            elif flow.port:
                self._socket.connect((str(flow.target), flow.port))
                self._socket.send(b"limpet trace")
            else:
                self._socket.sendto(self._echo(), (str(flow.target), 0))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in _REFUSED:
                self.problem = os.strerror(error.errno or 0)

    def _echo(self) -> bytes:
        kind, _ = _ECHO[self.flow.source.version]
        body = struct.pack(">BBHHH", kind, 0, 0, self.flow.number, 1) + b"limpet trace"
        if self.flow.source.version == 6:
            return body  # the kernel sums
        return body[:2] + struct.pack(">H", checksum(body)) + body[4:]

    def answer(self) -> str:
        """In words what came back; empty: nothing yet."""
        flow = self.flow
        if flow.protocol == "tcp":
            if not select.select([], [self._socket], [], 0)[1]:
                return ""
            failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed == 0:
                with suppress(OSError):
                    self._socket.getpeername()
                    return "the connection was taken"
                return ""
            if failed in _REFUSED:
                return "it answered that nobody listens at that port"
            self.problem = self.problem or os.strerror(failed)
            return ""
        with suppress(BlockingIOError):
            for _ in range(ECHOES.most):  # whatever comes on, there is a time for it all
                try:
                    data = self._socket.recv(2048)
                except ConnectionRefusedError:
                    return "it answered that nobody listens at that port"
                except OSError as error:
                    if error.errno == errno.EAGAIN:
                        return ""
                    self.problem = self.problem or os.strerror(error.errno or 0)
                    return ""
                if flow.port or self._is_ours(data):
                    return "it answered"
        return ""

    def _is_ours(self, data: bytes) -> bool:
        version = self.flow.source.version
        at = (data[0] & 15) * 4 if version == 4 else 0
        _, reply = _ECHO[version]
        return data[at : at + 1] == bytes([reply]) and data[at + 4 : at + 6] == struct.pack(
            ">H", self.flow.number
        )
