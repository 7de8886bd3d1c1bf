"""Whom policies are about, and whom they let in: pods, chosen by labels."""

from __future__ import annotations

from tests.datapath.policy.conformance.asks import Ask
from tests.datapath.policy.conformance.words import (
    ALL,
    FROM_X_B,
    TO_X_A,
    but,
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
    row("no policy"),
    # Nothing, and everything
    row("default deny of ingress", ingress(ALL), shut=("* > x",)),
    row("default deny of egress", egress(ALL), shut=("x > *",)),
    row(
        "default deny of both",
        policy({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        shut=("* > x", "x > *"),
    ),
    row(
        "default deny in every namespace",
        *(policy({"podSelector": {}}, space) for space in "xyz"),
        shut=("* > *",),
    ),
    row("allow all of ingress", ingress(ALL, {})),
    row("allow all of egress", egress(ALL, {})),
    row("deny and allow all of ingress", ingress(ALL), ingress(ALL, {}, name="open")),
    row("deny and allow all of egress", egress(ALL), egress(ALL, {}, name="open")),
    row("a policy that selects nobody", ingress(pod("nobody"))),
    row("a policy in a namespace without pods", ingress(ALL, at_ns="elsewhere")),
    row(
        "without types: ingress, since there is no rule of egress",
        policy({"podSelector": {}}),
        shut=("* > x",),
    ),
    row(
        "without types: both, since there is a rule of egress",
        policy({"podSelector": {}, "egress": [{}]}),
        shut=("* > x",),
    ),
    row(
        "types of egress only: rules of ingress mean nothing",
        policy({"podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}]}),
        shut=("x > *",),
    ),
    # Whom it is about
    row("one pod", ingress(pod("a")), shut=TO_X_A),
    row("pods by an expression", ingress(pod("a", "b")), shut=("* > x/a,x/b",)),
    row("all pods but one", ingress(but("pod", "a")), shut=("* > x/b,x/c",)),
    row(
        "pods that have a label",
        ingress({"matchExpressions": [{"key": "pod", "operator": "Exists"}]}),
        shut=("* > x",),
    ),
    row(
        "pods that have not got a label",
        ingress({"matchExpressions": [{"key": "pod", "operator": "DoesNotExist"}]}),
    ),
    row(
        "labels and expressions together",
        ingress({**pod("a"), **but("pod", "b")}),
        shut=TO_X_A,
    ),
    row("egress of one pod", egress(pod("a")), shut=("x/a > *",)),
    # Whom it may send to
    row(
        "egress to one pod of another namespace",
        egress(pod("a"), rule(of(pod("b"), ns("y")))),
        shut=("x/a > *",),
        but=("x/a > y/b",),
    ),
    row(
        "egress to all namespaces but one, by its name",
        egress(pod("a"), rule(of(namespaces=but("kubernetes.io/metadata.name", "z")))),
        shut=("x/a > z",),
    ),
    # Who it lets in
    row(
        "pods of the namespace by label",
        ingress(pod("a"), FROM_X_B),
        shut=TO_X_A,
        but=("x/b > x/a",),
    ),
    row(
        "all pods of the namespace",
        ingress(pod("a"), rule(of(ALL))),
        shut=TO_X_A,
        but=("x > x/a",),
    ),
    row("all namespaces", ingress(pod("a"), rule(of(namespaces=ALL)))),
    row(
        "all namespaces, but hosts are none",
        ingress(ALL, rule(of(namespaces=ALL))),
        asks=(Ask(), Ask(shut=("A > x/b", "B > x/a,x/c"), sources=("A", "B"))),
    ),
    row(
        "a namespace by label",
        ingress(pod("a"), rule(of(namespaces=ns("y")))),
        shut=TO_X_A,
        but=("y > x/a",),
    ),
    row(
        "a namespace by its name",
        ingress(
            pod("a"),
            rule(of(namespaces={"matchLabels": {"kubernetes.io/metadata.name": "z"}})),
        ),
        shut=TO_X_A,
        but=("z > x/a",),
    ),
    row(
        "namespaces by an expression",
        ingress(pod("a"), rule(of(namespaces=but("ns", "x")))),
        shut=TO_X_A,
        but=("y,z > x/a",),
    ),
    row(
        "other namespaces are shut out",
        ingress(ALL, rule(of(ALL))),
        shut=("!x > x",),
    ),
    row(
        "pods by an expression, of the namespace",
        ingress(pod("a"), rule(of(pod("b", "c")))),
        shut=TO_X_A,
        but=("x/b,x/c > x/a",),
    ),
    row(
        "pods or namespaces",
        ingress(pod("a"), rule(of(pod("b")), of(namespaces=ns("y")))),
        shut=TO_X_A,
        but=("x/b,y > x/a",),
    ),
    row(
        "pods and namespaces",
        ingress(pod("a"), rule(of(pod("b"), ns("y", "z")))),
        shut=TO_X_A,
        but=("y/b,z/b > x/a",),
    ),
    row(
        "several of each",
        ingress(
            pod("a"),
            rule(of(pod("b"), but("ns", "x")), of(pod("c"), ns("x"))),
        ),
        shut=TO_X_A,
        but=("y/b,z/b,x/c > x/a",),
    ),
    row(
        "one pod of another namespace",
        ingress(pod("a"), rule(of(pod("c"), ns("z")))),
        shut=TO_X_A,
        but=("z/c > x/a",),
    ),
    row(
        "a selector of pods that is empty beside one of namespaces",
        ingress(pod("a"), rule(of(ALL, ns("y")))),
        shut=TO_X_A,
        but=("y > x/a",),
    ),
    row("peers that nobody is", ingress(pod("a"), rule(of(pod("nobody")))), shut=TO_X_A),
)
