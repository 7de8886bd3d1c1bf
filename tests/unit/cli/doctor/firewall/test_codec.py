"""nft's JSON: understood as far as it goes, and never a reason to fail."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.cli.doctor.firewall.codec import parse_ruleset
from limpet.cli.doctor.firewall.values import Action, Condition, Field, Match, Verdict

PLACE = {"family": "inet", "table": "t"}
CHAIN = {"chain": {**PLACE, "name": "c", "hook": "input", "type": "filter", "policy": "drop"}}
WORDS = """match vmap xt meta payload ct key left right op == set concat elem val range prefix
accept jump target @s type name"""
words = st.sampled_from(WORDS.split())
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


def parsed(*expr: Any, sets: Any = ()) -> tuple[tuple[Match, ...], tuple[Verdict, ...]]:
    rule = {"rule": {**PLACE, "chain": "c", "handle": 7, "expr": list(expr)}}
    items = [*sets, CHAIN, rule]
    ((_, chain),) = parse_ruleset(json.dumps({"nftables": items})).items()
    (found,) = chain.rules
    assert (chain.hook, chain.drops, chain.filters, found.handle) == ("input", True, True, 7)
    return found.matches, found.verdicts


def dport(right: Any, op: str = "==") -> dict[str, Any]:
    left = {"payload": {"protocol": "udp", "field": "dport"}}
    return {"match": {"op": op, "left": left, "right": right}}


UDP = Condition(Field.PROTOCOL, ("udp",))


def port(*spans: tuple[int, int]) -> Match:
    return Match(((UDP, Condition(Field.PORT, spans)),))


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        (53, port((53, 53))),
        ({"range": [5, 80]}, port((5, 80))),
        ({"set": [53, {"range": [100, 200]}]}, port((53, 53), (100, 200))),
        ({"set": [{"elem": {"val": 53, "comment": "dns"}}]}, port((53, 53))),
        ("@open", port((22, 22))),
        ("@busy", Match(((Condition(Field.PORT, None),),))),
        ("@elsewhere", Match(((Condition(Field.PORT, None),),))),
    ],
)
def test_ports_are_understood_in_every_form(right: Any, expected: Match) -> None:
    sets = (
        {"set": {**PLACE, "name": "open", "type": "inet_service", "elem": [22]}},
        {"set": {**PLACE, "name": "busy", "type": "inet_service", "flags": ["timeout"]}},
    )
    (match,), _ = parsed(dport(right), {"counter": {}}, sets=sets)

    assert match == expected


def test_a_map_of_verdicts_says_for_whom_each_is() -> None:
    vmap = {
        "key": {"meta": {"key": "iifname"}},
        "data": {"set": [["eth0", {"jump": {"target": "lan"}}], ["eth1", {"drop": None}]]},
    }

    _, verdicts = parsed({"vmap": vmap})

    eth0, eth1 = (Match(((Condition(Field.IIF, (name,)),),)) for name in ("eth0", "eth1"))
    assert verdicts == (Verdict(Action.JUMP, "lan", eth0), Verdict(Action.DROP, only=eth1))


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ({"type": "match", "name": "multiport"}, Field.PORTS_UNREAD),
        ({"type": "match", "name": "conntrack"}, Field.ODD),
        (None, Field.ODD),
    ],
)
def test_an_extension_of_iptables_leaves_it_open(body: Any, condition: Field) -> None:
    (match,), _ = parsed({"xt": body}, {"accept": None})

    assert match == Match(((Condition(condition),),))


def test_targets_of_iptables_are_known_by_name() -> None:
    expr = [{"xt": {"type": "match", "name": "comment"}}, {"xt": {"type": "target", "name": "LOG"}}]

    assert parsed(*expr) == ((), ())
    assert parsed({"xt": {"type": "target", "name": "REJECT"}}) == ((), (Verdict(Action.DROP),))


@settings(max_examples=60)
@given(st.lists(anything))
def test_a_rule_in_other_words_is_open_or_an_error_and_nothing_worse(expr: list[Any]) -> None:
    rule = {"rule": {**PLACE, "chain": "c", "handle": 1, "expr": expr}}
    with suppress(ValueError):
        parse_ruleset(json.dumps({"nftables": [CHAIN, rule]}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nftables": [{"chain": {}}]}', "table inet x"])
def test_what_is_no_ruleset_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"ruleset|Expecting value"):
        parse_ruleset(text)
