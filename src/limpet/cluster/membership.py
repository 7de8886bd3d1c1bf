"""What this node knows of the cluster, and what it says of itself. On disk before it counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import structlog

from limpet.base.addresses import Address, Endpoint
from limpet.base.faults import noted
from limpet.base.layered_map import alter
from limpet.cluster.documents import NodeEntry, Sealed, Snapshot
from limpet.cluster.identity import Identity
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.merge import merge_entries, merge_snapshots
from limpet.cluster.seal import (
    SealError,
    make_entry,
    open_network,
    seal_presence,
    trusted_keys,
    uid_hint,
)
from limpet.cluster.snapshot.file import SnapshotFile

_log = structlog.get_logger("membership")

_JUMP = 10
"""Above another's sequence for our own identity: what neighbours know differs by less."""
_CLONE_AFTER = 3
"""Jumps that another boot answers with a higher sequence: no restored disk does that."""

Pair = tuple[Sealed, Sealed | None]
"""A grant and its node's presence."""


class Source(Enum):
    CLOUD = "cloud"
    NEIGHBOUR = "neighbour"
    DISK = "disk"
    SELF = "self"


class Outcome(Enum):
    """What became of an offered pair."""

    FRESH = "fresh"
    STALE = "stale"
    """Known, or older than what is known."""
    BAD = "bad"
    """Not signed by whom it should be, or no document at all."""


@dataclass(frozen=True, slots=True)
class News:
    """What has changed; told once for everything that came together."""

    source: Source
    uids: frozenset[str]
    network: bool = False


Listener = Callable[[News], None]


