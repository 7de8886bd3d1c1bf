"""Probes of what is taken of those who write objects at the API server."""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec

from limpet.base.bounds import tenants
from limpet.base.errors import LimpetError
from limpet.cloud.workloads.keeping import WritingRate
from limpet.cloud.workloads.policy_source import PolicySource
from limpet.cloud.workloads.refused import RefusedPolicies
from limpet.cloud.workloads.service_source import ServiceSource
from limpet.controller.registry.records import TOKEN
from limpet.controller.store.kubernetes.crowd import Crowd
from limpet.controller.store.kubernetes.items import ItemObject
from limpet.controller.store.kubernetes.rows import row_of
from limpet.kubernetes.access.access import Access
from limpet.kubernetes.kinds.objects import Metadata, Resource, Viewed
from limpet.kubernetes.kinds.policies import (
    PODS,
    ContainerView,
    NamespaceView,
    PodSpecView,
    PodView,
    PolicyPortView,
    PolicyView,
    pod_of,
)
from limpet.kubernetes.kinds.services import (
    ENDPOINT_SLICES,
    SERVICES,
    EndpointView,
    SliceView,
    slice_of,
)
from limpet.kubernetes.reflector_state import ObjectChanges, ReflectorState
from limpet.kubernetes.watch_event import Unreadable, read_item
from limpet.policies.compiled import AddressRange, AllowedPeers, At, DirectionRules, RuleId
from limpet.policies.compiler import Compiler, compile_sides
from limpet.policies.heard import ReadPolicies
from limpet.policies.labels import Selector
from limpet.policies.policy import (
    Direction,
    IpBlock,
    Key,
    PodPeer,
    Policy,
    PolicyPod,
    PolicyRule,
    PolicyWorld,
    PortSpan,
)
from limpet.services.catalog import Catalog
from tests.unit.base.bounds.probes import probe

_MANY = 1024
"""Namespaces, each of which has little: a part is reserved for such."""

# Lists


def _a_page(state: ReflectorState[Any], go_on: str, items: Iterable[Viewed] = ()) -> int:
    return len(state.take_page(items, (), resource_version="1", go_on=go_on).put)


def _objects(namespaces: int, amount: int) -> bool:
    """Each in one of so many namespaces; 0: in none."""
    state = ReflectorState[Any](mirror=True)
    items = (
        Viewed(metadata=Metadata(name=str(number), namespace=_namespace(namespaces, number)))
        for number in range(amount)
    )
    return _a_page(state, "", items) == amount


def _namespace(namespaces: int, number: int) -> str:
    return f"n{number % namespaces}" if namespaces else ""


@probe(tenants.OBJECTS)
def _all_objects(amount: int) -> bool:
    return _objects(_MANY, amount) and _objects(0, amount)


@probe(tenants.OBJECTS_OF_ONE)
def _objects_of_one(amount: int) -> bool:
    return _objects(1, amount)


@probe(tenants.OBJECTS)
def _records(amount: int) -> bool:
    """That a controller keeps of one kind of its own."""
    crowd = Crowd(row_of(TOKEN))
    found = (ItemObject(metadata=Metadata(name="x", uid=str(n))) for n in range(amount))
    return all(crowd.admits(each) for each in found)


@probe(tenants.LIST_PAGES)
def _pages(amount: int) -> bool:
    state = ReflectorState[Any](mirror=True)
    try:
        for _ in range(amount):
            _a_page(state, "more")
    except LimpetError:
        return False
    return True


# One object

_ADDRESS = "10.0.0.1"


def _can_be_read(resource: Resource[Any], **fields: object) -> bool:
    raw = msgspec.Raw(msgspec.json.encode({"metadata": {"name": "x"}, **fields}))
    return not isinstance(read_item(raw, resource), Unreadable)


@probe(tenants.OBJECT_LABELS)
def _labels(amount: int) -> bool:
    labels = {f"label-{number}": "x" for number in range(amount)}
    return _can_be_read(PODS, metadata={"name": "x", "labels": labels})


@probe(tenants.SERVICE_ADDRESSES)
def _service_addresses(amount: int) -> bool:
    many = [_ADDRESS] * amount
    kinds = (
        {"spec": {"clusterIPs": many}},
        {"spec": {"externalIPs": many}},
        {"status": {"loadBalancer": {"ingress": [{"ip": _ADDRESS}] * amount}}},
    )
    return any(_can_be_read(SERVICES, **each) for each in kinds)


