"""Files and datagrams of version 1, as they were written once, are read; later ones are refused.

`python -m tests.documents.make_fixtures` has made them, and is to make those of a next version.
"""

from __future__ import annotations

import shutil
from collections import Counter
from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest

from limpet.base.errors import ConfigError, LimpetError
from limpet.cluster.exchange.codec import parse_push
from limpet.cluster.identity import load_identity
from limpet.cluster.kinds import KINDS
from limpet.cluster.peer_datagram import Codec, DatagramError, Drop, Kind
from limpet.cluster.seal import open_sealed
from limpet.cluster.snapshot.file import read_documents
from limpet.controller.store.database import read_item
from limpet.paths.path_file import read_paths
from tests.documents.make_fixtures import CLUSTER, KNOWN, PATHS
from tests.unit.cluster_values import NOTHING, PINNED, grant, node_key

FIXTURES = Path(__file__).parent.parent / "fixtures" / "v1"


@pytest.mark.parametrize(("name", "kinds"), [("snapshot.log", 5), ("own.log", 2)])
def test_a_snapshot_is_read(name: str, kinds: int) -> None:
    _, known = read_documents(FIXTURES / name, PINNED)

    assert sum(Counter(document.kind for document in known).values()) == kinds
    for document in known:
        assert document == KNOWN.find(document.key)
        assert open_sealed(document.sealed, known) == document


def test_an_identity_is_read_and_a_later_one_refused(tmp_path: Path) -> None:
    for name in ("cluster.json", "node.key"):
        shutil.copy(FIXTURES / name, tmp_path / name)
    identity = load_identity(tmp_path)
    assert identity is not None
    assert (identity.name, identity.uid) == (CLUSTER.name, grant(1).uid)

    later = msgspec.json.decode((tmp_path / "cluster.json").read_bytes())
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode({**later, "version": 2}))
    with pytest.raises(ConfigError, match="format 2, this Limpet knows 1"):
        load_identity(tmp_path)


def test_proven_paths_are_read() -> None:
    assert read_paths(FIXTURES / "paths.json") == PATHS


def test_a_controllers_database_is_read_and_a_later_one_refused(tmp_path: Path) -> None:
    database = tmp_path / "controller.db"
    shutil.copy(FIXTURES / "controller.db", database)
    found = read_item(database, "network", "network")
    assert found is not None
    assert b'"sealed":["network",' in found

    data = bytearray(database.read_bytes())
    data[60:64] = (2).to_bytes(4, "big")  # PRAGMA user_version
    database.write_bytes(data)
    with pytest.raises(LimpetError, match="format 2, this Limpet knows up to 1"):
        read_item(database, "network", "network")


def test_a_datagram_is_read_and_a_later_one_refused() -> None:
    codec = Codec(node_key(1), PINNED)
    data = (FIXTURES / "push.datagram").read_bytes()
    datagram = codec.parse(data)
    datagram.check()
    assert datagram.kind == Kind.PUSH
    documents = parse_push(datagram.body).documents
    known = NOTHING
    assert {open_sealed(sealed, KNOWN).kind for sealed in documents} <= {
        kind.name for kind in KINDS
    }
    assert known.find(("grant", grant(2).uid)) is None

    with pytest.raises(DatagramError, match="version 2, this Limpet knows 1") as caught:
        codec.parse(data[:3] + b"\x02" + data[4:])
    assert caught.value.drop is Drop.NEWER


def test_addresses_in_the_fixtures_are_those_for_documentation() -> None:
    assert all(path.underlay in (None, ip_address("192.0.2.2")) for path in PATHS.values())
