"""What the files of a version hold, and `python -m tests.documents.make_fixtures FOLDER` writes."""

from __future__ import annotations

import asyncio
import sys
from ipaddress import ip_address
from pathlib import Path

import msgspec

from limpet.cluster.exchange import codec as exchange
from limpet.cluster.exchange.digest import make_pushes
from limpet.cluster.identity import ClusterFile
from limpet.cluster.peer_datagram import Codec, Kind
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.controller.settings import load_settings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.sqlite import SqliteStore
from limpet.paths.path_file import write_paths
from tests.unit.cluster_values import PINNED, documents, grant, known_of, node_key

KNOWN = known_of(documents(1, sequence=3), documents(2, sequence=7), generation=4)
CLUSTER = ClusterFile("node-1", PINNED, ("192.0.2.254:7470",))
PATHS = {grant(2).uid: PeerPath(transports.VXLAN, underlay=ip_address("192.0.2.2"))}


def main(folder: Path) -> None:
    file = SnapshotFile(folder / "snapshot.log", own_uid=grant(1).uid)
    file.read(PINNED)
    file.put(KNOWN)
    file.durable().result()
    file.close()
    (folder / "cluster.json").write_bytes(msgspec.json.encode(CLUSTER))
    (folder / "node.key").write_bytes(node_key(1))
    write_paths(folder / "paths.json", PATHS)
    (push,) = make_pushes(KNOWN, [("presence", grant(2).uid)])
    body = exchange.encode(push)
    (folder / "push.datagram").write_bytes(
        Codec(node_key(2), PINNED).encode(Kind.PUSH, body, to_uid=grant(1).uid)
    )
    asyncio.run(_database(folder))


async def _database(folder: Path) -> None:
    (folder / "controller.toml").write_text(f'state_dir = "{folder}"\n')
    settings = load_settings(folder / "controller.toml")
    (folder / "controller.toml").unlink()
    store = SqliteStore(settings.database)
    cluster = Cluster(store, settings)
    await cluster.start()
    await cluster.stop()
    await store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
