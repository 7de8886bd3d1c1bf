"""The nodes of this node's cluster, and what it says of itself: a typed face of the replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import msgspec
import structlog

from limpet.base.addresses import Address, Endpoint, Prefix
from limpet.base.bounds.members import (
    ABSENT_ADDRESSES,
    SEQUENCE,
    TOLD_PODS,
    TOLD_PODS_BODY,
    UNSIGNED_STEP,
)
from limpet.base.faults import noted
from limpet.cluster.documents import Document, Key, Sealed, Source
from limpet.cluster.exchange.neighbours import Contact
from limpet.cluster.identity import Identity
from limpet.cluster.kinds import ABSENCE, GRANT, NETWORK, PODS, PRESENCE
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.network import Network, signing_keys
from limpet.cluster.kinds.pods import (
    PARTS,
    LabelledPod,
    LabelledPods,
    with_as_many_as_are_taken,
)
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry, Snapshot, segments_after, snapshot_of
from limpet.cluster.replica import Change, Outcome, Replica
from limpet.cluster.seal import body_of, seal
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.cluster.topology.reach import may_talk

_log = structlog.get_logger("membership")

_JUMP = 10
"""Above another's sequence for our own identity: what neighbours know mostly differs by less. Each
further jump is longer, beyond all that former boots of this node ever said."""
_LONGER = 32
_CLONE_AFTER = 3
"""Jumps that another boot answers with a higher sequence: no restored disk does that."""


@dataclass(frozen=True, slots=True)
class News:
    """What has changed of the nodes; told once for everything that came together."""

    source: Source
    uids: frozenset[str]
    network: bool = False


_OF_A_DOCUMENT_BYTES = 256
"""Bytes of a document about pods beside the pods."""

Listener = Callable[[News], None]


class Membership:
    """Runs on the event loop's thread. Listeners are called on it, after what they hear is true."""

    def __init__(self, identity: Identity, file: SnapshotFile, *, boot_id: str) -> None:
        """Takes up what `file` holds."""
        self.identity, self.uid = identity, identity.uid
        self.replica = Replica(file, identity.pinned_key, is_held_back=self._is_ahead)
        """All that is known, of nodes and else."""
        self.cloned = False
        """Another machine has this identity: nothing is published any more."""
        self._boot_id = boot_id
        self._jumps = 0
        self._above: int | None = None
        """A sequence of ours that is known elsewhere: what is published has to go above it."""
        self._listeners: list[Listener] = []
        self._snapshot = Snapshot()
        self._seen = replace(self.replica.known, by_kind={})
        """What `_snapshot` was made of."""
        self._segments: tuple[Snapshot, Mapping[str, tuple[Prefix, ...]]] = (Snapshot(), {})
        self._wanted: Presence | None = None
        self.replica.subscribe(self._hear)

    # What is known

    @property
    def snapshot(self) -> Snapshot:
        known = self.replica.known
        if known is not self._seen:
            self._snapshot = snapshot_of(known, self._seen, self._snapshot)
            self._seen = known
        return self._snapshot

    @property
    def segments(self) -> Mapping[str, tuple[Prefix, ...]]:
        """By uid, those that count: of grants that overlap one alone has what both say."""
        before, segments = self._segments
        if before is not self.snapshot:
            segments = segments_after(self.snapshot, before, segments)
            self._segments = (self.snapshot, segments)
        return segments

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

    def is_relay(self, uid: str) -> bool:
        """Whether it is a member with the role."""
        return self.is_member(uid) and Role.RELAY in self.snapshot.nodes[uid].grant.roles

    def may_talk(self, uid: str, peer: str = "") -> bool:
        """Whether the two, without `peer` the node and this one, are known here and may reach each
        other."""
        one, other = self.snapshot.nodes.get(uid), self.snapshot.nodes.get(peer or self.uid)
        if self.network is None or one is None or other is None:
            return False
        return may_talk(self.network, one.grant, other.grant)

    def name_of(self, uid: str) -> str:
        """For a person; the uid of a node that is not known."""
        entry = self.snapshot.nodes.get(uid)
        return entry.grant.name if entry is not None else uid

    def contact(self, uid: str) -> Contact | None:
        """Where the node says that it is; None: it has not, or was removed, or hears nobody."""
        entry = self.snapshot.nodes.get(uid)
        if entry is None or entry.presence is None or entry.grant.is_flannel:
            return None
        network = self.network
        at = tuple(x for x in entry.presence.addresses if network is None or not network.holds(x))
        return Contact(at, entry.presence.port)

    @property
    def introduction(self) -> Key:
        """The document with which the node says who it is."""
        return PRESENCE.name, self.uid

    @property
    def era(self) -> int:
        """Number of the cluster's last key that is known here."""
        return len(signing_keys(self.replica.known)) - 1

    def signed_by_former_keys(self) -> list[Document]:
        """What a former key of the cluster has signed, and nothing has replaced yet."""
        known, era = self.replica.known, self.era
        return [
            document
            for kind in known.kinds.of_the_cluster()
            for document in (known.of(kind.name).values() if era else ())
            if document.era < era
        ]

    def tombstone_of(self, uid: str) -> Sealed | None:
        """None: the node was not removed, as far as is known here."""
        found = self.replica.known.find((GRANT.name, uid))
        return found.sealed if found is not None and found.tombstone else None

    def removal_of(self, uid: str) -> tuple[Sealed, ...]:
        """What tells the node that it was removed: the network, as it may have missed the key that
        has signed its tombstone, and that. Empty: it was not removed."""
        tombstone = self.tombstone_of(uid)
        if tombstone is None:  # as for nearly every datagram
            return ()
        return (*(each.sealed for each in self.replica.known.of(NETWORK.name).values()), tombstone)

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def _hear(self, change: Change) -> None:
        uids = frozenset(name for kind, name in change.keys if kind in (GRANT.name, PRESENCE.name))
        network = any(kind == NETWORK.name for kind, _ in change.keys)
        if uids or network:
            news = News(change.source, uids, network=network)
            for listener in self._listeners:
                with noted("news"):  # the others have to hear it too
                    listener(news)

    # What is told

    def offer(
        self,
        documents: Iterable[Sealed],
        *,
        source: Source,
        teller: str = "",
        has_room: Callable[[Document], bool] = lambda _document: True,
    ) -> list[Outcome]:
        """As `Replica.offer`; what others know of this node, it goes on above."""
        outcomes = self.replica.offer(documents, source=source, teller=teller, has_room=has_room)
        self._publish()
        return outcomes

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

    def announce_gone(self, addresses: Iterable[str]) -> None:
        """Tells the neighbours which of this node's pods are gone, if they were told otherwise."""
        said: Absence | None = self.replica.known.value(ABSENCE.name, self.uid)
        told = tuple(sorted(addresses)[: ABSENT_ADDRESSES.most])
        if self.grant is None or self.cloned or told == (said.addresses if said else ()):
            return
        absence = Absence(self.uid, said.sequence + 1 if said else 0, told)
        if not self._may_follow(absence.sequence):
            return
        self._publish_document(seal(ABSENCE, absence, self.identity.private_key))

    def announce_pods(self, pods: Iterable[LabelledPod]) -> None:
        """Tells the neighbours of this node's pods and labels, where they are other than told."""
        if self.grant is None or self.cloned:
            return
        parts: dict[int, list[LabelledPod]] = {part: [] for part in range(PARTS)}
        own = self.segments.get(self.uid, ())
        for pod in (with_as_many_as_are_taken(each, own) for each in pods):
            parts[crc32(f"{pod.namespace}/{pod.name}".encode()) % PARTS].append(pod)
        untold, are_news = 0, False
        for part, held in parts.items():
            told = _as_many_as_fit(sorted(held, key=lambda pod: (pod.namespace, pod.name)))
            untold += len(held) - len(told)
            said: LabelledPods | None = self.replica.known.value(PODS.name, f"{self.uid}/{part}")
            if told != (said.pods if said else ()):
                sequence = said.sequence + 1 if said else 0
                if not self._may_follow(sequence):
                    return
                news = LabelledPods(self.uid, part, sequence, told)
                self._publish_document(seal(PODS, news, self.identity.private_key))
                are_news = True
        if untold and are_news:
            _log.warning("pods are not told, so nobody's peers on other nodes", pods=untold)

    def jump_above(self, sequence: int) -> None:
        """The cloud has a presence of ours with this sequence, and will take only a higher one.

        It says so, and does not show it: a number that no life of this node leads to is none.
        """
        last = self.presence.sequence if self.presence is not None else 0
        if sequence > last + UNSIGNED_STEP.most:
            _log.error(
                "the controller says that it has a presence of this node which it cannot have",
                sequence=sequence,
                own_sequence=last,
                what_to_do="look at the controller: it is not what it was",
            )
            return
        self._above = max(sequence, self._above or 0)
        self._publish()

    def declare_cloned(self) -> None:
        """Two machines hold this identity, a cloned image perhaps: a person has to act."""
        if not self.cloned:
            self.cloned = True
            _log.error(
                "another machine has this node's identity: nothing is published any more",
                uid=self.uid,
                what_to_do="on the copy: stop the agent, then `limpet join --new-identity`; then "
                "reboot the machine that keeps the identity (to restart its agent is not enough)",
            )

    def _may_follow(self, sequence: int) -> bool:
        """Whether a document with this sequence would be taken. It would not after somebody with
        this node's key has signed the highest one: that key is in other hands, and is of no use any
        more."""
        if sequence <= SEQUENCE.most:
            return True
        if not self.cloned:
            self.cloned = True
            _log.error(
                "somebody has used up this node's sequence, with its key: nothing is published any "
                "more",
                uid=self.uid,
                what_to_do="in the cloud `limpet node replace` with this node's name, then here "
                "`limpet join --new-identity`: its pods keep their addresses",
            )
        return False

    def _is_ahead(self, document: Document) -> bool:
        """Whether another says something of us that only we may say, and have not: it is noted."""
        if document.key != self.introduction:
            return False
        seen: Presence = document.value
        last = self.presence
        if last is not None and seen.sequence < last.sequence:
            return False
        self._note_ahead(seen)
        return True

    def _note_ahead(self, seen: Presence) -> None:
        if self._above is not None and seen.sequence <= self._above:
            return  # told by another already
        self._above = seen.sequence
        last = self.presence
        has_said = last is not None and last.boot_id == self._boot_id
        # Who answers what this boot has said is there; several may know of boots before.
        if has_said and seen.boot_id != self._boot_id:
            self._jumps += 1
            if self._jumps > _CLONE_AFTER:
                self.declare_cloned()
        _log.warning(
            "a newer presence of this node was known elsewhere: going on above it",
            sequence=seen.sequence,
            jumps=self._jumps,
        )

    def _publish(self) -> None:
        """What is wanted, if that is not what was published last, or others know a later one."""
        wanted, last = self._wanted, self.presence
        said = self.replica.known.find(self.introduction)
        if self.grant is None or wanted is None or self.cloned:
            return
        behind = self._above is not None and (last is None or last.sequence <= self._above)
        sequence = -1 if last is None else last.sequence
        # In these very words: a later Limpet that was here may have said more than this one does.
        words = body_of(PRESENCE, replace(wanted, sequence=sequence))
        if not behind and said is not None and said.sealed.body == words:
            return
        sequence += 1
        if behind and self._above is not None:
            sequence = self._above + _JUMP * _LONGER ** max(0, self._jumps - 1)
        if not self._may_follow(sequence):
            return
        presence = replace(wanted, sequence=sequence)
        self._publish_document(seal(PRESENCE, presence, self.identity.private_key))

    def _publish_document(self, document: Document) -> None:
        # Told only when it is on disk: after a crash the same number never says something else.
        written = asyncio.wrap_future(self.replica.publish(document))
        # A failure is the file's to report; to be reached counts more than to be on disk.
        told = partial(self.replica.tell, Source.SELF, [document.key])
        written.add_done_callback(lambda _written: told())

    def close(self) -> None:
        self.replica.file.close()


def _as_many_as_fit(pods: Iterable[LabelledPod]) -> tuple[LabelledPod, ...]:
    """In one document."""
    found: list[LabelledPod] = []
    left_bytes = TOLD_PODS_BODY.most - _OF_A_DOCUMENT_BYTES
    for pod in pods:
        size_bytes = len(msgspec.json.encode(pod)) + 1
        if size_bytes > left_bytes:
            continue  # what stands behind one with many labels may fit
        left_bytes -= size_bytes
        found.append(pod)
        if len(found) == TOLD_PODS.most:
            break
    return tuple(found)
