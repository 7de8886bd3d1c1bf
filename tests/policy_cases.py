"""Random policies, pods and namespaces, as documents, for the properties and for real packets."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from hypothesis import strategies as st

from limpet.policies.parse import parse_policy
from limpet.policies.policy import Key, NamedPort, PolicyPod, PolicyWorld
from tests.policy_oracle import Flow, Someone

NAMESPACES = ("alpha", "beta")
KEYS = ("app", "tier")
VALUES = ("web", "db", "")
PORT_NAMES = ("http", "dns")
PORTS = (53, 80, 81, 443)
SEGMENTS = ("10.244.7.0/28", "fd00:7::/124")
OUTSIDE = ("192.0.2.2", "2001:db8::2")


@dataclass(frozen=True)
class Case:
    """A little world. Pod `n` has address `n + 2` of each segment."""

    policies: tuple[Any, ...]
    namespaces: dict[str, dict[str, str]]
    pods: tuple[Someone, ...]
    """Their `address` is the one of IPv4."""

    def world(self) -> PolicyWorld:
        parsed = [parse_policy(each) for each in self.policies]
        return PolicyWorld(
            {each.key: each for each in parsed},
            self.namespaces,
            {pod.key: pod for pod in map(self.pod, range(len(self.pods)))},
        )

    def pod(self, number: int) -> PolicyPod:
        someone = self.pods[number]
        return PolicyPod(
            Key(someone.namespace, f"p{number}"),
            tuple(ip_address(addresses_of(number)[version]) for version in (4, 6)),
            someone.labels,
            {NamedPort(protocol.lower(), name): port for name, protocol, port in someone.ports},  # type: ignore[arg-type]
        )

    def end(self, number: int, version: int) -> Someone:
        """A pod by its address of a version; -1: the host outside."""
        if number < 0:
            return Someone(OUTSIDE[0 if version == 4 else 1])
        pod = self.pods[number]
        return Someone(addresses_of(number)[version], pod.namespace, pod.labels, pod.ports)


def addresses_of(number: int) -> dict[int, str]:
    return {
        4: str(ip_network(SEGMENTS[0])[number + 2]),
        6: str(ip_network(SEGMENTS[1])[number + 2]),
    }


def world_of(pods: int, *specs: dict[str, Any]) -> PolicyWorld:
    """Pods p0, p1, … in namespace alpha, labelled with their names, and policies of these."""
    documents = tuple(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"policy-{number}", "namespace": "alpha"},
            "spec": spec,
        }
        for number, spec in enumerate(specs)
    )
    named = tuple(Someone("", "alpha", app(number)["matchLabels"]) for number in range(pods))
    return Case(documents, {}, named).world()


def app(number: int) -> dict[str, Any]:
    """A selector of that pod of `world_of`."""
    return {"matchLabels": {"app": f"p{number}"}}


labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=2)
expressions = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        st.sampled_from(KEYS),
        st.sampled_from(("In", "NotIn")),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        st.sampled_from(KEYS),
        st.sampled_from(("Exists", "DoesNotExist")),
    ),
)
selectors = st.fixed_dictionaries(
    {}, optional={"matchLabels": labels, "matchExpressions": st.lists(expressions, max_size=2)}
)
namespace_selectors = st.one_of(
    selectors,
    st.builds(
        lambda name: {"matchLabels": {"kubernetes.io/metadata.name": name}},
        st.sampled_from(NAMESPACES),
    ),
)


@st.composite
def ip_blocks(draw: st.DrawFn) -> Any:
    base = ip_network(draw(st.sampled_from((*SEGMENTS, "192.0.2.0/28", "0.0.0.0/0", "::/0"))))
    length = draw(st.integers(base.prefixlen, min(base.prefixlen + 4, base.max_prefixlen)))
    parts = 1 << (length - base.prefixlen)
    size = 1 << (base.max_prefixlen - length)
    first = int(base.network_address) + draw(st.integers(0, parts - 1)) * size
    prefix = ip_network((first, length))
    excepted = []
    for _ in range(draw(st.integers(0, 2))):
        inner = draw(st.integers(min(length + 1, prefix.max_prefixlen), prefix.max_prefixlen))
        step = 1 << (prefix.max_prefixlen - inner)
        count = min(16, 1 << (inner - length))
        excepted.append(str(ip_network((first + draw(st.integers(0, count - 1)) * step, inner))))
    return {"ipBlock": {"cidr": str(prefix), **({"except": excepted} if excepted else {})}}


peers = st.one_of(
    st.builds(lambda pods: {"podSelector": pods}, selectors),
    st.builds(lambda spaces: {"namespaceSelector": spaces}, namespace_selectors),
    st.builds(
        lambda pods, spaces: {"podSelector": pods, "namespaceSelector": spaces},
        selectors,
        namespace_selectors,
    ),
    ip_blocks(),
)
protocols = st.sampled_from(("TCP", "UDP", "SCTP"))


@st.composite
def ports(draw: st.DrawFn) -> Any:
    found: dict[str, Any] = {}
    if draw(st.booleans()):
        found["protocol"] = draw(protocols)
    match draw(st.integers(0, 3)):
        case 0:
            found["port"] = draw(st.sampled_from(PORTS))
        case 1:
            found["port"] = draw(st.sampled_from(PORTS))
            found["endPort"] = draw(st.integers(found["port"], 500))
        case 2:
            found["port"] = draw(st.sampled_from(PORT_NAMES))
    return found


def rules(side: str) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {}, optional={side: st.lists(peers, max_size=3), "ports": st.lists(ports(), max_size=3)}
    )


specs = st.fixed_dictionaries(
    {"podSelector": selectors},
    optional={
        "policyTypes": st.lists(st.sampled_from(("Ingress", "Egress")), unique=True, max_size=2),
        "ingress": st.lists(rules("from"), max_size=3),
        "egress": st.lists(rules("to"), max_size=3),
    },
)
pods = st.builds(
    Someone,
    st.just(""),
    st.sampled_from(NAMESPACES),
    labels,
    st.lists(
        st.tuples(st.sampled_from(PORT_NAMES), protocols, st.sampled_from(PORTS)),
        unique_by=lambda each: each[:2],
        max_size=2,
    ).map(tuple),
)


@st.composite
def cases(draw: st.DrawFn, most_pods: int = 5) -> Case:
    found = draw(st.lists(st.tuples(st.sampled_from(NAMESPACES), specs), min_size=1, max_size=4))
    documents = tuple(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"policy-{number}", "namespace": namespace},
            "spec": spec,
        }
        for number, (namespace, spec) in enumerate(found)
    )
    return Case(
        documents,
        draw(st.dictionaries(st.sampled_from(NAMESPACES), labels, max_size=2)),
        tuple(draw(st.lists(pods, min_size=2, max_size=most_pods))),
    )


@st.composite
def flows(draw: st.DrawFn, case: Case) -> tuple[int, int, Flow]:
    """Numbers of source and target, -1: outside; and the flow."""
    version = draw(st.sampled_from((4, 6)))
    source = draw(st.integers(-1, len(case.pods) - 1))
    target = draw(st.integers(0 if source < 0 else -1, len(case.pods) - 1))
    protocol = draw(st.sampled_from(("TCP", "UDP", "SCTP", "ICMP")))
    port = 0 if protocol == "ICMP" else draw(st.sampled_from((*PORTS, 82, 500, 501)))
    return (
        source,
        target,
        Flow(case.end(source, version), case.end(target, version), protocol, port),
    )
