"""What a node knows of its cluster, on the disk in its identity's folder."""

from __future__ import annotations

from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import Identity
from limpet.cluster.membership import Membership
from limpet.cluster.snapshot.file import SnapshotFile


def membership_of(identity: Identity, *told: Sealed, boot_id: str = "boot") -> Membership:
    """`told`: by the cloud, after what it knew already."""
    file = SnapshotFile(identity.folder / "snapshot.log", own_uid=identity.uid)
    membership = Membership(identity, file, boot_id=boot_id)
    if told:
        membership.offer(told, source=Source.CLOUD)
    return membership
