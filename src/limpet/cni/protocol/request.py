"""A CNI invocation, environment and stdin, to a CniRequest.

Source: CNI SPEC.md 1.1.0, section 2 and 4; CONVENTIONS.md for `runtimeConfig`, `args` and CNI_ARGS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from limpet.base.addresses import Address, ifname_problem
from limpet.base.errors import CniCode, CniError
from limpet.base.text.names import label_problem, name_problem
from limpet.cni.protocol.allowed import ARGS_KEYS, RUNTIME_KEY, parse_allowed
from limpet.cni.protocol.conf import (
    BANDWIDTH,
    PER_REQUEST_KEYS,
    VERSIONS,
    parse_bandwidth,
    parse_static_conf,
)
from limpet.cni.protocol.fields import Fields, invalid, keys, show, to_address, to_mac
from limpet.cni.protocol.ipam import check_overlaps, parse_range_sets
from limpet.cni.protocol.result import parse_result
from limpet.cni.protocol.values import CniRequest, CniResult, Dns, NetworkConf, PodWishes, Verb
from limpet.datapath.node.pod.attachment import Bandwidth, HostPortMapping
from limpet.ipam.leases import Holder

T = TypeVar("T")

# The variables that each verb must have, not empty.
_REQUIRED: Mapping[Verb, tuple[str, ...]] = {
    Verb.ADD: ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    Verb.DEL: ("CNI_CONTAINERID", "CNI_IFNAME"),
    Verb.CHECK: ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    Verb.GC: (),
    Verb.STATUS: (),
    Verb.VERSION: (),
}
# The version that brought each verb.
_SINCE: Mapping[Verb, str] = {Verb.CHECK: "0.4.0", Verb.GC: "1.1.0", Verb.STATUS: "1.1.0"}
# These must clean up what an earlier configuration left, so only what they need is demanded.
_FORGIVING = (Verb.DEL, Verb.GC)

_RUNTIME = keys("ips", "mac", "portMappings", "bandwidth", "dns", "ipRanges", RUNTIME_KEY)
_RUNTIME_DNS = keys("servers", "searches", "options")
_CNI_ARGS_OBJECT = keys("ips", "mac", "labels", *ARGS_KEYS)
_LABEL = keys("key", "value")
_PORT_MAPPING = keys("hostPort", "containerPort", "protocol", "hostIP")
_ATTACHMENT = keys("containerID", "ifname")

_POD_NAMES = ("K8S_POD_NAMESPACE", "K8S_POD_NAME")

DEFAULT_VERSION = "1.0.0"
"""Version of an answer to a request that names no version that we speak."""


def parse_request(environ: Mapping[str, str], stdin: bytes) -> CniRequest:
    """The request that a runtime makes, valid for its verb; a pure function of its input.

    Of DEL and GC no more is demanded than they need: where the rest is wrong it is left at its
    defaults. A VERSION request (which the shim answers) has an empty configuration.

    Raises: CniError, and nothing else, whatever comes in: 4 for the environment, 6 for what is not
    JSON, 1 for the version, 2 for a key that we do not serve, 7 for any other field.
    """
    verb = _parse_verb(environ)
    if verb is Verb.VERSION:
        return CniRequest(verb, NetworkConf("", reply_version(stdin), ipam_only=False))
    _check_environment(environ, verb)
    document = _decode(stdin)
    runtime_keys = {key: document[key] for key in PER_REQUEST_KEYS if key in document}
    forgiving = verb in _FORGIVING
    static = parse_static_conf(_static_part(document), strict=not forgiving)
    conf = static.conf
    if (since := _SINCE.get(verb)) and VERSIONS.index(conf.cni_version) < VERSIONS.index(since):
        raise CniError(
            CniCode.INCOMPATIBLE_VERSION,
            f"{verb.value} is not part of cniVersion {conf.cni_version}",
            f"it came with {since}",
        )
    if verb is Verb.GC:
        return CniRequest(verb, conf, valid_attachments=_parse_attachments(runtime_keys))
    if verb is Verb.STATUS:
        return CniRequest(verb, conf)
    arguments = _parse_cni_args(environ.get("CNI_ARGS", ""), forgiving=forgiving)
    namespace, name = (_pod_name(arguments, key, forgiving=forgiving) for key in _POD_NAMES)
    request = CniRequest(
        verb,
        conf,
        container_id=environ["CNI_CONTAINERID"],
        ifname=environ["CNI_IFNAME"],
        netns=environ.get("CNI_NETNS", ""),
        pod_namespace=namespace,
        pod_name=name,
        prev_result=_parse_prev_result(runtime_keys.get("prevResult"), verb),
    )
    try:
        return _with_runtime_wishes(request, static.bandwidth, runtime_keys, arguments)
    except CniError:
        if forgiving:
            return request
        raise


def reply_version(stdin: bytes) -> str:
    """The version to answer `stdin` in when it could not be parsed as a request; never raises."""
    try:
        document = msgspec.json.decode(stdin)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return DEFAULT_VERSION
    version = document.get("cniVersion") if isinstance(document, dict) else None
    return version if version in VERSIONS else DEFAULT_VERSION


def _bad_environment(msg: str, hint: str = "") -> CniError:
    return CniError(CniCode.INVALID_ENVIRONMENT, msg, hint)


def _parse_verb(environ: Mapping[str, str]) -> Verb:
    command = environ.get("CNI_COMMAND", "")
    try:
        return Verb(command)
    except ValueError:
        said = f"{show(command)} is not a CNI command" if command else "is missing"
        known = ", ".join(verb.value for verb in Verb)
        raise _bad_environment(f"CNI_COMMAND: {said}", f"limpet serves {known}") from None


def _check_environment(environ: Mapping[str, str], verb: Verb) -> None:
    required = _REQUIRED[verb]
    if missing := [name for name in required if not environ.get(name)]:
        raise _bad_environment(f"{', '.join(missing)}: missing, {verb.value} needs it")
    for name in ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS"):
        value = environ.get(name, "")
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise _bad_environment(f"{name}: {ascii(value)[:200]} is not UTF-8")
    if not required:
        return
    container_id, ifname = environ["CNI_CONTAINERID"], environ["CNI_IFNAME"]
    if problem := name_problem(container_id):
        raise _bad_environment(f"CNI_CONTAINERID: {show(container_id)} {problem}")
    if wrong := ifname_problem(ifname):
        raise _bad_environment(f"CNI_IFNAME: {show(ifname)} {wrong}")


def _decode(stdin: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(stdin)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = str(error)
    except RecursionError:
        problem = "nested too deeply"
    else:
        if isinstance(document, dict):
            return document
        raise invalid("network configuration", document, "is not an object")
    what = problem if stdin.strip() else "it is empty"
    raise CniError(CniCode.DECODE_FAILURE, f"network configuration on stdin: {what}")


def _static_part(document: Mapping[str, Any]) -> bytes:
    """The document without the runtime's keys, in one form for all requests of a network."""
    static = {key: value for key, value in document.items() if key not in PER_REQUEST_KEYS}
    return msgspec.json.encode(static)


