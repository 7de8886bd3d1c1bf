"""Names and contents of host-local's folder, ours and those that others leave."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.base.addresses import Address
from limpet.ipam.hostlocal import (
    BindingName,
    MarkName,
    OwnName,
    ReservationName,
    binding_name,
    encode_binding,
    encode_files,
    encode_holder,
    mark_name,
    parse_binding,
    parse_holder,
    parse_name,
)
from limpet.ipam.leases import Binding, Entry, Holder, PodKey

V4 = IPv4Address("10.244.7.5")
addresses = st.ip_addresses()
names = st.text(alphabet="abcxyz019-.", min_size=1, max_size=63)
odd_names = st.text(max_size=300)
holders = st.builds(
    Holder, st.text("0123456789abcdef", min_size=1, max_size=64), st.sampled_from(["eth0", "net1"])
)


def bindings(part: st.SearchStrategy[str]) -> st.SearchStrategy[Binding]:
    keys = st.builds(PodKey, part, part, st.sampled_from(["eth0", "net1", ""]))
    named = keys.filter(lambda key: key.namespace + key.pod != "")
    return st.builds(Binding, named, st.integers(0, 2**62), st.sampled_from(["", "c0ffee"]))


@given(addresses)
def test_a_reservation_is_named_by_its_address_alone(address: Address) -> None:
    assert parse_name(str(address)) == ReservationName(address)


@given(addresses, bindings(names))
def test_a_plain_binding_is_named_as_the_patched_host_local_names_it(
    address: Address, binding: Binding
) -> None:
    key = binding.key
    name = binding_name(address, binding)
    assert name == f"{address}_{key.namespace}_{key.pod}"
    assert parse_name(name) == BindingName(address, key.namespace, key.pod)


@given(addresses, bindings(odd_names))
@example(V4, Binding(PodKey("a_b", "c", "eth0"), 1))
@example(V4, Binding(PodKey("", "my_pod", "eth0"), 1))
@example(V4, Binding(PodKey("ns", "", "eth0"), 1))
@example(V4, Binding(PodKey("..", "../../etc/passwd", "eth0"), 1))
@example(V4, Binding(PodKey("n", "p" * 300, "eth0"), 1))
@example(V4, Binding(PodKey("\ud800", "p\0", "eth0"), 1))
def test_any_binding_comes_back_from_a_single_safe_file_name(
    address: Address, binding: Binding
) -> None:
    name = binding_name(address, binding)
    assert "/" not in name
    assert name.isascii()
    assert name.isprintable()
    assert len(name) <= 255
    parsed = parse_name(name)
    assert isinstance(parsed, BindingName)
    assert parse_binding(parsed, encode_binding("net", address, binding), "net") == (binding, "")


def test_a_namespace_and_a_pod_joined_by_a_dash_are_kept_joined() -> None:
    parsed = parse_name("10.244.7.5-kube-system-dns-1")
    assert parsed == BindingName(V4, pod="kube-system-dns-1", joined=True)
    binding = Binding(PodKey("", "kube-system-dns-1", ""), 0, "", joined=True)
    assert parse_binding(parsed, b"", "net") == (binding, "")
    assert binding_name(V4, binding) == "10.244.7.5-kube-system-dns-1"


@given(holders)
def test_a_holder_is_written_as_host_local_writes_it(holder: Holder) -> None:
    content = encode_holder(holder)
    assert content == f"{holder.container_id}\r\n{holder.ifname}".encode()
    assert parse_holder(content) == holder


@pytest.mark.parametrize("content", [b"c0ffee", b"c0ffee\n", b"c0ffee\r\n", b"  c0ffee \n"])
def test_an_older_reservation_has_a_container_id_alone(content: bytes) -> None:
    assert parse_holder(content) == Holder("c0ffee", "")


@pytest.mark.parametrize("content", [b"", b"\r\n", b"\0" * 64, b"\xff\xfe", b"c0\x07ffee"])
def test_a_reservation_that_names_nobody_says_so(content: bytes) -> None:
    assert parse_holder(content) is None


@given(st.integers(0, 10**9 - 1))
def test_a_mark_is_named_by_its_range_set(index: int) -> None:
    assert parse_name(mark_name(index)) == MarkName(index)


@pytest.mark.parametrize("name", ["lock", "limpet.journal", "limpet.journal.new"])
def test_the_lock_and_the_journal_are_no_addresses(name: str) -> None:
    assert parse_name(name) == OwnName()


def test_a_kept_copy_of_a_damaged_journal_is_known_by_its_number() -> None:
    assert parse_name("limpet.journal.damaged-12") == OwnName(copy=12)


@pytest.mark.parametrize(
    "name",
    [
        "README",
        ".10.244.7.5.swp",
        "10.244.7.5~",
        "10.244.7.5.bak",
        "10.244.7.005",
        "10.244.7",
        "167772165",
        "FD00::5",
        "fd00:0::5",
        "fd00::5%eth0",
        "10.244.7.5_",
        "10.244.7.5__",
        "10.244.7.5-",
        "10.244.7.5_pod",
        "last_reserved_ip.",
        "last_reserved_ip.00",
        "last_reserved_ip.x",
        "last_reserved_ip.²",
        "limpet.journal.damaged-",
        "limpet.journald",
    ],
)
def test_anything_else_is_foreign(name: str) -> None:
    assert parse_name(name) is None


@given(st.text())
def test_any_name_is_something_or_foreign(name: str) -> None:
    parse_name(name)


@given(st.binary())
def test_any_content_gives_a_binding_by_its_name_at_least(content: bytes) -> None:
    binding, problem = parse_binding(BindingName(V4, "ns", "pod"), content, "net")
    assert binding is not None
    assert (binding.key.namespace, binding.key.pod) == ("ns", "pod")
    assert bool(problem) == bool(content.strip())


def content_of(**changes: object) -> bytes:
    binding = Binding(PodKey("ns", "pod", "eth0"), 7, "c0ffee")
    return json.dumps(json.loads(encode_binding("net", V4, binding)) | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        content_of(pod="other"),
        content_of(namespace="other"),
        content_of(family=6),
        content_of(order=-1),
        content_of(order=2**70),
        content_of(order=True),
        content_of(order="7"),
        content_of(ifname=None),
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b"\0\0\0\0",
    ],
)
def test_a_content_that_cannot_be_true_counts_as_empty(content: bytes) -> None:
    binding, problem = parse_binding(BindingName(V4, "ns", "pod"), content, "net")
    assert binding == Binding(PodKey("ns", "pod", ""), 0)
    assert problem


def test_a_binding_made_for_another_network_counts_and_is_reported() -> None:
    binding, problem = parse_binding(BindingName(V4, "ns", "pod"), content_of(), "renamed")
    assert binding == Binding(PodKey("ns", "pod", "eth0"), 7, "c0ffee")
    assert "'net'" in problem


@pytest.mark.parametrize("content", [b"", b"\0", content_of()])
def test_a_hashed_name_without_its_content_names_nobody(content: bytes) -> None:
    binding, problem = parse_binding(BindingName(V4, digest="0" * 64), content, "net")
    assert binding is None
    assert problem


@given(addresses, holders, bindings(odd_names))
def test_the_files_of_an_entry_say_all_of_it(
    address: Address, holder: Holder, binding: Binding
) -> None:
    files = encode_files("net", address, Entry(holder, binding))
    assert len(files) == 2
    for name, content in files.items():
        parsed = parse_name(name)
        if isinstance(parsed, ReservationName):
            assert parse_holder(content) == holder
        else:
            assert isinstance(parsed, BindingName)
            assert parse_binding(parsed, content, "net") == (binding, "")
    assert encode_files("net", address, Entry(None, None)) == {}


def test_both_families_sort_into_files_of_their_own() -> None:
    for text in ("10.0.0.1", "fd00:7::5", "::fffe:102:304"):
        assert parse_name(text) == ReservationName(ip_address(text))
