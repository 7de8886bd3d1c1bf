"""Ports by names that stand for another number at each pod, or for none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpet.policies.policy import NamedPort
from tests.beds.policies.policy_matrix import Ports, Situation
from tests.datapath.policy.conformance.asks import Ask, Row
from tests.datapath.policy.conformance.words import (
    ALL,
    at,
    egress,
    ingress,
    ns,
    of,
    pod,
    rows,
    rule,
)


def http(tcp: int, udp: int) -> Ports:
    """The name is one of TCP and one of UDP: what it stands for differs."""
    return {NamedPort("tcp", "http"): tcp, NamedPort("udp", "http"): udp}


NAMES: Mapping[str, Ports] = {
    "x/a": http(80, 81),
    "x/b": http(81, 80),
    "x/c": {NamedPort("tcp", "other"): 80},
    "y/a": http(80, 81),
    "y/b": http(81, 80),
    "z/c": {NamedPort("udp", "http"): 80},
} | {each: {} for each in ("y/c", "z/a", "z/b")}
"""x/a and y/b are on one node, x/b and y/a on the other."""
MOVED: Mapping[str, Ports] = {**NAMES, "x/a": http(82, 82), "y/a": {}, "y/b": http(80, 80)}
BOTH = (at("http"), at("http", "UDP"))


def row(name: str, *policies: Mapping[str, Any], asks: tuple[Ask, ...], ports: Any = NAMES) -> Row:
    return rows(name, *((Situation(policies, ports=ports), ask) for ask in asks))


def only(*targets: str, port: int = 80, protocol: Any = "TCP") -> Ask:
    """Of the namespace x, these are reached at that port, and no others; all others always are."""
    shut, but = ("* > x",), tuple(f"* > {each}" for each in targets)
    return Ask(shut=shut, but=but, port=port, protocol=protocol)


def sends(*targets: str, port: int = 80, protocol: Any = "TCP") -> Ask:
    """x/a sends to these at that port, and to no others; others to all."""
    shut, but = ("x/a > *",), tuple(f"x/a > {each}" for each in targets)
    return Ask(shut=shut, but=but, port=port, protocol=protocol)


INGRESS = ingress(ALL, rule(ports=BOTH))
EGRESS = egress(pod("a"), rule(ports=BOTH))

ROWS = (
    row(
        "a name that is another number at each pod, into them",
        INGRESS,
        asks=(
            only("x/a"),
            only("x/b", port=81),
            only(port=82),
            only("x/b", protocol="UDP"),
            only("x/a", port=81, protocol="UDP"),
        ),
    ),
    row(
        "a name of TCP alone, into pods that have it of UDP too",
        ingress(ALL, rule(ports=(at("http"),))),
        asks=(
            only("x/a"),
            only("x/b", port=81),
            only(protocol="UDP"),
            only(port=81, protocol="UDP"),
        ),
    ),
    row(
        "a name for some, into pods where it is another number each",
        ingress(ALL, rule(of(pod("b"), ns("y")), ports=BOTH)),
        asks=(
            Ask(shut=("* > x",), but=("y/b > x/a",)),
            Ask(shut=("* > x",), but=("y/b > x/b",), port=81),
            Ask(shut=("* > x",), but=("y/b > x/a",), port=81, protocol="UDP"),
        ),
    ),
    row(
        "a name that is another number at each pod, out to them: its own does not count",
        EGRESS,
        asks=(
            sends("y/a"),
            sends("x/b", "y/b", port=81),
            sends("x/b", "y/b", "z/c", protocol="UDP"),
            sends("y/a", port=81, protocol="UDP"),
            sends(port=82),
        ),
    ),
    row(
        "a name out to some of the pods that have it",
        egress(pod("a"), rule(of(namespaces=ns("y")), ports=BOTH)),
        asks=(
            sends("y/a"),
            sends("y/b", port=81),
            sends("y/b", protocol="UDP"),
            sends("y/a", port=81, protocol="UDP"),
        ),
    ),
    row(
        "a name and a number, out to pods",
        egress(pod("a"), rule(of(namespaces=ns("y", "z")), ports=(at("http"), at(82)))),
        asks=(
            sends("y/a"),
            sends("y/b", port=81),
            sends("y/a", "y/b", "y/c", "z/a", "z/b", "z/c", port=82),
            sends(protocol="UDP"),
        ),
    ),
    rows(
        "a name that becomes another number at pods that receive",
        (Situation((INGRESS,), ports=NAMES), only("x/a")),
        (Situation((INGRESS,), ports=MOVED), only()),
        (Situation((INGRESS,), ports=MOVED), only("x/a", port=82)),
    ),
    rows(
        "a name that comes and goes at pods that are sent to",
        (Situation((EGRESS,), ports=NAMES), sends("y/a")),
        (Situation((EGRESS,), ports=MOVED), sends("y/b")),
        (Situation((EGRESS,), ports=MOVED), sends("x/b", port=81)),
        (Situation((EGRESS,), ports=NAMES), sends("y/a")),
    ),
)
