"""What an API server has told of policies: changed one by one, kept as text, seen as a world."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import msgspec

from limpet.base.bounds.room import Room
from limpet.base.bounds.tenants import (
    POLICY_BYTES,
    POLICY_BYTES_OF_ONE,
    POLICY_NAMESPACES,
    POLICY_PARTS,
    POLICY_PARTS_OF_ITSELF,
    POLICY_PARTS_OF_ONE,
    POLICY_PODS,
    POLICY_PODS_OF_ONE,
)
from limpet.base.records.version import VERSION, check_version
from limpet.policies.labels import Labels, Selector
from limpet.policies.parse import API_VERSION, PolicyError, parse_labels, parse_policy
from limpet.policies.policy import Direction, Key, NamedPort, Policy, PolicyPod, PolicyWorld

Document = Mapping[str, Any]
KeptLine = dict[str, Any] | PolicyPod
_BOTH: frozenset[Direction] = frozenset(("ingress", "egress"))
_CROWDED = "*"
"""Name of what closes a whole namespace; no policy can have it."""
_AT_ONCE = 200
_SAID_BEFORE = "the namespace, or the cluster, had more policies than are kept"


class ReadPolicies:
    """`problems` says, by policy, what of them means nothing here."""

    def __init__(self) -> None:
        self.policies: dict[Key, Policy] = {}
        self.namespaces: dict[str, Labels] = {}
        self.pods: dict[Key, PolicyPod] = {}
        self.problems: dict[Key, str] = {}
        self.is_whole = False
        """All was told once; until then nobody knows what a pod may do, and it may do nothing."""
        self.passes_over_namespaces = False
        """There were more than are kept, or some that cannot be read: of those that are not here
        nobody knows the labels."""
        self._documents: dict[Key, Document] = {}
        self._size_bytes: dict[Key, int] = {}
        self._policy_room = Room(POLICY_BYTES, POLICY_BYTES_OF_ONE)
        self._part_room = Room(POLICY_PARTS, POLICY_PARTS_OF_ONE)
        self._pod_room = Room(POLICY_PODS, POLICY_PODS_OF_ONE)
        self._namespace_room = Room(POLICY_NAMESPACES)

    # Changing

    def put_policy(self, key: Key, document: Document) -> str:
        """One that cannot be understood goes on as it was, where it isolates no more than that, or
        else allows nothing. Returns why there is no room for it, in words: then pods of its
        namespace may do what others of its policies allow, and nothing else; empty: it is kept."""
        size_bytes = len(msgspec.json.encode(document))
        change = size_bytes - self._size_bytes.get(key, 0)
        if refusal := self._policy_room.refusal(key.namespace, change):
            self.refuse_policy(key, refusal)
            return refusal
        problem, before = "", self.policies.get(key)
        try:
            policy, problem = _bounded(parse_policy(document))
        except PolicyError as error:
            policy, problem = _not_understood(key, document, before), str(error)
        more = policy.parts - (0 if before is None else before.parts)
        if refusal := self._part_room.refusal(key.namespace, more):
            self.refuse_policy(key, refusal)
            return refusal
        self._policy_room.change(key.namespace, change)
        self._part_room.change(key.namespace, more)
        self._documents[key], self._size_bytes[key] = document, size_bytes
        self.policies[key] = policy
        if problem:
            becomes = (
                "it goes on as it was" if policy is before else "what it could allow is closed"
            )
            self.problems[key] = f"NetworkPolicy {key}: {problem} ({becomes})"
        else:
            self.problems.pop(key, None)
        return ""

    def put_unread(self, key: Key, cause: str) -> str:
        """One of which nothing but the name can be read goes on as it was; one that nobody knew
        closes its namespace, since nobody knows what it would close. Returns as `put_policy`."""
        becomes = "it goes on as it was"
        if key not in self._documents:
            becomes = f"all pods of {key.namespace} are closed"
            nothing = {"metadata": {"namespace": key.namespace, "name": key.name}}
            if refusal := self.put_policy(key, nothing):
                return refusal
        self.problems[key] = f"NetworkPolicy {key}: it cannot be read: {cause} ({becomes})"
        return ""

    def refuse_policy(self, key: Key, why: str) -> None:
        """There is no room for it: what it allowed it may not allow any more."""
        self.drop_policy(key)
        self.close_namespace(key.namespace, why)

    def close_namespace(self, namespace: str, why: str) -> None:
        """Some of its policies are not kept."""
        key = Key(namespace, _CROWDED)
        self._documents[key] = {"metadata": {"namespace": namespace, "name": _CROWDED}}
        self.policies[key] = Policy(key, Selector(), _BOTH)
        closed = f"all pods of {namespace} are closed but for what those that are kept allow"
        self.problems[key] = f"NetworkPolicy {key}: {why} ({closed})"

    @property
    def closed_namespaces(self) -> list[str]:
        """Those of which some policies are not kept."""
        return [key.namespace for key in self._documents if key.name == _CROWDED]

    @property
    def kept_policies(self) -> list[Key]:
        """Those that the server has told."""
        return [key for key in self._documents if key.name != _CROWDED]

    def open_namespace(self, namespace: str) -> None:
        """All its policies are kept."""
        self.drop_policy(Key(namespace, _CROWDED))

    def drop_policy(self, key: Key) -> None:
        if (policy := self.policies.get(key)) is not None:
            self._part_room.change(key.namespace, -policy.parts)
        for held in (self.policies, self.problems, self._documents):
            held.pop(key, None)
        self._policy_room.change(key.namespace, -self._size_bytes.pop(key, 0))

    def put_pod(self, pod: PolicyPod) -> str:
        """Why there is no room for it, in words: nobody knows it then; empty: it is kept."""
        self.drop_pod(pod.key)
        weight = _weight(pod)
        refusal = self._pod_room.refusal(pod.key.namespace, weight)
        if not refusal:
            self.pods[pod.key] = pod
            self._pod_room.change(pod.key.namespace, weight)
        return refusal

    def drop_pod(self, key: Key) -> None:
        if (pod := self.pods.pop(key, None)) is not None:
            self._pod_room.change(key.namespace, -_weight(pod))

    def put_namespace(self, name: str, labels: Labels) -> str:
        """As `put_pod`."""
        self.drop_namespace(name)
        refusal = self._namespace_room.refusal(name, 1 + len(labels))
        if refusal:
            self.pass_over_namespace(name)
        else:
            self.namespaces[name] = labels
            self._namespace_room.change(name, 1 + len(labels))
        return refusal

    def pass_over_namespace(self, name: str) -> None:
        """There is no room for it."""
        self.drop_namespace(name)
        self.passes_over_namespaces = True

    def drop_namespace(self, name: str) -> None:
        if (labels := self.namespaces.pop(name, None)) is not None:
            self._namespace_room.change(name, -1 - len(labels))

    # Asking

    def world(self, local: Mapping[Key, PolicyPod]) -> PolicyWorld:
        """`local`: pods of this node, by what the node knows of them; it knows their addresses."""
        policies: Mapping[Key, Policy] = self.policies
        if not self.is_whole:
            policies = closing_policies(local)
        pods = {**self.pods, **self._joined(local)}
        # One is told by another watch than its pods, which may be the first.
        if self.passes_over_namespaces or not (
            {key.namespace for key in self.pods} <= self.namespaces.keys()
        ):
            pods = {key: self._in_namespace(pod) for key, pod in pods.items()}
        return PolicyWorld(policies, self.namespaces, pods)

    def _in_namespace(self, pod: PolicyPod) -> PolicyPod:
        """Labels that a namespace might lack would open what is closed to it: of one that is not
        kept every pod is like one that nobody has told of."""
        return pod if pod.key.namespace in self.namespaces else replace(pod, labels=None)

    def _joined(self, local: Mapping[Key, PolicyPod]) -> dict[Key, PolicyPod]:
        found = {}
        for key, pod in local.items():
            told = self.pods.get(key)
            labels, ports = (None, {}) if told is None else (told.labels, told.ports)
            found[key] = PolicyPod(key, pod.addresses, labels, ports)
        return found

    def kept(self) -> list[KeptLine]:
        """All of it as it is now, for `encode_kept`, which another thread may do."""
        lines: list[KeptLine] = [{"policy": each} for each in self._documents.values()]
        lines += [{"namespace": name, "labels": each} for name, each in self.namespaces.items()]
        lines += self.pods.values()
        return lines


def closing_policies(local: Iterable[Key]) -> dict[Key, Policy]:
    """What closes these pods, of a node that may not have heard all policies."""
    doubts = {Key(key.namespace, "not-heard-yet") for key in local}
    return {each: Policy(each, Selector(), _BOTH) for each in doubts}


def encode_kept(lines: Sequence[KeptLine], rest: Callable[[], None] = lambda: None) -> bytes:
    """One object a line: there may be thousands of pods. `rest`: is called again and again, for
    who shares Python's lock with others."""
    pieces = []
    for start in range(0, len(lines), _AT_ONCE):
        for line in lines[start : start + _AT_ONCE]:
            found = _pod_line(line) if isinstance(line, PolicyPod) else line
            pieces.append(msgspec.json.encode(found))
        rest()
    return b"\n".join([*pieces, msgspec.json.encode(_end(len(lines))), b""])


