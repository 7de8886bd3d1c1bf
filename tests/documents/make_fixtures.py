"""What the files of a version hold, and `python -m tests.documents.make_fixtures FOLDER` writes."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from limpet.agent.original_sysctls import SYSCTLS_FILE, encode_originals
from limpet.base.disk import Disk
from limpet.cli.install.files import InstalledFile, Manifest
from limpet.cli.install.flannel.aside import Aside, record_path
from limpet.cloud.join import WAITING_PODS, WaitingPods
from limpet.cloud.pod_reports import PodReports
from limpet.cluster.api import InterfaceAddresses
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec
from limpet.cluster.exchange.digest import make_pushes
from limpet.cluster.exchange.messages import encode
from limpet.cluster.identity import ClusterFile
from limpet.cluster.kinds import NETWORK
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cni.ledgers import Ledgers
from limpet.controller.registry.records import (
    AUTHORITY,
    COMMUNITY,
    SEGMENT,
    CommunityRecord,
    SegmentRecord,
)
from limpet.controller.settings import load_settings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.kubernetes.rows import row_of
from limpet.controller.store.sqlite import SqliteStore
from limpet.datapath.node.pod.attachments import Attachments
from limpet.datapath.overlay.vtep import keep_vtep_macs
from limpet.dns.handover.words import HERE as HELD
from limpet.dns.handover.words import KEEP, SOCKETS, TAKEN, encode_request
from limpet.ipam.folder import Folder
from limpet.ipam.journal_codec import encode_entries
from limpet.ipam.journal_file import JournalFile
from limpet.ipam.leases import Binding, Entry, Holder, PodKey, number_of
from limpet.kubernetes.kinds.resources import RESOURCES, document_object
from limpet.paths.proven import write_paths
from limpet.picture.timeline import Happening
from limpet.policies.book import Book, encode_book
from limpet.policies.heard import ReadPolicies, encode_kept
from limpet.policies.policy import Key
from limpet.relay.messages import Refusal
from limpet.relay.stream.codec import (
    Close,
    Control,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    Wanted,
    encode_control,
    encode_frame,
)
from limpet.services.catalog import Item
from limpet.services.kept import KEPT_FILE, encode_items
from limpet.services.kept_here import HERE_FILE, encode_here
from limpet.services.rotation import Here
from limpet.services.values import Service
from limpet.timeline.clock import Moment
from limpet.timeline.log import Recorded
from limpet.timeline.log import encode as encode_event
from limpet.web.access.sessions import PageToken
from limpet.web.access.tokens import encode_tokens
from tests.unit.cluster_values import PINNED, documents, grant, known_of, node_key

KNOWN = known_of(documents(1, sequence=3), documents(2, sequence=7), generation=4)
CLUSTER = ClusterFile("node-1", PINNED, ("192.0.2.254:7470",))
PATHS = {grant(2).uid: PeerPath(transports.VXLAN, underlay=ip_address("192.0.2.2"))}

ENTRIES = {
    number_of(ip_address("192.0.2.66")): Entry(
        Holder("sandbox-1", "eth0"),
        Binding(PodKey("default", "web-0", "eth0"), 1, "sandbox-1"),
    ),
    number_of(ip_address("2001:db8::2")): Entry(
        None, Binding(PodKey("default", "web-1", "eth0"), 2, "sandbox-2")
    ),
}
INSTALLED = InstalledFile("unit", "/etc/systemd/system/limpet-agent.service", ["0" * 64], 0o644)
HERE = Here("node-1", silent={"node-2"}, gone={"192.0.2.66"}, distances={"node-3": 1})
ITEMS = {
    COMMUNITY: ("default", msgspec.json.encode(CommunityRecord("zone=a", ("node-1",)))),
    AUTHORITY: (AUTHORITY, b'{"ca_key":"anything"}'),
    SEGMENT: ("192.0.2.64_26", msgspec.json.encode(SegmentRecord(grant(1).uid))),
}
"""Items of the store, by kind, with their names."""
SYSCTLS = {"net/ipv4/ip_forward": "0"}
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"namespace": "default", "name": "closed"},
    "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
}
BOOK = Book().with_documents([POLICY])[0].with_pod_labels(Key("default", "web-0"), {"app": "web"})
SERVICES: list[Item] = [Service("default", "web", cluster_ips=("192.0.2.10",))]
TOKEN = PageToken(name="ann", digest="0" * 64, expires_at_s=4e9)
WAITING = WaitingPods(1, (InterfaceAddresses("net", "default", "web-0", "eth0", ("192.0.2.66",)),))
ASIDE = Aside(1, rules={"iptables": "-N FLANNEL-FWD"})
EVENT = Recorded(1, Moment("boot-1", 2.5, 1e9), Happening(kind="agent", words="it was started"))
MARKS = {0: number_of(ip_address("192.0.2.66"))}
MACS = {4: "0e:4c:00:00:00:04", 6: "0e:4c:00:00:00:06"}
CONTROLS: tuple[Control, ...] = (
    Ping(),
    Pong(),
    Open(1, grant(2).uid),
    Opened(1),
    Refused(2, Refusal.FULL),
    Close(1),
    Wanted(grant(2).uid),
)
PACKET = b"a packet"


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
    (folder / "push.datagram").write_bytes(
        Codec(node_key(2), PINNED).encode(BodyKind.EXCHANGE, encode(push), to_uid=grant(1).uid)
    )
    asyncio.run(_database(folder))
    journal = JournalFile(Folder(folder), Disk(), 4096)
    for number, entry in ENTRIES.items():
        journal.append([encode_entries({number: entry}, MARKS)])
    journal.close()
    with TemporaryDirectory() as node, ledgers(Path(node), folder / "limpet.journal") as found:
        pods = PodReports(found, folder / "reports.json")
        report = pods.report(None)
        assert report is not None
        pods.acknowledged(report.sequence)
    keep_vtep_macs(folder / "vtep.json", grant(1).uid, recorded=MACS, existing={})
    _files_of_a_node(folder)
    frames = [*map(encode_control, CONTROLS), encode_frame(1, PACKET)]
    (folder / "relay.frames").write_bytes(b"".join(frames))


def _files_of_a_node(folder: Path) -> None:
    manifest = Manifest(folder / "installed.json")
    manifest.files[INSTALLED.path] = INSTALLED
    manifest.save()
    (folder / SYSCTLS_FILE).write_bytes(encode_originals(SYSCTLS))
    (folder / "policies.json").write_bytes(encode_book(BOOK))
    (folder / "policies-of-kubernetes.jsonl").write_bytes(encode_kept(heard().kept()))
    (folder / KEPT_FILE).write_bytes(encode_items(SERVICES))
    (folder / "page-tokens.json").write_bytes(encode_tokens([TOKEN]))
    (folder / WAITING_PODS).write_bytes(msgspec.json.encode(WAITING))
    record_path(folder).write_bytes(msgspec.json.encode(ASIDE))
    (folder / "events.log").write_bytes(encode_event(EVENT))
    (folder / HERE_FILE).write_bytes(encode_here(HERE, 5.0))
    requests = map(encode_request, ({"ask": "sockets"}, {"ask": "status"}))
    (folder / "names.words").write_bytes(b"".join([*requests, SOCKETS, TAKEN, HELD, KEEP]))
    (folder / "objects.json").write_bytes(msgspec.json.format(msgspec.json.encode(objects())))


def objects() -> list[Any]:
    """What an API server is given to keep: signed documents, and the store's other items."""
    signed = (
        document_object(each, "default" if each.kind == NETWORK.name else "node-1", "node-1")
        for each in KNOWN
        if each.kind == NETWORK.name or (each.kind in RESOURCES and each.name == grant(1).uid)
    )
    return [*signed, *(as_object(kind, *item) for kind, item in ITEMS.items())]


def as_object(kind: str, name: str, value: bytes) -> dict[str, Any]:
    row = row_of(kind)
    (place,) = row.places(name, value)
    item, of = row.encode(name, value, place), row.resource
    said = msgspec.to_builtins(item)
    return {"apiVersion": of.api_version, "kind": of.kind, **said}


def heard() -> ReadPolicies:
    found = ReadPolicies()
    found.put_policy(Key("default", "closed"), POLICY)
    found.namespaces["default"] = {"team": "web"}
    found.is_whole = True
    return found


@contextmanager
def ledgers(folder: Path, journal: Path) -> Iterator[Ledgers]:
    """Of a node that has this journal."""
    network = folder / "networks" / "net"
    network.mkdir(parents=True)
    shutil.copy(journal, network)
    found = Ledgers(folder / "networks", 30.0, Attachments(folder / "run"))
    try:
        found.ledger("net")
        yield found
    finally:
        found.close()


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