@probe(tenants.SOURCE_RANGES)
def _source_ranges(amount: int) -> bool:
    return _can_be_read(SERVICES, spec={"loadBalancerSourceRanges": ["10.0.0.0/8"] * amount})


@probe(tenants.ENDPOINT_ADDRESSES)
def _endpoint_addresses(amount: int) -> bool:
    return _can_be_read(ENDPOINT_SLICES, endpoints=[{"addresses": [_ADDRESS] * amount}])


@probe(tenants.ENDPOINT_HINTS)
def _hints(amount: int) -> bool:
    hints = [{"name": "x"}] * amount
    kinds: list[dict[str, Any]] = [{"forZones": hints}, {"forNodes": hints}]
    return any(_can_be_read(ENDPOINT_SLICES, endpoints=[{"hints": each}]) for each in kinds)


@probe(tenants.POD_CONTAINERS)
def _containers(amount: int) -> bool:
    kinds = ("containers", "initContainers")
    return any(_can_be_read(PODS, spec={each: [{}] * amount}) for each in kinds)


@probe(tenants.POD_PORTS)
def _ports(amount: int) -> bool:
    ports = [PolicyPortView(f"p{number}", 1 + number) for number in range(amount)]
    found = pod_of(
        PodView(metadata=Metadata(name="x"), spec=PodSpecView(containers=[ContainerView(ports)]))
    )
    return found is not None and len(found.ports) == amount


@probe(tenants.POD_ADDRESSES)
def _pod_addresses(amount: int) -> bool:
    return _can_be_read(PODS, status={"podIPs": [{"ip": _ADDRESS}] * amount})


# All of them, by the road that they come on


def _no_access() -> Access:
    raise LimpetError("nobody is asked")


def _ignore(*_: object) -> None:
    """Nobody is told."""


def _services(namespaces: int, amount: int) -> bool:
    """Whether so many endpoints, and the slices that have them, are kept."""
    catalog = Catalog()

    def pieces() -> Iterable[SliceView]:
        left, number = amount, 0
        while left:
            size = min(left - 1, 511)
            metadata = Metadata(name=str(number), namespace=f"n{number % namespaces}", uid="u")
            yield SliceView(
                metadata=metadata, address_type="IPv4", endpoints=_ENDPOINTS[:size], ports=[]
            )
            left, number = left - 1 - size, number + 1

    async def hear() -> None:
        source = ServiceSource(
            catalog, Path("/nowhere"), _no_access, tell=_ignore, random=lambda: 0.0
        )
        for view in pieces():
            source._put(ENDPOINT_SLICES.kind, slice_of(view))
        source._crowded.stop()

    asyncio.run(hear())
    return sum(1 + len(each.endpoints) for each in catalog.all_slices()) == amount


_ENDPOINTS = [
    EndpointView(addresses=[f"10.0.{number >> 8}.{number & 255}"]) for number in range(1, 512)
]


@probe(tenants.SERVICE_TARGETS)
def _all_targets(amount: int) -> bool:
    return _services(_MANY, amount)


@probe(tenants.SERVICE_TARGETS_OF_ONE)
def _targets_of_one(amount: int) -> bool:
    return _services(1, amount)


def _policies(hear: Callable[[PolicySource], Coroutine[Any, Any, None]]) -> ReadPolicies:
    heard = ReadPolicies()

    async def scenario() -> None:
        source = PolicySource(heard, Path("/nowhere"), _no_access, tell=_ignore, random=lambda: 0.0)
        await hear(source)
        source._crowded.stop()

    asyncio.run(scenario())
    return heard


def _policy_bytes(namespaces: int, amount: int) -> bool:
    def views() -> Iterable[PolicyView]:
        left, number = amount, 0
        while left:
            metadata = Metadata(name=f"p{number:08}", namespace=f"n{number % namespaces}")
            empty = PolicyView(metadata=metadata, spec={"x": ""})
            begin = len(msgspec.json.encode(empty.document()))
            size = min(left, 1 << 16)
            size = left if left - size < begin else size
            yield PolicyView(metadata=metadata, spec={"x": "x" * (size - begin)})
            left, number = left - size, number + 1

    heard = _policies(lambda source: source._hear_policies(ObjectChanges(put=list(views()))))
    return not heard.closed_namespaces


@probe(tenants.POLICY_BYTES)
def _all_policies(amount: int) -> bool:
    return _policy_bytes(_MANY, amount)


@probe(tenants.POLICY_BYTES_OF_ONE)
def _policies_of_one(amount: int) -> bool:
    return _policy_bytes(1, amount)