def _weight(pod: PolicyPod) -> int:
    return 1 + len(pod.addresses) + len(pod.labels or ()) + len(pod.ports)


def _end(count: int) -> dict[str, int]:
    """The last line: a file without it was cut."""
    return {"end": count, "version": VERSION}


def decode_heard(text: bytes) -> ReadPolicies:
    """Raises: NewerFormatError; ValueError for what `encode_kept` would not write."""
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
                key = Key(metadata["namespace"], metadata["name"])
                if key.name == _CROWDED:
                    heard.close_namespace(key.namespace, _SAID_BEFORE)
                else:
                    heard.put_policy(key, document)
            elif "namespace" in line:
                heard.put_namespace(line["namespace"], parse_labels(line["labels"]))
            else:
                heard.put_pod(_pod(line))
    except (KeyError, TypeError, AttributeError, PolicyError, RecursionError) as error:
        raise ValueError(f"not what was kept: {error!r}") from error
    heard.is_whole = True
    named = {key.namespace for key in heard.pods}
    heard.passes_over_namespaces = not named <= heard.namespaces.keys()
    return heard


def _bounded(policy: Policy) -> tuple[Policy, str]:
    """What of the policy holds, and why not all of it does, in words; empty: all."""
    most = POLICY_PARTS_OF_ITSELF.most
    if policy.parts <= most:
        return policy, ""
    closed = Policy(policy.key, policy.pods, policy.directions)
    if closed.parts > most:
        closed = replace(closed, pods=Selector())
    return closed, f"more than {most:,} rules, ports of theirs and demands on labels"


def _not_understood(key: Key, document: Document, before: Policy | None) -> Policy:
    """What it was, or all that it could isolate is closed."""
    now = _read(key, document, "podSelector", "policyTypes")
    if now is not None and before is not None and _is_as_wide(before, now):
        return before
    now = _read(key, document, "podSelector")
    return Policy(key, Selector() if now is None else now.pods, _BOTH)


def _is_as_wide(before: Policy, now: Policy) -> bool:
    return before.pods == now.pods and before.directions >= now.directions


def _read(key: Key, document: Document, *names: str) -> Policy | None:
    """What these fields say; None: nothing that can be understood."""
    try:
        spec = {name: document["spec"][name] for name in names if name in document["spec"]}
        metadata = {"namespace": key.namespace, "name": key.name}
        frame = {"apiVersion": API_VERSION, "kind": "NetworkPolicy", "metadata": metadata}
        return parse_policy({**frame, "spec": spec}) if "podSelector" in spec else None
    except (PolicyError, KeyError, TypeError):
        return None


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
