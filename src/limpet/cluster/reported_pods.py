"""What of a pod a node may tell its controller: both sides hold to it, so nothing is told in vain.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace as replace_fields

from limpet.base.bounds import members
from limpet.cluster.api import InterfaceAddresses
from limpet.cluster.kinds.fields import address_text

PodKey = tuple[str, str, str, str]
"""Network, namespace, name and interface."""


def pod_key(pod: InterfaceAddresses) -> PodKey:
    return (pod.network, pod.namespace, pod.pod, pod.ifname)


def checked_pod(pod: InterfaceAddresses) -> InterfaceAddresses:
    """The pod with its addresses as they are written shortest, each once.

    Raises: ValueError that says what a controller does not take.
    """
    if problem := key_problem(pod_key(pod)):
        raise ValueError(problem)
    if len(pod.addresses) > members.REPORTED_POD_ADDRESSES.most:
        raise ValueError(
            f"{len(pod.addresses)} addresses of one interface: at most "
            f"{members.REPORTED_POD_ADDRESSES.most}"
        )
    addresses = tuple(dict.fromkeys(map(address_text, pod.addresses)))
    return pod if addresses == pod.addresses else replace_fields(pod, addresses=addresses)


def key_problem(key: PodKey) -> str | None:
    """Why no controller takes a pod of this name."""
    names, ifname = key[:-1], key[-1]
    if any(len(name) > members.REPORTED_NAME.most for name in names):
        return f"a name of more than {members.REPORTED_NAME.most} characters"
    if len(ifname) > members.REPORTED_INTERFACE_NAME.most:
        return (
            f"a name of an interface of more than {members.REPORTED_INTERFACE_NAME.most} characters"
        )
    for name in filter(None, (*names, ifname)):
        # A space would do to forge columns of a table.
        if not (name.isascii() and name.isprintable()) or " " in name:
            return f"{name!r} is a name with more than printable ASCII"
    return None


def record_bytes(pods: Iterable[InterfaceAddresses]) -> int:
    """What the pods take in the controller's record."""
    return sum(len(msgspec.json.encode(pod)) + 1 for pod in pods)
