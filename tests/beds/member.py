"""What a node knows of its cluster, on the disk in its identity's folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import Identity
from limpet.cluster.membership import Membership
from limpet.cluster.snapshot.file import SnapshotFile
from tests.unit.cluster_values import PINNED, node_key


def membership_of(identity: Identity, *told: Sealed, boot_id: str = "boot") -> Membership:
    """`told`: by the cloud, after what it knew already."""
    file = SnapshotFile(identity.folder / "snapshot.log", own_uid=identity.uid)
    membership = Membership(identity, file, boot_id=boot_id)
    if told:
        membership.offer(told, source=Source.CLOUD)
    return membership


def member_without_disk(*told: Sealed) -> Membership:
    """The node with the first key, for what writes nothing: its disk has gone when this returns."""
    with tempfile.TemporaryDirectory() as folder:
        identity = Identity(Path(folder), node_key(1), "node-1", PINNED, ())
        membership = membership_of(identity, *told)
        membership.replica.file.close()
    return membership
