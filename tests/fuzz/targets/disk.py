"""What is read from the node's own disk, which a power cut, a failing disk or a person may have
changed: addresses of pods, attachments, identity, proven paths, settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from limpet.agent.original_sysctls import SYSCTLS_FILE, encode_originals, read_originals
from limpet.agent.settings import Settings
from limpet.agent.settings import load_settings as load_agent_settings
from limpet.base.addresses import packed, parse_listen
from limpet.base.configuration import read_listens, read_prefixes
from limpet.base.errors import ConfigError, LimpetError, StorageError
from limpet.base.records.codec import NewerRecordError
from limpet.cli.install import runtimes
from limpet.cli.install.files import Manifest
from limpet.cli.install.flannel.aside import load_aside
from limpet.cli.install.flannel.found import read_segments
from limpet.cloud import pod_reports
from limpet.cloud.https import parse_controller
from limpet.cluster.identity import load_identity
from limpet.controller.settings import load_settings as load_controller_settings
from limpet.datapath.node.pod.attachment_codec import decode_attachment, encode_attachment
from limpet.datapath.overlay import vtep
from limpet.ipam import hostlocal
from limpet.ipam.journal_codec import encode_base, encode_change, encode_entries, parse_journal
from limpet.ipam.leases import Binding, Entry, Holder, PodKey, number_of
from limpet.ipam.ledger import read_ledger
from limpet.lab.command import LabError
from limpet.lab.topology import parse_topology
from limpet.linux.netlink.codec import parse_mac
from limpet.paths.proven import read_paths, write_paths
from tests.fuzz.scratch import in_file
from tests.fuzz.target import Shape, fuzzed
from tests.fuzz.targets.documents import FIXTURES
from tests.strategies import attachment

# Addresses of pods


def _entries() -> bytes:
    held = Holder("6f2c0a5b", "eth0")
    binding = Binding(PodKey("shop", "web-0", "eth0"), 7, "6f2c0a5b", joined=False)
    number = number_of(ip_address("10.244.7.5"))
    return encode_entries(
        {number: Entry(held, binding), number + 1: Entry(None, None)}, {0: number}
    )


def _journals() -> Iterator[bytes]:
    yield (FIXTURES / "limpet.journal").read_bytes()
    base, change = encode_base(1, _entries(), 4096), encode_change(2, [_entries()])
    yield base + change + encode_change(3, [_entries(), _entries()])
    yield base + change[:-3] + encode_change(4, [_entries()])
    yield base + (b"LMJc\x01" + (4000).to_bytes(4, "little")) * 300


@fuzzed(seeds=_journals, errors=(NewerRecordError,), most_bytes=16_384)
def address_journal(data: bytes) -> None:
    journal = parse_journal(data)
    assert 0 <= journal.end <= len(data)


_NAMES = (
    *("10.244.7.5", "10.244.7.5_shop_web-0", "10.244.7.5-shop-web-0", "fd00::5_shop_web-0"),
    *("last_reserved_ip.0", "lock", "limpet.journal", "limpet.journal.damaged-3"),
    "10.244.7.6_sha256-" + "0" * 64,
)
_HELD = b"6f2c0a5b\r\neth0"
_BINDING = hostlocal.encode_binding(
    "net", ip_address("10.244.7.5"), Binding(PodKey("shop", "web-0", "eth0"), 7, "6f2c0a5b")
)


@fuzzed(
    seeds=lambda: [
        f"{name}\n".encode() + content for name in _NAMES for content in (_HELD, _BINDING, b"")
    ],
    shape=Shape.TEXT,
)
def host_locals_file(data: bytes) -> None:
    """A name, and what the file holds."""
    name, _, content = data.partition(b"\n")
    found = hostlocal.parse_name(name.decode(errors="surrogateescape"))
    hostlocal.parse_holder(content)
    hostlocal.parse_address(content.decode("ascii", "replace"))
    if isinstance(found, hostlocal.BindingName):
        binding, _problem = hostlocal.parse_binding(found, content, "net")
        if binding is not None:
            again = hostlocal.encode_binding("net", found.address, binding)
            name_again = hostlocal.parse_name(hostlocal.binding_name(found.address, binding))
            assert isinstance(name_again, hostlocal.BindingName)
            assert hostlocal.parse_binding(name_again, again, "net")[0] == binding


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="fuzz-disk-")


@fuzzed(
    seeds=lambda: ["\n".join(_NAMES).encode(), b"10.244.7.5_a_b\n10.244.7.5_a_c\n10.244.7.5-a-b"],
    errors=(StorageError,),
    shape=Shape.TEXT,
    most_bytes=1024,
)
def folder_of_addresses(data: bytes) -> None:
    """As another program, or several, left it: names that are no file names are left out."""
    path = Path(_folder().name) / "addresses"
    path.mkdir(exist_ok=True)
    for each in path.iterdir():
        each.unlink()
    for number, name in enumerate(data.split(b"\n")):
        content = (_HELD, _BINDING, b"", data)[number % 4]
        with suppress(OSError, ValueError):
            (path / name.decode(errors="surrogateescape")).write_bytes(content)
    read_ledger(path)


# What the agent keeps


def _attachments() -> Iterator[bytes]:
    yield encode_attachment(attachment("web-0", "10.244.7.5/24", "fd00:7::5/64"))
    yield encode_attachment(attachment("db"))


@fuzzed(seeds=_attachments, errors=(ValueError,), shape=Shape.JSON)
def kept_attachment(data: bytes) -> None:
    found = decode_attachment(data)
    assert decode_attachment(encode_attachment(found)) == found


def _in_folder(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        folder = Path(_folder().name)
        (folder / name).write_bytes(data)
        read(folder)

    return parse


@fuzzed(
    seeds=lambda: [(FIXTURES / "cluster.json").read_bytes()],
    errors=(ConfigError, StorageError),
    shape=Shape.JSON,
)
def identity_of_the_node(data: bytes) -> None:
    (Path(_folder().name) / "node.key").write_bytes(bytes(range(32)))
    _in_folder("cluster.json", load_identity)(data)


@fuzzed(seeds=lambda: [(FIXTURES / "paths.json").read_bytes()], shape=Shape.JSON)
def proven_paths(data: bytes) -> None:
    """What cannot be read counts for nothing."""
    found = read_paths(in_file(data))
    path = Path(_folder().name) / "paths.json"
    write_paths(path, found)
    assert read_paths(path) == found


@fuzzed(seeds=lambda: [(FIXTURES / "reports.json").read_bytes()], shape=Shape.JSON)
def acknowledged_pods(data: bytes) -> None:
    pod_reports._read(in_file(data))


@fuzzed(seeds=lambda: [(FIXTURES / "vtep.json").read_bytes()], shape=Shape.JSON)
def kept_macs_of_devices(data: bytes) -> None:
    vtep._read(in_file(data))


_INSTALLED = {
    "version": 1,
    "files": [
        {"role": "conflist", "path": "/etc/cni/net.d/10-limpet.conflist", "sha256": [], "mode": 420}
    ],
    "folders": ["/opt/cni"],
}


@fuzzed(seeds=lambda: [json.dumps(_INSTALLED).encode()], errors=(StorageError,), shape=Shape.JSON)
def record_of_an_installation(data: bytes) -> None:
    _in_folder("installed.json", Manifest.load)(data)


@fuzzed(
    seeds=lambda: [encode_originals({"net/ipv4/ip_forward": "0"})],
    errors=(StorageError,),
    shape=Shape.JSON,
)
def settings_of_the_kernel_as_they_were(data: bytes) -> None:
    _in_folder(SYSCTLS_FILE, lambda folder: read_originals(folder / SYSCTLS_FILE))(data)


_ASIDE = {
    "version": 1,
    "files": [{"path": "/etc/cni/net.d/10-flannel.conflist", "mode": 420, "content": "e30="}],
    "devices": [
        {
            "ifname": "flannel.1",
            "version": 4,
            "vni": 1,
            "port": 8472,
            "mac": "ae:0f:33:10:20:30",
            "mtu_bytes": 1450,
            "addresses": ["10.244.1.0/32"],
            "routes": [["10.244.2.0/24", "10.244.2.0"]],
        }
    ],
    "rules": {"name": "text"},
}


@fuzzed(seeds=lambda: [json.dumps(_ASIDE).encode()], errors=(StorageError,), shape=Shape.JSON)
def record_of_flannel(data: bytes) -> None:
    _in_folder("flannel.json", load_aside)(data)


_SUBNET_ENV = b"""\
FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_IPV6_NETWORK=fd00::/48
FLANNEL_IPV6_SUBNET=fd00:0:0:1::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
"""


@fuzzed(seeds=lambda: [_SUBNET_ENV], shape=Shape.TEXT)
def subnet_file_of_flannel(data: bytes) -> None:
    list(read_segments(in_file(data)))


# What a person wrote

_AGENT_TOML = b"""\
segments = ["10.244.7.0/24", "fd00:7::/64"]
cluster_cidrs = ["10.244.0.0/16"]
bridge = "limpet0"
mtu_bytes = 1400
state_dir = "/var/lib/limpet"
socket = "/run/limpet/agent.sock"
rest_s = 30
resync_s = 60.5
allow_forward = true
underlay_links = ["eth*"]
source = "controller"
log_level = "info"
dns_listen = ["169.254.20.10"]
dns_upstreams = ["192.0.2.1", "[2001:db8::1]:53"]
"""
_CONTROLLER_TOML = b"""\
listen = ["0.0.0.0:7470", "[::]:7470"]
advertise = ["192.0.2.254:7470"]
state_dir = "/var/lib/limpet-controller"
pod_cidrs = ["10.244.0.0/16", "fd00:244::/48"]
segment_length_v4 = 24
"""


@fuzzed(seeds=lambda: [_AGENT_TOML], errors=(ConfigError,), shape=Shape.TEXT)
def settings_of_the_agent(data: bytes) -> None:
    assert isinstance(load_agent_settings(in_file(data)), Settings)


@fuzzed(
    seeds=lambda: [_CONTROLLER_TOML],
    errors=(ConfigError,),
    shape=Shape.TEXT,
)
def settings_of_the_controller(data: bytes) -> None:
    load_controller_settings(in_file(data))


def _topologies() -> Iterator[bytes]:
    for name in ("demo", "filtering-switch"):
        yield (resources.files("limpet.lab") / "topologies" / f"{name}.toml").read_bytes()


@fuzzed(seeds=_topologies, errors=(LabError,), shape=Shape.TEXT, most_bytes=8192)
def topology_of_a_lab(data: bytes) -> None:
    parse_topology(data.decode(errors="replace"), "lab", "lab.toml")


_CONTAINERD = b"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"
"""


