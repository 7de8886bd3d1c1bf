"""Ports and protocols."""

from __future__ import annotations

from tests.datapath.policy.conformance.asks import Ask
from tests.datapath.policy.conformance.words import (
    ALL,
    FROM_X_B,
    TO_X_A,
    at,
    egress,
    ingress,
    ns,
    of,
    pod,
    row,
    rule,
)

ROWS = (
    # Ports
    row(
        "a port by number",
        ingress(pod("a"), rule(ports=(at(80),))),
        asks=(Ask(), Ask(shut=TO_X_A, port=81), Ask(shut=TO_X_A, protocol="UDP")),
    ),
    row(
        "another port",
        ingress(pod("a"), rule(ports=(at(81),))),
        asks=(Ask(shut=TO_X_A), Ask(port=81)),
    ),
    row(
        "a port for some",
        ingress(pod("a"), rule(of(namespaces=ns("y")), ports=(at(80),))),
        asks=(Ask(shut=TO_X_A, but=("y > x/a",)), Ask(shut=TO_X_A, port=81)),
    ),
    row(
        "a port by name",
        ingress(pod("a"), rule(ports=(at("serve-81"),))),
        asks=(Ask(shut=TO_X_A), Ask(port=81)),
    ),
    row(
        "a port by name for a namespace",
        ingress(pod("a"), rule(of(namespaces=ns("y")), ports=(at("serve-80"),))),
        asks=(Ask(shut=TO_X_A, but=("y > x/a",)), Ask(shut=TO_X_A, port=81)),
    ),
    row(
        "a name that no port has",
        ingress(pod("a"), rule(ports=(at("nothing"),))),
        shut=TO_X_A,
    ),
    row(
        "a name of another protocol",
        ingress(pod("a"), rule(ports=(at("ask-80"),))),
        asks=(Ask(shut=TO_X_A), Ask(shut=TO_X_A, protocol="UDP")),
    ),
    row(
        "a name and a number",
        ingress(pod("a"), rule(ports=(at("serve-80"), at(81)))),
        asks=(Ask(), Ask(port=81), Ask(shut=TO_X_A, port=82)),
    ),
    row(
        "egress to a port by name",
        egress(pod("a"), rule(ports=(at("serve-80"),))),
        asks=(Ask(), Ask(shut=("x/a > *",), port=81)),
    ),
    row(
        "egress to a port by name of some pods",
        egress(pod("a"), rule(of(pod("b"), ALL), ports=(at("serve-80"),))),
        asks=(
            Ask(shut=("x/a > *",), but=("x/a > x/b,y/b,z/b",)),
            Ask(shut=("x/a > *",), port=81),
        ),
    ),
    row(
        "a range of ports",
        ingress(pod("a"), rule(ports=(at(81, end=90),))),
        asks=(
            Ask(shut=TO_X_A),
            Ask(port=81),
            Ask(port=85),
            Ask(port=90),
            Ask(shut=TO_X_A, port=91),
            Ask(shut=TO_X_A, port=85, protocol="UDP"),
        ),
    ),
    row(
        "egress to a range of ports",
        egress(ALL, rule(of(pod("a"), ALL), ports=(at(80, end=80),))),
        asks=(Ask(shut=("x > !x/a,y/a,z/a",)), Ask(shut=("x > *",), port=81)),
    ),
    row(
        "ranges that overlap, of several policies",
        ingress(pod("a"), rule(of(pod("b")), ports=(at(80, end=85),))),
        ingress(pod("a"), rule(of(pod("c")), ports=(at(83, end=90),)), name="more"),
        asks=(
            Ask(shut=TO_X_A, but=("x/b > x/a",), port=82),
            Ask(shut=TO_X_A, but=("x/b,x/c > x/a",), port=84),
            Ask(shut=TO_X_A, but=("x/c > x/a",), port=86),
        ),
    ),
    row(
        "several ports and protocols in one rule",
        ingress(pod("a"), rule(of(pod("b")), ports=(at(80), at(81), at(80, "UDP")))),
        asks=(
            Ask(shut=TO_X_A, but=("x/b > x/a",)),
            Ask(shut=TO_X_A, but=("x/b > x/a",), port=81),
            Ask(shut=TO_X_A, but=("x/b > x/a",), protocol="UDP"),
            Ask(shut=TO_X_A, port=81, protocol="UDP"),
        ),
    ),
    # Protocols
    row(
        "UDP only",
        ingress(pod("a"), rule(ports=(at(80, "UDP"),))),
        asks=(Ask(protocol="UDP"), Ask(shut=TO_X_A), Ask(shut=TO_X_A, protocol="SCTP")),
    ),
    row(
        "SCTP only",
        ingress(pod("a"), rule(ports=(at(80, "SCTP"),))),
        asks=(Ask(protocol="SCTP"), Ask(shut=TO_X_A), Ask(shut=TO_X_A, protocol="UDP")),
    ),
    row(
        "SCTP by name",
        ingress(pod("a"), rule(ports=(at("call-80", "SCTP"),))),
        asks=(Ask(protocol="SCTP"), Ask(shut=TO_X_A)),
    ),
    row(
        "a protocol without a port is all its ports",
        ingress(pod("a"), rule(ports=(at(protocol="UDP"),))),
        asks=(Ask(protocol="UDP"), Ask(protocol="UDP", port=999), Ask(shut=TO_X_A)),
    ),
    row(
        "default deny is of every protocol",
        ingress(ALL),
        asks=tuple(Ask(shut=("* > x",), protocol=each) for each in ("TCP", "UDP", "SCTP", "ICMP")),
    ),
    row(
        "a rule without ports is for what has none, too",
        ingress(pod("a"), FROM_X_B),
        shut=TO_X_A,
        but=("x/b > x/a",),
        protocol="ICMP",
    ),
    row(
        "a rule with ports is not for what has none",
        ingress(pod("a"), rule(of(pod("b")), ports=(at(80),))),
        shut=TO_X_A,
        protocol="ICMP",
    ),
)
