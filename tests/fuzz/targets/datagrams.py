"""What comes in datagrams of other nodes, and what relays and nodes say to each other."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from limpet.cluster.datagrams import reflection
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec, DatagramError
from limpet.cluster.documents import Known
from limpet.cluster.exchange import messages
from limpet.cluster.exchange import pod_messages as pods
from limpet.cluster.exchange.digest import DocumentIndex
from limpet.cluster.exchange.messages import Digest, Item, Listing, MessageError, Push, Want
from limpet.cluster.exchange.pod_messages import PodAsk, PodsTold, ToldPod
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds import KINDS
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.datapath.tunnel import handshake_reset
from limpet.paths.probe import codec as probe
from limpet.paths.probe.messages import Probe, ProbeAnswer
from limpet.relay import messages as relay
from limpet.relay.stream import codec as stream
from limpet.relay.stream.codec import FrameParser, StreamError
from tests.fuzz.target import Shape, fuzzed
from tests.fuzz.targets.documents import FIXTURES, every_document
from tests.unit.cluster_values import PINNED, node_key

_PEER = uid_of(public_key_of(node_key(2)))
_SENDER = Codec(node_key(2), PINNED)
_RECEIVER = Codec(node_key(1), PINNED)
_OWN_UID = uid_of(public_key_of(node_key(1)))


def _datagrams() -> Iterator[bytes]:
    for kind in BodyKind:
        yield _SENDER.encode(kind, b"body of it")
        yield _SENDER.encode(kind, b"", to_uid=_OWN_UID, to_relay=True)
    yield (FIXTURES / "push.datagram").read_bytes()


@fuzzed(seeds=_datagrams, errors=(DatagramError,))
def peer_datagram(data: bytes) -> None:
    found = _RECEIVER.parse(data)
    assert found.uid != _OWN_UID
    found.check()


def _messages() -> Iterator[bytes]:
    nonce, other = bytes(8), b"\1" * 8
    for each in (
        Digest(nonce, bytes(4 * messages.BUCKETS)),
        Listing(nonce, other, more=True, buckets=frozenset({0, 3}), items=(Item(7, 3, 9),)),
        Want(nonce, (7, 2**64 - 1)),
        Push(tuple(each.sealed for each in every_document())),
    ):
        yield messages.encode(each)


@fuzzed(seeds=_messages, errors=(MessageError,), shape=Shape.MSGPACK, most_bytes=60_000)
def exchange_message(data: bytes) -> None:
    found = messages.decode(data)
    assert messages.decode(messages.encode(found)) == found
    if isinstance(found, Digest):
        list(DocumentIndex(Known(KINDS)).differing(found))


def _reflections() -> Iterator[bytes]:
    question = reflection.encode_question(bytes(range(16)))
    for address in ("192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"):
        yield reflection.encode_answer(question, (ip_address(address), 7471))


@fuzzed(seeds=_reflections, errors=(DatagramError,))
def reflected(data: bytes) -> None:
    found = reflection.parse_answer(data)
    again = reflection.encode_answer(reflection.encode_question(found.nonce), found.seen_as)
    assert reflection.parse_answer(again).nonce == found.nonce


def _pod_asks() -> Iterator[bytes]:
    yield pods.encode(PodAsk(bytes(8), "shop", "web-0"))
    yield pods.encode(PodAsk(b"\1" * 8, "", "w" * 253))


@fuzzed(seeds=_pod_asks, errors=(DatagramError,), shape=Shape.MSGPACK)
def pod_ask(data: bytes) -> None:
    found = pods.parse_ask(data)
    assert pods.parse_ask(pods.encode(found)) == found


def _pods_told() -> Iterator[bytes]:
    yield pods.encode(PodsTold(bytes(8)))
    yield pods.encode(PodsTold(bytes(8), (ToldPod("shop", "web-0", ("10.244.1.2", "fd00::2")),)))


@fuzzed(seeds=_pods_told, errors=(DatagramError,), shape=Shape.MSGPACK)
def pods_told(data: bytes) -> None:
    found = pods.parse_told(data)
    assert pods.parse_told(pods.encode(found)) == found


def _probes() -> Iterator[bytes]:
    for kind in ProbeKind:
        yield probe.encode_probe(
            Probe(bytes(8), kind, 5, ip_address("192.0.2.1"), punch=True, padding_bytes=9)
        )
    yield probe.encode_probe(Probe(b"\1" * 8, ProbeKind.TUNNEL, 2**63, None, in_use=True))


@fuzzed(seeds=_probes, errors=(DatagramError,))
def probe_body(data: bytes) -> None:
    found = probe.parse_probe(data)
    assert probe.parse_probe(probe.encode_probe(found)) == found


def _probe_answers() -> Iterator[bytes]:
    one, two = ip_address("192.0.2.1"), ip_address("2001:db8::1")
    for each in transports.TRANSPORTS.values():
        for way in (
            PeerPath(each, 1400, "eth0", (one, two), two),
            PeerPath(each, 1400, endpoint=(one, 51820), relay=_PEER),
        ):
            yield probe.encode_answer(ProbeAnswer(bytes(8), 3, one, 7471, two, way))
    yield probe.encode_answer(ProbeAnswer(bytes(8), 3, one, 7471, two))


@fuzzed(seeds=_probe_answers, errors=(DatagramError,))
def probe_answer(data: bytes) -> None:
    found = probe.parse_answer(data)
    assert probe.parse_answer(probe.encode_answer(found)) == found


@fuzzed(
    seeds=lambda: [handshake_reset.encode(each, bytes(8)) for each in handshake_reset.Step],
    errors=(DatagramError,),
    most_bytes=64,
)
def request_to_reset_a_handshake(data: bytes) -> None:
    step, token = handshake_reset.parse(data)
    assert handshake_reset.encode(step, token) == data


def _relay_messages() -> Iterator[bytes]:
    nonce, end = bytes(8), (ip_address("198.51.100.1"), 40000)
    for each in (
        relay.Hello(nonce),
        relay.Seen(nonce, end, 3),
        relay.AskPair(nonce, _PEER),
        relay.Pair(nonce, _PEER, 40001, lifetime_s=60, serial=4),
        relay.Pair(nonce, _PEER, 0, relay.Refusal.QUOTA),
        relay.Check(nonce, 40001),
        relay.Check(nonce, 40001, b"t" * 16),
        relay.Token(nonce, 40001, b"t" * 16),
        relay.Bound(nonce, 40001, (ip_address("2001:db8::1"), 1)),
        relay.FreePair(nonce, _PEER),
    ):
        yield bytes((relay.KIND_OF[type(each)],)) + relay.encode(each)


@fuzzed(seeds=_relay_messages, errors=(DatagramError,), most_bytes=256)
def relay_message(data: bytes) -> None:
    kind, body = data[0] if data else 0, data[1:]
    found = relay.parse(kind, body)
    assert relay.parse(kind, relay.encode(found)) == found


def _relay_frames() -> Iterator[bytes]:
    yield (FIXTURES / "relay.frames").read_bytes()
    yield stream.encode_frame(7, b"packet") + stream.encode_control(stream.Ping())
    yield stream.encode_frame(7, bytes(stream.MAX_PACKET_BYTES)) * 3
    for each in (
        stream.Open(1, _PEER),
        stream.Opened(1),
        stream.Refused(1, relay.Refusal.FULL),
        stream.Close(1),
        stream.Wanted(_PEER),
        stream.Pong(),
    ):
        yield stream.encode_control(each)


@fuzzed(seeds=_relay_frames, errors=(StreamError,), most_bytes=32_768)
def relay_frames(data: bytes) -> None:
    """Whole, and cut into pieces: the frames are the same."""
    frames = FrameParser().feed(data)
    pieces, parser = [], FrameParser()
    size = 1 + len(data) // 7
    for at in range(0, len(data), size):
        pieces += parser.feed(data[at : at + size])
    assert pieces == frames
    for channel, body in frames:
        if channel == stream.CONTROL:
            found = stream.parse_control(body)
            assert stream.parse_control(stream.encode_control(found)[4:]) == found
