"""What a runtime reads on stdout: results in the version that it asked for, errors, versions.

Source: CNI SPEC.md 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0, section 'Result'.
"""

from __future__ import annotations

from dataclasses import asdict
from ipaddress import ip_interface
from typing import Any

import msgspec

from limpet.base.errors import CniError
from limpet.cni.protocol.conf import DNS, VERSIONS, to_dns
from limpet.cni.protocol.fields import Fields, invalid, keys
from limpet.cni.protocol.ipam import ROUTE, to_route
from limpet.cni.protocol.values import CniResult, ResultAddress, ResultInterface
from limpet.datapath.node.pod.attachment import RouteSpec

_RESULT = keys("cniVersion", "interfaces", "ips", "routes", "dns")
_INTERFACE = keys("name", "mac", "mtu", "sandbox", "socketPath", "pciID")
_IP = keys("version", "address", "gateway", "interface")

_WITH_IP_VERSION = ("0.3.0", "0.3.1", "0.4.0")
_WITH_DETAILS = ("1.1.0",)


def encode_result(result: CniResult, cni_version: str) -> bytes:
    """JSON of a result in the form of `cni_version`, one of VERSIONS.

    0.3.0 to 0.4.0 have the family in `ips[].version`; only 1.1.0 has the MTU, socket path and PCI
    id of an interface, and more of a route than `dst` and `gw`. Empty parts are left out. podman
    demands a MAC of every interface that has a sandbox.
    """
    if cni_version not in VERSIONS:
        raise ValueError(f"encode result: cniVersion {cni_version}")
    details = cni_version in _WITH_DETAILS
    body: dict[str, Any] = {"cniVersion": cni_version}
    if result.interfaces:
        body["interfaces"] = [_interface(i, details=details) for i in result.interfaces]
    if result.addresses:
        family = cni_version in _WITH_IP_VERSION
        body["ips"] = [_address(address, family=family) for address in result.addresses]
    if result.routes:
        body["routes"] = [_route(route, details=details) for route in result.routes]
    if dns := {key: value for key, value in asdict(result.dns).items() if value}:
        body["dns"] = dns
    return msgspec.json.encode(body)


def encode_error(error: CniError, cni_version: str) -> bytes:
    """JSON of an error; its text may hold anything, also what is not valid Unicode."""
    body = {"cniVersion": cni_version, "code": int(error.code), "msg": _valid(error.msg)}
    if error.details:
        body["details"] = _valid(error.details)
    return msgspec.json.encode(body)


def version_reply(cni_version: str) -> bytes:
    """JSON that answers VERSION asked in `cni_version`."""
    return msgspec.json.encode({"cniVersion": cni_version, "supportedVersions": VERSIONS})


def _valid(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _given(**fields: object) -> dict[str, object]:
    """The fields that say something."""
    return {key: value for key, value in fields.items() if value is not None and value != ""}


def _interface(interface: ResultInterface, *, details: bool) -> dict[str, object]:
    body: dict[str, object] = {"name": interface.name}
    body |= _given(mac=interface.mac, sandbox=interface.sandbox)
    if details:
        body |= _given(
            mtu=interface.mtu_bytes, socketPath=interface.socket_path, pciID=interface.pci_id
        )
    return body


def _address(address: ResultAddress, *, family: bool) -> dict[str, object]:
    body: dict[str, object] = {"address": str(address.address)}
    if family:
        body["version"] = str(address.address.version)
    if address.gateway is not None:
        body["gateway"] = str(address.gateway)
    if address.interface is not None:
        body["interface"] = address.interface
    return body


def _route(route: RouteSpec, *, details: bool) -> dict[str, object]:
    body: dict[str, object] = {"dst": str(route.destination)}
    if route.gateway is not None:
        body["gw"] = str(route.gateway)
    if details:
        body |= _given(
            mtu=route.mtu,
            advmss=route.advmss,
            priority=route.priority,
            table=route.table,
            scope=route.scope,
        )
    return body


def parse_result(value: object, path: str) -> CniResult:
    """A decoded result of CNI 0.3.0 or newer; what another plugin added to it is left out.

    Raises: CniError 7.
    """
    fields = Fields(value, path, _RESULT)
    interfaces = tuple(map(_to_interface, fields.objects("interfaces", _INTERFACE)))
    return CniResult(
        interfaces=interfaces,
        addresses=tuple(_to_address(each, len(interfaces)) for each in fields.objects("ips", _IP)),
        routes=tuple(map(to_route, fields.objects("routes", ROUTE))),
        dns=to_dns(fields.object("dns", DNS)),
    )


def _to_interface(fields: Fields) -> ResultInterface:
    return ResultInterface(
        name=fields.text("name") or "",
        mac=fields.text("mac") or "",
        mtu_bytes=fields.number("mtu", 0, 2**32 - 1) or None,
        sandbox=fields.text("sandbox") or "",
        socket_path=fields.text("socketPath") or "",
        pci_id=fields.text("pciID") or "",
    )


def _to_address(fields: Fields, interfaces: int) -> ResultAddress:
    if fields.prefix("address", mask=True) is None:
        raise invalid(fields.path, fields.values, "lacks address")
    return ResultAddress(
        address=ip_interface(fields.values["address"]),
        gateway=fields.address("gateway"),
        interface=fields.number("interface", 0, interfaces - 1),
    )
