"""The network configuration: what an administrator wrote, the same for every pod of a network."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from limpet.base.addresses import ifname_problem
from limpet.base.bounds.tenants import CNI_NAME
from limpet.base.errors import CniCode, CniError
from limpet.cni.protocol.fields import Fields, keys, show
from limpet.cni.protocol.ipam import IPAM, OWN_TYPE, parse_ipam
from limpet.cni.protocol.values import Dns, IpamConf, MainConf, NetworkConf
from limpet.datapath.node.pod.attachment import Bandwidth

VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""The CNI versions that we speak, oldest first."""

# Source: cni pkg/utils ValidateNetworkName and ValidateContainerID share this pattern.
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")

PER_REQUEST_KEYS = (
    "args",
    "runtimeConfig",
    "prevResult",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
)
"""Top-level keys that the runtime fills in; the rest of the document is the network's."""

_TOP = keys(
    *PER_REQUEST_KEYS,
    *("cniVersion", "cniVersions", "name", "type", "capabilities", "ipam", "dns"),
    *("disableCheck", "disableGC", "loadOnlyInlinedPlugins"),
    *("bridge", "mtu", "hairpinMode", "ipMasq", "isGateway", "isDefaultGateway", "promiscMode"),
    *(
        "portIsolation",
        "portSecurity",
        "forceAddress",
        "ipMasqBackend",
        "preserveDefaultVlan",
        "enabledad",
    ),
    *("vlan", "vlanTrunk", "macspoofchk", "disableContainerInterface"),
    *("ingressRate", "ingressBurst", "egressRate", "egressBurst"),
    *("unshapedSubnets", "shapedSubnets"),
)
# Served would mean: set up. What is left out here would silently change what the pod gets.
_UNSERVED = ("vlan", "vlanTrunk", "macspoofchk", "disableContainerInterface")
# Without meaning for us: the bridge holds every gateway address at once, masquerade is nftables,
# no VLAN is ever set, addresses are unique without duplicate address detection.
_HARMLESS_FLAGS = ("forceAddress", "preserveDefaultVlan", "enabledad")

DNS = keys("nameservers", "domain", "search", "options")
BANDWIDTH = keys(
    *("ingressRate", "ingressBurst", "egressRate", "egressBurst"),
    *("unshapedSubnets", "shapedSubnets"),
)

_U32 = 2**32 - 1
_U64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class StaticConf:
    """What a network's document says without the parts that the runtime fills in."""

    conf: NetworkConf
    bandwidth: Bandwidth | None = None
    """From the bandwidth plugin's own keys; wins over the runtime's, as there."""


# The same document comes with every request of a network. 64 networks are more than a node has.
@lru_cache(maxsize=64)
def parse_static_conf(document: bytes, *, strict: bool) -> StaticConf:
    """The configuration in `document` (JSON, decodable), without the runtime's keys.

    Not `strict` (DEL and GC, which must work after a change of the file): what these verbs need is
    demanded (cniVersion, name, type, ipam.type, ipam.dataDir); when anything else is wrong, all of
    the rest is left at its defaults.

    Raises: CniError 1 (version), 2 (a key that we do not serve), 7 (anything else).
    """
    top = Fields(msgspec.json.decode(document), "", _TOP)
    core = _parse_core(top)
    try:
        return _parse_ipam_only(top, core) if core.ipam_only else _parse_main(top, core)
    except CniError:
        if strict:
            raise
        return StaticConf(core)


def _parse_core(top: Fields) -> NetworkConf:
    version = check_version(top)
    name = top.text("name")
    if not name:
        raise CniError(CniCode.INVALID_NETWORK_CONFIG, "name: missing in the network configuration")
    if not NAME.fullmatch(name) or len(name) > CNI_NAME.most:
        raise top.invalid(
            "name",
            "is not a valid network name",
            f"a letter or digit, then letters, digits, _ . or -; {CNI_NAME.most} at most",
        )
    ipam = top.object("ipam", IPAM)
    return NetworkConf(
        name=name,
        cni_version=version,
        ipam_only=_is_ipam_only(top, ipam),
        ipam=IpamConf(data_dir=ipam.absolute_path("dataDir")),
    )


def check_version(top: Fields) -> str:
    """The configuration's cniVersion, one that we speak. Raises: CniError 1; 7 if not a string."""
    version = top.text("cniVersion")
    if version in VERSIONS:
        return version
    said = f"cniVersion {show(version)} is not supported" if version else "cniVersion is missing"
    raise CniError(CniCode.INCOMPATIBLE_VERSION, said, f"limpet speaks {', '.join(VERSIONS)}")