@fuzzed(seeds=lambda: [_CONTAINERD], shape=Shape.TEXT)
def settings_of_a_runtime(data: bytes) -> None:
    """Of another program: what is wrong with it is a word in a finding."""
    runtimes.read_toml(in_file(data))


@fuzzed(
    seeds=lambda: [b"192.0.2.1", b"192.0.2.1:7470", b"[2001:db8::1]:7470", b"controller.example"],
    errors=(LimpetError,),
    shape=Shape.TEXT,
    most_bytes=300,
)
def address_of_a_controller(data: bytes) -> None:
    host, port = parse_controller(data.decode(errors="surrogateescape"))
    assert host
    assert 0 < port < 65536


@fuzzed(
    seeds=lambda: [b"192.0.2.1:53", b"[fd00::1]:53", b"10.0.0.0/8", b"fd00::/64"],
    errors=(ValueError,),
    shape=Shape.TEXT,
    most_bytes=300,
)
def addresses_in_text(data: bytes) -> None:
    text = data.decode(errors="replace")
    with suppress(ValueError):
        read_prefixes([text])
    with suppress(ValueError):
        packed(text)
    with suppress(ValueError):
        parse_mac(text)
    with suppress(ValueError):
        read_listens(text)
    host, port = parse_listen(text)
    assert parse_listen(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") == (host, port)
