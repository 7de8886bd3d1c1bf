"""Deferred removal: what a DEL has put aside is deleted in groups, on a thread of its own.

The kernel waits for RCU grace periods when a link is deleted (about 20 ms each); a link group pays
for all its links at once. Meanwhile it holds the lock that every ADD and DEL needs, so a removal
waits for a quiet moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

import structlog

from limpet.base import faults
from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.base.ownership import DYING_GROUP
from limpet.linux.conntrack import forget_flows
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket

_log = structlog.get_logger("reaper")

_QUIET_S = 0.05
"""Without a DEL for so long, the group is removed; about what the removal takes."""
_LONGEST_WAIT_S = 0.5
"""However busy the node is."""


class Reaper:
    """Owns one thread. All methods may be called from any other."""

    def __init__(self) -> None:
        """In the network namespace of the calling thread."""
        self._route = RouteSocket()
        self._lock = threading.Condition()
        self._wanted = False
        self._closing = False
        self._released: set[Address] = set()
        """Addresses whose flows are there yet, for all that is known."""
        self._forgetting: set[Address] = set()
        """Addresses whose flows are being deleted just now."""
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._thread.start()

    def put(self, addresses: Collection[Address] = ()) -> None:
        """There are links in the dying group, and nobody holds `addresses` any more."""
        with self._lock:
            self._wanted = True
            self._released.update(addresses)
            self._lock.notify_all()

    def remove_now(self) -> None:
        """Removes the links of the dying group; they are gone when this returns."""
        with RouteSocket() as route:
            self._try(lambda: route.apply(link_codec.delete_link_group(DYING_GROUP)))

    def take_back(self, addresses: Collection[Address], *, by_same_pod: bool) -> None:
        """The addresses are about to be used again: what is left of their flows goes now.

        The same pod may have its own flows back: they lead to the address that it has again, and
        going through all flows of the node takes milliseconds. Raises: KernelError.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._forgetting.isdisjoint(addresses))
            stale = self._released.intersection(addresses)
            self._released -= stale
        if stale and not by_same_pod:
            forget_flows(stale)

    def close(self) -> None:
        """Removes what is waiting, then ends the thread."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._thread.join()
        self._route.close()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._wanted or self._closing)
                if not self._wanted:
                    return
                until_s = time.monotonic() + _LONGEST_WAIT_S
                while self._wanted and not self._closing and time.monotonic() < until_s:
                    self._wanted = False
                    self._lock.wait_for(lambda: self._wanted or self._closing, timeout=_QUIET_S)
                self._wanted = False
                self._forgetting, self._released = self._released, set()
            self._try(lambda: self._route.apply(link_codec.delete_link_group(DYING_GROUP)))
            is_done = self._try(lambda: forget_flows(self._forgetting))
            with self._lock:
                if not is_done:
                    self._released |= self._forgetting
                self._forgetting = set()
                self._lock.notify_all()

    def _try(self, step: Callable[[], object]) -> bool:
        """Whether it succeeded."""
        try:
            step()
        except KernelError as error:  # met again with the next group
            _log.warning("removal failed", error=str(error))
        except Exception as error:  # noqa: BLE001 - `take_back` would wait for ever without us
            faults.note("removal", error)
        else:
            return True
        return False
