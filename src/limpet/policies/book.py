"""What one node has been told of policies by a person: documents, and labels of its pods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from limpet.base.records.version import VERSION, NewerFormatError, check_version
from limpet.policies.labels import Labels
from limpet.policies.parse import PolicyError, parse_labels, parse_namespace, parse_policy
from limpet.policies.policy import Key, Policy

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Book:
    """All of it; a change makes another one."""

    policies: Mapping[Key, Policy] = field(default_factory=dict)
    documents: Mapping[Key, Document] = field(default_factory=dict)
    """Documents of the policies, as they were written."""
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    pods: Mapping[Key, Labels] = field(default_factory=dict)

    def with_documents(self, documents: Iterable[object]) -> tuple[Book, list[str]]:
        """All or none of them; and what each is, as KIND NAME. Raises: PolicyError."""
        policies, kept, namespaces = dict(self.policies), dict(self.documents), {**self.namespaces}
        names = []
        for number, document in enumerate(documents, 1):
            try:
                if isinstance(document, Mapping) and document.get("kind") == "Namespace":
                    name, labels = parse_namespace(document)
                    namespaces[name] = labels
                    names.append(f"Namespace {name}")
                    continue
                policy = parse_policy(document)
            except PolicyError as error:
                raise PolicyError(f"document {number}: {error}") from error
            assert isinstance(document, Mapping)
            policies[policy.key] = policy
            kept[policy.key] = {key: document[key] for key in _KEPT if key in document}
            names.append(f"NetworkPolicy {policy.key}")
        return replace(self, policies=policies, documents=kept, namespaces=namespaces), names

    def without(self, key: Key) -> Book:
        """Raises: PolicyError."""
        if key not in self.policies:
            raise PolicyError(f"delete policy {key}: there is none (limpet policy list tells all)")
        return replace(
            self,
            policies={each: self.policies[each] for each in self.policies if each != key},
            documents={each: self.documents[each] for each in self.documents if each != key},
        )

    def with_pod_labels(self, pod: Key, put: object, drop: Iterable[str] = ()) -> Book:
        """Raises: PolicyError."""
        labels = {**self.pods.get(pod, {}), **parse_labels(put)}
        for key in drop:
            labels.pop(key, None)
        others = {each: self.pods[each] for each in self.pods if each != pod}
        return replace(self, pods={**others, **({pod: labels} if labels else {})})


_KEPT = ("apiVersion", "kind", "metadata", "spec")


def encode_book(book: Book) -> bytes:
    return json.dumps(
        {
            "version": VERSION,
            "policies": [*book.documents.values()],
            "namespaces": dict(book.namespaces),
            "pods": [
                {"namespace": key.namespace, "name": key.name, "labels": dict(labels)}
                for key, labels in book.pods.items()
            ],
        },
        indent=1,
    ).encode()


def decode_book(text: bytes) -> Book:
    """Raises: NewerFormatError; PolicyError for what `encode_book` would not write."""
    try:
        check_version(text)
        found = json.loads(text)
        book, _ = Book().with_documents(found["policies"])
        return replace(
            book,
            namespaces={
                str(name): parse_labels(labels) for name, labels in found["namespaces"].items()
            },
            pods={
                Key(str(pod["namespace"]), str(pod["name"])): parse_labels(pod["labels"])
                for pod in found["pods"]
            },
        )
    except NewerFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PolicyError(f"not what was kept: {error!r}") from error
