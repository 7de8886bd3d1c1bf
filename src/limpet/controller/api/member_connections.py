"""How many connections each node has open."""

from __future__ import annotations

import asyncio
import weakref

from limpet.base.bounds import members


class MemberConnections:
    """A node has two; one that is cut off may have left some that nobody has noticed yet."""

    def __init__(self) -> None:
        self._by_use: dict[str, list[weakref.ref[asyncio.WriteTransport]]] = {}
        """By uid; that of the last request is at the end."""

    def note(self, uid: str, transport: asyncio.WriteTransport) -> None:
        """The node asks by this one. Of too many the one that was not used longest is closed."""
        by_use = [
            ref
            for ref in self._by_use.get(uid, ())
            if (other := ref()) is not None and other is not transport and not other.is_closing()
        ]
        self._by_use[uid] = by_use
        by_use.append(weakref.ref(transport))
        while len(by_use) > members.MEMBER_CONNECTIONS.most:
            oldest = by_use.pop(0)()
            if oldest is not None:
                oldest.abort()
