"""Several policies at once."""

from __future__ import annotations

from tests.datapath.policy.conformance.asks import Ask
from tests.datapath.policy.conformance.words import (
    ALL,
    TO_X_A,
    at,
    egress,
    ingress,
    ns,
    of,
    pod,
    policy,
    row,
    rule,
)

ROWS = (
    # Several policies
    row(
        "policies of one pod add up",
        ingress(pod("a"), rule(of(pod("b")))),
        ingress(ALL, rule(of(namespaces=ns("z"))), name="more"),
        shut=("* > x",),
        but=("z > x", "x/b > x/a"),
    ),
    row(
        "rules of one policy add up",
        ingress(pod("a"), rule(of(pod("b")), ports=(at(80),)), rule(of(pod("c")), ports=(at(81),))),
        asks=(
            Ask(shut=TO_X_A, but=("x/b > x/a",)),
            Ask(shut=TO_X_A, but=("x/c > x/a",), port=81),
        ),
    ),
    row(
        "what one allows all, no other one closes",
        ingress(pod("a"), rule(of(pod("b")))),
        ingress(pod("a"), {}, name="open"),
    ),
    row(
        "what one allows all, no other one closes, of egress",
        egress(pod("a"), rule(of(pod("b")))),
        egress(pod("a"), {}, name="open"),
    ),
    row(
        "ingress and egress of one policy",
        policy(
            {
                "podSelector": pod("a"),
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [of(pod("b"))]}],
                "egress": [{"to": [of(pod("c"), ns("y"))], "ports": [at(80)]}],
            }
        ),
        asks=(
            Ask(shut=("* > x/a", "x/a > *"), but=("x/b > x/a", "x/a > y/c")),
            Ask(shut=("* > x/a", "x/a > *"), but=("x/b > x/a",), port=81),
        ),
    ),
    row(
        "what the client may not send, the server's policy does not open",
        egress(pod("a"), at_ns="y"),
        ingress(pod("a"), rule(of(namespaces=ns("y")))),
        shut=("y/a > *", "!y > x/a"),
    ),
    row(
        "both ends have to allow it",
        egress(ALL, rule(of(pod("a"), ns("x"))), at_ns="y"),
        ingress(ALL, rule(of(pod("b"), ns("y")))),
        shut=("y > *", "* > x"),
        but=("y/b > x/a",),
    ),
    row(
        "a policy of another namespace with the same name",
        ingress(pod("a"), at_ns="x"),
        ingress(pod("a"), rule(of(ALL)), at_ns="y"),
        shut=("* > x/a", "!y > y/a"),
    ),
    row(
        "answers to what an isolated pod begins",
        ingress(ALL),
        shut=("* > x",),
        sources=("x/a", "y/a", "z/a"),
    ),
)
