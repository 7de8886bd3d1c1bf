"""Announcements: where an address is, told to all ports of a bridge, behind the answer of an ADD.

The kernel hands a frame to every port within the send call, so that one announcement costs the more
the more pods there are: it is not the pod that waits for that, nor the event loop.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from queue import SimpleQueue

from limpet.datapath.node.pod.attachment import Attachment
from limpet.linux.packets.frames import announcement
from limpet.linux.packets.raw_frames import open_packet_socket


class Announcer:
    """Owns one thread, and one socket that stays open: closing one costs an RCU grace period."""

    def __init__(self) -> None:
        """In the network namespace of the calling thread. Raises: KernelError."""
        self._socket = open_packet_socket(socket.SOCK_RAW)
        self._queue: SimpleQueue[tuple[Attachment, str] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
        self._thread.start()

    def announce(self, pod: Attachment, bridge: str) -> None:
        """Soon. Best effort, as the protocols are; the node's own entry is set by netlink.

        All addresses, also one that the MAC is made of: a pod that had it before may have asked for
        another MAC, which others remember, and who waits for the address hears that it is there.
        """
        self._queue.put((pod, bridge))

    def close(self) -> None:
        """Sends what is waiting, then ends the thread."""
        self._queue.put(None)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while (waiting := self._queue.get()) is not None:
            pod, bridge = waiting
            for address in pod.addresses:
                with contextlib.suppress(OSError):
                    self._socket.sendto(announcement(address.ip, pod.link.mac), (bridge, 0))
