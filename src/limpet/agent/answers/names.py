"""What a person means by a word: an address, a pod of any node, a node, or a Service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from limpet.agent.answers.own_pods import KnownPod, called
from limpet.agent.status.services import ServiceWay
from limpet.base.addresses import Address
from limpet.base.errors import LimpetError
from limpet.base.text.nearest import hint
from limpet.cluster.exchange.pod_lookup import PodLookup
from limpet.cluster.exchange.pod_messages import ToldPod
from limpet.cluster.kinds import PODS
from limpet.cluster.membership import Membership
from limpet.cluster.topology.view import View
from limpet.paths.explain import holder_of, name_of

KINDS = ("pod", "node", "service")
"""What may be said before a word, with a colon, where it could be several."""


@dataclass(frozen=True, slots=True)
class Meant:
    """What a word stands for. `pods`: what is called so, wherever it is."""

    word: str
    addresses: tuple[Address, ...] = ()
    pods: tuple[KnownPod, ...] = ()
    uid: str = ""
    """Uid of the node that was named."""
    service: ServiceWay | None = None


@dataclass(frozen=True, slots=True)
class KnownNames:
    """What this node knows without asking."""

    view: Callable[[], View]
    serving: Callable[[str], Iterable[KnownPod]]
    """Pods of any node that serve, by NAME or NAMESPACE/NAME."""
    service_at: Callable[[str], ServiceWay | None]
    """The way to the Service of a cluster address."""
    service_called: Callable[[str], ServiceWay | None]
    """Raises: LimpetError where the word fits several."""


class Names:
    """Looks a word up in what is known here, and then asks the other nodes."""

    def __init__(self, membership: Membership, lookup: PodLookup, known: KnownNames) -> None:
        self._membership = membership
        self._lookup = lookup
        self._known = known

    async def find(self, said: str, own: Iterable[KnownPod], *, services: bool) -> Meant:
        """`own`: pods of this node, which go before those elsewhere, and those that it keeps an
        address for, which may run there: they go last. `services`: a Service may be meant.

        Raises: LimpetError.
        """
        kind, word = kind_said(said)
        if not kind:
            try:
                address = ip_address(word)
            except ValueError:
                pass
            else:
                return Meant(word, (address,), service=self._known.service_at(word))
        pods = called(word, own)
        found = self._at_hand(kind, word, [each for each in pods if each.attached])
        if len(found) > 1:
            kinds = ", ".join(f"{each}:{word}" for each in found)
            raise LimpetError(f"{word}: several things are called so (say which: {kinds})")
        if not found and kind in ("", "pod"):
            found = await self._ask(word, pods)
        meant = next(iter(found.values()), None)
        if meant is None:
            raise LimpetError(f"{word}: nothing that is known here is called so ({_TRY})")
        self._check_one_node(meant)
        if meant.service is not None and not services:
            raise LimpetError(
                f"{word}: that is a Service ({meant.service.address}), and a pod, a node or an "
                "address is asked for (`limpet path` tells the ways to its endpoints)"
            )
        return meant

    def _at_hand(self, kind: str, word: str, own: list[KnownPod]) -> dict[str, Meant]:
        """By what it is. `own`: attached pods of this node that are called so."""
        found: dict[str, Meant] = {}
        if kind in ("", "pod"):
            pods = own or called(word, [*self._known.serving(word), *self._labelled()])
            if pods:
                found["pod"] = pod_meant(word, pods)
        if kind in ("", "node") and (node := self._node(word)) is not None:
            found["node"] = node
        if kind in ("", "service") and (way := self._known.service_called(word)) is not None:
            found["service"] = Meant(word, (ip_address(way.address),), service=way)
        return found

    def _labelled(self) -> Iterator[KnownPod]:
        """Pods of other nodes that policies know by their labels."""
        known = self._membership.replica.known
        for name in known.of(PODS.name):
            told = known.value(PODS.name, name)
            for pod in () if told is None else told.pods:
                for address in self._of_node(told.uid, pod.addresses):
                    yield KnownPod(pod.namespace, pod.name, address, attached=True)

    def _of_node(self, uid: str, texts: Iterable[str]) -> Iterator[Address]:
        """Those that are in the node's segments: it may name others' as well."""
        segments = self._known.view().segments.get(uid, ())
        for text in texts:
            try:
                address = ip_address(text)
            except ValueError:
                continue
            if any(address in prefix for prefix in segments):
                yield address

    def _check_one_node(self, meant: Meant) -> None:
        """Raises: LimpetError where several nodes have a pod that is called so: each says so
        itself, and one may only want to be taken for another."""
        view = self._known.view()
        at: dict[str, list[str]] = {}
        for address in meant.addresses if meant.pods else ():
            if (uid := holder_of(view, address)) is not None:
                at.setdefault(name_of(view.snapshot, uid), []).append(str(address))
        if len(at) > 1:
            said = "; ".join(f"{node}: {', '.join(at[node])}" for node in sorted(at))
            raise LimpetError(
                f"{meant.word}: several nodes say that they have a pod of that name ({said}): say "
                "which by its address"
            )

    def _node_names(self) -> list[str]:
        nodes = self._known.view().snapshot.nodes.values()
        return sorted(each.grant.name for each in nodes if not each.grant.tombstone)

    def _node(self, word: str) -> Meant | None:
        """Its overlay addresses; None: no node is called so, or has that uid."""
        view = self._known.view()
        for uid, entry in view.snapshot.nodes.items():
            if not entry.grant.tombstone and word in (entry.grant.name, uid):
                segments = view.segments.get(uid, ())
                first = {prefix.version: prefix[1] for prefix in reversed(segments)}
                if not first:
                    raise LimpetError(f"{word}: that node has no segment, so no address of its own")
                return Meant(word, tuple(first[version] for version in sorted(first)), uid=uid)
        return None

    async def _ask(self, word: str, kept: list[KnownPod]) -> dict[str, Meant]:
        """`kept`: what is meant if no other node has it. Raises: LimpetError with how many were
        asked."""
        namespace, _, name = word.rpartition("/")
        looked = await self._lookup.find(namespace, name)
        pods = [
            KnownPod(pod.namespace, pod.name, address, attached=True)
            for uid, told in looked.pods.items()
            for pod in told
            if pod.name == name and namespace in ("", pod.namespace)
            for address in self._of_node(uid, pod.addresses)
        ]
        if pods := pods or kept:
            return {"pod": pod_meant(word, pods)}
        silent = looked.asked - len(looked.answered)
        heard = f"{looked.asked} other nodes were asked"
        raise LimpetError(
            f"{word}: no pod of this node, no node and no Service that is known here is called so; "
            + (f"{heard}, and {silent} did not answer" if silent else f"{heard}, none has it")
            + f" ({hint(word, self._node_names(), _TRY)})"
        )


_TRY = "limpet peer list tells the nodes; an address works always"


def kind_said(said: str) -> tuple[str, str]:
    """What kind of thing is meant, empty where that is not said, and the word itself."""
    kind, colon, word = said.partition(":")
    return (kind, word) if colon and kind in KINDS else ("", said)


def pod_meant(word: str, pods: Iterable[KnownPod]) -> Meant:
    """The pod of which these are; attached ones go before those whose address is kept.

    Raises: LimpetError where they are of several namespaces.
    """
    found = tuple(dict.fromkeys(pods))
    if len({pod.namespace for pod in found}) > 1:
        raise LimpetError(
            f"{word}: there are several pods of that name: "
            f"{', '.join(sorted({str(pod) for pod in found}))} (say which, as NAMESPACE/NAME)"
        )
    attached = tuple(pod for pod in found if pod.attached) or found
    return Meant(word, tuple(dict.fromkeys(pod.address for pod in attached)), found)


def own_pods_told(pods: Iterable[KnownPod], namespace: str, name: str) -> list[ToldPod]:
    """Attached pods of this node that are called so; an empty `namespace` is any."""
    found: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        if pod.attached and pod.name == name and namespace in ("", pod.namespace):
            found.setdefault((pod.namespace, pod.name), []).append(str(pod.address))
    return [ToldPod(*key, tuple(addresses)) for key, addresses in found.items()]
