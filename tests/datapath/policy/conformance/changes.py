"""What changes while connections are made."""

from __future__ import annotations

from tests.beds.policies.policy_matrix import Situation
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
    rows,
    rule,
)

ROWS = (
    # What changes
    rows(
        "a policy comes, is changed, and goes",
        (Situation(), Ask()),
        (Situation((ingress(pod("a")),)), Ask(shut=TO_X_A)),
        (Situation((ingress(pod("a"), FROM_X_B),)), Ask(shut=TO_X_A, but=("x/b > x/a",))),
        (Situation((ingress(pod("b")),)), Ask(shut=("* > x/b",))),
        (Situation(), Ask()),
    ),
    rows(
        "allow all becomes deny all, and is opened again",
        (Situation((ingress(ALL, {}),)), Ask()),
        (Situation((ingress(ALL),)), Ask(shut=("* > x",))),
        (Situation((ingress(ALL, {}),)), Ask()),
    ),
    rows(
        "a pod gets a label and loses it",
        (Situation((ingress(pod("a"), rule(of(pod("guest"), ALL))),)), Ask(shut=TO_X_A)),
        (
            Situation(
                (ingress(pod("a"), rule(of(pod("guest"), ALL))),), pods={"y/b": {"pod": "guest"}}
            ),
            Ask(shut=TO_X_A, but=("y/b > x/a",)),
        ),
        (Situation((ingress(pod("a"), rule(of(pod("guest"), ALL))),)), Ask(shut=TO_X_A)),
    ),
    rows(
        "a pod is selected by a label that it gets",
        (Situation((ingress(pod("target")),)), Ask()),
        (
            Situation((ingress(pod("target")),), pods={"x/b": {"pod": "target"}}),
            Ask(shut=("* > x/b",)),
        ),
        (Situation((ingress(pod("target")),)), Ask()),
    ),
    rows(
        "a namespace gets a label and loses it",
        (Situation((ingress(pod("a"), rule(of(namespaces=ns("guest")))),)), Ask(shut=TO_X_A)),
        (
            Situation(
                (ingress(pod("a"), rule(of(namespaces=ns("guest")))),),
                namespaces={"y": {"ns": "guest"}},
            ),
            Ask(shut=TO_X_A, but=("y > x/a",)),
        ),
        (Situation((ingress(pod("a"), rule(of(namespaces=ns("guest")))),)), Ask(shut=TO_X_A)),
    ),
    rows(
        "a namespace without labels",
        (
            Situation(
                (ingress(pod("a"), rule(of(namespaces=but("ns", "x", "z")))),),
                namespaces={"y": {}},
            ),
            Ask(shut=TO_X_A, but=("y > x/a",)),
        ),
    ),
    rows(
        "a pod that has gone is no peer any more",
        (
            Situation((ingress(pod("a"), rule(of(pod("b"), ALL))),)),
            Ask(shut=TO_X_A, but=("x/b,y/b,z/b > x/a",)),
        ),
        (
            Situation((ingress(pod("a"), rule(of(pod("b"), ALL))),), gone=("y/b",)),
            Ask(shut=TO_X_A, but=("x/b,z/b > x/a",)),
        ),
        (
            Situation((ingress(pod("a"), rule(of(pod("b"), ALL))),)),
            Ask(shut=TO_X_A, but=("x/b,y/b,z/b > x/a",)),
        ),
    ),
    rows(
        "policies come one by one, and go in another order",
        (Situation((ingress(ALL),)), Ask(shut=("* > x",))),
        (Situation((ingress(ALL), egress(ALL))), Ask(shut=("* > x", "x > *"))),
        (
            Situation((ingress(ALL), egress(ALL), ingress(ALL, {}, name="open"))),
            Ask(shut=("x > *",)),
        ),
        (Situation((egress(ALL), ingress(ALL, {}, name="open"))), Ask(shut=("x > *",))),
        (Situation((egress(ALL),)), Ask(shut=("x > *",))),
        (Situation(), Ask()),
    ),
)
