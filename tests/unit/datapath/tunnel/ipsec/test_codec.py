"""What the IKE daemon is told and says."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.ownership import TUNNEL_MARK
from limpet.cluster.keys import public_key_of, uid_of
from limpet.datapath.tunnel.ipsec.codec import (
    connection,
    connection_name,
    daemon_settings,
    parse_connections,
    parse_name,
    parse_sas,
    parse_version,
)
from limpet.datapath.tunnel.ipsec.state import IPSEC_IF_ID, ChildSa, IkeSa, IpsecPeer
from limpet.datapath.tunnel.key import tunnel_public_key

KEY = public_key_of(bytes(range(32)))
TUNNEL_KEY = tunnel_public_key(KEY)
V4, V6 = ip_network("10.0.1.0/24"), ip_network("fd00::/64")


@given(st.binary(min_size=32, max_size=32), st.integers(0, 10**9 - 1))
def test_a_connections_name_tells_the_peer_and_the_generation(key: bytes, generation: int) -> None:
    assert parse_name(connection_name(key, generation)) == (key, generation)


@given(st.text())
def test_names_of_others_are_no_error(name: str) -> None:
    assert parse_name(name) is None


def test_a_connection_names_the_peers_prefixes_and_leaves_this_ends_to_the_peer() -> None:
    peer = IpsecPeer(TUNNEL_KEY, KEY, frozenset({V4, V6}), (ip_address("2001:db8::1"), 29001), 2)

    (conn,) = connection(peer, own_uid="mine", port=25000, more=[V4]).values()

    assert conn["remote_addrs"] == ["2001:db8::1", "%any"]
    assert (conn["local_port"], conn["remote_port"]) == ("25000", "29001")
    assert conn["local"]["id"] == "fqdn:mine"
    assert (conn["remote"]["auth"], conn["remote"]["id"]) == ("pubkey", f"fqdn:{uid_of(KEY)}")
    (pinned,) = map(load_der_public_key, conn["remote"]["pubkeys"])
    assert isinstance(pinned, Ed25519PublicKey)
    assert pinned.public_bytes_raw() == KEY
    whole, more = conn["children"]["all"], conn["children"]["more"]
    assert whole["remote_ts"] == ["10.0.1.0/24", "fd00::/64"]
    assert more["remote_ts"] == ["10.0.1.0/24"]
    assert whole["local_ts"] == more["local_ts"] == ["0.0.0.0/0", "::/0"]


def test_where_the_kernel_makes_esp_every_child_is_of_its_interface_and_marks_its_packets() -> None:
    peer = IpsecPeer(TUNNEL_KEY, KEY, frozenset({V4}))

    (conn,) = connection(peer, own_uid="mine", port=1, more=[V4], in_kernel=True).values()

    for child in conn["children"].values():
        assert child["if_id_in"] == child["if_id_out"] == str(IPSEC_IF_ID)
        assert child["set_mark_out"] == str(TUNNEL_MARK)
    (conn,) = connection(peer, own_uid="mine", port=1, more=[V4]).values()
    assert not any("if_id_in" in child for child in conn["children"].values())


def test_connections_of_two_generations_are_never_equal_to_the_daemon() -> None:
    peers = [IpsecPeer(TUNNEL_KEY, KEY, frozenset({V4}), None, number) for number in (0, 1, 2)]
    conns = [connection(peer, own_uid="own", port=1) for peer in peers]
    assert len({str([*conn.values()]) for conn in conns}) == 3


def test_a_peer_without_an_endpoint_may_come_from_anywhere() -> None:
    (conn,) = connection(IpsecPeer(TUNNEL_KEY, KEY), own_uid="own", port=1).values()
    assert conn["remote_addrs"] == ["%any"]
    assert "remote_port" not in conn


def sa(**changes: Any) -> dict[str, Any]:
    """As the daemon says it."""
    return {
        connection_name(KEY, 3): {
            "uniqueid": b"7",
            "version": b"2",
            "state": b"ESTABLISHED",
            "remote-host": b"192.0.2.1",
            "remote-port": b"29615",
            "initiator": b"yes",
            "initiator-spi": b"a1b2",
            "established": b"12",
            "child-sas": {
                "all-1": {
                    "uniqueid": b"1",
                    "state": b"INSTALLED",
                    "bytes-in": b"10",
                    "bytes-out": b"20",
                    "local-ts": [b"10.0.2.0/24"],
                    "remote-ts": [b"10.0.1.0/24", b"fd00::/64"],
                },
                "all-2": {"uniqueid": b"2", "state": b"DELETED"},
            },
            **changes,
        }
    }


def test_an_sa_is_read_with_the_children_that_carry_packets() -> None:
    mine = frozenset({ip_network("10.0.2.0/24")})
    child = ChildSa(1, mine, frozenset({V4, V6}), 10, 20)
    endpoint = ip_address("192.0.2.1"), 29615
    assert parse_sas([sa(), {"home": {}}]) == [
        IkeSa(7, TUNNEL_KEY, 3, True, True, endpoint, "a1b2", 12, (child,))
    ]


@pytest.mark.parametrize(
    ("state", "established"),
    [(b"CONNECTING", [False]), (b"REKEYING", [True]), (b"DELETING", []), (b"REKEYED", [])],
)
def test_an_sa_that_is_going_counts_for_nothing(state: bytes, established: list[bool]) -> None:
    assert [each.established for each in parse_sas([sa(state=state)])] == established


def test_an_sa_that_is_being_made_may_know_no_address() -> None:
    (found,) = parse_sas([sa(**{"state": b"CONNECTING", "remote-host": b"%any"})])
    assert found.remote[0].is_unspecified


@pytest.mark.parametrize(
    "changes", [{"uniqueid": b"x"}, {"remote-host": b"nowhere"}, {"established": b""}]
)
def test_what_makes_no_sense_is_a_value_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_sas([sa(**changes)])


def test_connections_are_read_with_the_peers_identity_and_prefixes() -> None:
    listed = {
        connection_name(KEY, 4): {
            "children": {"all": {"remote-ts": [b"10.0.1.0/24"]}},
        },
        "somebody-elses": {},
    }
    assert parse_connections([listed]) == [IpsecPeer(TUNNEL_KEY, KEY, frozenset({V4}), None, 4)]


@pytest.mark.parametrize(
    ("text", "version"), [(b"5.9.8", (5, 9, 8)), (b"6.0.0rc1", (6, 0, 0)), (b"5.9", (5, 9))]
)
def test_versions_are_compared_by_numbers(text: bytes, version: tuple[int, ...]) -> None:
    assert parse_version({"version": text}) == version


def test_a_daemon_without_a_version_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no version"):
        parse_version({"daemon": b"charon"})


def test_the_daemons_settings_keep_its_packets_and_its_routes_out_of_ours() -> None:
    text = daemon_settings("/run/x", port=25000, mark=0x1000, bridge="br7")
    for line in (
        "port_nat_t = 25000",
        "socket = unix:///run/x/vici.sock",
        "fwmark = 0x1000",
        "fwmark = !0x1000",
        "spi_min = 0xc0000000",
        "interfaces_ignore = br7, ipsec0",
    ):
        assert f"{line}\n" in text


DOCUMENTS = st.recursive(
    st.binary(max_size=8) | st.sampled_from([b"ESTABLISHED", b"10.0.0.0/24", b"7"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["state", "uniqueid", "child-sas", "local-ts", "remote-host", "children", "all"]
            )
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(DOCUMENTS)
def test_whatever_the_daemon_says_is_read_or_a_value_error(document: Any) -> None:
    event = {connection_name(KEY, 0): document}
    for parse in (parse_sas, parse_connections):
        with suppress(ValueError):
            parse([event])
    with suppress(ValueError):
        parse_version({"version": document})
