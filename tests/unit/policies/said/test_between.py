"""What is said of the pods of two nodes is what is said of each connection between them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, ip_address
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.policies.compiled import DIRECTIONS
from limpet.policies.parse import parse_policy
from limpet.policies.policy import Key, NamedPort, Policy, PolicyPod
from limpet.policies.said.between import MOST_POLICIES, side_of
from limpet.policies.said.verdict import Flow, judge
from limpet.policies.said.words import policy_words
from tests.effort import examples
from tests.policy_cases import PORTS, Case, cases

NAMES = ("crane-1", "digger-1")


def policy(name: str, pods: dict[str, str], **spec: Any) -> Policy:
    return parse_policy(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"podSelector": {"matchLabels": pods}, **spec},
        }
    )


def pod(number: int, app: str) -> PolicyPod:
    address = ip_address("10.244.7.0") + number
    return PolicyPod(Key("shop", f"{app}-{number}"), (address,), {"app": app})


DATABASE = policy(
    "database",
    {"app": "db"},
    ingress=[
        {
            "from": [{"podSelector": {"matchLabels": {"app": "api"}}}],
            "ports": [{"protocol": "TCP", "port": 5432}],
        }
    ],
)
MINE = [pod(1, "db"), pod(2, "db"), pod(3, "web")]
THEIRS = [pod(11, "api"), pod(12, "web"), pod(13, "web")]


def test_a_policy_says_whom_of_the_other_node_it_lets_in() -> None:
    side = side_of({DATABASE.key: DATABASE}, {}, MINE, THEIRS, NAMES)

    (hold,) = side.holds
    assert (str(hold.policy), hold.direction, hold.selected) == ("shop/database", "ingress", 2)
    assert hold.words == "lets in, from pods of digger-1, tcp 5432 for 1 of 3"
    assert side.words == (
        "what 2 of 3 pods of crane-1 receive is held to policies (ingress): 2 of 6 pairs from pods "
        "of digger-1 may connect, at some port",
    )


def test_where_no_policy_selects_a_pod_nothing_is_said() -> None:
    side = side_of({DATABASE.key: DATABASE}, {}, THEIRS, MINE, NAMES)

    assert (side.holds, side.words) == ((), ())


def test_a_policy_that_allows_nothing_and_pods_that_nobody_has_told_of_are_said() -> None:
    closed = policy("closed", {}, policyTypes=["Ingress", "Egress"])

    side = side_of({closed.key: closed}, {}, MINE, THEIRS, NAMES)
    alone = side_of({closed.key: closed}, {}, MINE, (), NAMES)

    assert [each.words for each in side.holds] == [
        "lets in, from pods of digger-1, nothing",
        "lets out, to pods of digger-1, nothing",
    ]
    assert all("none of 9 pairs" in each for each in side.words)
    assert {each.words for each in alone.holds} == {"no pod of digger-1 is known here"}


def test_a_port_that_only_some_pods_have_a_name_for_is_let_out_to_those() -> None:
    named = policy(
        "named",
        {},
        policyTypes=["Egress"],
        egress=[{"ports": [{"protocol": "TCP", "port": "http"}]}],
    )
    serving = replace(THEIRS[0], ports={NamedPort("tcp", "http"): 8080})

    side = side_of({named.key: named}, {}, MINE[:1], [serving, THEIRS[1]], NAMES)

    assert [each.words for each in side.holds if each.direction == "egress"] == [
        "lets out, to pods of digger-1, tcp http for 1 of 2"
    ]
    assert "1 of 2 pairs" in side.words[-1]


def test_a_policy_in_words() -> None:
    assert policy_words(DATABASE) == (
        "selects pods app=db of namespace shop; lets in tcp 5432 from pods app=api"
    )
    assert policy_words(policy("closed", {}, policyTypes=["Egress"])).endswith("lets out nothing")


class Asked(IPv4Address):
    """Counts how often somebody looks for an address."""

    times = 0

    def __hash__(self) -> int:
        Asked.times += 1
        return super().__hash__()


def test_of_many_rules_each_is_asked_once_whatever_pods_are_selected() -> None:
    """Who asks is answered on the event loop, and a tenant may have thousands of rules."""
    mine = [pod(number, "db") for number in range(1, 101)]
    theirs = [replace(pod(200, "web"), addresses=(Asked("10.244.9.1"),))]
    blocks = [{"to": [{"ipBlock": {"cidr": f"10.{n}.0.0/16"}}]} for n in range(1, 201)]
    many = policy("many", {}, policyTypes=["Egress"], egress=blocks)
    others = {
        each.key: each for each in (policy(f"other-{n}", {"app": "db"}) for n in range(1_000))
    }
    Asked.times = 0

    side = side_of({many.key: many, **others}, {}, mine, theirs, NAMES)

    assert len(side.holds) == MOST_POLICIES
    assert side.words[-1].endswith(
        "none of 100 pairs to pods of digger-1 may connect, at some port"
    )
    assert Asked.times < 4 * (len(blocks) + MOST_POLICIES)


@settings(max_examples=examples(60), deadline=None)
@given(cases(), st.integers(0, 4))
def test_who_may_connect_is_who_is_let_at_one_of_the_ports(case: Case, cut: int) -> None:
    """By the verdicts on single connections, at all ports that policies of the case name."""
    world = case.world()
    pods = [case.pod(number) for number in range(len(case.pods))]
    mine, theirs = pods[:cut], pods[cut:]

    side = side_of(world.policies, world.namespaces, mine, theirs, NAMES)

    for direction in DIRECTIONS:
        isolated = [
            each
            for each in mine
            if any(
                direction in policy.directions and policy.may_select(each)
                for policy in world.policies.values()
            )
        ]
        count = 0
        for each in isolated:
            for other in theirs:
                both = list(zip(each.addresses, other.addresses, strict=True))
                verdicts = [
                    judge(world, Flow(*ends, protocol, port))[direction == "ingress"]
                    for here, there in both
                    for ends in [(here, there) if direction == "egress" else (there, here)]
                    for protocol in ("tcp", "udp", "sctp")
                    for port in (*PORTS, 1, 65535)
                ]
                count += any(verdict.allowed for verdict in verdicts)
        said = next((each for each in side.words if f"({direction})" in each), "")
        assert bool(said) is bool(isolated)
        if isolated and theirs:
            pairs = len(isolated) * len(theirs)
            meant = "all" if count == pairs else str(count) if count else "none"
            assert f": {meant} of {pairs} pairs" in said