def _is_ipam_only(top: Fields, ipam: Fields) -> bool:
    main = top.text("type")
    if not main:
        raise CniError(CniCode.INVALID_NETWORK_CONFIG, "type: missing in the network configuration")
    if main != OWN_TYPE and ipam.text("type") != OWN_TYPE:
        raise top.invalid(
            "type",
            f"is not served, nor is ipam.type {show(ipam.values.get('type'))}",
            f'limpet serves type "{OWN_TYPE}", or any type with ipam.type "{OWN_TYPE}"',
        )
    return main != OWN_TYPE


def _parse_ipam_only(top: Fields, core: NetworkConf) -> StaticConf:
    """All but `ipam` is the main plugin's business, and not looked at."""
    ipam, unknown = parse_ipam(top)
    return StaticConf(replace(core, ipam=ipam, unknown_keys=tuple(sorted(unknown))))


def _parse_main(top: Fields, core: NetworkConf) -> StaticConf:
    for key in _UNSERVED:
        if value := top.values.get(key):
            raise CniError(
                CniCode.UNSUPPORTED_FIELD,
                f"{key}: {show(value)} is not served by limpet",
                f"remove {key} from the network configuration, or use the bridge plugin with "
                f'ipam.type "{OWN_TYPE}"',
            )
    for key in _HARMLESS_FLAGS:
        top.flag(key)
    ipam, unknown = parse_ipam(top)
    dns = top.object("dns", DNS)
    default_gateway = top.flag("isDefaultGateway")
    main = MainConf(
        bridge=_parse_bridge(top),
        mtu_bytes=_parse_mtu(top),
        hairpin_mode=top.flag("hairpinMode"),
        ip_masq=top.flag("ipMasq"),
        is_gateway=top.flag("isGateway") or default_gateway,
        is_default_gateway=default_gateway,
        promisc_mode=top.flag("promiscMode"),
        port_isolation=top.flag("portIsolation"),
        port_security=top.values.get("portSecurity") is None or top.flag("portSecurity"),
    )
    if main.hairpin_mode and main.promisc_mode:
        raise top.invalid("promiscMode", "excludes hairpinMode: true", "set one of them to false")
    conf = replace(
        core,
        main=main,
        ipam=ipam,
        dns=to_dns(dns),
        unknown_keys=tuple(sorted([*top.unknown, *unknown, *dns.unknown])),
    )
    return StaticConf(conf, parse_bandwidth(top))


def _parse_bridge(top: Fields) -> str | None:
    name = top.text("bridge")
    if not name:
        return None
    if problem := ifname_problem(name):
        raise top.invalid("bridge", problem)
    return name


def _parse_mtu(fields: Fields) -> int | None:
    """0 is unset, as in the reference; 68 is the least that IPv4 and veth allow."""
    mtu = fields.number("mtu", 0, 65535) or None
    if mtu is not None and mtu < 68:
        raise fields.invalid("mtu", "is not within 68 to 65535")
    return mtu


def to_dns(fields: Fields) -> Dns:
    return Dns(
        nameservers=fields.texts("nameservers"),
        domain=fields.text("domain") or "",
        search=fields.texts("search"),
        options=fields.texts("options"),
    )


def parse_bandwidth(fields: Fields) -> Bandwidth | None:
    """The bandwidth plugin's limits, None if it says nothing. Source: its parseConfig()."""
    for key in ("unshapedSubnets", "shapedSubnets"):
        if fields.texts(key):
            raise CniError(
                CniCode.UNSUPPORTED_FIELD,
                f"{fields.at(key)}: {show(fields.values[key])} is not served by limpet",
                "limits hold for all traffic of a pod",
            )
    numbers = [
        fields.number(key, 0, _U64)
        for key in ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
    ]
    if all(number is None for number in numbers):
        return None
    ingress_rate, ingress_burst, egress_rate, egress_burst = (number or 0 for number in numbers)
    for way, rate, burst in (
        ("ingress", ingress_rate, ingress_burst),
        ("egress", egress_rate, egress_burst),
    ):
        if (rate == 0) != (burst == 0):
            raise fields.invalid(f"{way}Burst", f"does not go with {way}Rate {rate}", _BURST_HINT)
        if burst // 8 >= _U32:
            raise fields.invalid(f"{way}Burst", "is not below 4 GiB")
    return Bandwidth(ingress_rate, ingress_burst, egress_rate, egress_burst)


_BURST_HINT = "set both rate and burst, in bits per second and bits, or neither"
