"""Whatever comes in, a request or a CniError comes out, and what we write can be read."""

from __future__ import annotations

import copy
import json
import os
from ipaddress import IPv6Address, ip_interface
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from limpet.base.addresses import Address, InterfaceAddress, Prefix
from limpet.base.errors import CniCode, CniError
from limpet.cni.protocol.conf import VERSIONS
from limpet.cni.protocol.fields import to_address, to_prefix
from limpet.cni.protocol.request import parse_request, reply_version
from limpet.cni.protocol.result import encode_error, encode_result, parse_result
from limpet.cni.protocol.values import CniRequest, CniResult, Dns, ResultAddress, ResultInterface
from limpet.datapath.node.pod.attachment import RouteSpec
from tests.effort import examples
from tests.unit.cni.protocol.cni_inputs import CONF, CONTAINERD_RUNTIME, conf, environ

VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION")
FULL_CONF = conf(
    cniVersion="1.1.0",
    runtimeConfig=CONTAINERD_RUNTIME | {"ips": ["10.244.7.9"], "mac": "02:00:00:00:00:01"},
    args={"cni": {"ips": ["10.244.7.9"], "mac": "02:00:00:00:00:01"}},
    dns={"nameservers": ["10.0.0.1"], "domain": "a", "search": ["b"], "options": ["c"]},
    prevResult={
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500}],
        "ips": [{"address": "10.244.7.9/24", "gateway": "10.244.7.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.244.7.1", "priority": 3}],
    },
    **{"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}]},
)

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.floats()  # json.dumps writes NaN and Infinity, which are not JSON
    | st.text(max_size=20)
    | st.sampled_from(["", "10.0.0.1", "10.0.0.0/24", "::/0", "limpet", "1.0.0", "\ud800", "\0"])
)
values = st.recursive(
    leaves,
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "subnet", "dst", "cni", "ips", "hostPort"]) | st.text(),
            children,
        )
    ),
    max_leaves=12,
)
verbs = st.sampled_from(VERBS)
# As the kernel hands them over: any bytes but NUL.
variables = st.binary(max_size=40).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))


def outcome(variables: dict[str, str], stdin: bytes) -> CniRequest | CniError:
    """What comes of a request; an error can be told to the runtime."""
    version = reply_version(stdin)
    assert version in VERSIONS
    try:
        return parse_request(variables, stdin)
    except CniError as error:
        refused = error
    body = json.loads(encode_error(refused, version))
    assert body["code"] == refused.code != CniCode.INTERNAL
    assert body["msg"]
    assert "\n" not in refused.msg
    return refused


@given(
    st.dictionaries(
        st.sampled_from(["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"]),
        variables | verbs,
    ),
    st.binary(),
)
def test_any_environment_and_any_bytes_give_a_request_or_an_error(
    variables: dict[str, str], stdin: bytes
) -> None:
    outcome(variables, stdin)


@given(verbs, st.binary())
@example("ADD", b'{"a":1,"a":2}')
@example("ADD", b'{"name":"\\udc00"}')
@example("ADD", b'{"name":1e999}')
def test_any_bytes_with_a_good_environment_give_a_request_or_an_error(
    verb: str, stdin: bytes
) -> None:
    outcome(environ(verb), stdin)


@given(verbs, values)
def test_any_json_gives_a_request_or_an_error(verb: str, document: Any) -> None:
    outcome(environ(verb), json.dumps(document).encode())


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    inside: Any = ()
    if isinstance(document, dict):
        inside = document.items()
    elif isinstance(document, list):
        inside = enumerate(document)
    found = [at] if at else []
    for key, value in inside:
        found += places(value, (*at, key))
    return found