def _parse_attachments(given: Mapping[str, object]) -> frozenset[Holder] | None:
    """GC's list. Null counts as absent: to take it for empty would remove every attachment.

    libcni sends the list under both names, because an earlier text of the specification had the
    second (containernetworking/cni issue 1101).
    """
    for key in ("cni.dev/valid-attachments", "cni.dev/attachments"):
        if given.get(key) is None:
            continue
        holders = set()
        for entry in Fields({key: given[key]}, "", keys(key)).objects(key, _ATTACHMENT):
            container_id, ifname = entry.text("containerID"), entry.text("ifname")
            if not container_id or not ifname:
                raise invalid(entry.path, entry.values, "lacks containerID or ifname")
            holders.add(Holder(container_id, ifname))
        return frozenset(holders)
    return None


def _parse_cni_args(text: str, *, forgiving: bool) -> dict[str, str]:
    """`KEY=VALUE;…`; unknown keys are the caller's to ignore, as every one of ours is optional."""
    arguments = {}
    for pair in text.split(";"):
        key, equals, value = pair.partition("=")
        if key and equals:
            arguments[key] = value
        elif pair.strip() and not forgiving:
            raise _bad_environment(f"CNI_ARGS: {show(pair)} is not KEY=VALUE")
    return arguments


def _pod_name(arguments: Mapping[str, str], key: str, *, forgiving: bool) -> str:
    """Empty: there is none. What tells others of a pod takes its name from here."""
    name = arguments.get(key, "")
    if name and (problem := name_problem(name)):
        if not forgiving:
            raise _bad_environment(f"CNI_ARGS: {key}: {show(name)} {problem}")
        return ""
    return name


def _parse_prev_result(value: object, verb: Verb) -> CniResult | None:
    if value is None:
        if verb is Verb.CHECK:
            raise CniError(
                CniCode.INVALID_NETWORK_CONFIG,
                "prevResult: missing, CHECK needs the result of the ADD",
            )
        return None
    try:
        return parse_result(value, "prevResult")
    except CniError:
        if verb is Verb.DEL:
            return None
        raise


def _with_runtime_wishes(
    request: CniRequest,
    bandwidth: Bandwidth | None,
    given: Mapping[str, object],
    arguments: Mapping[str, str],
) -> CniRequest:
    """`request` with what is asked for this pod: by runtimeConfig, else args, else CNI_ARGS."""
    runtime = Fields(_or_empty(given.get("runtimeConfig")), "runtimeConfig", _RUNTIME)
    args = Fields(_or_empty(given.get("args")), "args", keys("cni")).object("cni", _CNI_ARGS_OBJECT)
    addresses = _parse_addresses(runtime, args, arguments)
    conf = _with_runtime_ranges(request.conf, runtime)
    labels = _parse_labels(args)
    if conf.ipam_only:
        return replace(request, conf=conf, wishes=PodWishes(addresses, labels=labels))
    if bandwidth is None and "bandwidth" in runtime.values:
        bandwidth = parse_bandwidth(runtime.object("bandwidth", BANDWIDTH))
    _from_cni_args(arguments, "GATEWAY", _split_addresses)
    wishes = PodWishes(
        addresses,
        _parse_mac(runtime) or _parse_mac(args) or _from_cni_args(arguments, "MAC", to_mac),
        _parse_port_mappings(runtime),
        bandwidth or Bandwidth(),
        labels,
        parse_allowed(runtime, args),
    )
    return replace(request, conf=_with_runtime_dns(conf, runtime), wishes=wishes)


