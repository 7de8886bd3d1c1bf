"""Pods of this node, and of others, that are endpoints of Services and whose containers are gone.

In memory only where Services are on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from ipaddress import ip_address

import structlog

from limpet.base.addresses import Prefix
from limpet.base.errors import KernelError
from limpet.base.faults import noted
from limpet.base.timer import Timer
from limpet.cluster.documents import Source
from limpet.cluster.kinds import ABSENCE, GRANT
from limpet.cluster.membership import Membership
from limpet.cluster.replica import Change
from limpet.linux.namespaces import scan_namespaces

_log = structlog.get_logger("gone-pods")

_SOON_S = 0.05
"""Pods that come and go together are looked at once, behind the answers to the runtime."""
_EVERY_S = 2.0
"""How often it is looked at; neighbours take no more than that of one document for long."""
_MOST_S = 60.0
"""Between looks at addresses that somebody has who is no pod of ours, or is just being removed."""


class GonePods:
    """For one event loop; tells when what it knows is other than before."""

    def __init__(
        self,
        membership: Membership,
        *,
        endpoints: Callable[[], Iterable[str]],
        attached: Callable[[], Iterable[str]],
        changed: Callable[[], None],
    ) -> None:
        """`endpoints`: addresses of this node that Services have. `attached`: of its live pods."""
        self._membership = membership
        self._endpoints = endpoints
        self._attached = attached
        self._changed = changed
        self._own: frozenset[str] = frozenset()
        self._theirs: dict[str, frozenset[str]] = {}
        """By the node's uid."""
        self._nobodys: frozenset[str] = frozenset()
        """Addresses that no network namespace had when it was looked at."""
        self._looked_s = float("-inf")
        self._again_s = _EVERY_S
        self._is_asked = False
        self._timer = Timer("gone pods", self._look)
        self._scanning: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> frozenset[str]:
        """Addresses of gone pods, this node's and others'."""
        return self._own.union(*self._theirs.values())

    def begin(self) -> None:
        """From what the disk holds: no container of this node outlives a boot, and others have said
        which of theirs are gone."""
        for document in self._membership.replica.known.of(ABSENCE.name).values():
            self._read(document.name)

    def close(self) -> None:
        self._timer.stop()
        if self._scanning is not None:
            self._scanning.cancel()

    # This node's

    def look_soon(self) -> None:
        """A pod came or went, or Services have other endpoints."""
        self._again_s = _EVERY_S
        if not self._is_asked:
            self._is_asked = True
            now_s = asyncio.get_running_loop().time()
            self._timer.set_in(max(_SOON_S, self._looked_s + _EVERY_S - now_s))

    def _look(self) -> None:
        self._looked_s = asyncio.get_running_loop().time()
        if self._scanning is not None:
            self._timer.set_in(_EVERY_S)
            return
        self._is_asked = False
        suspects = self._suspects()
        self._nobodys &= suspects
        if suspects - self._nobodys:
            self._scanning = asyncio.get_running_loop().create_task(self._scan(suspects))
        else:
            self._settle()

    def _suspects(self) -> frozenset[str]:
        """Endpoints in this node's segments that no pod of ours has."""
        segments = self._membership.segments.get(self._membership.uid, ())
        attached = frozenset(self._attached())
        return frozenset(
            each for each in self._endpoints() if each not in attached and _is_in(each, segments)
        )

    async def _scan(self, suspects: frozenset[str]) -> None:
        """Another network's pod, from before the node had Limpet, may have the address."""
        with noted("looking for pods"):
            found = await self._found(suspects)
            self._nobodys |= suspects - found
            if found and not self._timer.is_set:
                self._timer.set_in(self._again_s)
                self._again_s = min(2 * self._again_s, _MOST_S)
        self._scanning = None
        self._settle()

    async def _found(self, suspects: frozenset[str]) -> frozenset[str]:
        """Those that somebody has; all, where the machine has no room to look."""
        wanted = {each: ip_address(each) for each in suspects}
        try:
            scan = await asyncio.to_thread(scan_namespaces, wanted.values())
        except KernelError as error:
            _log.warning("endpoints whose pods may be gone are left as they are", error=str(error))
            return suspects
        return frozenset(x for x, address in wanted.items() if address.packed in scan.addresses)

    def _settle(self) -> None:
        own = self._nobodys & self._suspects()
        if own != self._own:
            self._own = own
            self._changed()
        self._membership.announce_gone(own)

    # Others'

    def hear(self, change: Change) -> None:
        # A node's new segment comes by another road than what it tells of the pods in it, and
        # perhaps after that; and it may be taken from another.
        uids = {name for kind, name in change.keys if kind in (ABSENCE.name, GRANT.name)}
        if any(kind == GRANT.name for kind, _ in change.keys):
            uids.update(self._theirs)
        before = self.addresses
        for uid in uids:
            self._read(uid)
        if self.addresses != before:
            self._changed()
        own = (ABSENCE.name, self._membership.uid)
        if own in change.keys and change.source is not Source.SELF:
            self.look_soon()  # it was said before the disk was put back

    def _read(self, uid: str) -> None:
        if uid == self._membership.uid:
            return
        said = self._membership.replica.known.value(ABSENCE.name, uid)
        entry = self._membership.snapshot.nodes.get(uid)
        if said is None or entry is None or entry.grant.tombstone:
            self._theirs.pop(uid, None)
            return
        segments = self._membership.segments.get(uid, ())
        self._theirs[uid] = frozenset(x for x in said.addresses if _is_in(x, segments))


def _is_in(address: str, segments: Iterable[Prefix]) -> bool:
    found = ip_address(address)
    return any(found.version == each.version and found in each for each in segments)
