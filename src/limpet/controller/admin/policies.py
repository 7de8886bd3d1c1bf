"""Network policies of the whole cluster: signed here, held to by every node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from limpet.base.bounds.administrators import POLICY_BODY
from limpet.base.errors import LimpetError
from limpet.cluster.kinds import POLICY
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.controller.admin.answers import (
    PoliciesSigned,
    PolicyWithdrawn,
    SignedLine,
    SignedPolicies,
)
from limpet.controller.admin.communities import Verb
from limpet.controller.registry.tables import Tables
from limpet.controller.state.cluster import Cluster
from limpet.policies.parse import PolicyError, parse_namespace, parse_policy

_log = structlog.get_logger("admin")
_KEPT = ("apiVersion", "kind", "metadata", "spec")


class PolicyAdmin:
    """The verbs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.verbs: dict[str, Verb] = {
            "policy.apply": self._apply,
            "policy.delete": self._delete,
            "policy.list": self._list,
        }

    async def _apply(self, documents: list[dict[str, Any]]) -> PoliciesSigned:
        """All of them or none."""
        found = {}
        for number, document in enumerate(documents, 1):
            try:
                name = _name_of(document)
            except PolicyError as error:
                raise PolicyError(f"document {number}: {error}") from error
            kept = {key: document[key] for key in _KEPT if key in document}
            size = len(msgspec.json.encode(kept))
            if size > POLICY_BODY.most:
                raise LimpetError(
                    f"apply {name}: {size} bytes as JSON, of {POLICY_BODY.most} at most that nodes "
                    "tell each other (split it: policies of one pod add up)"
                )
            found[name] = kept
        changed = await self._cluster.change(lambda tables: _sign(tables, found))
        _log.info("applied policies", changed=len(changed), asked=len(found))
        return PoliciesSigned(applied=list(found), changed=changed)

    async def _delete(self, namespace: str, name: str) -> PolicyWithdrawn:
        key = f"NetworkPolicy/{namespace}/{name}"

        def withdraw(tables: Tables) -> None:
            if _document(tables, key) is None:
                raise LimpetError(
                    f"delete policy {namespace}/{name}: the cluster has none "
                    "(limpet policy list --cluster tells all)"
                )
            tables.sign(POLICY, SignedPolicy(key, tables.next_revision()))

        await self._cluster.change(withdraw)
        _log.info("withdrew a policy", policy=f"{namespace}/{name}")
        return PolicyWithdrawn(changed=[key])

    async def _list(self) -> SignedPolicies:
        def make(tables: Tables) -> list[SignedLine]:
            found = (
                tables.value(POLICY.name, name) for name in sorted(tables.records(POLICY.name))
            )
            return [
                SignedLine(name=each.name, revision=each.revision, document=dict(each.document))
                for each in found
                if each is not None and each.document is not None
            ]

        return SignedPolicies(policies=await self._cluster.change(make))


def _sign(tables: Tables, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is there just so already is not signed again."""
    changed = []
    for name, document in found.items():
        if _document(tables, name) != document:
            tables.sign(POLICY, SignedPolicy(name, tables.next_revision(), document))
            changed.append(name)
    return changed


def _document(tables: Tables, name: str) -> Mapping[str, Any] | None:
    signed: SignedPolicy | None = tables.value(POLICY.name, name)
    return None if signed is None else signed.document


def _name_of(document: Mapping[str, Any]) -> str:
    """Raises: PolicyError for what nodes would not understand."""
    if document.get("kind") == "Namespace":
        return f"Namespace/{parse_namespace(document)[0]}"
    key = parse_policy(document).key
    return f"NetworkPolicy/{key.namespace}/{key.name}"