def _or_empty(value: object) -> object:
    return {} if value is None else value


def _parse_addresses(
    runtime: Fields, args: Fields, arguments: Mapping[str, str]
) -> tuple[Address, ...]:
    """The first place that names any address of an IP version counts for it: `nerdctl run --ip …
    --ip6 …` has one in CNI_ARGS and the other in runtimeConfig."""
    found: list[Address] = []
    in_environment = _from_cni_args(arguments, "IP", _split_addresses) or ()
    for given in (_parse_ips(runtime), _parse_ips(args), in_environment):
        versions = {each.version for each in found}
        found += [each for each in given if each.version not in versions]
    return tuple(found)


def _parse_ips(fields: Fields) -> tuple[Address, ...]:
    """Addresses with or without a length, which the range decides anyway."""
    found = []
    for path, text in fields.items("ips"):
        address, slash, length = text.partition("/") if isinstance(text, str) else ("", "", "")
        if slash and not (length.isascii() and length.isdigit()):
            raise invalid(path, text, "is not an address")
        found.append(to_address(address or text, path))
    return tuple(dict.fromkeys(found))


def _parse_labels(args: Fields) -> tuple[tuple[str, str], ...]:
    """As CONVENTIONS.md has them: a list of objects with a key and a value."""
    found = {}
    for entry in args.objects("labels", _LABEL):
        if not (key := entry.text("key")):
            raise invalid(entry.path, entry.values, "lacks key")
        value = entry.text("value") or ""
        if problem := label_problem(key, value):
            raise invalid(entry.path, entry.values, problem)
        found[key] = value
    return tuple(sorted(found.items()))


def _parse_mac(fields: Fields) -> str | None:
    value = fields.values.get("mac")
    return None if value is None or value == "" else to_mac(value, fields.at("mac"))


def _from_cni_args(
    arguments: Mapping[str, str], key: str, parse: Callable[[str, str], T]
) -> T | None:
    """The parsed value of an argument. Raises: CniError 4, as it comes from the environment."""
    value = arguments.get(key)
    if not value:
        return None
    try:
        return parse(value, key)
    except CniError as error:
        raise _bad_environment(f"CNI_ARGS {error.msg}", error.details) from None


def _split_addresses(value: str, path: str) -> tuple[Address, ...]:
    """`IP=a,b` as the static plugin takes it."""
    return tuple(to_address(part.strip().partition("/")[0], path) for part in value.split(","))


def _with_runtime_ranges(conf: NetworkConf, runtime: Fields) -> NetworkConf:
    """host-local puts the runtime's ranges before the configuration's."""
    if "ipRanges" not in runtime.values:
        return conf
    sets = parse_range_sets(runtime.values["ipRanges"], "runtimeConfig.ipRanges", [])
    sets += conf.ipam.range_sets
    check_overlaps(sets, "runtimeConfig.ipRanges with ipam.ranges")
    return replace(conf, ipam=replace(conf.ipam, range_sets=sets))


def _with_runtime_dns(conf: NetworkConf, runtime: Fields) -> NetworkConf:
    if "dns" not in runtime.values:
        return conf
    dns = runtime.object("dns", _RUNTIME_DNS)
    return replace(
        conf,
        dns=Dns(
            nameservers=dns.texts("servers") or conf.dns.nameservers,
            domain=conf.dns.domain,
            search=dns.texts("searches") or conf.dns.search,
            options=dns.texts("options") or conf.dns.options,
        ),
    )


def _parse_port_mappings(runtime: Fields) -> tuple[HostPortMapping, ...]:
    """The hostPorts; a host port of 0 asks for none and is left out."""
    found = []
    for entry in runtime.objects("portMappings", _PORT_MAPPING):
        host_port = entry.number("hostPort", 0, 65535)
        if not host_port:
            continue
        container_port = entry.number("containerPort", 1, 65535)
        if container_port is None:
            raise invalid(entry.path, entry.values, "lacks containerPort")
        protocol = (entry.text("protocol") or "tcp").lower()
        if protocol not in ("tcp", "udp", "sctp"):
            raise entry.invalid("protocol", "is not tcp, udp or sctp")
        host_address = entry.address("hostIP")
        found.append(HostPortMapping(host_port, container_port, protocol, host_address))
    return tuple(dict.fromkeys(found))