def put(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    where = changed
    for key in at[:-1]:
        where = where[key]
    where[at[-1]] = value
    return changed


@settings(max_examples=examples(300))
@given(verbs, st.sampled_from(places(FULL_CONF)), values)
def test_a_wrong_value_anywhere_in_a_good_configuration_gives_a_request_or_an_error(
    verb: str, at: tuple[Any, ...], value: Any
) -> None:
    outcome(environ(verb), json.dumps(put(FULL_CONF, at, value)).encode())


@given(values)
def test_nothing_that_a_runtime_sends_for_a_pod_can_stop_its_del(value: Any) -> None:
    for key in ("runtimeConfig", "args", "prevResult", "mtu", "dns"):
        stdin = json.dumps(conf(**{key: value}), allow_nan=True).encode()
        result = outcome(environ("DEL"), stdin)
        assert isinstance(result, CniRequest) or result.code == CniCode.DECODE_FAILURE


@given(st.permutations(list(FULL_CONF.items())), verbs)
def test_the_order_of_keys_changes_nothing(items: list[tuple[str, Any]], verb: str) -> None:
    one = outcome(environ(verb), json.dumps(FULL_CONF).encode())
    other = outcome(environ(verb), json.dumps(dict(items), indent=1).encode())

    assert one == other


@given(st.lists(st.sampled_from([CONF, conf(mtu=1400), conf(name="other"), FULL_CONF])))
def test_what_came_before_changes_nothing(documents: list[dict[str, Any]]) -> None:
    for document in documents:
        request = parse_request(environ(), json.dumps(document).encode())
        assert request.conf.name == document["name"]
        assert request.conf.main.mtu_bytes == document.get("mtu")


addresses: st.SearchStrategy[Address] = st.ip_addresses().filter(
    lambda a: not (isinstance(a, IPv6Address) and a.ipv4_mapped)
)


def interface_addresses(address: Address) -> st.SearchStrategy[InterfaceAddress]:
    return st.integers(0, address.max_prefixlen).map(lambda n: ip_interface(f"{address}/{n}"))


numbers = st.none() | st.integers(1, 2**32 - 1)
words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)


def routes_to(destination: Prefix) -> st.SearchStrategy[RouteSpec]:
    gateways = addresses.filter(lambda gateway: gateway.version == destination.version)
    return st.builds(
        RouteSpec,
        st.just(destination),
        st.none() | gateways,
        numbers,
        numbers,
        numbers,
        st.none() | st.integers(0, 2**32 - 1),
        st.none() | st.integers(0, 255),
    )


routes = (
    addresses.flatmap(interface_addresses)
    .map(lambda address: address.network)
    .filter(lambda prefix: prefix.version == 4 or not prefix.network_address.ipv4_mapped)
    .flatmap(routes_to)
)


@st.composite
def results(draw: st.DrawFn) -> CniResult:
    interfaces = draw(
        st.lists(
            st.builds(ResultInterface, words, words, numbers, words, words, words), max_size=3
        ).map(tuple)
    )
    indexes = st.integers(0, len(interfaces) - 1) if interfaces else st.nothing()
    ips = st.builds(
        ResultAddress,
        addresses.flatmap(interface_addresses),
        st.none() | addresses,
        st.none() | indexes,
    )
    many_words = st.lists(words, max_size=2).map(tuple)
    return CniResult(
        interfaces,
        draw(st.lists(ips, max_size=3).map(tuple)),
        draw(st.lists(routes, max_size=3).map(tuple)),
        draw(st.builds(Dns, many_words, words, many_words, many_words)),
    )


@given(results())
def test_a_result_of_1_1_0_is_read_back_as_it_was(result: CniResult) -> None:
    assert parse_result(json.loads(encode_result(result, "1.1.0")), "prevResult") == result


@given(results(), st.sampled_from(VERSIONS))
def test_a_result_of_any_version_keeps_names_and_addresses(result: CniResult, version: str) -> None:
    body = json.loads(encode_result(result, version))
    read = parse_result(body, "prevResult")

    assert body["cniVersion"] == version
    assert read.addresses == result.addresses
    assert read.dns == result.dns
    assert [(i.name, i.mac, i.sandbox) for i in read.interfaces] == [
        (i.name, i.mac, i.sandbox) for i in result.interfaces
    ]
    assert [(r.destination, r.gateway) for r in read.routes] == [
        (r.destination, r.gateway) for r in result.routes
    ]


@given(st.text() | st.ip_addresses().map(str) | st.ip_addresses().map(lambda a: f"{a}/24"))
@example("::ffff:0:0/0")
def test_a_prefix_is_read_with_the_address_that_it_holds_or_refused(text: str) -> None:
    try:
        prefix = to_prefix(text, "x", mask=True)
    except CniError:
        return
    assert to_prefix(str(prefix), "x", mask=False) == prefix
    assert to_address(text.partition("/")[0], "x") in prefix
