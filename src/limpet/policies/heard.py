"""What an API server has told of policies: changed one by one, kept as text, seen as a world."""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from limpet.base.records.version import VERSION, check_version
from limpet.policies.labels import Labels, Selector
from limpet.policies.parse import API_VERSION, PolicyError, parse_labels, parse_policy
from limpet.policies.policy import Direction, Key, NamedPort, Policy, PolicyPod, PolicyWorld

Document = Mapping[str, Any]
_BOTH: frozenset[Direction] = frozenset(("ingress", "egress"))


class ReadPolicies:
    """`problems` says, by policy, what of them means nothing here."""

    def __init__(self) -> None:
        self.policies: dict[Key, Policy] = {}
        self.namespaces: dict[str, Labels] = {}
        self.pods: dict[Key, PolicyPod] = {}
        self.problems: dict[Key, str] = {}
        self.is_whole = False
        """All was told once; until then nobody knows what a pod may do, and it may do nothing."""
        self._documents: dict[Key, Document] = {}

    def put_policy(self, key: Key, document: Document) -> None:
        """One that cannot be understood allows what it allowed before, or else nothing at all."""
        self._documents[key] = document
        try:
            self.policies[key] = parse_policy(document)
            self.problems.pop(key, None)
        except PolicyError as error:
            self.problems[key] = f"NetworkPolicy {key}: {error} (what it could allow is closed)"
            if key not in self.policies:
                self.policies[key] = _closed(key, document)

    def put_unread(self, key: Key, cause: str) -> None:
        """One of which nothing but the name can be read goes on as it was; one that nobody knew
        closes its namespace, since nobody knows what it would close."""
        becomes = "it goes on as it was"
        if key not in self._documents:
            becomes = f"all pods of {key.namespace} are closed"
            self.put_policy(key, {"metadata": {"namespace": key.namespace, "name": key.name}})
        self.problems[key] = f"NetworkPolicy {key}: it cannot be read: {cause} ({becomes})"

    def drop_policy(self, key: Key) -> None:
        for held in (self.policies, self.problems, self._documents):
            held.pop(key, None)

    def world(self, local: Mapping[Key, PolicyPod]) -> PolicyWorld:
        """`local`: pods of this node, by what the node knows of them; it knows their addresses."""
        policies: Mapping[Key, Policy] = self.policies
        if not self.is_whole:
            doubts = {Key(key.namespace, "not-heard-yet") for key in local}
            policies = {each: Policy(each, Selector(), _BOTH) for each in doubts}
        return PolicyWorld(policies, self.namespaces, {**self.pods, **self._joined(local)})

    def _joined(self, local: Mapping[Key, PolicyPod]) -> dict[Key, PolicyPod]:
        found = {}
        for key, pod in local.items():
            told = self.pods.get(key)
            labels, ports = (None, {}) if told is None else (told.labels, told.ports)
            found[key] = PolicyPod(key, pod.addresses, labels, ports)
        return found

    def encode(self) -> bytes:
        """One object a line: there may be thousands of pods."""
        lines: list[dict[str, Any]] = [{"policy": each} for each in self._documents.values()]
        lines += [{"namespace": name, "labels": each} for name, each in self.namespaces.items()]
        lines += [_pod_line(pod) for pod in self.pods.values()]
        return b"".join(json.dumps(line).encode() + b"\n" for line in (*lines, _end(len(lines))))


def _end(count: int) -> dict[str, int]:
    """The last line: a file without it was cut."""
    return {"end": count, "version": VERSION}


def decode_heard(text: bytes) -> ReadPolicies:
    """Raises: NewerFormatError; ValueError for what `encode` would not write."""
    heard = ReadPolicies()
    try:
        *lines, end = text.splitlines() or [b""]
        if not end.startswith(b'{"end"'):
            raise ValueError("it is cut off")
        check_version(end)
        if json.loads(end) != _end(len(lines)):
            raise ValueError("it is cut off")
        for line in map(json.loads, lines):
            if "policy" in line:
                document = line["policy"]
                metadata = document["metadata"]
                heard.put_policy(Key(metadata["namespace"], metadata["name"]), document)
            elif "namespace" in line:
                heard.namespaces[line["namespace"]] = parse_labels(line["labels"])
            else:
                pod = _pod(line)
                heard.pods[pod.key] = pod
    except (KeyError, TypeError, AttributeError, PolicyError, RecursionError) as error:
        raise ValueError(f"not what was kept: {error!r}") from error
    heard.is_whole = True
    return heard


def _closed(key: Key, document: Document) -> Policy:
    """All that it could isolate is."""
    try:
        pods = parse_policy(
            {
                "apiVersion": API_VERSION,
                "kind": "NetworkPolicy",
                "metadata": {"namespace": key.namespace, "name": key.name},
                "spec": {"podSelector": document["spec"]["podSelector"]},
            }
        ).pods
    except (PolicyError, KeyError, TypeError):
        pods = Selector()
    return Policy(key, pods, _BOTH)


def _pod_line(pod: PolicyPod) -> dict[str, Any]:
    return {
        "pod": list(pod.key),
        "addresses": [str(each) for each in pod.addresses],
        "labels": dict(pod.labels or {}),
        "ports": [[each.protocol, each.name, port] for each, port in pod.ports.items()],
        "host": pod.host_network,
    }


def _pod(line: Mapping[str, Any]) -> PolicyPod:
    namespace, name = line["pod"]
    return PolicyPod(
        Key(namespace, name),
        tuple(ip_address(each) for each in line["addresses"]),
        line["labels"],
        {NamedPort(protocol, port): number for protocol, port, number in line["ports"]},
        line["host"],
    )
