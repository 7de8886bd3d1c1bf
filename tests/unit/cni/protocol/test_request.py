"""Environment and stdin to a request: what each verb needs, and what is asked for a pod."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from limpet.base.errors import CniCode, CniError
from limpet.cni.protocol.conf import VERSIONS
from limpet.cni.protocol.request import parse_request, reply_version
from limpet.cni.protocol.values import Dns, Verb
from limpet.datapath.node.pod.attachment import Bandwidth, HostPortMapping
from limpet.ipam.leases import Holder
from tests.unit.cni.protocol.cni_inputs import (
    CONF,
    CONTAINER,
    CONTAINERD_RUNTIME,
    conf,
    environ,
    parse,
    refusal,
)


def test_an_add_of_containerd_is_understood_whole() -> None:
    request = parse(conf(runtimeConfig=CONTAINERD_RUNTIME))

    assert request.verb is Verb.ADD
    assert request.holder == Holder(CONTAINER, "eth0")
    assert request.netns == "/run/netns/cni-1"
    assert (request.pod_namespace, request.pod_name) == ("shop", "web-0")
    assert request.wishes.port_mappings == (HostPortMapping(18080, 80, "tcp"),)
    assert request.wishes.bandwidth == Bandwidth(10000000, 4294967295, 0, 0)
    assert request.conf.dns == Dns(nameservers=("10.96.0.10",), search=("svc.cluster.local",))
    assert request.conf.unknown_keys == ()


def test_an_add_of_podman_is_understood_with_its_lower_case_keys() -> None:
    request = parse(
        conf(
            cniVersion="0.4.0",
            runtimeConfig={
                "portMappings": [
                    {"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "10.0.0.9"}
                ]
            },
        ),
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAME=jolly;MAC=AA-BB-CC-00-11-22;IP=10.244.7.9",
    )

    assert request.wishes.port_mappings == (
        HostPortMapping(8080, 80, "udp", ip_address("10.0.0.9")),
    )
    assert request.wishes.mac == "aa:bb:cc:00:11:22"
    assert request.wishes.addresses == (ip_address("10.244.7.9"),)
    assert (request.pod_namespace, request.pod_name) == ("", "jolly")


# What each verb needs of the environment.


@pytest.mark.parametrize(
    ("verb", "needed"),
    [
        ("ADD", {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}),
        ("CHECK", {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}),
        ("DEL", {"CNI_CONTAINERID", "CNI_IFNAME"}),
        ("GC", set()),
        ("STATUS", set()),
    ],
)
def test_a_verb_demands_the_variables_that_the_specification_names(
    verb: str, needed: set[str]
) -> None:
    document = conf(cniVersion="1.1.0", prevResult={})
    for name in ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS"):
        if name in needed:
            error = refusal(document, verb, **{name: ""})
            assert error.code == CniCode.INVALID_ENVIRONMENT
            assert name in error.msg
        else:
            parse(document, verb, **{name: ""})


@pytest.mark.parametrize("command", ["", "add", "REMOVE", "ADD ", "\udcff"])
def test_an_unknown_command_is_refused_with_code_4(command: str) -> None:
    error = refusal(CONF, command)

    assert error.code == CniCode.INVALID_ENVIRONMENT
    assert "CNI_COMMAND" in error.msg


@pytest.mark.parametrize("container_id", ["-a", "_a", ".a", "a/b", "a b", "a\n", "a:b", "ä", "a\0"])
def test_a_container_id_outside_the_specification_is_refused(container_id: str) -> None:
    error = refusal(CONF, CNI_CONTAINERID=container_id)

    assert error.code == CniCode.INVALID_ENVIRONMENT
    assert "CNI_CONTAINERID" in error.msg


@pytest.mark.parametrize("container_id", ["a", "0", "a_b.c-d", "A" * 64])
def test_a_container_id_within_the_specification_is_taken(container_id: str) -> None:
    assert parse(CONF, CNI_CONTAINERID=container_id).container_id == container_id


@pytest.mark.parametrize(
    "ifname", [".", "..", "a/b", "a:b", "a b", "a\tb", "a\u00a0b", "eth%d", "x" * 16, "ä" * 8]
)
def test_an_interface_name_that_the_kernel_would_not_take_is_refused(ifname: str) -> None:
    error = refusal(CONF, CNI_IFNAME=ifname)

    assert error.code == CniCode.INVALID_ENVIRONMENT
    assert "CNI_IFNAME" in error.msg


@pytest.mark.parametrize("ifname", ["eth0", "x" * 15, "ä" * 7, "..."])
def test_an_interface_name_that_the_kernel_takes_is_taken(ifname: str) -> None:
    assert parse(CONF, CNI_IFNAME=ifname).ifname == ifname


@pytest.mark.parametrize("name", ["CNI_NETNS", "CNI_ARGS", "CNI_IFNAME"])
def test_a_variable_that_is_not_utf_8_is_refused(name: str) -> None:
    error = refusal(CONF, **{name: "K=\udcff"})

    assert error.code == CniCode.INVALID_ENVIRONMENT
    assert name in error.msg


def test_a_del_without_netns_and_prev_result_is_taken() -> None:
    request = parse(CONF, "DEL", CNI_NETNS="")

    assert request.netns == ""
    assert request.prev_result is None


# What is not JSON.


@pytest.mark.parametrize(
    "stdin",
    [
        b"",
        b" \n",
        b"{",
        b"{}x",
        b"\xff",
        b'{"name":"\xff"}',
        b'{"name":"\\ud800"}',
        b'{"mtu":NaN}',
        b'{"mtu":' + b"9" * 5000 + b"}",
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_what_is_not_json_is_refused_with_code_6(stdin: bytes) -> None:
    with pytest.raises(CniError) as caught:
        parse_request(environ(), stdin)

    assert caught.value.code == CniCode.DECODE_FAILURE
    assert reply_version(stdin) == "1.0.0"


@pytest.mark.parametrize("document", [[], 1, "x", None, True])
def test_json_that_is_no_object_is_refused_with_code_7(document: Any) -> None:
    assert refusal(document).code == CniCode.INVALID_NETWORK_CONFIG


# Versions.


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_ours_is_taken_and_answered_in(version: str) -> None:
    assert parse(conf(cniVersion=version)).conf.cni_version == version
    assert reply_version(f'{{"cniVersion":"{version}"}}'.encode()) == version


@pytest.mark.parametrize("version", ["", "0.2.0", "1.2.0", "1.0", "v1.0.0", None, ...])
def test_another_version_is_refused_with_code_1_and_a_list_of_ours(version: Any) -> None:
    error = refusal(conf(cniVersion=version))

    assert error.code == CniCode.INCOMPATIBLE_VERSION
    assert "1.1.0" in error.details


@pytest.mark.parametrize(
    ("verb", "too_old", "first"),
    [("CHECK", "0.3.1", "0.4.0"), ("GC", "1.0.0", "1.1.0"), ("STATUS", "1.0.0", "1.1.0")],
)
def test_a_verb_is_refused_in_versions_before_it(verb: str, too_old: str, first: str) -> None:
    parse(conf(cniVersion=first, prevResult={}), verb)

    error = refusal(conf(cniVersion=too_old, prevResult={}), verb)

    assert error.code == CniCode.INCOMPATIBLE_VERSION
    assert verb in error.msg


@pytest.mark.parametrize("stdin", [b'{"cniVersion":"0.4.0"}', b'{"cniVersion":"9"}', b"", b"x"])
def test_version_is_understood_whatever_comes_with_it(stdin: bytes) -> None:
    request = parse_request({"CNI_COMMAND": "VERSION"}, stdin)

    assert request.verb is Verb.VERSION
    assert request.conf.cni_version in VERSIONS


# DEL and GC must work with a configuration that has become wrong since the ADD.


@pytest.mark.parametrize(
    "change",
    [
        {"vlan": 7},
        {"mtu": "big"},
        {"hairpinMode": True, "promiscMode": True},
        {"dns": []},
        {"ipam": {"type": "dhcp", "dataDir": "/data"}},
        {"ipam": {"type": "limpet", "ranges": [[{"subnet": "nonsense"}]], "dataDir": "/data"}},
        {"runtimeConfig": {"portMappings": "many"}},
        {"runtimeConfig": []},
        {"args": {"cni": {"ips": ["here"]}}},
        {"prevResult": {"ips": [{"address": 5}]}},
    ],
)
def test_a_del_is_taken_with_a_configuration_that_add_refuses(change: dict[str, Any]) -> None:
    assert refusal(conf(**change)).code in (
        CniCode.INVALID_NETWORK_CONFIG,
        CniCode.UNSUPPORTED_FIELD,
    )

    request = parse(conf(**change), "DEL", CNI_ARGS="nonsense;K8S_POD_NAME=web-0")

    assert request.holder == Holder(CONTAINER, "eth0")
    assert request.pod_name == "web-0"
    if "ipam" in change:
        assert request.conf.ipam.data_dir == "/data"


@pytest.mark.parametrize("change", [{"name": "../up"}, {"type": ...}, {"ipam": 5}, {"type": "tap"}])
def test_a_del_still_needs_to_know_which_network(change: dict[str, Any]) -> None:
    assert refusal(conf(**change), "DEL").code == CniCode.INVALID_NETWORK_CONFIG


# What is asked for one pod.


def test_labels_come_from_args_as_the_conventions_have_them() -> None:
    listed = [{"key": "tier", "value": "web"}, {"key": "app"}]

    assert parse(conf(args={"cni": {"labels": listed}})).wishes.labels == (
        ("app", ""),
        ("tier", "web"),
    )
    assert refusal(conf(args={"cni": {"labels": [1]}})).code == CniCode.INVALID_NETWORK_CONFIG
    assert refusal(conf(args={"cni": {"labels": [{"value": "x"}]}})).msg.endswith("lacks key")


FORGED = ["web\nkube-system", "web\x1b[2J", "a b", "\u202egpj", "x" * 254, "-", "ü"]


@pytest.mark.parametrize("key", ["K8S_POD_NAME", "K8S_POD_NAMESPACE"])
@pytest.mark.parametrize("name", FORGED)
def test_a_name_that_no_pod_has_is_refused_and_keeps_no_pod_from_being_removed(
    key: str, name: str
) -> None:
    for verb in ("ADD", "CHECK"):
        with pytest.raises(CniError, match=f"CNI_ARGS: {key}") as refused:
            parse(conf(), verb, CNI_ARGS=f"{key}={name}")
        assert refused.value.code == CniCode.INVALID_ENVIRONMENT
        assert str(refused.value).isprintable()
    gone = parse(conf(), "DEL", CNI_ARGS=f"{key}={name}")
    assert (gone.pod_name, gone.pod_namespace) == ("", "")


@pytest.mark.parametrize("text", FORGED)
def test_a_label_that_no_pod_has_is_refused(text: str) -> None:
    for label in ({"key": text, "value": "a"}, {"key": "a", "value": text}):
        with pytest.raises(CniError, match=r"args\.cni\.labels\[0\]"):
            parse(conf(args={"cni": {"labels": [label]}}))


def test_addresses_and_mac_come_from_runtime_config_before_args_before_cni_args() -> None:
    runtime = {"ips": ["10.244.7.5/24", "fd00:7::5"], "mac": "02:00:00:00:00:01"}
    args = {"cni": {"ips": ["10.244.7.6"], "mac": "02:00:00:00:00:02", "other": [1]}, "own": 1}
    cni_args = "IP=10.244.7.7,fd00:7::7/64;MAC=02:00:00:00:00:03;GATEWAY=10.244.7.1;FOO=BAR"

    first = parse(conf(runtimeConfig=runtime, args=args), CNI_ARGS=cni_args)
    second = parse(conf(args=args), CNI_ARGS=cni_args)
    third = parse(CONF, CNI_ARGS=cni_args)

    assert first.wishes.addresses == (ip_address("10.244.7.5"), ip_address("fd00:7::5"))
    assert first.wishes.mac == "02:00:00:00:00:01"
    assert second.wishes.addresses == (ip_address("10.244.7.6"), ip_address("fd00:7::7"))
    assert second.wishes.mac == "02:00:00:00:00:02"
    assert third.wishes.addresses == (ip_address("10.244.7.7"), ip_address("fd00:7::7"))
    assert third.wishes.mac == "02:00:00:00:00:03"


def test_addresses_of_both_ip_versions_may_come_from_places_of_their_own() -> None:
    """As nerdctl says them with --ip and --ip6."""
    made = parse(conf(runtimeConfig={"ips": ["fd00:7::50"]}), CNI_ARGS="IP=10.244.7.50")
    args = {"cni": {"ips": ["10.244.7.6", "fd00:7::6"]}}
    more = parse(conf(runtimeConfig={"ips": ["fd00:7::50"]}, args=args), CNI_ARGS="IP=10.244.7.50")

    assert made.wishes.addresses == (ip_address("fd00:7::50"), ip_address("10.244.7.50"))
    assert more.wishes.addresses == (ip_address("fd00:7::50"), ip_address("10.244.7.6"))


@pytest.mark.parametrize(
    "cni_args", ["IP", "K8S_POD_NAME=a;b", "=x", "IP=here", "MAC=1", "GATEWAY=x", "IP=1.2.3.4,"]
)
def test_a_malformed_cni_args_is_refused_with_code_4(cni_args: str) -> None:
    error = refusal(CONF, CNI_ARGS=cni_args)

    assert error.code == CniCode.INVALID_ENVIRONMENT
    assert "CNI_ARGS" in error.msg


@pytest.mark.parametrize("cni_args", ["", ";", "FOO=BAR", "FOO=", "A=b=c", "IP="])
def test_unknown_and_empty_cni_args_ask_for_nothing(cni_args: str) -> None:
    request = parse(CONF, CNI_ARGS=cni_args)

    assert request.wishes.addresses == ()
    assert request.pod_name == ""


@pytest.mark.parametrize(
    ("runtime", "field"),
    [
        ({"ips": "10.0.0.1"}, "runtimeConfig.ips"),
        ({"ips": ["10.0.0.256"]}, "runtimeConfig.ips[0]"),
        ({"ips": ["10.0.0.1/x"]}, "runtimeConfig.ips[0]"),
        ({"ips": ["fe80::1%eth0"]}, "runtimeConfig.ips[0]"),
        ({"ips": [7]}, "runtimeConfig.ips[0]"),
        ({"mac": "00:00:00:00:00:00"}, "runtimeConfig.mac"),
        ({"mac": "01:00:5e:00:00:01"}, "runtimeConfig.mac"),
        ({"mac": "02:00:00:00:00"}, "runtimeConfig.mac"),
        ({"mac": "02:00:00:00: 0:01"}, "runtimeConfig.mac"),
        ({"portMappings": {}}, "runtimeConfig.portMappings"),
        ({"portMappings": [5]}, "runtimeConfig.portMappings[0]"),
        ({"portMappings": [{"hostPort": 1}]}, "runtimeConfig.portMappings[0]"),
        ({"portMappings": [{"hostPort": "1"}]}, "runtimeConfig.portMappings[0].hostPort"),
        ({"portMappings": [{"hostPort": True}]}, "runtimeConfig.portMappings[0].hostPort"),
        ({"portMappings": [{"hostPort": 65536}]}, "runtimeConfig.portMappings[0].hostPort"),
        (
            {"portMappings": [{"hostPort": 1, "containerPort": 0}]},
            "runtimeConfig.portMappings[0].containerPort",
        ),
        (
            {"portMappings": [{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}]},
            "runtimeConfig.portMappings[0].protocol",
        ),
        (
            {"portMappings": [{"hostPort": 1, "containerPort": 1, "hostIP": "all"}]},
            "runtimeConfig.portMappings[0].hostIP",
        ),
        ({"bandwidth": {"ingressRate": 5}}, "runtimeConfig.bandwidth.ingressBurst"),
        ({"bandwidth": {"egressBurst": 5}}, "runtimeConfig.bandwidth.egressBurst"),
        ({"bandwidth": {"ingressRate": -1}}, "runtimeConfig.bandwidth.ingressRate"),
        ({"bandwidth": {"ingressRate": 1.5}}, "runtimeConfig.bandwidth.ingressRate"),
        (
            {"bandwidth": {"ingressRate": 8, "ingressBurst": 2**35}},
            "runtimeConfig.bandwidth.ingressBurst",
        ),
        ({"dns": {"servers": "8.8.8.8"}}, "runtimeConfig.dns.servers"),
        ({"ipRanges": [{}]}, "runtimeConfig.ipRanges[0]"),
        ({"ipRanges": [[{}]]}, "runtimeConfig.ipRanges[0][0].subnet"),
        ("x", "runtimeConfig"),
    ],
)
def test_a_wrong_wish_is_refused_with_code_7_naming_the_field(runtime: Any, field: str) -> None:
    error = refusal(conf(runtimeConfig=runtime))

    assert error.code == CniCode.INVALID_NETWORK_CONFIG
    assert error.msg.startswith(f"{field}:")


def test_port_mappings_without_host_port_are_left_out_and_repeated_ones_count_once() -> None:
    mapping = {"hostPort": 80, "containerPort": 8080, "protocol": "TCP"}

    request = parse(
        conf(
            runtimeConfig={
                "portMappings": [
                    {"hostPort": 0, "containerPort": 1},
                    {"containerPort": 1},
                    mapping,
                    mapping,
                    {"hostPort": 81, "containerPort": 8081, "protocol": "sctp", "hostIP": "::"},
                ]
            }
        )
    )

    assert request.wishes.port_mappings == (
        HostPortMapping(80, 8080, "tcp"),
        HostPortMapping(81, 8081, "sctp", ip_address("::")),
    )


def test_bandwidth_of_the_configuration_wins_over_the_runtimes_as_in_the_bandwidth_plugin() -> None:
    own = {"ingressRate": 8, "ingressBurst": 16, "egressRate": 24, "egressBurst": 32}

    request = parse(conf(**own, runtimeConfig={"bandwidth": {"ingressRate": 1, "ingressBurst": 1}}))

    assert request.wishes.bandwidth == Bandwidth(8, 16, 24, 32)


def test_the_largest_burst_that_runtimes_send_is_taken() -> None:
    burst = (2**32 - 1) * 8 - 1  # CRI-O

    request = parse(conf(runtimeConfig={"bandwidth": {"egressRate": 1, "egressBurst": burst}}))

    assert request.wishes.bandwidth == Bandwidth(egress_rate_bits=1, egress_burst_bits=burst)


def test_dns_of_the_runtime_replaces_what_it_speaks_of() -> None:
    written = {"nameservers": ["10.0.0.1"], "domain": "shop", "options": ["ndots:5"]}

    request = parse(conf(dns=written, runtimeConfig={"dns": {"servers": ["10.0.0.2"]}}))

    assert parse(conf(dns=written)).conf.dns == Dns(("10.0.0.1",), "shop", (), ("ndots:5",))
    assert request.conf.dns == Dns(("10.0.0.2",), "shop", (), ("ndots:5",))


def test_ip_ranges_of_the_runtime_come_first_and_may_not_overlap() -> None:
    request = parse(conf(runtimeConfig={"ipRanges": [[{"subnet": "10.99.0.0/24"}]]}))
    error = refusal(conf(runtimeConfig={"ipRanges": [[{"subnet": "10.244.0.0/16"}]]}))

    subnets = [range_set[0].subnet for range_set in request.conf.ipam.range_sets]
    assert subnets[0] == ip_network("10.99.0.0/24")
    assert len(subnets) == 3
    assert error.code == CniCode.INVALID_NETWORK_CONFIG


# prevResult and GC.


def test_check_needs_the_result_of_the_add() -> None:
    error = refusal(conf(cniVersion="0.4.0"), "CHECK")

    assert error.code == CniCode.INVALID_NETWORK_CONFIG
    assert "prevResult" in error.msg


@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
def test_a_prev_result_that_cannot_be_read_is_refused_but_on_del(verb: str) -> None:
    document = conf(prevResult={"ips": [{"address": "10.0.0.1"}]})

    error = refusal(document, verb)

    assert error.code == CniCode.INVALID_NETWORK_CONFIG
    assert error.msg.startswith("prevResult.ips[0].address:")
    assert parse(document, "DEL").prev_result is None


def test_prev_result_is_kept() -> None:
    previous = {"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.5/24"}]}

    for verb in ("ADD", "DEL", "CHECK"):
        result = parse(conf(prevResult=previous), verb).prev_result
        assert result is not None
        assert str(result.addresses[0].address) == "10.0.0.5/24"


GC_CONF = conf(cniVersion="1.1.0")


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_gc_takes_the_attachments_under_either_key(key: str) -> None:
    entries = [{"containerID": "a", "ifname": "eth0"}, {"containerID": "b", "ifname": "net1"}]

    request = parse(GC_CONF | {key: entries}, "GC")

    assert request.valid_attachments == frozenset([Holder("a", "eth0"), Holder("b", "net1")])


def test_gc_tells_an_empty_list_from_none_at_all() -> None:
    assert parse(GC_CONF | {"cni.dev/valid-attachments": []}, "GC").valid_attachments == frozenset()
    assert parse(GC_CONF, "GC").valid_attachments is None
    assert parse(GC_CONF | {"cni.dev/valid-attachments": None}, "GC").valid_attachments is None


@pytest.mark.parametrize("entries", [{}, "all", [5], [{}], [{"containerID": "a"}], [{"ifname": 1}]])
def test_gc_never_guesses_at_attachments_that_it_cannot_read(entries: Any) -> None:
    error = refusal(GC_CONF | {"cni.dev/valid-attachments": entries}, "GC")

    assert error.code == CniCode.INVALID_NETWORK_CONFIG
    assert error.msg.startswith("cni.dev/valid-attachments")