def _policy_parts(namespaces: int, amount: int, most_of_one: int = 1000) -> ReadPolicies:
    """Policies that have a rule with so many ports, and what was made of them."""
    views: list[PolicyView] = []
    left = amount
    while left:
        size = min(left, most_of_one)
        rule = {"ports": [{"port": 1}] * (size - 1)}
        namespace = f"n{len(views) % namespaces}"
        metadata = Metadata(name=f"p{len(views)}", namespace=namespace)
        views.append(PolicyView(metadata=metadata, spec={"podSelector": {}, "ingress": [rule]}))
        left -= size
    return _policies(lambda source: source._hear_policies(ObjectChanges(put=views)))


@probe(tenants.POLICY_PARTS)
def _all_parts(amount: int) -> bool:
    return not _policy_parts(_MANY, amount, 128).closed_namespaces


@probe(tenants.POLICY_PARTS_OF_ONE)
def _parts_of_one(amount: int) -> bool:
    return not _policy_parts(1, amount).closed_namespaces


@probe(tenants.POLICY_PARTS_OF_ITSELF)
def _parts_of_itself(amount: int) -> bool:
    return not _policy_parts(1, amount, amount).problems


@probe(tenants.POLICY_WINDOWS)
def _windows(amount: int) -> bool:
    """Of rules with a port of their own each."""
    rules = tuple(PolicyRule(ports=(PortSpan("tcp", n, n),)) for n in range(1, amount + 1))
    pod = PolicyPod(Key("x", "x"), (), {})
    policy = Policy(pod.key, Selector(), frozenset(["ingress"]), rules)
    return not compile_sides(PolicyWorld({policy.key: policy}, {}, {}), [pod]).closed


