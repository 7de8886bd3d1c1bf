"""Pods with the network of a node: for policies they are the node, and no pods.

The specification leaves two ways: to tell what they send and get from what else their node does, or
to pass them over where selectors choose pods, and to treat them as the node's address. It is the
second here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.beds.policies.policy_matrix import Situation
from tests.datapath.policy.conformance.asks import Ask, Row
from tests.datapath.policy.conformance.words import (
    ALL,
    LINK_OF_A,
    LINK_OF_B,
    TO_X_A,
    at,
    egress,
    ingress,
    of,
    pod,
    rows,
    rule,
)

HOSTS = {"x/host-a": "A", "x/host-b": "B"}
HOST = pod("host-a", "host-b")
NODES = ("A", "B")
SENDERS = ("x/a", "x/b")
"""One of each node: others of the same one have the same address for another node."""


def row(name: str, *policies: Mapping[str, Any], asks: tuple[Ask, ...]) -> Row:
    return rows(name, *((Situation(policies, hosts=HOSTS), ask) for ask in asks))


def of_nodes(*shut: str, but: tuple[str, ...] = (), port: int = 80) -> Ask:
    return Ask(shut, but, port=port, sources=NODES)


def to_nodes(*shut: str, but: tuple[str, ...] = (), port: int = 80) -> Ask:
    return Ask(shut, but, port=port, sources=SENDERS, targets=NODES)


ROWS = (
    row(
        "a policy that selects pods with the node's network closes neither them nor their nodes",
        ingress(HOST),
        egress(HOST),
        asks=(to_nodes(), of_nodes(), Ask(sources=NODES, targets=NODES), Ask()),
    ),
    row(
        "a policy for a whole namespace is not for its pods with the node's network",
        ingress(ALL),
        egress(ALL),
        asks=(
            # Each of the two is let out to its own node alone, and its own node in to it.
            to_nodes("x/a > B", "x/b > A"),
            of_nodes("A > x/b", "B > x/a,x/c"),
            Ask(sources=NODES, targets=NODES),
        ),
    ),
    row(
        "a selector that fits a pod with the node's network does not let the node in",
        ingress(pod("a"), rule(of(HOST))),
        asks=(of_nodes("B > x/a"), Ask(shut=TO_X_A)),
    ),
    row(
        "nor does one for a whole namespace, or for all of them",
        ingress(pod("a"), rule(of(ALL)), rule(of(ALL, ALL))),
        asks=(of_nodes("B > x/a"), Ask()),
    ),
    row(
        "nor out to it",
        egress(ALL, rule(of(HOST)), rule(of(ALL, ALL))),
        asks=(to_nodes("x/a > B", "x/b > A"), Ask()),
    ),
    row(
        "a name of a port of theirs is nobody's",
        egress(ALL, rule(ports=(at("serve-80"),))),
        asks=(to_nodes("x/a > B", "x/b > A"), Ask()),
    ),
    row(
        "a node is named by its address, with all that it runs",
        ingress(pod("a"), rule(*LINK_OF_B, ports=(at(80),))),
        egress(pod("b"), rule(*LINK_OF_A, ports=(at(80),))),
        asks=(
            of_nodes(),
            of_nodes("B > x/a", port=81),
            to_nodes(),
            to_nodes("x/b > A", port=81),
        ),
    ),
)
