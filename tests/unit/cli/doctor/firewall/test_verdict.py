"""What rules do to packets: as a packet that goes through them one by one would find."""

from __future__ import annotations

from ipaddress import ip_network
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.cli.doctor.firewall.values import (
    Action,
    Chain,
    Condition,
    Field,
    Match,
    Rule,
    Traffic,
    Verdict,
)
from limpet.cli.doctor.firewall.verdict import find_drop

Key = tuple[str, str, str]
NAMES = ("base", "one", "two")
PACKET = Traffic(
    4,
    frozenset({"eth0"}),
    frozenset({"limpet0"}),
    protocol="udp",
    port=25,
    sources=(ip_network("0.0.0.20/32"),),
    targets=(ip_network("0.0.0.30/32"),),
    telling=frozenset({Field.PORT}),
)
HAS = {
    Field.IIF: "eth0",
    Field.OIF: "limpet0",
    Field.PROTOCOL: "udp",
    Field.STATE: "new",
    Field.VERSION: "ipv4",
    Field.PORT: 25,
    Field.SOURCE: 20,
    Field.TARGET: 30,
}
WORDS = {
    Field.IIF: ("eth0", "eth*", "eth1", "limpet0"),
    Field.OIF: ("limpet0", "lim*", "eth0"),
    Field.PROTOCOL: ("udp", "tcp"),
    Field.STATE: ("new", "established"),
    Field.VERSION: ("ipv4", "ipv6"),
}


class Rulesets:
    """Made by chance of a seed: drawing each part by itself takes ten times as long."""

    def __init__(self, seed: int, *, known: bool) -> None:
        self.random = Random(seed)
        self.known = known

    def condition(self) -> Condition:
        field = self.random.choice(sorted(HAS))
        if not self.known and self.random.random() < 0.4:
            unread = Condition(Field.PORTS_UNREAD)
            return self.random.choice([Condition(Field.ODD), unread, Condition(field, None)])
        if field in WORDS:
            return Condition(field, tuple(self.random.choices(WORDS[field], k=2)))
        low = self.random.randrange(40)
        return Condition(field, ((low, low + self.random.randrange(10)),), self.of((0, 0, 4, 6)))

    def of(self, choices: tuple[int, ...]) -> int:
        return self.random.choice(choices)

    def match(self) -> Match:
        found = [
            tuple(self.condition() for _ in range(self.of((1, 1, 2))))
            for _ in range(self.of((0, 1, 1, 2)))
        ]
        return Match(tuple(found), self.random.random() < 0.3)

    def rule(self, targets: tuple[str, ...]) -> Rule:
        actions = [each for each in Action if targets or each not in (Action.JUMP, Action.GOTO)]
        verdicts = [
            Verdict(
                self.random.choice(actions),
                self.random.choice(targets) if targets else "",
                self.match() if self.random.random() < 0.3 else None,
            )
            for _ in range(self.of((1, 1, 2)))
        ]
        matches = tuple(self.match() for _ in range(self.of((0, 1, 1, 2))))
        return Rule(self.random.randrange(99), matches, tuple(verdicts))

    def chains(self) -> dict[Key, Chain]:
        """A base chain, and two that it may lead to."""
        found = {}
        for at, name in enumerate(NAMES):
            rules = tuple(self.rule(NAMES[at + 1 :]) for _ in range(self.of((0, 1, 2, 3, 4))))
            drops = not at and self.random.random() < 0.5
            key = ("inet", "t", name)
            found[key] = Chain(*key, "" if at else "input", drops, rules=rules)
        return found


def is_open(test: Condition) -> bool:
    return test.version != 6 and (test.values is None or test.field not in HAS)


def has(test: Condition) -> bool:
    """Open ones hold."""
    if is_open(test):
        return True
    if test.version == 6:
        return False
    mine = HAS[test.field]
    for value in test.values or ():
        if isinstance(value, tuple):
            if isinstance(mine, int) and value[0] <= mine <= value[1]:
                return True
        elif mine == value or (value.endswith("*") and str(mine).startswith(value[:-1])):
            return True
    return False


def fits(match: Match | None) -> bool:
    """What is open is taken not to fit."""
    if match is None:
        return True
    fitting = [each for each in match.alternatives if all(map(has, each))]
    if fitting and all(any(map(is_open, each)) for each in fitting):
        return False
    return bool(fitting) is not match.negated


def meets(chains: dict[Key, Chain], name: str) -> Action | None:
    """Where the one packet's way through the chain ends; None: it comes out at its end."""
    for rule in chains["inet", "t", name].rules:
        if not all(map(fits, rule.matches)):
            continue
        for verdict in rule.verdicts:
            if not fits(verdict.only):
                continue
            match verdict.action:
                case Action.ACCEPT | Action.DROP:
                    return verdict.action
                case Action.RETURN:
                    return None
            inner = meets(chains, verdict.target)
            if inner is not None or verdict.action is Action.GOTO:
                return inner
    return None


@settings(max_examples=300)
@given(st.integers(0, 1 << 64))
def test_of_a_packet_that_is_known_whole_it_is_known_what_becomes_of_it(seed: int) -> None:
    chains = Rulesets(seed, known=True).chains()
    base = chains["inet", "t", "base"]
    end = meets(chains, "base") or (Action.DROP if base.drops else Action.ACCEPT)

    found = find_drop(chains, base, PACKET)

    assert (found is not None) is (end is Action.DROP)
    assert found is None or found.surely


@settings(max_examples=300)
@given(st.integers(0, 1 << 64))
def test_what_is_surely_dropped_is_dropped_where_no_unknown_condition_is_met(seed: int) -> None:
    chains = Rulesets(seed, known=False).chains()
    base = chains["inet", "t", "base"]

    found = find_drop(chains, base, PACKET)

    end = meets(chains, "base") or (Action.DROP if base.drops else Action.ACCEPT)
    assert found is None or not found.surely or end is Action.DROP


def test_packets_of_another_ip_version_are_no_matter_of_a_family_s_chain() -> None:
    base = Chain("ip6", "t", "base", "input", drops=True)

    assert find_drop({("ip6", "t", "base"): base}, base, PACKET) is None
