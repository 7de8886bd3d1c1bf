"""A NetworkPolicy or a Namespace as it is written, to values; with words for what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any, TypeVar

from limpet.base.addresses import Prefix, bounds_of
from limpet.base.errors import LimpetError
from limpet.policies.labels import Expression, Labels, Selector
from limpet.policies.policy import (
    Direction,
    IpBlock,
    Key,
    NamedPort,
    PodPeer,
    Policy,
    PolicyRule,
    PortSpan,
    Protocol,
)

API_VERSION = "networking.k8s.io/v1"
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_PROTOCOLS: Mapping[str, Protocol] = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
_DIRECTIONS: Mapping[str, Direction] = {"Ingress": "ingress", "Egress": "egress"}
T = TypeVar("T")


class PolicyError(LimpetError):
    """A document is not what it should be."""


def parse_policy(document: object) -> Policy:
    """Raises: PolicyError, which names the field."""
    table = _Table(document, "")
    table.only("apiVersion", "kind", "metadata", "spec", "status")
    _expect(table, "apiVersion", API_VERSION)
    _expect(table, "kind", "NetworkPolicy")
    key = _key(table.table("metadata"))
    spec = table.table("spec")
    spec.only("podSelector", "policyTypes", "ingress", "egress")
    egress = tuple(_rule(each, at, "to") for at, each in spec.list("egress"))
    types = spec.list("policyTypes")
    said: list[Direction] = [_one_of(each, at, _DIRECTIONS) for at, each in types]
    return Policy(
        key,
        _selector(spec.get("podSelector"), spec.at("podSelector")),
        frozenset(said or (["ingress", "egress"] if egress else ["ingress"])),
        tuple(_rule(each, at, "from") for at, each in spec.list("ingress")),
        egress,
    )


def parse_namespace(document: object) -> tuple[str, Labels]:
    """Its name and labels. Raises: PolicyError."""
    table = _Table(document, "")
    _expect(table, "apiVersion", "v1")
    _expect(table, "kind", "Namespace")
    metadata = table.table("metadata")
    name = _named(metadata, "name", _NAMESPACE)
    return name, parse_labels(metadata.get("labels"), metadata.at("labels"))


def parse_labels(value: object, at: str = "labels") -> Labels:
    """Raises: PolicyError."""
    table = _Table({} if value is None else value, at)
    for key, text in table.items():
        _label_key(key, at)
        if not isinstance(text, str):
            raise _wrong(table.at(key), text, "is no text (put it in quotes)")
        if not _LABEL_VALUE.fullmatch(text):
            raise _wrong(table.at(key), text, "is no value of a label")
    return dict(table.items())


class _Table(Mapping[str, Any]):
    """A mapping of the document, and where it is."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _wrong(path or "document", value, "is no mapping")
        self._values: Mapping[str, Any] = value
        self._path = path

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def at(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def only(self, *known: str) -> None:
        """What is not understood could be what closes: it is refused."""
        for key in self:
            if key not in known:
                raise PolicyError(f"{self.at(key)}: not known (known here: {', '.join(known)})")

    def table(self, key: str) -> _Table:
        return _Table({} if self.get(key) is None else self[key], self.at(key))

    def list(self, key: str) -> list[tuple[str, Any]]:
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise _wrong(self.at(key), value, "is no list")
        return [(f"{self.at(key)}[{index}]", each) for index, each in enumerate(value)]


def _wrong(at: str, value: object, why: str) -> PolicyError:
    shown = repr(value)
    return PolicyError(f"{at}: {shown if len(shown) <= 60 else shown[:57] + '...'} {why}")


def _expect(table: _Table, key: str, wanted: str) -> None:
    if table.get(key) != wanted:
        raise _wrong(key, table.get(key), f"should be {wanted}")


def _key(metadata: _Table) -> Key:
    namespace = metadata.get("namespace")
    if namespace is None:
        namespace = "default"
    elif not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise _wrong(metadata.at("namespace"), namespace, "is no name of a namespace")
    return Key(namespace, _named(metadata, "name", _NAME))


def _named(metadata: _Table, key: str, form: re.Pattern[str]) -> str:
    name = metadata.get(key)
    if not isinstance(name, str) or not form.fullmatch(name):
        raise _wrong(metadata.at(key), name, "is no name (small letters, digits, - between them)")
    return name


def _one_of(value: object, at: str, known: Mapping[str, T]) -> T:
    if not isinstance(value, str) or value not in known:
        raise _wrong(at, value, f"is none of {', '.join(known)}")
    return known[value]


def _label_key(key: object, at: str) -> str:
    text = key if isinstance(key, str) else ""
    prefix, slash, name = text.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (slash and not _NAME.fullmatch(prefix)):
        raise _wrong(at, key, "is no name of a label")
    return text


def _selector(value: object, at: str) -> Selector:
    table = _Table({} if value is None else value, at)
    table.only("matchLabels", "matchExpressions")
    return Selector(
        tuple(sorted(parse_labels(table.get("matchLabels"), table.at("matchLabels")).items())),
        tuple(_expression(each, where) for where, each in table.list("matchExpressions")),
    )


def _expression(value: object, at: str) -> Expression:
    table = _Table(value, at)
    table.only("key", "operator", "values")
    key = _label_key(table.get("key"), table.at("key"))
    operator = table.get("operator")
    values = [each for _, each in table.list("values")]
    if operator not in _OPERATORS:
        raise _wrong(table.at("operator"), operator, f"is none of {', '.join(_OPERATORS)}")
    if bool(values) != (operator in ("In", "NotIn")):
        needs = "needs at least one value" if not values else "takes no values"
        raise PolicyError(f"{table.at('values')}: {operator} {needs}")
    for each in values:
        if not isinstance(each, str) or not _LABEL_VALUE.fullmatch(each):
            raise _wrong(table.at("values"), each, "is no value of a label")
    return Expression(key, operator, frozenset(values))


def _rule(value: object, at: str, side: str) -> PolicyRule:
    table = _Table({} if value is None else value, at)
    table.only(side, "ports")
    return PolicyRule(
        tuple(_peer(each, where) for where, each in table.list(side)),
        tuple(_port(each, where) for where, each in table.list("ports")),
    )


def _peer(value: object, at: str) -> PodPeer | IpBlock:
    table = _Table(value, at)
    table.only("podSelector", "namespaceSelector", "ipBlock")
    pods, namespaces = table.get("podSelector"), table.get("namespaceSelector")
    if table.get("ipBlock") is not None:
        if pods is not None or namespaces is not None:
            raise PolicyError(f"{at}: an ipBlock stands alone (make it a peer of its own)")
        return _ip_block(table["ipBlock"], table.at("ipBlock"))
    if pods is None and namespaces is None:
        raise PolicyError(
            f"{at}: says neither podSelector nor namespaceSelector nor ipBlock "
            "(for everybody leave the whole list out)"
        )
    return PodPeer(
        _selector(pods, table.at("podSelector")),
        None if namespaces is None else _selector(namespaces, table.at("namespaceSelector")),
    )


def _ip_block(value: object, at: str) -> IpBlock:
    table = _Table(value, at)
    table.only("cidr", "except")
    prefix = _prefix(table.get("cidr"), table.at("cidr"))
    first, last = bounds_of(prefix)
    excepted = []
    for where, each in table.list("except"):
        inner = _prefix(each, where)
        begins, ends = bounds_of(inner)
        if inner.version != prefix.version or not first <= begins <= ends <= last:
            raise _wrong(where, each, f"is not inside {prefix}")
        excepted.append(inner)
    return IpBlock(prefix, tuple(excepted))


def _prefix(value: object, at: str) -> Prefix:
    text = value if isinstance(value, str) else ""
    try:
        if "/" not in text:
            raise ValueError(text)
        return ip_network(text, strict=False)  # as others take it: the bits behind do not count
    except ValueError:
        raise _wrong(at, value, "is no prefix such as 10.0.0.0/8 or 2001:db8::/32") from None


def _port(value: object, at: str) -> PortSpan | NamedPort:
    table = _Table(value, at)
    table.only("protocol", "port", "endPort")
    said = table.get("protocol")
    protocol = _one_of("TCP" if said is None else said, table.at("protocol"), _PROTOCOLS)
    port, end = table.get("port"), table.get("endPort")
    if port is None:
        if end is not None:
            raise PolicyError(f"{table.at('endPort')}: there is no port that it goes with")
        return PortSpan(protocol, 0, 65535)
    if isinstance(port, str):
        if end is not None:
            raise PolicyError(f"{table.at('endPort')}: goes with a number only, not with a name")
        if not _PORT_NAME.fullmatch(port):
            raise _wrong(table.at("port"), port, "is no name of a port (small letters, 15 at most)")
        return NamedPort(protocol, port)
    first = _number(port, table.at("port"))
    last = first if end is None else _number(end, table.at("endPort"))
    if last < first:
        raise _wrong(table.at("endPort"), end, f"is less than port {first}")
    return PortSpan(protocol, first, last)


def _number(value: object, at: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise _wrong(at, value, "is no port (1 to 65535)")
    return value
