"""Attachments as JSON: what /run/limpet/attachments/<host ifname>.json holds."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from limpet.base.addresses import Address
from limpet.datapath.node.pod.attachment import (
    AllowedSources,
    Attachment,
    Bandwidth,
    BridgeSpec,
    HostPortMapping,
    Netns,
    PodLink,
    PodName,
    RouteSpec,
)
from limpet.ipam.leases import Holder

T = TypeVar("T")
_NONSENSE = (
    msgspec.DecodeError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)


def _of_text(parse: Callable[[str], T]) -> Callable[[object], T]:
    """ipaddress takes more than text: 5 for 0.0.0.5."""

    def checked(value: object) -> T:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no text")
        return parse(value)

    return checked


ip_address = _of_text(ipaddress.ip_address)
ip_interface = _of_text(ipaddress.ip_interface)
ip_network = _of_text(ipaddress.ip_network)
# Of one node's attachments, gateways, routes and prefixes are the same. Typed: 10.0.0.1 is equal to
# 10.0.0.1/24 in Python.
_encoder = msgspec.json.Encoder(enc_hook=lru_cache(maxsize=256, typed=True)(str))


def encode_attachment(attachment: Attachment) -> bytes:
    return _encoder.encode(attachment)


def decode_attachment(text: bytes) -> Attachment:
    """Raises: ValueError for what `encode_attachment` would not write.

    A field that the writer did not know of, being older, has its default.
    """
    try:
        document = msgspec.json.decode(text)
        attachment = _attachment(document)
    except _NONSENSE as error:
        raise ValueError(f"not an attachment: {error}") from error
    meant = msgspec.json.decode(encode_attachment(attachment))
    for key, value in document.items():
        if meant[key] != value:
            raise ValueError(f"not an attachment: {key} is {value!r}")
    return attachment


def attachment_document(attachment: Attachment) -> dict[str, Any]:
    """For people and programs that ask the agent."""
    document: dict[str, Any] = msgspec.to_builtins(attachment, enc_hook=str)
    return document


def _attachment(found: dict[str, Any]) -> Attachment:
    bridge = found["bridge"]
    found["pod"].setdefault("labels", [])  # an older agent has written neither
    found["link"].setdefault("allowed", {"unchecked": False, "macs": [], "prefixes": []})
    return Attachment(
        **{
            **found,
            "holder": Holder(**found["holder"]),
            "netns": Netns(**found["netns"]),
            "pod": _pod(found["pod"]),
            "link": _link(found["link"]),
            "addresses": tuple(map(ip_interface, found["addresses"])),
            "gateways": tuple(map(ip_address, found["gateways"])),
            "bridge": None if bridge is None else _bridge(bridge),
            "routes": tuple(map(_route, found["routes"])),
            "port_mappings": tuple(map(_port_mapping, found["port_mappings"])),
            "bandwidth": Bandwidth(**found["bandwidth"]),
        }
    )


def _pod(found: dict[str, Any]) -> PodName:
    return PodName(**{**found, "labels": tuple((str(k), str(v)) for k, v in found["labels"])})


def _link(found: dict[str, Any]) -> PodLink:
    allowed = found["allowed"]
    return PodLink(
        **{
            **found,
            "allowed": AllowedSources(
                **{
                    **allowed,
                    "macs": tuple(map(str, allowed["macs"])),
                    "prefixes": tuple(map(ip_network, allowed["prefixes"])),
                }
            ),
        }
    )


def _bridge(found: dict[str, Any]) -> BridgeSpec:
    return BridgeSpec(
        **{
            **found,
            "gateways": tuple(map(ip_interface, found["gateways"])),
            "masquerade": tuple(map(ip_network, found["masquerade"])),
        }
    )


def _route(found: dict[str, Any]) -> RouteSpec:
    return RouteSpec(
        **{
            **found,
            "destination": ip_network(found["destination"]),
            "gateway": _address(found["gateway"]),
        }
    )


def _port_mapping(found: dict[str, Any]) -> HostPortMapping:
    return HostPortMapping(**{**found, "host_address": _address(found["host_address"])})


def _address(text: str | None) -> Address | None:
    return None if text is None else ip_address(text)
