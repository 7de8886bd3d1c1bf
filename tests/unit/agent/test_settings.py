"""The agent's configuration file: what is wrong is said with value, field and file."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.agent.settings import Settings, load_settings, parse_settings
from limpet.base.configuration import configuration_keys
from limpet.base.errors import ConfigError
from limpet.base.settings import (
    DnsSettings,
    Folders,
    PeerSettings,
    PodSettings,
    PolicySettings,
    RelaySettings,
    ServiceSettings,
    SourceSettings,
    TunnelSettings,
)
from limpet.ipam.leases import segment_range, segment_range_sets

EVERYTHING = """\
segments = ["10.244.7.0/24", "10.244.9.0/30", "fd00:7::/64"]
cluster_cidrs = ["10.244.0.0/16", "fd00::/16"]
bridge = "edge0"
mtu_bytes = 1400
overlay_bytes = 70
data_dir = "/d"
state_dir = "/s"
run_dir = "/r"
socket = "/r/agent.sock"
rest_s = 0
resync_s = 12.5
allow_forward = true
port_security = "on"
pod_extra_addresses = ["10.244.7.200/29", "fd00:99::/64"]
pod_extra_macs = ["00:00:5E:00:01"]
cni = true
peer_port = 7000
tunnel_ifname = "tun7"
tunnel_port = 51820
tunnel_endpoints = ["203.0.113.9:51820", "[2001:db8::9]:51820"]
tunnel_program = "/opt/wireguard-go"
ipsec_program = "/opt/charon"
nat_timeout_s = 12
port_mapping = false
relay_ports = [30000, 30099]
relay_tls_listen = ["203.0.113.9:8443"]
relay_pairs_per_node = 7
relay_bytes_per_s = 1000000
underlay_links = ["eth*"]
metrics_listen = ["127.0.0.1:9471", "[::1]:9471"]
log_level = "debug"
source = "kubernetes"
services = "on"
services_backend = "auto"
services_near_first = false
services_cgroup = "/sys/fs/cgroup/unified"
services_node_port_addresses = ["192.0.2.0/24"]
policies = "on"
kubernetes_kubeconfig = "/k/config"
kubernetes_context = "edge"
kubernetes_server = "http://127.0.0.1:10261"
kubernetes_token_file = "/k/token"
kubernetes_ca_file = "/k/ca.crt"
kubernetes_join_token_file = "/k/join"
dns = "on"
dns_listen = ["169.254.20.11"]
dns_domain = "edge.example"
dns_upstreams = ["192.0.2.53", "[2001:db8::53]:5353"]
dns_resolv_conf = "/etc/resolv.upstream"
dns_stale_s = 60
dns_in_results = true
dns_metrics_listen = "127.0.0.1:9474"
"""


def test_every_setting_can_be_set(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(EVERYTHING)

    found = load_settings(file)

    assert found == Settings(
        folders=Folders(
            data_dir=Path("/d"),
            state_dir=Path("/s"),
            run_dir=Path("/r"),
            socket=Path("/r/agent.sock"),
        ),
        pods=PodSettings(
            segments=tuple(map(ip_network, ("10.244.7.0/24", "10.244.9.0/30", "fd00:7::/64"))),
            cluster_cidrs=tuple(map(ip_network, ("10.244.0.0/16", "fd00::/16"))),
            bridge="edge0",
            mtu_bytes=1400,
            overlay_bytes=70,
            rest_s=0.0,
            allow_forward=True,
            port_security="on",
            pod_extra_addresses=(ip_network("10.244.7.200/29"), ip_network("fd00:99::/64")),
            pod_extra_macs=("00:00:5e:00:01",),
        ),
        peers=PeerSettings(
            port=7000,
            links=("eth*",),
            endpoints=(
                (ip_address("203.0.113.9"), 51820),
                (ip_address("2001:db8::9"), 51820),
            ),
            nat_timeout_s=12,
            port_mapping=False,
        ),
        source=SourceSettings(
            source="kubernetes",
            kubeconfig=Path("/k/config"),
            context="edge",
            server="http://127.0.0.1:10261",
            join_token_file=Path("/k/join"),
            token_file=Path("/k/token"),
            ca_file=Path("/k/ca.crt"),
        ),
        services=ServiceSettings(
            mode="on",
            backend="auto",
            near_first=False,
            cgroup=Path("/sys/fs/cgroup/unified"),
            node_port_addresses=(ip_network("192.0.2.0/24"),),
        ),
        policies=PolicySettings(mode="on"),
        tunnel=TunnelSettings(
            ifname="tun7", port=51820, program="/opt/wireguard-go", ipsec_program="/opt/charon"
        ),
        relay=RelaySettings(
            ports=(30000, 30099),
            tls_listen=(("203.0.113.9", 8443),),
            pairs_per_node=7,
            bytes_per_s=1000000,
        ),
        dns=DnsSettings(
            dns="on",
            listen=(ip_address("169.254.20.11"),),
            domain="edge.example",
            upstreams=(
                (ip_address("192.0.2.53"), 53),
                (ip_address("2001:db8::53"), 5353),
            ),
            resolv_conf=Path("/etc/resolv.upstream"),
            stale_s=60.0,
            in_results=True,
            metrics_listen=(("127.0.0.1", 9474),),
        ),
        resync_s=12.5,
        metrics_listen=(("127.0.0.1", 9471), ("::1", 9471)),
        log_level="debug",
    )
    assert len(EVERYTHING.splitlines()) == len(list(configuration_keys(Settings)))


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.touch()

    assert load_settings(file) == Settings()


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.toml: there is no such file"):
        load_settings(tmp_path / "agent.toml")


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load_settings(tmp_path)


BAD: list[tuple[str, Any]] = [
    ("dns_listen", []),
    ("dns_listen", ["fe80::1"]),
    ("dns_listen", ["127.0.0.1"]),
    ("dns_domain", "a..b"),
    ("dns_upstreams", ["ns.example.com"]),
    ("nat_timeout_s", 3),
    ("nat_timeout_s", 31),
    ("segments", "10.244.7.0/24"),
    ("segments", [7]),
    ("segments", ["10.244.7.0"]),
    ("segments", ["10.244.7.0/31"]),
    ("segments", ["10.244.7.5/24"]),
    ("segments", ["10.244.7.0/33"]),
    ("segments", ["fd00::/127"]),
    ("segments", ["nonsense"]),
    ("segments", [""]),
    ("segments", {"a": 1}),
    ("segments", ["127.0.0.0/24"]),
    ("segments", ["224.0.0.0/24"]),
    ("segments", ["fe80::/64"]),
    ("segments", ["::ffff:10.0.0.0/120"]),
    ("segments", ["ff02::/64"]),
    ("cluster_cidrs", "10.0.0.0/8"),
    ("cluster_cidrs", ["10.0.0.0/99"]),
    ("cluster_cidrs", [True]),
    ("bridge", ""),
    ("bridge", "a" * 16),
    ("bridge", "é" * 8),
    ("bridge", "a b"),
    ("bridge", "a/b"),
    ("bridge", "a\0b"),
    ("bridge", "br%d"),
    ("bridge", ".."),
    ("bridge", 5),
    ("bridge", ["br0"]),
    ("mtu_bytes", 575),
    ("mtu_bytes", 65536),
    ("mtu_bytes", "1500"),
    ("mtu_bytes", 1500.0),
    ("mtu_bytes", True),
    ("overlay_bytes", -1),
    ("overlay_bytes", 201),
    ("data_dir", "relative"),
    ("data_dir", ""),
    ("data_dir", 5),
    ("state_dir", ["/x"]),
    ("run_dir", "~/run"),
    ("socket", "agent.sock"),
    ("rest_s", -1),
    ("rest_s", "30"),
    ("rest_s", float("nan")),
    ("rest_s", float("inf")),
    ("rest_s", True),
    ("resync_s", 10**9),
    ("resync_s", 0),
    ("allow_forward", 1),
    ("allow_forward", "yes"),
    ("metrics_listen", 9471),
    ("metrics_listen", [9471]),
    ("metrics_listen", ["9471"]),
    ("metrics_listen", ["localhost:9471"]),
    ("metrics_listen", ["127.0.0.1:70000"]),
    ("metrics_listen", ["127.0.0.1:"]),
    ("tunnel_endpoints", ["203.0.113.9"]),
    ("tunnel_endpoints", ["127.0.0.1:51820"]),
    ("tunnel_endpoints", ["9471"]),
    ("tunnel_endpoints", ["203.0.113.9:51820", "203.0.113.9:51820"]),
    ("relay_ports", [21000]),
    ("relay_ports", [22000, 21000]),
    ("relay_ports", [80, 90]),
    ("relay_ports", "21000-22999"),
    ("tunnel_program", ""),
    ("ipsec_program", ""),
    ("peer_port", 0),
    ("peer_port", "7471"),
    ("underlay_links", "eth0"),
    ("underlay_links", [""]),
    ("log_level", "verbose"),
    ("log_level", 5),
    ("log_level", ["info"]),
]


@pytest.mark.parametrize(("key", "value"), BAD, ids=[f"{key}={value!r}" for key, value in BAD])
def test_a_bad_value_is_named_with_its_field_and_file(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as failure:
        parse_settings({key: value}, "/etc/limpet/agent.toml")

    text = str(failure.value)
    assert text.startswith("read configuration /etc/limpet/agent.toml: ")
    assert f"{key} = {value!r}: " in text
    assert "\n" not in text


@pytest.mark.parametrize("key", ["services", "policies", "dns"])
def test_words_that_a_setting_takes_are_named_also_where_it_may_be_unset(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} = True: not one of off, on$"):
        parse_settings({key: True, "source": "kubernetes"}, "a.toml")


def test_of_an_unknown_key_the_nearest_is_named_and_where_none_is_near_all_are() -> None:
    with pytest.raises(
        ConfigError, match=r"agent\.toml: unknown key 'segment' \(did you mean segments\?\)"
    ):
        parse_settings({"segment": [], "bridge": "br0"}, "/etc/limpet/agent.toml")
    with pytest.raises(ConfigError, match=r"unknown key 'zzz' \(known: .*, segments, "):
        parse_settings({"zzz": 1}, "/etc/limpet/agent.toml")


@pytest.mark.parametrize(
    "segments",
    [
        ["10.244.7.0/24", "10.244.7.0/24"],
        ["10.244.0.0/16", "fd00::/64", "10.244.7.0/24"],
        ["fd00:7::/64", "fd00::/16"],
    ],
)
def test_segments_that_overlap_are_both_named(segments: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"a\.toml: segments = .*: .* overlaps ") as failure:
        parse_settings({"segments": segments}, "a.toml")

    assert sum(segment in str(failure.value) for segment in segments) >= len(set(segments)) - 1


def test_a_node_that_attaches_no_pods_has_no_segments() -> None:
    assert parse_settings({"cni": False}, "a.toml") == Settings(pods=PodSettings(cni=False))
    with pytest.raises(
        ConfigError, match=r"a\.toml: cni = false, and segments = \['10\.9\.0\.0/24'\]"
    ):
        parse_settings({"cni": False, "segments": ["10.9.0.0/24"]}, "a.toml")


@pytest.mark.parametrize(
    "content",
    [
        b"bridge = ",
        b"= 5",
        b"\xff\xfe",
        b'bridge = "a"\nbridge = "b"',
        b"[bridge",
        b"\0",
        b"a" * 99,
    ],
)
def test_what_is_no_toml_is_said_with_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=r"parse configuration /.*/agent\.toml: ."):
        load_settings(file)


values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(list(configuration_keys(Settings))), values))
def test_any_document_gives_settings_or_a_config_error(document: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert isinstance(parse_settings(document, "a.toml"), Settings)


# What the settings mean.


@pytest.mark.parametrize(
    ("segment", "gateway", "end"),
    [
        ("10.244.7.0/24", "10.244.7.1", "10.244.7.254"),
        ("10.244.7.0/30", "10.244.7.1", "10.244.7.2"),
        ("fd00:7::/64", "fd00:7::1", "fd00:7::ffff:ffff:ffff:ffff"),
        ("fd00:7::/126", "fd00:7::1", "fd00:7::3"),
    ],
)
def test_a_segment_gives_all_but_its_network_and_broadcast_address(
    segment: str, gateway: str, end: str
) -> None:
    found = segment_range(ip_network(segment))

    assert (str(found.gateway), str(found.range_start), str(found.range_end)) == (
        gateway,
        gateway,
        end,
    )


def test_segments_of_one_family_are_one_range_set() -> None:
    prefixes = tuple(map(ip_network, ("10.1.0.0/24", "fd00:1::/64", "10.2.0.0/24")))

    four, six = segment_range_sets(prefixes)

    assert [str(each.subnet) for each in four] == ["10.1.0.0/24", "10.2.0.0/24"]
    assert [str(each.subnet) for each in six] == ["fd00:1::/64"]
    assert segment_range_sets(prefixes[:1]) == (four[:1],)
    assert segment_range_sets(()) == ()
