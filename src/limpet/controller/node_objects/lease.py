"""flannel's annotations of a Node: what they say of its VXLAN, and what they should say. Pure.

Source: flannel 0.28, pkg/subnet/kube/annotations.go and pkg/backend/vxlan/vxlan.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

import msgspec

from limpet.base.addresses import Address
from limpet.base.decoding import decode_json
from limpet.controller.node_objects.node import FLANNEL_PREFIX

_MANAGED, _TYPE, _VXLAN = "kube-subnet-manager", "backend-type", "vxlan"
_DATA = {4: "backend-data", 6: "backend-v6-data"}
_ADDRESS = {4: "public-ip", 6: "public-ipv6"}
_OVERWRITE = "{}-overwrite"
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(frozen=True, slots=True)
class FlannelLease:
    """How VXLAN finds a node: by the IP version of the underlay, which is the pods' too."""

    addresses: tuple[Address, ...]
    """One of each version at most."""
    vtep_macs: Mapping[int, str]
    vnis: frozenset[int]


class _Data(msgspec.Struct, frozen=True):
    mac: str = msgspec.field(name="VtepMAC")
    vni: int = msgspec.field(name="VNI", default=1)
    """Left out by old flannels, which knew no other."""


def read_lease(annotations: Mapping[str, str]) -> FlannelLease | None:
    """None: flannel does not run the node. `annotations`: those of flannel, without the prefix.

    Raises: ValueError with words for what no VXLAN peer can be made of.
    """
    if annotations.get(_MANAGED) != "true":
        return None
    if (kind := annotations.get(_TYPE, "")) != _VXLAN:
        raise ValueError(f"its flannel has the backend {kind!r}, and only vxlan can be joined")
    addresses: list[Address] = []
    macs: dict[int, str] = {}
    vnis = set()
    for version, key in _DATA.items():
        # flannel writes `null` for the family that it does not have.
        if annotations.get(key, "null") == "null":
            continue
        try:
            data = decode_json(annotations[key], _Data)
            address = ip_address(annotations.get(_ADDRESS[version], ""))
            if "%" in str(address):
                raise ValueError(f"{str(address)[:300]!r} has a zone")
        except (msgspec.MsgspecError, ValueError) as error:
            what = f"{FLANNEL_PREFIX}{key} or {_ADDRESS[version]}"
            raise ValueError(f"its annotation {what}: {error}") from error
        if address.version != version or not _MAC.fullmatch(data.mac):
            raise ValueError(f"its annotations name {address} and {data.mac!r} for IPv{version}")
        addresses.append(address)
        macs[version] = data.mac
        vnis.add(data.vni)
    if not addresses:
        raise ValueError("its annotations name no VXLAN device")
    return FlannelLease(tuple(addresses), macs, frozenset(vnis))


def kept_macs(annotations: Mapping[str, str]) -> dict[int, str]:
    """MACs that other nodes know of the node, by IP version; empty where nothing says any."""
    try:
        lease = read_lease(annotations)
    except ValueError:
        return {}
    return dict(lease.vtep_macs) if lease is not None else {}


def annotations_of(
    macs: Mapping[int, str],
    vni: int,
    addresses: Iterable[Address],
    node_addresses: Iterable[Address],
    present: Mapping[str, str],
) -> dict[str, str | None]:
    """What flannel's nodes have to read of a node of ours, without the prefix; None: not there.

    `node_addresses`: those that Kubernetes knows, preferred where the node says them too.
    `present`: the annotations now; an address that a person has set there for flannel counts.
    All of it is written at once: flannel hears a change of both families, or of none.
    """
    ours = [each for each in addresses if not each.is_link_local]
    known = [each for each in node_addresses if each in ours]
    found: dict[str, str | None] = {_MANAGED: "true", _TYPE: _VXLAN}
    for version, key in _DATA.items():
        address = next((each for each in (*known, *ours) if each.version == version), None)
        there = address is not None and version in macs
        data = f'{{"VNI":{vni},"VtepMAC":"{macs.get(version)}"}}'
        said = present.get(_OVERWRITE.format(_ADDRESS[version])) or str(address)
        found[key] = data if there else None
        found[_ADDRESS[version]] = said if there else None
    return found
