"""What nodes sign of themselves is taken only if it is what it means."""

from __future__ import annotations

from typing import Any

import pytest

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
