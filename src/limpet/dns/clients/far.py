"""Clients beyond this node: by UDP they are sent no more bytes than they have sent.

The addresses for names are this node's, and whoever is on its LAN may send to them from any address
that he makes up: who has that would get a thousand bytes for each fifty. By TCP nobody answers for
an address that is not his own (RFC 5358, RFC 7766).
"""

from __future__ import annotations

from collections.abc import Callable

from limpet.base.bounds.strangers import DNS_CLIENTS
from limpet.base.errors import KernelError


class FarClients:
    """Keeps which ones are, until it is told to forget."""

    def __init__(self, is_beyond: Callable[[str], bool]) -> None:
        """`is_beyond`: whether what goes to an address leaves this node. Raises: KernelError."""
        self._is_beyond = is_beyond
        self._known: dict[str, bool] = {}

    def has(self, address: str) -> bool:
        known = self._known.get(address)
        if known is None:
            try:
                known = self._is_beyond(address)
            except KernelError:  # no descriptor is left: whoever asks is answered
                return False
            if len(self._known) >= DNS_CLIENTS.most:
                del self._known[next(iter(self._known))]
            self._known[address] = known
        return known

    def forget(self) -> None:
        """Routes may be others by now."""
        self._known.clear()
