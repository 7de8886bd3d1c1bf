"""Peers that are addresses, and nodes."""

from __future__ import annotations

from tests.beds.policies.policy_matrix import NODES
from tests.datapath.policy.conformance.asks import Ask
from tests.datapath.policy.conformance.words import (
    ALL,
    LINK_OF_B,
    NODE_A,
    NODE_B,
    NOT_Z_B,
    TO_X_A,
    X_A,
    Y_B,
    Z_B,
    block,
    egress,
    ingress,
    of,
    pod,
    row,
    rule,
)

ROWS = (
    # Addresses
    row(
        "a block of addresses",
        ingress(pod("a"), rule(*NODE_B)),
        shut=TO_X_A,
        but=("x/b,y/a,y/c,z/b > x/a",),
    ),
    row(
        "a block with an exception",
        ingress(pod("a"), rule(*NOT_Z_B)),
        shut=TO_X_A,
        but=("x/b,y/a,y/c > x/a",),
    ),
    row(
        "an exception that another block names",
        ingress(pod("a"), rule(*NOT_Z_B, *Z_B)),
        shut=TO_X_A,
        but=("x/b,y/a,y/c,z/b > x/a",),
    ),
    row(
        "an exception that another policy names",
        ingress(pod("a"), rule(*NOT_Z_B)),
        ingress(pod("a"), rule(*Z_B), name="more"),
        shut=TO_X_A,
        but=("x/b,y/a,y/c,z/b > x/a",),
    ),
    row(
        "everything but a block",
        ingress(
            pod("a"),
            rule(
                block("0.0.0.0/0", NODES["A"][0]),
                block("::/0", NODES["A"][1]),
            ),
        ),
        shut=("x/c,y/b,z/a,z/c > x/a",),
    ),
    row(
        "a block beside pods",
        ingress(pod("a"), rule(*Y_B, of(pod("c")))),
        shut=TO_X_A,
        but=("y/b,x/c > x/a",),
    ),
    row(
        "egress to a block",
        egress(pod("b"), rule(*NODE_A)),
        shut=("x/b > *",),
        but=("x/b > x/a,x/c,y/b,z/a,z/c",),
    ),
    row(
        "egress to a block with an exception",
        egress(pod("a"), rule(*NOT_Z_B)),
        shut=("x/a > *",),
        but=("x/a > x/b,y/a,y/c",),
    ),
    row(
        "egress to one address",
        egress(pod("c"), rule(*X_A)),
        shut=("x/c > *",),
        but=("x/c > x/a",),
    ),
    # Nodes
    row(
        "a node reaches its own pods, and no others",
        ingress(ALL),
        shut=("A > x/b", "B > x/a,x/c"),
        sources=("A", "B"),
    ),
    row(
        "a node by its address",
        ingress(pod("a"), rule(*LINK_OF_B)),
        asks=(Ask(shut=TO_X_A), Ask(sources=("A", "B"))),
    ),
)
