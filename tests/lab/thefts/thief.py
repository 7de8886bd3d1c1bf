"""A thief with a key of the cluster: what it signs, and the stolen node that tells it."""

from __future__ import annotations

from dataclasses import replace

from limpet.base.bounds.signers import MAX_VERSION
from limpet.base.decoding import decode_json
from limpet.cluster.documents import Document, Known
from limpet.cluster.identity import load_identity
from limpet.cluster.keys import ClusterKey, endorse, public_key_of, uid_of
from limpet.cluster.kinds import GRANT, NETWORK
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.seal import seal
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.controller.registry.records import AUTHORITY, AuthorityRecord
from limpet.controller.store.database import read_item
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World

OWN_KEY = bytes(range(32))
MOLE = "mole"


def steal_key(world: World) -> bytes:
    """The private key that signs for the cluster now."""
    value = read_item(world.controller.folder / "state" / "controller.db", AUTHORITY, AUTHORITY)
    assert value is not None
    return decode_json(value, AuthorityRecord).cluster_keys[-1]


def grant_for_a_mole(stolen: bytes, era: int) -> Document:
    """A member that nobody has let in."""
    public_key = public_key_of(OWN_KEY)
    return seal(GRANT, Grant(uid_of(public_key), MOLE, public_key, 1, 1, era=era), stolen)


def another_successor(known: Known, stolen: bytes) -> Document:
    """A network that a key of the thief's own has signed, with the stolen one's word."""
    network: Network = known.value(NETWORK.name, NETWORK.name)
    keys = (ClusterKey(public_key_of(stolen)), endorse(public_key_of(OWN_KEY), stolen))
    return seal(NETWORK, replace(network, keys=keys, generation=MAX_VERSION.most), OWN_KEY)


def known_on(machine: Machine) -> Known:
    """What is on the node's disk. Its agent does not run."""
    return _tell(machine)


def tell_as(machine: Machine, *documents: Document) -> None:
    """From now on the stolen node tells its neighbours these. Its agent does not run."""
    _tell(machine, *documents)


def _tell(machine: Machine, *documents: Document) -> Known:
    identity = load_identity(machine.disk / "state" / "cluster")
    assert identity is not None
    file = SnapshotFile(identity.folder / "snapshot.log", own_uid=identity.uid)
    try:
        known, _ = file.read(identity.pinned_key)
        file.put(documents)
        file.durable().result()
    finally:
        file.close()
    return known