def _elements(namespaces: int, amount: int) -> bool:
    """By rules with a port of their own each, which mean all of a thousand pods, and a last one."""
    keys = [Key("peers", f"p{number}") for number in range(1024)]
    peers = {key: PolicyPod(key, (_FIRST + n,), {}) for n, key in enumerate(keys)}
    rules: dict[str, list[PolicyRule]] = defaultdict(list)
    everybody = (PodPeer(Selector(), Selector()),)
    for number in range(amount // len(peers)):
        mine = rules[f"n{number % namespaces}"]
        mine.append(PolicyRule(everybody, (PortSpan("tcp", len(mine) + 1, len(mine) + 1),)))
    if left := amount % len(peers):
        blocks = tuple(IpBlock(ip_network((int(_FIRST) + 2 * n, 32))) for n in range(left))
        rules["n0"].append(PolicyRule(blocks, (PortSpan("udp", 1, 1),)))
    local = [PolicyPod(Key(namespace, "x"), (), {}) for namespace in rules]
    policies = {
        pod.key: Policy(
            pod.key, Selector(), frozenset(["ingress"]), tuple(rules[pod.key.namespace])
        )
        for pod in local
    }
    return not compile_sides(PolicyWorld(policies, {"peers": {}}, peers), local).closed


_FIRST = ip_address("10.0.0.1")


@probe(tenants.POLICY_ELEMENTS)
def _all_elements(amount: int) -> bool:
    return _elements(_MANY, amount)


@probe(tenants.POLICY_ELEMENTS_OF_ONE)
def _elements_of_one(amount: int) -> bool:
    return _elements(1, amount)


class _OfKnownSize(Compiler):
    """What a rule allows is as much as its number says."""

    def _peers(self, rule: RuleId) -> AllowedPeers:
        return AllowedPeers(ranges=(AddressRange(4, 1, 1),) * rule.number)

    def _named_ports(self, rule: RuleId) -> frozenset[At]:
        return _at(rule.number)


@functools.cache
def _at(ports: int) -> frozenset[At]:
    return frozenset(At(_FIRST, "tcp", port) for port in range(ports))


def _rule(name: str, size: int) -> RuleId:
    return RuleId(Key("n", name), "ingress", size)


def _rules(amount: int) -> list[frozenset[RuleId]]:
    """Sets of one rule each, which are so many elements together, and one that has none."""
    sizes = [_ELEMENTS] * (amount // _ELEMENTS) + [amount % _ELEMENTS, 0]
    return [frozenset([_rule(f"p{n:06}", size)]) for n, size in enumerate(sizes)]


_ELEMENTS = 1024


@probe(tenants.POLICY_ELEMENTS_OF_ONE)
def _looked_at_as_new(amount: int) -> bool:
    """After so many elements of one namespace the next rule is still looked at."""
    seen: set[RuleId] = set()
    sets = _rules(amount)
    _OfKnownSize()._weight(sets, (), seen, {})
    return sets[-1] <= seen


class _InOrder(frozenset[RuleId]):
    """New rules of a set, one after the other by their names."""

    def difference(self, *_known: object) -> Any:
        return sorted(self)


@probe(tenants.POLICY_ELEMENTS_OF_ONE)
def _looked_at_in_one_set(amount: int) -> bool:
    seen: set[RuleId] = set()
    sets = _rules(amount)
    _OfKnownSize()._weight([_InOrder(frozenset().union(*sets))], (), seen, {})
    return sets[-1] <= seen


@probe(tenants.POLICY_ELEMENTS_OF_ONE)
def _looked_at_as_known(amount: int) -> bool:
    seen: set[RuleId] = set()
    sets = _rules(amount)
    _OfKnownSize()._weight(sets, (), seen, {rule: rule.number for each in sets for rule in each})
    return sets[-1] <= seen


@probe(tenants.POLICY_ELEMENTS_OF_ONE)
def _looked_at_by_name(amount: int) -> bool:
    seen: set[RuleId] = set()
    sets = _rules(amount)
    _OfKnownSize()._weight((), [rule for each in sets for rule in each], seen, {})
    return sets[-1] <= seen


@probe(tenants.POLICY_ELEMENTS)
def _kept_of_refused(amount: int) -> bool:
    """What sides that are closed mean, so many elements, is kept for the next time."""
    each = tenants.POLICY_ELEMENTS_OF_ONE.most + 1
    sizes = [each] * (amount // each - 1)
    rules = [_rule(f"p{n}", size) for n, size in enumerate([*sizes, amount - sum(sizes)])]
    sides: dict[tuple[Key, Direction], DirectionRules] = {
        (Key(f"n{number:06}", "pod"), "ingress"): DirectionRules(always=frozenset([rule]))
        for number, rule in enumerate(rules)
    }
    return rules[-1] in _OfKnownSize()._close_too_large(sides)


_LABELS = {f"label-{number}": "x" for number in range(tenants.OBJECT_LABELS.most)}


def _metadata(namespaces: int, amount: int) -> Iterable[Metadata]:
    """Of objects whose labels are so many, each object as one more."""
    left, number = amount, 0
    while left:
        size = min(left - 1, len(_LABELS))
        labels = _LABELS if size == len(_LABELS) else dict(list(_LABELS.items())[:size])
        namespace = f"n{number % namespaces}"
        yield Metadata(name=f"o{number}", namespace=namespace, uid="u", labels=labels)
        left, number = left - 1 - size, number + 1


def _pods(namespaces: int, amount: int) -> bool:
    views = [PodView(metadata=each) for each in _metadata(namespaces, amount)]
    heard = _policies(lambda source: source._hear_pods(ObjectChanges(put=views)))
    return len(heard.pods) == len(views)


@probe(tenants.POLICY_PODS)
def _all_pods(amount: int) -> bool:
    return _pods(_MANY, amount)


@probe(tenants.POLICY_PODS_OF_ONE)
def _pods_of_one(amount: int) -> bool:
    return _pods(1, amount)


@probe(tenants.POLICIES_REFUSED)
def _policies_refused(amount: int) -> bool:
    """Those of one namespace; it is known when all of them are kept."""
    refused = RefusedPolicies()
    keys = [Key("shop", f"policy-{number}") for number in range(amount)]
    for each in keys:
        refused.refuse(each)
    return [refused.settle(each) for each in keys][-1]


@probe(tenants.POLICY_NAMESPACES)
def _namespaces(amount: int) -> bool:
    views = [NamespaceView(metadata=each) for each in _metadata(1, amount)]
    changes = ObjectChanges(put=views, listed=True)
    heard = _policies(lambda source: source._hear_namespaces(changes))
    assert heard.passes_over_namespaces == (len(heard.namespaces) < len(views))
    return len(heard.namespaces) == len(views)


# What they cause on a node's disk


@probe(tenants.KEPT_AT_ONCE)
def _kept_at_once(amount: int) -> bool:
    return WritingRate(0.0).rest_s(amount, 0.0) == 0.0


@probe(tenants.KEPT_PER_S)
def _kept_per_s(amount: int) -> bool:
    """Each second, after all that may be written at once."""
    rate = WritingRate(0.0)
    rate.rest_s(tenants.KEPT_AT_ONCE.most, 0.0)
    return rate.rest_s(amount, 1.0) == 0.0
