"""plan_ports: from which addresses each pod may send, as elements of nftables' sets. Pure.

An element is the host end's name, a MAC and an address. The name is known before there is an
interface, so what a pod may do holds before it can do anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from ipaddress import collapse_addresses, ip_address, ip_network

from limpet.base.addresses import Address, Prefix, bounds_of, link_local_of
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.ports.ruleset import OWN, UNCHECKED, WIDE, plan_frame
from limpet.datapath.node.ports.state import PortTable

_NOBODY: Mapping[int, Address] = {4: ip_address("0.0.0.0"), 6: ip_address("::")}
"""Who has no address yet sends from these: DHCP, the probes of ARP and of duplicate address
detection, reports of multicast groups. Nothing routes them."""


def plan_ports(
    pods: Iterable[Attachment], elements: Mapping[str, Collection[str]] | None = None
) -> PortTable:
    """`elements`: what is in the sets beside what pods bring."""
    found: dict[str, set[str]] = {name: set(each) for name, each in (elements or {}).items()}
    for pod in pods:
        for name, each in elements_of(pod).items():
            found.setdefault(name, set()).update(each)
    wide = any(found.get(name) for name in WIDE.values())
    return PortTable(
        plan_frame(wide=wide), {name: frozenset(each) for name, each in found.items() if each}
    )


def elements_of(pod: Attachment) -> dict[str, frozenset[str]]:
    """Elements of one pod, by name of the set; none where another plugin made its interface."""
    link = pod.link
    if pod.bridge is None:
        return {}
    if link.allowed.unchecked:
        return {UNCHECKED: frozenset({link.host_ifname})}
    own = [address.ip for address in pod.addresses]
    found = {
        name: frozenset(
            element_text(link.host_ifname, link.mac, _full(each))
            for each in _with_nobody(own, link.mac)
            if each.version == version
        )
        for version, name in OWN.items()
    }
    if link.allowed.macs or link.allowed.prefixes:
        for version, name in WIDE.items():
            found[name] = frozenset(_wide_elements(pod, own, version))
    return found


def _wide_elements(pod: Attachment, own: Collection[Address], version: int) -> Iterable[str]:
    """Each MAC goes with each address: a set of intervals takes none that overlap."""
    allowed = pod.link.allowed
    for mac in (pod.link.mac, *allowed.macs):
        prefixes = [each for each in allowed.prefixes if each.version == version]
        if mac != pod.link.mac:
            prefixes += [_full(x) for x in _with_nobody(own, mac) if x.version == version]
        for prefix in _merged(prefixes, version):
            yield element_text(pod.link.host_ifname, mac, prefix)


def _with_nobody(own: Collection[Address], mac: str) -> list[Address]:
    return [*own, link_local_of(mac), *_NOBODY.values()]


def _merged(prefixes: list[Prefix], version: int) -> list[Prefix]:
    if version == 4:
        return list(collapse_addresses(each for each in prefixes if each.version == 4))
    return list(collapse_addresses(each for each in prefixes if each.version == 6))


def _full(address: Address) -> Prefix:
    return ip_network((address, address.max_prefixlen))


def element_text(ifname: str, mac: str, prefix: Prefix) -> str:
    """As nft lists it but for the quotes; of IPv6 the set compares 128 bits of the packet."""
    if prefix.version == 4:
        at = str(prefix.network_address if prefix.prefixlen == 32 else prefix)
    else:
        first, last = bounds_of(prefix)
        at = f"{first:#x}" if first == last else f"{first:#x}-{last:#x}"
    return f"{ifname} . {mac} . {at}"


def key_of(element: str) -> bytes:
    """A name, or one with MAC and a single address, as the kernel holds it: fields of a
    concatenation one after the other, each padded to four bytes."""
    ifname, *rest = element.split(" . ")
    key = ifname.encode().ljust(16, b"\0")
    if rest:
        mac, at = rest
        key += bytes.fromhex(mac.replace(":", "")).ljust(8, b"\0")
        key += int(at, 16).to_bytes(16, "big") if at.startswith("0x") else ip_address(at).packed
    return key
