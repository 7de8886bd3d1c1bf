"""What nodes and the controller know in common: documents of every kind, bodies of the controller's
API, tokens, and what is kept of all that on the disk."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from ipaddress import ip_address
from pathlib import Path

import msgspec

from limpet.base.errors import LimpetError, StorageError
from limpet.base.http.connection import HttpAnswer, LinkError
from limpet.base.records.codec import NewerRecordError, encode_record
from limpet.cloud.enrollment import node_of_token, read_token
from limpet.cloud.link import ControllerRefusedError, read_answer
from limpet.cluster import api
from limpet.cluster.documents import Document, Sealed
from limpet.cluster.keys import SealError, public_key_of, uid_of
from limpet.cluster.kinds import ABSENCE, GRANT, KINDS, NETWORK, PODS, POLICY, PRESENCE
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.kinds.pods import LabelledPod, LabelledPods
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.seal import check, read_sealed, seal
from limpet.cluster.snapshot.file import read_documents
from limpet.cluster.snapshot.log import HEADER_BYTES, cluster_mark, encode_header, parse_log
from limpet.cluster.snapshot.log import encode_record as encode_document
from limpet.paths.report import NodeReport, PairReport, PathReport, merged, report_problem
from limpet.picture.nodes import Segment
from limpet.picture.pair import Direction, Outward, Way
from tests.fuzz.scratch import in_file
from tests.fuzz.target import Shape, fuzzed
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    known_of,
    network,
    node_key,
    presence,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "v1"
UID = uid_of(public_key_of(node_key(1)))
POLICY_DOCUMENT = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [
                    {
                        "namespaceSelector": {
                            "matchExpressions": [{"key": "a", "operator": "Exists"}]
                        }
                    },
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
                ],
                "ports": [{"protocol": "TCP", "port": 80, "endPort": 90}, {"port": "http"}],
            }
        ],
        "egress": [{}],
    },
}


@cache
def every_document() -> tuple[Document, ...]:
    """One of each kind at least, signed."""
    said = presence(
        1,
        addresses=(ip_address("192.0.2.1"), ip_address("2001:db8::1")),
        endpoints=((ip_address("198.51.100.1"), 51820),),
        port=7471,
        vtep_macs={4: "02:00:00:00:00:01"},
        tunnel_port=51820,
    )
    pods = (LabelledPod("shop", "web", ("10.244.1.5", "fd00::5"), {"app": "web"}),)
    own = node_key(1)
    return (
        seal(NETWORK, network(), CLUSTER_KEY),
        seal(GRANT, grant(1, labels={"a": "b"}, communities=("east",)), CLUSTER_KEY),
        seal(GRANT, grant(2, tombstone=True), CLUSTER_KEY),
        seal(PRESENCE, said, own),
        seal(ABSENCE, Absence(UID, 3, ("10.244.1.7",)), own),
        seal(POLICY, SignedPolicy("shop/web", 1, POLICY_DOCUMENT), CLUSTER_KEY),
        seal(PODS, LabelledPods(UID, 0, 2, pods), own),
    )


def _bodies() -> Iterator[bytes]:
    """Kind, and body: what is signed is checked elsewhere."""
    for each in every_document():
        yield each.kind.encode() + b"\n" + each.sealed.body


_OF_NODES = {PRESENCE.name, ABSENCE.name, PODS.name}


@fuzzed(seeds=_bodies, errors=(SealError,), shape=Shape.JSON_LINES, most_bytes=66_000)
def document(data: bytes) -> None:
    kind, _, body = data.partition(b"\n")
    found = read_sealed(Sealed(kind.decode("latin-1"), body, bytes(64)), KINDS)
    if found.kind in _OF_NODES:  # says the same when it is sealed again
        again = seal(KINDS[found.kind], found.value, CLUSTER_KEY)
        assert read_sealed(again.sealed, KINDS).value == found.value
    try:
        check(found, known_of(list(every_document()[:3])))
    except SealError:
        return
    raise AssertionError("nobody has signed it")


_REQUESTS = (
    api.JoinRequest,
    api.HelloRequest,
    api.ShowRequest,
    api.PublishRequest,
    api.SegmentRequest,
    api.PodReport,
)
_ANSWERS = (
    api.JoinAnswer,
    api.HelloAnswer,
    api.ShowAnswer,
    api.PublishAnswer,
    api.SegmentAnswer,
    api.PodAnswer,
    api.PodPage,
    api.WatchLine,
)
_POD = api.InterfaceAddresses("net", "shop", "web-0", "eth0", ("10.244.1.5", "fd00::5"))
_PATHS = PathReport(
    6,
    NodeReport("1.0", segments=(Segment(prefix="10.244.1.0/24", size=253),), near=UID),
    pairs=(
        PairReport(
            "peer",
            Direction(
                way=Way(rung="tunnel", rtt_ms=1.5, since_at_s=1e9),
                outward=Outward(next_hop="192.0.2.1", endpoint="[2001:db8::1]:51820"),
                mend=("open UDP",),
            ),
        ),
    ),
    gone=("other",),
)


def _requests() -> Iterator[bytes]:
    sealed = tuple(each.sealed for each in every_document())
    private_key = node_key(1)
    made: list[msgspec.Struct] = [
        api.JoinRequest(
            _TOKEN,
            "edge-1",
            public_key_of(private_key),
            api.join_proof(_TOKEN, "edge-1", private_key),
        ),
        api.HelloRequest(7, sealed[:2]),
        api.ShowRequest(sealed[:2]),
        api.PublishRequest(sealed[3]),
        api.SegmentRequest(3, (4, 6)),
        api.PodReport(5, (_POD,), base=4),
    ]
    for number, each in enumerate(made):
        yield b"%d\n%s" % (number, api.encode(each))


@fuzzed(seeds=_requests, errors=(api.ApiError,), shape=Shape.JSON_LINES, most_bytes=16_384)
def request_to_the_controller(data: bytes) -> None:
    head, _, body = data.partition(b"\n")
    kind = _REQUESTS[head[0] % len(_REQUESTS) if head else 0]
    found = api.decode(body, kind)
    assert api.decode(api.encode(found), kind) == found
    if isinstance(found, api.JoinRequest):
        api.is_join_proof(found)
        api.name_problem(found.name)


@fuzzed(seeds=lambda: [api.encode(_PATHS)], errors=(api.ApiError,), shape=Shape.JSON)
def report_of_paths(data: bytes) -> None:
    found = api.decode(data, PathReport)
    if problem := report_problem(found):
        assert problem.isprintable()
        return
    assert all(each.isprintable() for pair in found.pairs for each in pair.direction.notes)
    assert merged({}, found).keys() == {each.peer for each in found.pairs}


def _answers() -> Iterator[bytes]:
    sealed = tuple(each.sealed for each in every_document())
    refused = api.Refused(api.Code.REMOVED, "it is gone", document=sealed[2], after_s=1.5)
    made: list[msgspec.Struct] = [
        api.JoinAnswer("PEM", "PEM", PINNED, sealed[:2], 1, {4: "02:00:00:00:00:01"}),
        api.HelloAnswer(7, sealed[:2], {"presence": 3}, 5, 6),
        api.ShowAnswer(1),
        api.PublishAnswer(3),
        api.SegmentAnswer(sealed[1]),
        api.PodAnswer(5),
        api.PodPage(5, 1, (_POD,)),
        api.WatchLine(api.WatchKind.DOCUMENT, "17", sealed[3], told=("edge-1 is cloned",)),
    ]
    for number, each in enumerate(made):
        yield b"%d\n%s" % (number, api.encode(each))
    yield b"9\n" + api.encode(refused)


@fuzzed(
    seeds=_answers,
    errors=(LinkError, ControllerRefusedError),
    shape=Shape.JSON_LINES,
    most_bytes=16_384,
)
def answer_of_the_controller(data: bytes) -> None:
    head, _, body = data.partition(b"\n")
    number = head[0] - ord("0") if head else 0
    status = 200 if 0 <= number < len(_ANSWERS) else 409
    read_answer(HttpAnswer(status, body), _ANSWERS[number % len(_ANSWERS)], "192.0.2.1:7470")


_TOKEN = api.format_token(api.Token("abc123", bytes(range(32)), bytes(32)))


@fuzzed(seeds=lambda: [_TOKEN.encode()], errors=(api.ApiError,), shape=Shape.TEXT)
def join_token(data: bytes) -> None:
    found = api.parse_token(data.decode(errors="surrogateescape"))
    assert api.parse_token(api.format_token(found)) == found


def _service_account() -> Iterator[bytes]:
    claims = {"kubernetes.io": {"node": {"name": "edge-1"}, "namespace": "limpet-system"}}
    yield b"e30." + base64.urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=") + b".sig"


@fuzzed(seeds=_service_account, errors=(LimpetError,), shape=Shape.TEXT)
def account_token(data: bytes) -> None:
    node_of_token(read_token(in_file(data)))


def _logs() -> Iterator[bytes]:
    yield (FIXTURES / "snapshot.log").read_bytes()
    yield (FIXTURES / "own.log").read_bytes()
    head = encode_header(cluster_mark(PINNED))
    records = [encode_document(each.sealed, len(head)) for each in every_document()]
    yield head + b"".join(records)
    # Each begins as a record does, and has the length of all that follows.
    yield head + (b"LMSd\x01" + (4000).to_bytes(4, "little")) * 300
    yield head + encode_record(b"LMSd", 1, len(head), b"\x93\xa1\xff\xc4\x00\xc4\x00")


@fuzzed(seeds=_logs, errors=(NewerRecordError, StorageError), most_bytes=16_384)
def snapshot_log(data: bytes) -> None:
    log = parse_log(data)
    read_documents(in_file(data), PINNED)
    assert log.end <= max(len(data), HEADER_BYTES)
    assert len(log.documents) <= len(data) // 22


def _records() -> Iterator[bytes]:
    for each in every_document():
        yield msgspec.msgpack.encode(each.sealed)


@fuzzed(seeds=_records, shape=Shape.MSGPACK)
def snapshot_record(data: bytes) -> None:
    """What a whole record of the log says, whatever has been written into it."""
    head = encode_header(cluster_mark(PINNED))
    log = parse_log(head + encode_record(b"LMSd", 1, len(head), data))
    for each in log.documents:
        assert parse_log(head + encode_document(each, len(head))).documents == [each]
