"""NetworkPolicies, Namespaces and Pods, heard at an API server and kept on the node's disk.

What the server says is so, also that something is gone; but a server without a namespace has lost
its data, and no policy goes because of that. What was heard is on the disk some seconds later.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from limpet.base.disk import refusals, write_durably
from limpet.base.errors import LimpetError
from limpet.base.process.memory import give_memory_back
from limpet.base.text.names import name_problem
from limpet.cloud.workloads.listed import Listed
from limpet.cloud.workloads.refused import RefusedPolicies
from limpet.cloud.workloads.source import REST_S, WorkloadSource
from limpet.cloud.workloads.unread import UnreadObjects
from limpet.kubernetes.access.access import Access
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.policies import (
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    NamespaceView,
    PodView,
    PolicyView,
    pod_of,
)
from limpet.kubernetes.lists import Selection
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges, ObjectKey
from limpet.policies.heard import KeptLine, ReadPolicies, encode_kept
from limpet.policies.policy import Key

_log = structlog.get_logger("policies")

OWN_PODS_S = 5.0
"""How long a first policy waits for what is asked of this node's own pods."""


class _Reasons:
    """To listen for more."""

    def __init__(self) -> None:
        self.listed = asyncio.Event()
        """Namespaces were: the server has its data."""
        self.needed = asyncio.Event()
        """There is a policy: pods of the whole cluster, which may be very many, matter then."""


