"""What nodes sign of themselves is taken only if it is what it means."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.cluster.documents import Kind
from limpet.cluster.kinds import ABSENCE, PODS, PRESENCE, fields

_SAID: dict[str, Any] = {
    "uid": "a",
    "sequence": 1,
    "boot_id": "b",
    "addresses": ["10.0.0.1"],
    "endpoints": [["8.8.8.8", 7472]],
    "port": 7471,
    "vtep_macs": {"4": "02:00:00:00:00:01"},
    "tunnel_port": 0,
    "relay_tls_port": 0,
    "link_mtu_bytes": 1500,
}
_POD = {"namespace": "default", "name": "web", "addresses": ["10.0.0.1"], "labels": {}}


def pods(**changes: Any) -> dict[str, Any]:
    return {"uid": "a", "part": 0, "sequence": 1, "pods": [{**_POD, **changes}]}


@pytest.mark.parametrize("key", ["5", "", "04", "٤", "4 ", "x" * 500])
def test_a_map_by_ip_version_has_no_other_keys(key: str) -> None:
    with pytest.raises(ValueError, match="IP version") as caught:
        PRESENCE.parse({**_SAID, "vtep_macs": {key: "02:00:00:00:00:01"}})
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("text", ["fe80::1%eth0", "fe80::1%" + "x" * 5_000, "1" * 5_000, 7, None])
@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (PRESENCE, lambda text: {**_SAID, "addresses": [text]}),
        (PRESENCE, lambda text: {**_SAID, "endpoints": [[text, 1]]}),
        (ABSENCE, lambda text: {"uid": "a", "sequence": 1, "addresses": [text]}),
        (PODS, lambda text: pods(addresses=[text])),
    ],
)
def test_an_address_has_no_zone_and_no_length_of_its_own(
    kind: Kind[Any], made: Any, text: object
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - what it says is its length
        kind.parse(made(text))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["fe80::1%eth0", "fe80::1%eth0/128", "fe80::1%\x1b[2J/128", 7])
def test_a_prefix_has_no_zone(text: object) -> None:
    with pytest.raises(ValueError, match=r"no prefix|no text") as caught:
        fields.prefixes([text])
    assert len(str(caught.value)) < 200


def test_what_is_as_it_should_be_is_read() -> None:
    assert PRESENCE.parse(dict(_SAID)).vtep_macs == {4: "02:00:00:00:00:01"}
    assert ABSENCE.parse({"uid": "a", "sequence": 1, "addresses": ["FD00::0:1"]}).addresses == (
        "fd00::1",
    )
    assert PODS.parse(pods()).pods[0].name == "web"


_groups = st.sampled_from(["0", "00", "1", "01", "255", "256", "0db8", "FFFF", "12345", "g", ""])
_texts = (
    st.ip_addresses().map(str)
    | st.integers(0, 2**48 - 1).map(lambda n: str(IPv6Address(n)))
    | st.lists(_groups, max_size=9).map(":".join)
    | st.lists(_groups, max_size=5).map(".".join)
    | st.text(st.characters(exclude_characters="%"), max_size=12)
)
_lengths = st.integers(0, 130).map(str) | st.sampled_from(
    ["", "08", "+8", " 8", "1_6", "8/8", "\u0668", "255.0.0.0", "0.255.255.255", "9" * 5_000]
)


def what_it_is(read: Callable[[str], object], text: str) -> object:
    try:
        return read(text)
    except ValueError:
        return None


@given(_texts)
@example("::ffff:1.2.3.4")
@example("::1.2.3.4")
@example("::1:0")
@example("::ffff:0:0")
@example("1:2:3:4:5:6:7::")
@example("1.2.3.4\0")
def test_an_address_is_read_and_written_as_python_does(text: str) -> None:
    wanted = what_it_is(ip_address, text)
    assert what_it_is(fields.address, text) == wanted
    assert what_it_is(fields.address_text, text) == (None if wanted is None else str(wanted))


@given(_texts, st.none() | _lengths)
@example("10.0.0.0", "8")
@example("10.0.0.1", "8")
def test_a_prefix_is_read_as_python_does(text: str, length: str | None) -> None:
    said = text if length is None else f"{text}/{length}"
    wanted = what_it_is(ip_network, said)
    assert what_it_is(lambda each: fields.prefixes([each])[0], said) == wanted
