"""The table of test_conformance: what the suites that network policies are commonly held to ask
about (the Kubernetes project's own end-to-end cases, and those of generators of policies), in our
own words and with outcomes written down by hand.

Three namespaces x, y, z with pods a, b, c each; labels `ns` and `pod` say which. A row is a list of
moments: what is in force, and what passes then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from tests.beds.policy_bed import Protocol
from tests.beds.policy_matrix import LINK, NODES, PODS, Situation, address_of

Spec = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """What is tried: everything passes but what `shut` names, and of this what `but` names does.

    They say `SOURCE > TARGET`: each is `*`, a namespace, a pod, or several of these with commas
    between them; `!` before it means all others.
    """

    shut: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    protocol: Protocol = "TCP"
    port: int = 80
    sources: tuple[str, ...] = tuple(PODS)

    def is_open(self, source: str, target: str) -> bool:
        shut = any(_is_meant(each, source, target) for each in self.shut)
        return not shut or any(_is_meant(each, source, target) for each in self.but)


def _is_meant(text: str, source: str, target: str) -> bool:
    one, _, other = text.partition(" > ")
    return _is_among(one, source) and _is_among(other, target)


def _is_among(words: str, name: str) -> bool:
    if words.startswith("!"):
        return not _is_among(words[1:], name)
    return words == "*" or any(word in (name, name.partition("/")[0]) for word in words.split(","))


@dataclass(frozen=True)
class Moment:
    now: Situation
    asks: tuple[Ask, ...]


@dataclass(frozen=True)
class Row:
    name: str
    moments: tuple[Moment, ...]


# How policies are written here

ALL: Spec = {}


def pod(*names: str) -> Spec:
    return _by("pod", names)


def ns(*names: str) -> Spec:
    return _by("ns", names)


def _by(key: str, names: tuple[str, ...]) -> Spec:
    if len(names) == 1:
        return {"matchLabels": {key: names[0]}}
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [*names]}]}


def but(key: str, *names: str) -> Spec:
    return {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [*names]}]}


def of(pods: Spec | None = None, namespaces: Spec | None = None) -> Spec:
    found = {} if pods is None else {"podSelector": pods}
    return found if namespaces is None else {**found, "namespaceSelector": namespaces}


def block(cidr: str, *excepted: str) -> Spec:
    return {"ipBlock": {"cidr": cidr, **({"except": [*excepted]} if excepted else {})}}


def at(port: int | str | None = None, protocol: str = "TCP", end: int | None = None) -> Spec:
    found: Spec = {"protocol": protocol}
    if port is not None:
        found["port"] = port
    return found if end is None else {**found, "endPort": end}


def rule(*peers: Spec, ports: tuple[Spec, ...] = (), side: str = "from") -> Spec:
    found: Spec = {side: [*peers]} if peers else {}
    return {**found, "ports": [*ports]} if ports else found


def ingress(target: Spec, *rules: Spec, at_ns: str = "x", name: str = "in") -> Mapping[str, Any]:
    return policy(
        {"podSelector": target, "policyTypes": ["Ingress"], "ingress": [*rules]}, at_ns, name
    )


def egress(source: Spec, *rules: Spec, at_ns: str = "x", name: str = "out") -> Mapping[str, Any]:
    turned = [{("to" if key == "from" else key): each for key, each in r.items()} for r in rules]
    return policy({"podSelector": source, "policyTypes": ["Egress"], "egress": turned}, at_ns, name)


def policy(spec: Spec, at_ns: str = "x", name: str = "policy") -> Mapping[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": at_ns},
        "spec": spec,
    }


def row(name: str, *policies: Mapping[str, Any], asks: tuple[Ask, ...] = (), **ask: Any) -> Row:
    """Of one moment."""
    return Row(name, (Moment(Situation(policies), asks or (Ask(**ask),)),))


def rows(name: str, *moments: tuple[Situation, Ask]) -> Row:
    """One that goes on."""
    return Row(name, tuple(Moment(now, (ask,)) for now, ask in moments))


def block_of(name: str) -> tuple[Spec, ...]:
    """ipBlocks of one pod's addresses."""
    return tuple(block(str(ip_network(address_of(name, version)))) for version in (4, 6))


X_A = block_of("x/a")
Y_B = block_of("y/b")
Z_B = block_of("z/b")
NODE_A, NODE_B = (tuple(block(n) for n in NODES[name]) for name in ("A", "B"))
NOT_Z_B = (
    block(NODES["B"][0], "10.244.8.5/32"),
    block(NODES["B"][1], "fd00:8::5/128"),
)
LINK_OF_B = (block(f"{LINK['B'][0]}/32"), block(f"{LINK['B'][1]}/128"))

FROM_X_B = rule(of(pod("b")))
TO_X_A = ("* > x/a",)

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