class PolicySource(WorkloadSource):
    """As every source."""

    def __init__(
        self,
        heard: ReadPolicies,
        path: Path,
        find_access: Callable[[], Access],
        *,
        tell: Callable[[str], None],
        random: Callable[[], float],
        own_pods: Callable[[], Iterable[Key]] = tuple,
        gather_s: float = 2.0,
    ) -> None:
        """`path`: where it is kept. `find_access`: is asked again while it raises LimpetError.
        `tell`: something is other now, and what. `own_pods`: of this node. `gather_s`: how long
        changes are gathered before they are written."""
        self._heard = heard
        self._path = path
        self._tell = tell
        self._own_pods = own_pods
        self._client: Client | None = None
        super().__init__("network policies", find_access, random=random, gather_s=gather_s)
        self._listed: dict[str, Listed] = defaultdict(Listed)
        """What the server has, by kind."""
        self._whole: set[str] = set()
        """Kinds of which all that there is was told."""
        self._passes_over = False
        """A namespace was not kept since the last list."""
        self._refused = RefusedPolicies()
        self._unread_pods = UnreadObjects(
            "it is nobody's peer, and any policy of its namespace closes it"
        )
        self._reasons = _Reasons()
        if heard.policies or heard.problems:
            self._reasons.needed.set()

    @property
    def has_heard_pods(self) -> bool:
        """All of the cluster, once."""
        return PODS.plural in self._whole

    @property
    def unread_pods(self) -> list[str]:
        """Those that cannot be read, in words."""
        return self._unread_pods.in_words()

    # Hearing

    def _begin(self, client: Client, _access: Access) -> list[Coroutine[Any, Any, None]]:
        self._client = client
        self._reasons.listed.clear()
        self._listed.clear()
        reflect = partial(Reflector, client, mirror=True, random=self._random)
        namespaces: Reflector[Any] = reflect(NAMESPACES, self._hear_namespaces)
        policies: Reflector[Any] = reflect(NETWORK_POLICIES, self._hear_policies)
        pods: Reflector[Any] = reflect(PODS, self._hear_pods)
        self._reflectors = {
            NAMESPACES.plural: namespaces,
            NETWORK_POLICIES.plural: policies,
            PODS.plural: pods,
        }
        return [
            namespaces.run(),
            _run_then(policies, self._reasons.listed),
            _run_then(pods, self._reasons.listed, self._reasons.needed),
        ]

    async def _hear_namespaces(self, changes: ObjectChanges[NamespaceView]) -> None:
        for _, name in self._gone(NAMESPACES.plural, changes, ((n, n) for n in self._names())):
            self._heard.drop_namespace(name)
        for (_, name), refusal in changes.crowded.items():
            self._heard.pass_over_namespace(name)
            self._note_namespace(name, refusal)
        for each in changes.put:
            labels = dict(each.metadata.labels or {})
            name = each.metadata.name
            self._note_namespace(name, self._heard.put_namespace(name, labels))
        for unread in changes.unreadable:
            if not unread.is_gone and unread.name not in self._heard.namespaces:
                # Nobody knows its labels, and without any it would have none that closes.
                self._heard.passes_over_namespaces = True
                self._passes_over = True
        if changes.listed and self._listed[NAMESPACES.plural].some:
            self._heard.passes_over_namespaces, self._passes_over = self._passes_over, False
            self._reasons.listed.set()
        self._note(NAMESPACES.plural, changes)

    def _note_namespace(self, name: str, refusal: str) -> None:
        if refusal:
            self._passes_over = True
            self._note_refusal(NAMESPACES.plural, name, refusal)

    def _names(self) -> list[str]:
        return list(self._heard.namespaces)

    async def _hear_pods(self, changes: ObjectChanges[PodView]) -> None:
        held = self._heard.pods
        for gone in self._gone(PODS.plural, changes, list(held)):
            self._heard.drop_pod(Key(*gone))
        for crowded, refusal in changes.crowded.items():
            self._heard.drop_pod(Key(*crowded))
            self._note_refusal(PODS.plural, Key(*crowded), refusal)
        for view in changes.put:
            key, pod = Key(view.metadata.namespace, view.metadata.name), pod_of(view)
            if pod is not None:
                if refusal := self._heard.put_pod(pod):
                    self._note_refusal(PODS.plural, key, refusal)
            else:
                self._heard.drop_pod(key)
        for unread in changes.unreadable:
            # Its address may be another's by now, and its labels others.
            self._heard.drop_pod(Key(unread.namespace, unread.name))
        self._unread_pods.hear(PODS.kind, changes)
        self._note(PODS.plural, changes)

    async def _hear_policies(self, changes: ObjectChanges[PolicyView]) -> None:
        if self._heard.is_whole and not self.has_heard_pods:
            await self._ask_for_own_pods({each.metadata.namespace for each in changes.put})
        kind = NETWORK_POLICIES.plural
        for gone in self._gone(kind, changes, self._heard.kept_policies):
            self._heard.drop_policy(Key(*gone))
            self._note_policy(Key(*gone), "")
        for crowded, refusal in changes.crowded.items():
            key = Key(*crowded)
            self._heard.refuse_policy(key, refusal)
            self._note_policy(key, refusal)
            self._reasons.needed.set()
        for view in changes.put:
            key = Key(view.metadata.namespace, view.metadata.name)
            refusal = self._heard.put_policy(key, view.document())
            self._note_policy(key, refusal)
            if key in self._heard.problems:
                _log.warning(
                    "a policy means nothing here",
                    by_others=True,
                    problem=self._heard.problems[key],
                )
            self._reasons.needed.set()
        for each in changes.unreadable:
            if not each.is_gone and not (name_problem(each.namespace) or name_problem(each.name)):
                # What it would close nobody knows: nothing is opened by its being nonsense.
                key = Key(each.namespace, each.name)
                refusal = self._heard.put_unread(key, each.cause)
                self._note_policy(key, refusal)
                self._reasons.needed.set()
        if changes.listed:
            refused = self._refused.end_list()
            for namespace in self._heard.closed_namespaces:
                if namespace not in refused:
                    self._heard.open_namespace(namespace)
        self._note(kind, changes)

    async def _ask_for_own_pods(self, namespaces: Collection[str]) -> None:
        """Pods of this node, one by one: a first policy would close them, whichever it selects, for
        as long as it takes to list those of the whole cluster. Who is not told of is closed."""
        if self._client is None or self._client.is_cache:  # it answers with all that there are
            return
        try:
            async with asyncio.timeout(OWN_PODS_S):
                for key in self._own_pods():
                    if key.namespace in namespaces and key not in self._heard.pods:
                        await self._ask_for_pod(self._client, key)
        except (LimpetError, TimeoutError) as error:
            _log.warning("pods of this node are not told of", error=str(error) or "no answer")

    async def _ask_for_pod(self, client: Client, key: Key) -> None:
        one = Selection(namespace=key.namespace, fields=f"metadata.name={key.name}")
        for view in (await client.list_page(PODS, selection=one)).items:
            pod = pod_of(view)
            if pod is not None and pod.key == key and key not in self._heard.pods:
                self._heard.put_pod(pod)

    def _note_policy(self, key: Key, refusal: str) -> None:
        """`refusal`: empty: it is kept, or gone."""
        kind = NETWORK_POLICIES.plural
        if refusal:
            self._refused.refuse(key)
            self._note_refusal(kind, key, refusal)
        elif self._refused.settle(key) and kind in self._whole:
            # Before the first whole list others may be refused that only an earlier agent knew.
            self._heard.open_namespace(key.namespace)

    def _note_refusal(self, kind: str, what: object, refusal: str) -> None:
        self._crowded.note(kind)
        _log.warning(
            "an object is not kept", by_others=True, kind=kind, name=str(what), cause=refusal
        )

    def _gone(
        self, kind: str, changes: ObjectChanges[Any], kept: Iterable[ObjectKey]
    ) -> list[ObjectKey]:
        """What to remove: also what was kept from before, and is not in the first whole list."""
        there = self._listed[kind].hear(changes)
        if there is None:
            return changes.gone
        if kind == NAMESPACES.plural and not self._listed[kind].some:
            _log.warning("the API server lists no namespace, which is not believed")
            return []
        if kind == NAMESPACES.plural:
            there = {(name, name) for _, name in there}
        return [*changes.gone, *(key for key in kept if key not in there)]

    def _note(self, what: str, changes: ObjectChanges[Any]) -> None:
        if changes.listed:
            self._crowded.hear_list()
            self._whole.add(what)
            give_memory_back()
        whole = {NAMESPACES.plural, NETWORK_POLICIES.plural}
        if self._reasons.needed.is_set():
            whole.add(PODS.plural)
        if whole <= self._whole:
            self._heard.is_whole = True
        if self._heard.is_whole:
            self._keeping.note()
        self._tell(f"{what} were changed")

    # Keeping

    async def _write(self) -> int:
        """As every source."""
        return await asyncio.to_thread(self._write_lines, self._heard.kept())

    def _write_lines(self, lines: list[KeptLine]) -> int:
        with refusals("make folder", self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        content = encode_kept(lines, partial(time.sleep, REST_S))
        write_durably(self._path, content)
        return len(content)


async def _run_then(reflector: Reflector[Any], *reasons: asyncio.Event) -> None:
    for each in reasons:
        await each.wait()
    await reflector.run()
