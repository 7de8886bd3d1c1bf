"""What of a pod a node may tell its controller: both sides hold to it, so nothing is told in vain.

Pure.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address

import msgspec
from msgspec.structs import replace as replace_fields

from limpet.base.bounds import members
from limpet.cluster.api import InterfaceAddresses

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
    addresses = tuple(dict.fromkeys(map(_canonical, pod.addresses)))
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


def _canonical(text: str) -> str:
    """Raises: ValueError."""
    # A zone (`fe80::1%…`) is a link of that machine, and can be any text of any length.
    if len(text) > _LONGEST_ADDRESS or "%" in text:
        raise ValueError(f"{text[:_LONGEST_ADDRESS]!r} is no address that means the same elsewhere")
    # The C library takes a tenth of the time of `ip_address`: a report names thousands, and
    # meanwhile the controller answers nobody.
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        found = socket.inet_ntop(family, socket.inet_pton(family, text))
    except (OSError, ValueError):
        return str(ip_address(text))  # which says in words what is wrong
    # The two write an IPv4 address within one of IPv6 in different ways.
    return str(ip_address(text)) if ":" in found and "." in found else found


_LONGEST_ADDRESS = 45
"""Characters, of a mapped IPv4 address. Source: INET6_ADDRSTRLEN in netinet/in.h."""


def record_bytes(pods: Iterable[InterfaceAddresses]) -> int:
    """What the pods take in the controller's record."""
    return sum(len(msgspec.json.encode(pod)) + 1 for pod in pods)
