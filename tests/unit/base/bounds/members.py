"""Probes of what members send."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import msgspec
from msgspec.structs import replace

from limpet.base.bounds import members
from limpet.base.bounds.bound import Bound
from limpet.base.bounds.members import ABSENT_ADDRESSES, NUMBER, SEQUENCE, TOLD_PODS
from limpet.base.settings import RelaySettings
from limpet.cluster.api import (
    ApiError,
    HelloAnswer,
    HelloRequest,
    InterfaceAddresses,
    PodReport,
    Refused,
    SegmentRequest,
    decode,
)
from limpet.cluster.documents import Kind, Sealed
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import ABSENCE, KINDS, PODS, PRESENCE
from limpet.cluster.reported_pods import checked_pod, record_bytes
from limpet.cluster.seal import read_sealed, seal
from limpet.controller.api.member_rates import MemberRate, MemberRates
from limpet.controller.picture.reported import ReportedPaths
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.state.published import publish
from limpet.controller.state.report_parts import merge_report
from limpet.nat.endpoints import endpoints_told_rate
from limpet.nat.mapping import NatView
from limpet.paths.report import NodeReport, PairReport, PathReport, cut
from limpet.picture.nodes import RelayLoad, Segment
from limpet.picture.pair import Direction, Outward, Way
from limpet.relay.server.pairs import PairEnd, Relaying
from limpet.relay.server.streams import ask_rate
from limpet.relay.server.unasked_pairs import tell_rates
from tests.unit.base.bounds.probes import is_remembered, probe
from tests.unit.cluster_values import node_key, presence, seal_presence
from tests.unit.controller.state.cluster_tables import join, new_tables

_RELAY = RelaySettings()


def _is_read(kind: Kind[Any], body: dict[str, Any]) -> bool:
    try:
        kind.parse(body)
    except ValueError:
        return False
    return True


@probe(ABSENT_ADDRESSES)
def _(amount: int) -> bool:
    addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(amount)]
    return _is_read(ABSENCE, {"uid": "a", "sequence": 1, "addresses": addresses})


@probe(SEQUENCE)
def _(amount: int) -> bool:
    said = msgspec.json.decode(seal(PRESENCE, presence(1), node_key(1)).sealed.body)
    bodies: list[tuple[Kind[Any], dict[str, Any]]] = [
        (PRESENCE, said),
        (ABSENCE, {"uid": "a", "addresses": []}),
        (PODS, {"uid": "a", "part": 0, "pods": []}),
    ]
    taken = {_is_read(kind, {**body, "sequence": amount}) for kind, body in bodies}
    assert len(taken) == 1
    return taken.pop()


@probe(TOLD_PODS)
def _(amount: int) -> bool:
    pods = [
        {"namespace": "default", "name": f"p{number}", "addresses": ["10.0.0.1"], "labels": {}}
        for number in range(amount)
    ]
    return _is_read(PODS, {"uid": "a", "part": 0, "sequence": 1, "pods": pods})


# What a node says of itself


def _presence(**changes: Any) -> dict[str, Any]:
    return {
        "uid": "a",
        "sequence": 1,
        "boot_id": "b",
        "addresses": [],
        "endpoints": [],
        "port": 0,
        "vtep_macs": {},
        "tunnel_port": 0,
        "relay_tls_port": 0,
        "link_mtu_bytes": 1500,
        **changes,
    }


@probe(members.PRESENCE_ADDRESSES)
def _(amount: int) -> bool:
    addresses = [f"10.0.0.{number}" for number in range(amount)]
    return _is_read(PRESENCE, _presence(addresses=addresses))


@probe(members.PRESENCE_ENDPOINTS)
def _(amount: int) -> bool:
    ends = [[f"10.0.0.{number}", 7472] for number in range(amount)]
    return _is_read(PRESENCE, _presence(endpoints=ends))


@probe(members.PRESENCE_BOOT_ID)
def _(amount: int) -> bool:
    return _is_read(PRESENCE, _presence(boot_id="b" * amount))


def _is_opened(kind: Kind[Any], body: dict[str, Any], amount: int) -> bool:
    """The body, filled up with white space to that size."""
    data = msgspec.json.encode(body)
    data = data[:-1] + b" " * (amount - len(data)) + data[-1:]
    try:
        read_sealed(Sealed(kind.name, data, b""), KINDS)
    except SealError:
        return False
    return True


@probe(members.PRESENCE_BODY)
def _(amount: int) -> bool:
    return _is_opened(PRESENCE, _presence(), amount)


@probe(members.ABSENCE_BODY)
def _(amount: int) -> bool:
    return _is_opened(ABSENCE, {"uid": "a", "sequence": 1, "addresses": []}, amount)


@probe(members.TOLD_PODS_BODY)
def _(amount: int) -> bool:
    return _is_opened(PODS, {"uid": "a", "part": 0, "sequence": 1, "pods": []}, amount)


@probe(members.TOLD_PARTS)
def _(amount: int) -> bool:
    told = ({"uid": "a", "part": part, "sequence": 1, "pods": []} for part in range(amount))
    return all(_is_read(PODS, each) for each in told)


@probe(members.TOLD_POD_ADDRESSES)
def _(amount: int) -> bool:
    addresses = [f"10.0.0.{number}" for number in range(amount)]
    pod = {"namespace": "default", "name": "web", "addresses": addresses, "labels": {}}
    return _is_read(PODS, {"uid": "a", "part": 0, "sequence": 1, "pods": [pod]})


# Reports of pods


def _is_checked(pod: InterfaceAddresses) -> bool:
    try:
        checked_pod(pod)
    except ValueError:
        return False
    return True


def _is_recorded(*pods: InterfaceAddresses) -> bool:
    try:
        merge_report(None, {}, PodReport(1, pods), 0.0, lambda: 1)
    except RefusedError:
        return False
    return True


@probe(members.REPORTED_NAME)
def _(amount: int) -> bool:
    name = "n" * amount
    taken = {
        _is_checked(InterfaceAddresses(name, "default", "web", "eth0", ())),
        _is_checked(InterfaceAddresses("limpet", name, "web", "eth0", ())),
        _is_checked(InterfaceAddresses("limpet", "default", name, "eth0", ())),
    }
    assert len(taken) == 1
    return taken.pop()


@probe(members.REPORTED_INTERFACE_NAME)
def _(amount: int) -> bool:
    return _is_checked(InterfaceAddresses("limpet", "default", "web", "e" * amount, ()))


@probe(members.REPORTED_POD_ADDRESSES)
def _(amount: int) -> bool:
    addresses = tuple(f"10.0.0.{number}" for number in range(amount))
    return _is_checked(InterfaceAddresses("limpet", "default", "web", "eth0", addresses))


@probe(members.REPORTED_PODS)
def _(amount: int) -> bool:
    return _is_recorded(
        *(
            InterfaceAddresses("n", "s", f"p{number}", "e", ("10.0.0.1",))
            for number in range(amount)
        )
    )


@probe(members.REPORTED_BYTES)
def _(amount: int) -> bool:
    empty = InterfaceAddresses("limpet", "default", "", "eth0", ("10.0.0.1",))
    pod = replace(empty, pod="n" * (amount - record_bytes([empty])))
    return _is_recorded(pod)


def _is_told(node: NodeReport | None = None, *pairs: PairReport, **report: Any) -> bool:
    try:
        ReportedPaths().put("a", PathReport(1, node or NodeReport(), None, pairs, **report), 0.0)
    except RefusedError:
        return False
    return True


@probe(members.REPORTED_PAIRS)
def _(amount: int) -> bool:
    pairs = [PairReport(f"u{number}", Direction(way=Way())) for number in range(amount)]
    taken = {_is_told(None, *pairs), _is_told(None, gone=tuple(each.peer for each in pairs))}
    assert len(taken) == 1
    return taken.pop()


@probe(members.REPORTED_SEGMENTS)
def _(amount: int) -> bool:
    return _is_told(NodeReport(segments=(Segment(prefix="10.0.0.0/24", size=253),) * amount))


@probe(members.REPORTED_NATS)
def _(amount: int) -> bool:
    many = {f"ipv{number}": "none" for number in range(amount)}
    taken = {_is_told(NodeReport(nat=many)), _is_told(NodeReport(rungs=dict.fromkeys(many, 1)))}
    assert len(taken) == 1
    return taken.pop()


@probe(members.REPORTED_FIGURE)
def _(amount: int) -> bool:
    taken = {
        _is_told(NodeReport(relay=RelayLoad(bytes_per_s=float(amount)))),
        _is_told(NodeReport(relay=RelayLoad(pairs=amount))),
        _is_told(NodeReport(pods=amount)),
        _is_told(NodeReport(rungs={"route": amount})),
        _is_told(None, PairReport("u", Direction(way=Way(rtt_ms=float(amount))))),
        _is_told(None, PairReport("u", Direction(way=Way(), outward=Outward(mtu_bytes=amount)))),
    }
    assert len(taken) == 1
    return taken.pop()


@probe(members.REPORTED_WORDS)
def _(amount: int) -> bool:
    words = "w" * amount
    taken = {
        _is_told(NodeReport(version=words)),
        _is_told(NodeReport(nat={words: "none"})),
        _is_told(NodeReport(near=words)),
        _is_told(None, PairReport(words, Direction(way=Way()))),
        _is_told(None, PairReport("u", Direction(way=Way(rung=words)))),
        _is_told(None, PairReport("u", Direction(way=Way(), mend=(words,)))),
        _is_told(None, PairReport("u", Direction(way=Way(), outward=Outward(device=words)))),
        _is_told(None, gone=(words,)),
    }
    assert len(taken) == 1
    return taken.pop()


@probe(members.REPORTED_WORDS)
def _(amount: int) -> bool:
    """By who tells: for one word more the controller would refuse all of it."""
    words = "w" * amount
    told = cut(
        Direction(way=Way(), why_not_direct=words, mend=(words,), outward=Outward(device=words))
    )
    taken = {each == words for each in (told.why_not_direct, *told.mend, told.outward.device)}
    assert len(taken) == 1
    return taken.pop()


# How often


def _at_once(rate: MemberRate, amount: int) -> bool:
    try:
        for _ in range(amount):
            rate.take("a", 0.0)
    except RefusedError:
        return False
    rate.take("b", 0.0)  # another node has room of its own
    return True


def _for_long(rate: MemberRate, bound: Bound, amount: int) -> bool:
    """After all that is taken at once, for a minute."""
    try:
        while True:
            rate.take("a", 0.0)
    except RefusedError:
        pass
    try:
        for number in range(amount):
            rate.take("a", 60.001 * min((number + 1) / bound.most, 1.0))
    except RefusedError:
        return False
    return True


_RATES: list[tuple[str, Bound, Bound]] = [
    ("requests", members.REQUESTS_AT_ONCE, members.REQUESTS_PER_MINUTE),
    ("documents", members.PUBLISHED_AT_ONCE, members.PUBLISHED_PER_MINUTE),
    ("reports", members.REPORTS_AT_ONCE, members.REPORTS_PER_MINUTE),
    ("paths", members.PATHS_AT_ONCE, members.PATHS_PER_MINUTE),
    ("shown", members.SHOWN_AT_ONCE, members.SHOWN_PER_MINUTE),
    ("watches", members.WATCHES_AT_ONCE, members.WATCHES_PER_MINUTE),
]
for _name, _one, _other in _RATES:

    @probe(_one)
    def _(amount: int, name: str = _name) -> bool:
        return _at_once(getattr(MemberRates(), name), amount)

    @probe(_other)
    def _(amount: int, name: str = _name, bound: Bound = _other) -> bool:
        return _for_long(getattr(MemberRates(), name), bound, amount)


def _is_affordable(rate: MemberRate, amount: int, now_s: float) -> bool:
    """In parts: what is larger than all that is taken at once is taken as that, or never."""
    try:
        for start in range(0, amount, 65_536):
            rate.take("a", now_s, min(65_536, amount - start))
    except RefusedError:
        return False
    return True


@probe(members.REPORTED_BYTES_AT_ONCE)
def _(amount: int) -> bool:
    return _is_affordable(MemberRates().report_bytes, amount, 0.0)


@probe(members.REPORTED_BYTES_PER_MINUTE, above=members.REPORTED_BYTES_PER_MINUTE.most + 65_536)
def _(amount: int) -> bool:
    """One after the other, so that none is lost for there being as many already."""
    rate = MemberRates().report_bytes
    assert _is_affordable(rate, members.REPORTED_BYTES_AT_ONCE.most, 0.0)
    parts = amount // 65_536
    return all(_is_affordable(rate, 65_536, 60.001 * (part + 1) / parts) for part in range(parts))


@probe(NUMBER)
def _(amount: int) -> bool:
    bodies = (
        (HelloRequest, f'{{"revision": {amount}, "documents": []}}'),
        (SegmentRequest, f'{{"generation": {amount}, "versions": []}}'),
        (PodReport, f'{{"sequence": {amount}, "pods": []}}'),
        (PodReport, f'{{"sequence": 1, "pods": [], "base": {amount}}}'),
        (PathReport, f'{{"sequence": {amount}, "node": {{}}}}'),
        (PathReport, f'{{"sequence": 1, "node": {{}}, "base": {amount}}}'),
        (HelloAnswer, f'{{"revision": {amount}, "documents": []}}'),
        (Refused, f'{{"code": "stale", "error": "", "version": {amount}}}'),
    )
    taken = set()
    for kind, body in bodies:
        try:
            decode(body.encode(), kind)
        except ApiError:
            taken.add(False)
        else:
            taken.add(True)
    assert len(taken) == 1, "all of them, or none"
    return taken.pop()


@probe(members.RELAY_ASKS)
def _(amount: int) -> bool:
    rate = ask_rate(0.0)
    return all(rate.take(0.0) for _ in range(amount))


@probe(members.RELAY_ASKS_PER_S)
def _(amount: int) -> bool:
    rate = ask_rate(0.0)
    assert rate.take(0.0, members.RELAY_ASKS.most)
    return all(rate.take(1.0001) for _ in range(amount))


def _pairs(of_nodes: int, amount: int) -> bool:
    """So many asked for by so many nodes, as a relay is set where nobody has said anything."""
    relaying = Relaying(_RELAY.ports, _RELAY.pairs_per_node, secret=b"s")
    asked = [relaying.ask(f"n{n % of_nodes}", f"peer{n}", 0.0) for n in range(amount)]
    return all(isinstance(each, PairEnd) for each in asked)


@probe(members.RELAY_PAIRS)
def _(amount: int) -> bool:
    return _pairs(100, amount)


@probe(members.RELAY_PAIRS_OF_ONE)
def _(amount: int) -> bool:
    return _pairs(1, amount)


@probe(members.RELAY_TELLS)
def _(amount: int) -> bool:
    rates = tell_rates()
    return all(rates.take("end", 0.0) for _ in range(amount))


@probe(members.RELAY_TELLS_PER_S)
def _(amount: int) -> bool:
    rates = tell_rates()
    assert rates.take("end", 0.0, members.RELAY_TELLS.most)
    return all(rates.take("end", 1.0001) for _ in range(amount))


@probe(members.NAT_OBSERVATIONS)
def _(amount: int) -> bool:
    """The first one is still remembered."""
    view = NatView()
    seen_as = (IPv4Address("203.0.113.9"), 4000)
    for port in range(amount):
        view.see((IPv4Address("198.51.100.1"), 1 + port), seen_as, 0.0)
    asked_first = (IPv4Address("198.51.100.1"), 1)
    return view.see(asked_first, (IPv4Address("203.0.113.9"), 4001), 0.0)


@probe(members.ENDPOINTS_TOLD)
def _(amount: int) -> bool:
    rate = endpoints_told_rate()
    return all(rate.take(0.0) for _ in range(amount))


@probe(members.ENDPOINTS_TOLD_PER_MINUTE)
def _(amount: int) -> bool:
    rate, most = endpoints_told_rate(), members.ENDPOINTS_TOLD_PER_MINUTE.most
    assert rate.take(0.0, members.ENDPOINTS_TOLD.most)
    return all(rate.take(60.0001 * min(number / most, 1.0)) for number in range(1, amount + 1))


@probe(members.RELAY_TOLD_ENDS)
def _(amount: int) -> bool:
    return is_remembered(amount, tell_rates())


@probe(members.RATED_NODES)
def _(amount: int) -> bool:
    return is_remembered(amount, MemberRates().watches._buckets)


@probe(members.BOOT_IDS)
def _(amount: int) -> bool:
    """Whether the first boot is known as one of another machine."""
    tables = new_tables()
    join(tables, 1, "n1")
    for number in range(amount + 1):
        said = presence(1, number + 1, boot_id=f"b{number}")
        publish(tables, said.uid, seal_presence(said, node_key(1)), 0.0)
    again = presence(1, amount + 2, boot_id="b0")
    try:
        publish(tables, again.uid, seal_presence(again, node_key(1)), 0.0)
    except RefusedError:
        return True
    return False