class Membership:
    """Runs on the event loop's thread. Listeners are called on it, after what they hear is true."""

    def __init__(self, identity: Identity, file: SnapshotFile, *, boot_id: str) -> None:
        """Takes up what `file` holds."""
        self.identity = identity
        self.uid = identity.uid
        self.counters: Counter[str] = Counter()
        """Offers by `<source>_<outcome>`."""
        self.cloned = False
        """Another machine has this identity: nothing is published any more."""
        self._file = file
        self._boot_id = boot_id
        self._jumps = 0
        self._above: int | None = None
        """A sequence of ours that is known elsewhere: what is published has to go above it."""
        self._listeners: list[Listener] = []
        self.snapshot, self.problems = file.read(identity.pinned_key)
        """`problems`: of what the disk held, in words."""
        self._trusted = self._trust()
        self._wanted: Presence | None = None
        self._publishing = False

    # What is known

    @property
    def network(self) -> Network | None:
        return self.snapshot.network

    @property
    def own(self) -> NodeEntry | None:
        return self.snapshot.nodes.get(self.uid)

    @property
    def grant(self) -> Grant | None:
        """Ours; None before the first one, and once it was revoked."""
        own = self.own
        return None if own is None or own.grant.tombstone else own.grant

    @property
    def presence(self) -> Presence | None:
        """Ours as it was published last."""
        return self.own.presence if self.own is not None else None

    @property
    def removed(self) -> bool:
        return self.own is not None and self.own.grant.tombstone

    def is_member(self, uid: str) -> bool:
        entry = self.snapshot.nodes.get(uid)
        return entry is not None and not entry.grant.tombstone

    def tombstone_of(self, uid: str) -> Sealed | None:
        """None: the node was not removed, as far as is known here."""
        entry = self.snapshot.nodes.get(uid)
        return entry.sealed_grant if entry is not None and entry.grant.tombstone else None

    @property
    def trouble(self) -> str:
        """Why what is known cannot be written to the disk now; empty: it can."""
        return self._file.trouble

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """It is told nothing any more."""
        self._listeners = [each for each in self._listeners if each != listener]

    # What is told

    def offer(
        self, pairs: Iterable[Pair], *, source: Source, network: Sealed | None = None
    ) -> list[Outcome]:
        """Checks what somebody says, merges what is new, and tells; the outcome of each pair.

        Whoever says it: every part is signed. What is known already costs no check.
        """
        new_network = network is not None and self._take_network(network)
        changed: dict[str, NodeEntry] = {}
        outcomes = [self._take(pair, changed) for pair in pairs]
        for outcome in outcomes:
            self.counters[f"{source.value}_{outcome.value}"] += 1
        if changed or new_network:
            if changed:
                nodes = alter(self.snapshot.nodes, changed)
                self.snapshot = replace(self.snapshot, nodes=nodes)
            self._file.put(self.snapshot.sealed_network if new_network else None, changed.values())
            self._tell(News(source, frozenset(changed), network=new_network))
        self._publish()
        return outcomes

    def _take_network(self, sealed: Sealed) -> bool:
        if sealed == self.snapshot.sealed_network:
            return False
        try:
            network = open_network(sealed, self.identity.pinned_key)
        except SealError as error:
            _log.warning("what is said of the network does not count", error=str(error))
            return False
        merged = merge_snapshots(self.snapshot, Snapshot(network, sealed))
        if merged.sealed_network == self.snapshot.sealed_network:
            return False
        self.snapshot = merged
        self._trusted = self._trust()
        return True

    def _trust(self) -> frozenset[bytes]:
        keys = self.snapshot.network.keys if self.snapshot.network is not None else ()
        return trusted_keys(self.identity.pinned_key, keys)

    def _take(self, pair: Pair, changed: dict[str, NodeEntry]) -> Outcome:
        sealed_grant, sealed_presence = pair
        known = self._known_by_bytes(sealed_grant, changed)
        if known is not None and sealed_presence in (None, known.sealed_presence):
            return Outcome.STALE
        try:
            entry = make_entry(sealed_grant, sealed_presence, self._trusted)
        except SealError as error:
            _log.debug("what is said of a node does not count", error=str(error))
            return Outcome.BAD
        uid = entry.grant.uid
        if uid == self.uid and self._is_ahead(entry):
            self._note_ahead(entry)
            entry = NodeEntry(entry.grant, entry.sealed_grant)
        before = changed.get(uid) or self.snapshot.nodes.get(uid)
        merged = entry if before is None else merge_entries(before, entry)
        if (
            before is not None
            and merged.sealed_grant == before.sealed_grant
            and merged.sealed_presence == before.sealed_presence
        ):
            return Outcome.STALE
        changed[uid] = merged
        return Outcome.FRESH

    def _known_by_bytes(self, sealed: Sealed, changed: Mapping[str, NodeEntry]) -> NodeEntry | None:
        """The entry with this very grant, found without checking a signature."""
        uid = uid_hint(sealed)
        entry = changed.get(uid) or self.snapshot.nodes.get(uid)
        return entry if entry is not None and entry.sealed_grant == sealed else None

    def _tell(self, news: News) -> None:
        for listener in self._listeners:
            with noted("news"):  # the others have to hear it too
                listener(news)

    # What the node says of itself

    def announce(
        self,
        *,
        addresses: tuple[Address, ...],
        port: int,
        vtep_macs: Mapping[int, str],
        link_mtu_bytes: int,
        endpoints: tuple[Endpoint, ...] = (),
        tunnel_port: int = 0,
        relay_tls_port: int = 0,
    ) -> None:
        """Publishes it if it is not what was published last: on disk first, then told."""
        self._wanted = Presence(
            self.uid,
            0,
            self._boot_id,
            addresses=addresses,
            port=port,
            endpoints=endpoints,
            vtep_macs=dict(vtep_macs),
            tunnel_port=tunnel_port,
            relay_tls_port=relay_tls_port,
            link_mtu_bytes=link_mtu_bytes,
        )
        self._publish()

    def jump_above(self, sequence: int) -> None:
        """The cloud has a presence of ours with this sequence, and will take only a higher one."""
        self._above = max(sequence, self._above or 0)
        self._publish()

    def declare_cloned(self) -> None:
        """Two machines hold this identity, a cloned image perhaps: a person has to act."""
        if not self.cloned:
            self.cloned = True
            _log.error(
                "another machine has this node's identity: nothing is published any more",
                uid=self.uid,
                what_to_do="on the copy: stop the agent, then `limpet join --anew`; then restart "
                "both agents",
            )

    def _is_ahead(self, entry: NodeEntry) -> bool:
        seen, last = entry.presence, self.presence
        if seen is None:
            return False
        own = last is not None and entry.sealed_presence == (
            self.own.sealed_presence if self.own is not None else None
        )
        return not own and (last is None or seen.sequence >= last.sequence)

    def _note_ahead(self, entry: NodeEntry) -> None:
        assert entry.presence is not None
        if self._above is not None and entry.presence.sequence <= self._above:
            return  # told by another already
        self._above = entry.presence.sequence
        if entry.presence.boot_id != self._boot_id:
            self._jumps += 1
            if self._jumps > _CLONE_AFTER:
                self.declare_cloned()
        _log.warning(
            "a newer presence of this node was known elsewhere: going on above it",
            sequence=entry.presence.sequence,
            jumps=self._jumps,
        )

    def _publish(self) -> None:
        """What is wanted, if that is not what was published last, or others know a later one."""
        own, wanted, last = self.own, self._wanted, self.presence
        if own is None or wanted is None or own.grant.tombstone or self.cloned:
            return
        behind = self._above is not None and (last is None or last.sequence <= self._above)
        if not behind and last is not None and replace(wanted, sequence=last.sequence) == last:
            return
        sequence = last.sequence + 1 if last is not None else 0
        if behind and self._above is not None:
            sequence = self._above + _JUMP
        presence = replace(wanted, sequence=sequence)
        sealed = seal_presence(presence, self.identity.private_key)
        entry = NodeEntry(own.grant, own.sealed_grant, presence, sealed)
        self.snapshot = replace(self.snapshot, nodes=alter(self.snapshot.nodes, {self.uid: entry}))
        written = self._file.put(None, (entry,))
        # Told only when it is on disk: after a crash the same number never says something else.
        asyncio.wrap_future(written).add_done_callback(self._published)

    def _published(self, _written: asyncio.Future[None]) -> None:
        # A failure is the file's to report; to be reached counts more than to be on disk.
        self._tell(News(Source.SELF, frozenset({self.uid})))

    async def durable(self) -> None:
        """Returns when all that was taken is on disk. Raises: StorageError."""
        await asyncio.wrap_future(self._file.durable())

    def close(self) -> None:
        self._file.close()
