"""What a pod asks to send from beside its own: by an annotation, or by `args` of the request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_network
from typing import TypeVar

from limpet.base.addresses import Prefix
from limpet.base.bounds.bound import Bound
from limpet.base.bounds.tenants import ALLOWED_ADDRESSES, ALLOWED_MACS
from limpet.cni.protocol.fields import Fields, invalid, keys, to_address, to_mac, to_prefix
from limpet.datapath.node.pod.attachment import AllowedSources

T = TypeVar("T")

RUNTIME_KEY = "io.kubernetes.cri.pod-annotations"
"""Key of `runtimeConfig`, where the configuration declares that capability: containerd and CRI-O
tell a pod's annotations so."""
ARGS_KEYS = ("allowedAddresses", "allowedMacs")
"""Lists in `args.cni`."""
_ADDRESSES, _MACS = "limpet.dev/allowed-addresses", "limpet.dev/allowed-macs"
_ANNOTATIONS = keys(_ADDRESSES, _MACS)
Items = Sequence[tuple[str, object]]
"""Each with its path."""


def parse_allowed(runtime: Fields, args: Fields) -> AllowedSources:
    """The annotations go before the arguments. Raises: CniError (7)."""
    annotations = runtime.object(RUNTIME_KEY, _ANNOTATIONS)
    addresses, macs = ARGS_KEYS
    return AllowedSources(
        macs=_parse(_said(annotations, _MACS) or args.items(macs), to_mac, ALLOWED_MACS),
        prefixes=_parse(
            _said(annotations, _ADDRESSES) or args.items(addresses), _prefix, ALLOWED_ADDRESSES
        ),
    )


def _said(annotations: Fields, key: str) -> Items:
    """An annotation is one text."""
    parts = (annotations.text(key) or "").split(",")
    return [(annotations.at(key), part.strip()) for part in parts if part.strip()]


def _parse(items: Items, parse: Callable[[object, str], T], bound: Bound) -> tuple[T, ...]:
    if len(items) > bound.most:
        path = items[0][0]
        raise invalid(path, len(items), f"{bound.unit} are more than {bound.most}")
    found: Iterable[T] = (parse(value, path) for path, value in items)
    return tuple(dict.fromkeys(found))


def _prefix(value: object, path: str) -> Prefix:
    """An address, or a prefix."""
    if isinstance(value, str) and "/" in value:
        return to_prefix(value, path, mask=False)
    address = to_address(value, path)
    return ip_network((address, address.max_prefixlen))
