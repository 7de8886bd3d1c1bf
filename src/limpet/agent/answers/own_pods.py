"""What a node knows of its own pods: their names and addresses, also of those that are absent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from limpet.base.addresses import Address
from limpet.base.errors import LimpetError
from limpet.cni.attachment_plan import pod_mtu_bytes
from limpet.cni.verbs import Node


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod that this node has, or keeps an address for, or that serves wherever it is."""

    namespace: str
    name: str
    address: Address
    attached: bool

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class OwnNodeWords:
    """What the node knows beside the plan."""

    pods: tuple[KnownPod, ...]
    bridge: str
    mtu_bytes: int
    """MTU of its pods."""


def node_words(node: Node) -> OwnNodeWords:
    """As it is now."""
    settings = node.settings
    attached = [
        KnownPod(each.pod.namespace, each.pod.name, address.ip, attached=True)
        for each in node.attachments
        for address in each.addresses
    ]
    live = {pod.address for pod in attached}
    kept = [
        KnownPod(binding.key.namespace, binding.key.pod, address, attached=False)
        for ledger in node.ledgers
        for address, binding in ledger.bindings().items()
        if address not in live
    ]
    mtu_bytes = pod_mtu_bytes(settings, node.node_part.uplink_mtu_bytes)
    return OwnNodeWords((*attached, *kept), settings.bridge, mtu_bytes)


def called(word: str, pods: Iterable[KnownPod]) -> list[KnownPod]:
    """Those that `word` names, as NAME or NAMESPACE/NAME."""
    namespace, slash, name = word.rpartition("/")
    return [pod for pod in pods if pod.name == name and (not slash or pod.namespace == namespace)]


def own_addresses(verb: str, word: str, words: OwnNodeWords) -> list[Address]:
    """Addresses that an address or a pod of this node stands for; the node is in no cluster.

    Raises: LimpetError for another word.
    """
    try:
        return [ip_address(word)]
    except ValueError:
        pass
    pods = called(word.removeprefix("pod:"), words.pods)
    if len({pod.namespace for pod in pods}) > 1:
        names = ", ".join(sorted({str(pod) for pod in pods}))
        raise LimpetError(f"{verb}: {word}: several pods have that name: {names} (say which)")
    if not pods:
        raise LimpetError(
            f"{verb}: {word} is neither an address nor a pod of this node, which is in no cluster "
            "and so knows no others (`limpet ipam list` tells its pods)"
        )
    attached = [pod.address for pod in pods if pod.attached]
    return list(dict.fromkeys(attached or [pod.address for pod in pods]))
