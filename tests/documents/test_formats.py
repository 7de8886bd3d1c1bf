"""Files and datagrams of version 1, as they were written once, are read; later ones are refused.

`python -m tests.documents.make_fixtures` has made them, and is to make those of a next version.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from structlog.testing import capture_logs

from limpet.agent.original_sysctls import OriginalSysctls, read_originals
from limpet.agent.policies.keeper import kept_book
from limpet.agent.policies.of_kubernetes import heard_before
from limpet.base.decoding import convert
from limpet.base.disk import Disk
from limpet.base.errors import ConfigError, LimpetError, StorageError
from limpet.base.records.codec import NewerRecordError, encode_record
from limpet.base.settings import Folders
from limpet.cli.install.files import Manifest
from limpet.cli.install.flannel.aside import load_aside
from limpet.cloud.join import keep_waiting_pods
from limpet.cloud.pod_reports import PodReports
from limpet.cloud.workloads.service_source import load_catalog
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec, DatagramError, DropReason
from limpet.cluster.exchange.messages import Push, decode
from limpet.cluster.identity import load_identity
from limpet.cluster.kinds import KINDS
from limpet.cluster.seal import open_sealed
from limpet.cluster.snapshot.file import read_documents
from limpet.controller.store.database import read_item
from limpet.controller.store.kubernetes.items import ItemObject
from limpet.controller.store.kubernetes.rows import row_of
from limpet.datapath.overlay.vtep import keep_vtep_macs
from limpet.dns.handover.words import HERE as HELD
from limpet.dns.handover.words import KEEP, SOCKETS, TAKEN, VersionError, check_request, is_word
from limpet.ipam.folder import read_folder
from limpet.ipam.journal_codec import encode_base
from limpet.ipam.ledger import Ledger
from limpet.kubernetes.kinds.resources import RESOURCES, ResourceError, read_document
from limpet.paths.proven import read_paths
from limpet.policies.book import decode_book
from limpet.policies.heard import decode_heard
from limpet.relay.stream.codec import FrameParser, StreamError, parse_control
from limpet.services.kept import read_items
from limpet.services.kept_here import decode_here
from limpet.timeline.log import decode as decode_events
from limpet.web.access.tokens import TokenFile
from tests.documents.make_fixtures import (
    ASIDE,
    BOOK,
    CLUSTER,
    CONTROLS,
    ENTRIES,
    EVENT,
    HERE,
    INSTALLED,
    ITEMS,
    KNOWN,
    MACS,
    MARKS,
    PACKET,
    PATHS,
    SERVICES,
    SYSCTLS,
    TOKEN,
    heard,
    ledgers,
)
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
    assert datagram.kind == BodyKind.EXCHANGE
    push = decode(datagram.body)
    assert isinstance(push, Push)
    known = NOTHING
    assert {open_sealed(sealed, KNOWN).kind for sealed in push.documents} <= {
        kind.name for kind in KINDS
    }
    assert known.find(("grant", grant(2).uid)) is None

    with pytest.raises(DatagramError, match="version 2, this Limpet knows 1") as caught:
        codec.parse(data[:3] + b"\x02" + data[4:])
    assert caught.value.drop is DropReason.NEWER


def test_a_journal_is_read_and_a_later_one_refused_and_left_alone(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "limpet.journal", tmp_path / "limpet.journal")
    folder = read_folder(tmp_path, "net", Disk())
    assert (folder.entries, folder.marks, folder.findings) == (ENTRIES, MARKS, [])

    data = (FIXTURES / "limpet.journal").read_bytes()
    base = bytearray(encode_base(9, b"anything", 0))
    base[4] = 2
    base[17:21] = crc32(base[21:], crc32(base[:17] + bytes(4))).to_bytes(4, "little")
    later = data[:2048] + base + data[2048 + len(base) :]
    (tmp_path / "limpet.journal").write_bytes(later)
    with pytest.raises(StorageError, match=r"journal: it has format 2, .* knows 1 \(install the"):
        Ledger.open(tmp_path, "net")
    assert (tmp_path / "limpet.journal").read_bytes() == later
    assert not list(tmp_path.glob("*damaged*"))


def test_what_was_reported_is_read_and_a_later_file_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "reports.json"
    shutil.copy(FIXTURES / "reports.json", path)
    kept = msgspec.json.decode(path.read_bytes())
    with ledgers(tmp_path, FIXTURES / "limpet.journal") as found:
        assert PodReports(found, path).report(kept["sequence"]) is None

        later = msgspec.json.encode({"version": 2, "sequence": "anything"})
        path.write_bytes(later)
        with capture_logs() as logs:
            pods = PodReports(found, path)
        assert logs[0]["path"] == str(path)
        assert logs[0]["error"] == "it has format 2, this Limpet knows 1"
        report = pods.report(kept["sequence"])
        assert report is not None
        assert len(report.pods) == len(ENTRIES)
        pods.acknowledged(report.sequence)
        assert pods.report(report.sequence) is None
        assert path.read_bytes() == later


def test_macs_are_read_and_a_later_file_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "vtep.json"
    shutil.copy(FIXTURES / "vtep.json", path)
    uid = grant(1).uid
    assert keep_vtep_macs(path, uid, recorded={}, existing={}) == MACS

    later = msgspec.json.encode({"version": 2, "macs": "anything"})
    path.write_bytes(later)
    with capture_logs() as logs:
        assert keep_vtep_macs(path, uid, recorded=MACS, existing={}) == MACS
    assert logs[0]["path"] == str(path)
    assert logs[0]["error"] == "it has format 2, this Limpet knows 1"
    assert path.read_bytes() == later


def test_the_record_of_an_installation_is_read() -> None:
    assert Manifest.load(FIXTURES).files == {INSTALLED.path: INSTALLED}


def test_the_kernels_settings_as_they_were_are_read() -> None:
    assert read_originals(FIXTURES / "sysctls.json") == SYSCTLS


def test_policies_of_a_person_are_read() -> None:
    assert decode_book((FIXTURES / "policies.json").read_bytes()) == BOOK


def test_policies_of_kubernetes_are_read() -> None:
    found = decode_heard((FIXTURES / "policies-of-kubernetes.jsonl").read_bytes())
    assert found.world({}) == heard().world({})


def test_services_are_read() -> None:
    assert read_items((FIXTURES / "services.jsonl").read_bytes()) == (SERVICES, "")


def test_tokens_of_the_page_are_read() -> None:
    assert TokenFile(FIXTURES / "page-tokens.json").all() == (TOKEN,)


def test_pods_that_wait_for_their_records_are_kept(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    folders.cluster_dir.mkdir(parents=True)
    shutil.copy(FIXTURES / "pods-to-keep.json", folders.cluster_dir)
    keep_waiting_pods(folders)
    assert [each.name for each in folders.data_dir.iterdir()] == ["net"]
    assert not (folders.cluster_dir / "pods-to-keep.json").exists()


def test_what_flannel_had_is_read() -> None:
    assert load_aside(FIXTURES) == ASIDE


def test_events_are_read_and_later_ones_refused_in_words() -> None:
    data = (FIXTURES / "events.log").read_bytes()
    assert list(decode_events(data)) == [EVENT]
    with pytest.raises(NewerRecordError, match="format 2, this Limpet knows 1"):
        list(decode_events(encode_record(b"LMTe", 2, 1, b"anything")))


def test_later_paths_are_told_and_proven_again(tmp_path: Path) -> None:
    path = tmp_path / "paths.json"
    path.write_bytes(msgspec.json.encode({"version": 2, "paths": "anything"}))
    with capture_logs() as logs:
        assert read_paths(path) == {}
    assert logs[0]["error"].startswith("it has format 2, this Limpet knows 1 (install")


def test_later_services_are_told_and_heard_again(tmp_path: Path) -> None:
    path = tmp_path / "services.jsonl"
    path.write_bytes(b'anything\n{"end":"anything","version":2}\n')
    with capture_logs() as logs:
        assert not list(load_catalog(path))
    assert logs[0]["error"].startswith("it has format 2, this Limpet knows 1 (install")


def _folders(path: Path) -> Folders:
    return Folders(state_dir=path, data_dir=path / "networks")


def _keep_pods(path: Path) -> None:
    folders = _folders(path.parent)
    folders.cluster_dir.mkdir()
    path.rename(folders.cluster_dir / path.name)
    try:
        keep_waiting_pods(folders)
    finally:
        (folders.cluster_dir / path.name).rename(path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("policies-of-kubernetes.jsonl", heard_before),
        ("page-tokens.json", lambda path: TokenFile(path).all()),
        ("pods-to-keep.json", _keep_pods),
        ("flannel.json", lambda path: load_aside(path.parent)),
        ("installed.json", lambda path: Manifest.load(path.parent)),
        ("sysctls.json", OriginalSysctls),
        ("policies.json", kept_book),
    ],
)
def test_a_later_file_is_refused_in_words_and_left_alone(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    path = tmp_path / name
    first = (FIXTURES / name).read_bytes()
    later = re.sub(rb'"version": ?1\b', b'"version":2', first)
    assert later != first, "it has a version"
    path.write_bytes(later)

    with pytest.raises(LimpetError, match=rf"{name}: it has format 2, this Limpet knows 1 \(inst"):
        read(path)
    assert path.read_bytes() == later


def test_what_an_agent_says_for_names_is_read() -> None:
    """One that is later: tests/dns/test_other_versions.py; how it goes on: tests/unit/dns."""
    assert decode_here((FIXTURES / "here.json").read_bytes()) == (HERE, 5.0)


def test_words_of_names_are_read_and_later_ones_refused() -> None:
    *requests, sockets, taken, held, kept = (FIXTURES / "names.words").read_bytes().splitlines(True)
    assert [msgspec.json.decode(each)["ask"] for each in requests] == ["sockets", "status"]
    for each in requests:
        check_request(msgspec.json.decode(each))
        with pytest.raises(VersionError, match="version 2, this Limpet knows 1"):
            check_request({**msgspec.json.decode(each), "version": 2})
    for said, word in ((sockets, SOCKETS), (taken, TAKEN), (held, HELD), (kept, KEEP)):
        assert is_word(said, word)
        assert not is_word(b"nonsense\n", word)
        with pytest.raises(VersionError, match="version 2, this Limpet knows 1"):
            is_word(said.strip() + b" 2\n", word)


def test_objects_of_an_api_server_are_read_and_later_ones_refused() -> None:
    found = msgspec.json.decode((FIXTURES / "objects.json").read_bytes())
    kinds = {resource.object_kind: kind for kind, resource in RESOURCES.items()}
    signed = [each for each in found if each["kind"] in kinds]
    assert {each["kind"] for each in signed} == kinds.keys()
    for each in signed:
        document = read_document(kinds[each["kind"]], each)
        assert document == KNOWN.find(document.key)
        with pytest.raises(ResourceError, match=r"beta1', .* knows limpet\.dev/v1alpha1"):
            read_document(document.kind, {**each, "apiVersion": "limpet.dev/v1beta1"})

    others = [each for each in found if each["kind"] not in kinds]
    for (kind, item), each in zip(ITEMS.items(), others, strict=True):
        assert row_of(kind).decode(convert(each, ItemObject)) == item
        if "data" in each:  # the API server knows nothing of its version; in a Secret it is base64
            version = {"Secret": "Mg=="}.get(each["kind"], "2")
            later = {**each, "data": {**each["data"], "version": version}}
            with pytest.raises(ResourceError, match=r"data\.version: .* this Limpet knows 1"):
                row_of(kind).decode(convert(later, ItemObject))


def test_frames_of_a_relay_are_read_and_a_later_ping_refused() -> None:
    frames = FrameParser().feed((FIXTURES / "relay.frames").read_bytes())
    *controls, packet = frames
    assert tuple(parse_control(body) for _, body in controls) == CONTROLS
    assert packet == (1, PACKET)

    for _, body in controls[:2]:
        with pytest.raises(StreamError, match=r"version 2, this Limpet knows 1 \(install"):
            parse_control(body[:1] + b"\x02 and more")


def test_addresses_in_the_fixtures_are_those_for_documentation() -> None:
    assert all(path.underlay in (None, ip_address("192.0.2.2")) for path in PATHS.values())
