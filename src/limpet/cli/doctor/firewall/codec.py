"""Rulesets as nft prints them in JSON -> values. What is not understood is kept as such.

Source: libnftables-json(5).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from limpet.cli.doctor.firewall.values import (
    Action,
    Chain,
    Condition,
    Field,
    Match,
    Rule,
    Span,
    Verdict,
)

_LINKS = {"iifname": Field.IIF, "iif": Field.IIF, "oifname": Field.OIF, "oif": Field.OIF}
_META = {**_LINKS, "l4proto": Field.PROTOCOL, "nfproto": Field.VERSION, "protocol": Field.VERSION}
_ADDRESSES = {"saddr": Field.SOURCE, "daddr": Field.TARGET}
_TRANSPORTS = ("tcp", "udp", "udplite", "sctp", "dccp", "icmp", "icmpv6", "igmp", "esp", "ah")
_UNREAD = ("multiport", "tcp", "udp", "set", "iprange")
"""Matches of iptables that are about ports and addresses."""
_SIMPLE = {
    "accept": Action.ACCEPT,
    "drop": Action.DROP,
    "reject": Action.DROP,
    "return": Action.RETURN,
}
_JUMPS = {"jump": Action.JUMP, "goto": Action.GOTO}
_TARGETS = {"REJECT": Action.DROP, "DROP": Action.DROP, "ACCEPT": Action.ACCEPT}
_ODD = Condition(Field.ODD)

Key = tuple[str, str, str]
"""Family, table, name."""


def parse_ruleset(text: str) -> dict[Key, Chain]:
    """Chains with their rules, by family, table and name. Raises: ValueError."""
    items = _items(text)
    try:
        sets = {_key(each): _held(each) for kind in ("set", "map") for each in items.get(kind, ())}
        rules: dict[Key, list[Rule]] = {}
        for each in items.get("rule", ()):
            key = (each["family"], each["table"], each["chain"])
            rules.setdefault(key, []).append(_rule(each, sets))
        return {
            (key := _key(each)): Chain(
                *key,
                each.get("hook", ""),
                each.get("policy") == "drop",
                each.get("type", "filter") == "filter",
                tuple(rules.get(key, ())),
            )
            for each in items.get("chain", ())
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a ruleset in other words than known: {error!r}") from error


def _items(text: str) -> dict[str, list[dict[str, Any]]]:
    """By kind. Raises: ValueError."""
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("nftables"), list):
        raise ValueError("not a ruleset")
    found: dict[str, list[dict[str, Any]]] = {}
    for item in document["nftables"]:
        for kind, body in item.items() if isinstance(item, dict) else ():
            found.setdefault(kind, []).append(body)
    return found


def _held(each: Mapping[str, Any]) -> list[Any] | None:
    """Elements of a set or map; None: programs change them."""
    filled = {"dynamic", "timeout"} & set(each.get("flags", ()))
    return None if filled else list(each.get("elem", ()))


def _key(each: Mapping[str, Any]) -> Key:
    return each["family"], each["table"], each["name"]


_Sets = Mapping[Key, list[Any] | None]


def _rule(each: Mapping[str, Any], sets: _Sets) -> Rule:
    matches: list[Match] = []
    verdicts: list[Verdict] = []
    place = (each["family"], each["table"])
    for statement in each.get("expr", ()):
        if not isinstance(statement, dict) or len(statement) != 1:
            matches.append(Match(((_ODD,),)))
            continue
        ((kind, body),) = statement.items()
        if kind == "match":
            matches.append(_match(body, place, sets))
        elif kind == "vmap":
            verdicts += _verdict_map(body, place, sets)
        elif kind in _SIMPLE:
            verdicts.append(Verdict(_SIMPLE[kind]))
        elif kind in _JUMPS:
            verdicts.append(Verdict(_JUMPS[kind], body["target"]))
        elif kind == "xt":
            _add_xt(body, matches, verdicts)
        elif kind in ("limit", "quota", "ct count", "connlimit"):
            matches.append(Match(((_ODD,),)))
    return Rule(each.get("handle", 0), tuple(matches), tuple(verdicts))


def _add_xt(body: Any, matches: list[Match], verdicts: list[Verdict]) -> None:
    """An extension of iptables: nft tells its name at most."""
    name = body.get("name", "") if isinstance(body, dict) else ""
    if isinstance(body, dict) and body.get("type") == "target":
        if name in _TARGETS:
            verdicts.append(Verdict(_TARGETS[name]))
    elif name != "comment":
        matches.append(Match(((Condition(Field.PORTS_UNREAD) if name in _UNREAD else _ODD,),)))


def _verdict_map(body: Mapping[str, Any], place: tuple[str, str], sets: _Sets) -> list[Verdict]:
    data = body.get("data")
    elements = _elements(data, place, sets)
    found = []
    for element in elements if elements is not None else ():
        if not isinstance(element, list) or len(element) != 2 or not isinstance(element[1], dict):
            continue
        ((kind, verdict),) = element[1].items()
        only = Match(tuple(_alternatives(body.get("key"), [element[0]])))
        if kind in _SIMPLE:
            found.append(Verdict(_SIMPLE[kind], only=only))
        elif kind in _JUMPS:
            found.append(Verdict(_JUMPS[kind], verdict["target"], only))
    return found


def _match(body: Mapping[str, Any], place: tuple[str, str], sets: _Sets) -> Match:
    elements = _elements(body.get("right"), place, sets)
    negated = body.get("op") == "!="
    if body.get("op") not in ("==", "!=", "in"):
        return Match(((_ODD,),))
    if elements is None:
        tests = tuple(Condition(each.field, None, each.version) for each in _left(body.get("left")))
        return Match((tests,), negated)
    return Match(tuple(_alternatives(body.get("left"), elements)), negated)


def _elements(right: Any, place: tuple[str, str], sets: _Sets) -> list[Any] | None:
    """The values that are meant; None: not known."""
    if isinstance(right, str) and right.startswith("@"):
        return sets.get((*place, right[1:]))
    if isinstance(right, dict) and "set" in right:
        inner = right["set"]
        return inner if isinstance(inner, list) else [inner]
    return right if isinstance(right, list) else [right]


def _alternatives(left: Any, elements: Iterable[Any]) -> Iterator[tuple[Condition, ...]]:
    fields = _left(left)
    if isinstance(left, dict) and "concat" in left:
        for element in elements:
            element = _plain(element)
            parts = element.get("concat", ()) if isinstance(element, dict) else ()
            if len(parts) != len(fields):
                yield (_ODD,)
                continue
            yield tuple(
                test
                for field, part in zip(fields, parts, strict=True)
                for test in _with(field, [part])
            )
        return
    tests: list[Condition] = []
    (field,) = fields
    tests += _with(field, list(map(_plain, elements)))
    yield (*_implied(left), *tests)


def _plain(element: Any) -> Any:
    """An element may have a comment, a timeout or a counter around it."""
    if isinstance(element, dict) and "elem" in element:
        return element["elem"].get("val")
    return element


def _left(left: Any) -> tuple[Condition, ...]:
    """The fields, without values."""
    if isinstance(left, dict):
        if "concat" in left:
            return tuple(test for each in left["concat"] for test in _left(each)[:1])
        if "meta" in left:
            return (Condition(_META.get(left["meta"].get("key"), Field.ODD)),)
        if "ct" in left and left["ct"].get("key") == "state":
            return (Condition(Field.STATE),)
        if "payload" in left:
            return (_payload(left["payload"]),)
    return (_ODD,)


def _payload(payload: Mapping[str, Any]) -> Condition:
    protocol, name = payload.get("protocol"), payload.get("field")
    if protocol in ("ip", "ip6") and name in _ADDRESSES:
        return Condition(_ADDRESSES[name], version=4 if protocol == "ip" else 6)
    if (protocol, name) in (("ip", "protocol"), ("ip6", "nexthdr")):
        return Condition(Field.PROTOCOL, version=4 if protocol == "ip" else 6)
    if name == "dport" and protocol in (*_TRANSPORTS, "th"):
        return Condition(Field.PORT)
    return _ODD


def _implied(left: Any) -> tuple[Condition, ...]:
    """What a packet has to be for a field to be in it at all."""
    protocol = (
        left["payload"].get("protocol") if isinstance(left, dict) and "payload" in left else ""
    )
    if protocol in _TRANSPORTS:
        return (Condition(Field.PROTOCOL, (protocol,)),)
    if protocol in ("ip", "ip6"):
        return (Condition(Field.VERSION, ("ipv4" if protocol == "ip" else "ipv6",)),)
    return ()


def _with(test: Condition, values: list[Any]) -> tuple[Condition, ...]:
    """The field with these values; odd where one is not understood."""
    try:
        return (
            Condition(test.field, tuple(_value(test.field, each) for each in values), test.version),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return (_ODD,)


def _value(which: Field, value: Any) -> str | Span:
    """Raises: ValueError, TypeError, KeyError."""
    if which in (Field.SOURCE, Field.TARGET):
        return _addresses(value)
    if which is Field.PORT:
        if isinstance(value, dict):
            first, last = value["range"]
            return int(first), int(last)
        return int(value), int(value)
    if which is Field.ODD:
        return ""
    if not isinstance(value, str):
        raise TypeError("not a name")
    return {"ip": "ipv4", "ip6": "ipv6"}.get(value, value)


def _addresses(value: Any) -> Span:
    if isinstance(value, dict) and "range" in value:
        first, last = value["range"]
        return int(ip_address(first)), int(ip_address(last))
    if isinstance(value, dict):
        network = ip_network((value["prefix"]["addr"], value["prefix"]["len"]), strict=False)
        return int(network[0]), int(network[-1])
    return int(ip_address(value)), int(ip_address(value))
